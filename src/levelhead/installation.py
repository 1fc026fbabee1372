"""How Levelhead was installed, so that a message can say how to install more of it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent


def install_command(extra: str, package: Path = PACKAGE) -> str:
    """Return the command that adds an extra (``train``) to this installation.

    Args:
        extra: Name of the extra.
        package: Folder of the package that runs.
    """
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        where = "." if checkout == Path.cwd() else checkout
        return f"pip install -e '{where}[{extra}]'"
    url = _origin()
    return f"pip install 'levelhead[{extra}]{f' @ {url}' if url else ''}'"


def _origin() -> str:
    """Return the URL that the package was installed from; empty for a package index.

    Its form is https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    try:
        text = metadata.distribution("levelhead").read_text("direct_url.json")
        origin: Any = json.loads(text) if text else {}
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    if not isinstance(origin, dict) or not isinstance(origin.get("url"), str):
        return ""
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        return f"{vcs.get('vcs', 'git')}+{origin['url']}@{vcs.get('commit_id', 'HEAD')}"
    return str(origin["url"])
