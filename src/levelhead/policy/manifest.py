"""What a saved folder holds: sizes and SHA-256 sums of its files, so that damage is seen before it is trained on."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from levelhead.errors import InputError

FILE = "manifest.json"
"""Name of the manifest in a folder."""
STATE = "state.json"
"""Name of a checkpoint's state, which every checkpoint has."""

_STEP = re.compile(r"step-\d+")


class DamagedError(InputError):
    """A checkpoint is not what was saved.

    Args:
        folder: The checkpoint.
        name: The damaged file in it.
        how: What is wrong with it.

    Attributes:
        whole: The newest whole checkpoint before it, if there is one.
    """

    def __init__(self, folder: Path, name: str, how: str) -> None:
        self.whole = newest_whole(folder)
        before = f"the newest whole checkpoint before it is {self.whole}" if self.whole else "no whole one is before it"
        super().__init__(f"{folder / name}: damaged: {how}; {before}")


def write(folder: Path) -> None:
    """Write the manifest of a folder whose files are complete.

    Raises:
        OSError: A file cannot be read, or the manifest cannot be written.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != FILE)
    with ThreadPoolExecutor(max_workers=4) as pool:
        sums = list(pool.map(sha256, files))
    entries = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, sums, strict=True)
    }
    (folder / FILE).write_text(json.dumps({"files": entries}, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path, pattern: str = "*") -> tuple[str, str] | None:
    """Return the first damaged file of a folder and what is wrong with it; ``None`` where it is whole.

    A folder without manifest, of before there were any, is only looked at for files that are empty or cut off.

    Args:
        folder: To look at.
        pattern: Names of the files to look at.
    """
    if not (folder / FILE).is_file():
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and fnmatch(path.name, pattern))
        return next(((p.relative_to(folder).as_posix(), how) for p in paths if (how := _cut_off(p))), None)
    try:
        files = json.loads((folder / FILE).read_text(encoding="utf-8"))["files"]
        entries = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return FILE, "it cannot be read"
    wanted = {name: entry for name, entry in entries.items() if fnmatch(Path(name).name, pattern)}
    for name, (size, _) in wanted.items():
        if not (folder / name).is_file():
            return name, "it is missing"
        if (now := (folder / name).stat().st_size) != size:
            return name, f"it has {now} bytes, and {size} were written"
    return _other_contents(folder, {name: digest for name, (_, digest) in wanted.items()})


def check(folder: Path, pattern: str = "*") -> None:
    """Check that a folder is whole.

    Raises:
        DamagedError: It is not; the message names the file, and the newest whole checkpoint before it.
    """
    if fault := damage(folder, pattern):
        raise DamagedError(folder, *fault)


def step_folders(root: Path) -> list[Path]:
    """Step checkpoints in a folder, oldest first; none where there is no folder."""
    folders = root.glob("step-*") if root.is_dir() else ()
    return sorted(path for path in folders if _STEP.fullmatch(path.name) and path.is_dir())


def newest_whole(folder: Path) -> Path | None:
    """Return the newest whole step checkpoint beside a checkpoint that is older than it; ``None`` without one."""
    steps = step_folders(folder.absolute().parent)
    older = [path for path in steps if path.name < folder.name] if _STEP.fullmatch(folder.name) else steps
    whole = (path for path in reversed(older) if (path / STATE).is_file() and damage(path) is None)
    return next((folder.parent / path.name for path in whole), None)


def _other_contents(folder: Path, sums: Mapping[str, str]) -> tuple[str, str] | None:
    """The first file whose contents are not what they were."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        try:
            now = list(pool.map(sha256, (folder / name for name in sums)))
        except OSError as error:
            return Path(str(error.filename)).name, f"it cannot be read ({error.strerror})"
    changed = next((name for name, digest in zip(sums, now, strict=True) if digest != sums[name]), None)
    way_out = f"its contents are not those that were written (if you changed it yourself, delete {FILE})"
    return None if changed is None else (changed, way_out)


def sha256(path: Path) -> str:
    """Return the SHA-256 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cut_off(path: Path) -> str | None:
    """What is visibly wrong with a file of which nothing else is known."""
    try:
        size = path.stat().st_size
        if not size:
            return "it is empty"
        if path.suffix == ".safetensors" and (wanted := _tensor_bytes(path)) != size:
            return f"it has {size} bytes, and its header speaks of {wanted}"
        if path.name == "training.pt" and not zipfile.is_zipfile(path):
            return "it is cut off"
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "it cannot be read"
    return None


def _tensor_bytes(path: Path) -> int:
    """Size of a safetensors file by its own header: 8 bytes of length, the header, the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(min(length, 10**8)))
    ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)
