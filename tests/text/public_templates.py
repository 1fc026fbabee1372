"""Brings public chat templates: ``python tests/text/public_templates.py FOLDER [--page docs/chat-templates.md]``.

They are those that TRL (Apache-2.0, a wheel of 1 MB) and llama-cpp-python (MIT, a source archive of 77 MB that holds
llama.cpp's) publish on the package index; each template is under the licence of its model.  None is kept in this
repository.  With ``--page``, the table of what a codec makes of each is written.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {"trl": ("trl==1.16.0", "binary"), "llama.cpp": ("llama-cpp-python==0.3.36", "source")}


def archive_of(package: str, form: str, folder: Path) -> Path:
    """Download a package without what it needs, and return its archive."""
    kind = ["--no-binary", ":all:"] if form == "source" else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *kind, "--dest", str(folder), package], check=True)
    return next(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))


def templates_in(archive: Path) -> dict[str, bytes]:
    """Return the chat templates of an archive by file name; TRL's variants that mark what is trained are left out."""

    def wanted(name: str) -> bool:
        folder = Path(name).parent.name
        return name.endswith(".jinja") and folder in ("chat_templates", "templates") and "_training" not in name

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {Path(name).name: wheel.read(name) for name in wheel.namelist() if wanted(name)}
    with tarfile.open(archive) as source:
        members = [member for member in source.getmembers() if member.isfile() and wanted(member.name)]
        return {Path(member.name).name: source.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def main() -> None:
    """Bring the templates that are not there yet; write the page if asked."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--page", type=Path)
    options = arguments.parse_args()
    for name, (package, form) in PACKAGES.items():
        folder = options.folder / name
        if not any(folder.glob("*.jinja")):
            with tempfile.TemporaryDirectory() as work:
                found = templates_in(archive_of(package, form, Path(work)))
            folder.mkdir(parents=True, exist_ok=True)
            for file, source in found.items():
                (folder / file).write_bytes(source)
    if options.page:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from text.templates_found import page

        options.page.write_text(page(options.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
