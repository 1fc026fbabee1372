"""Reading and writing plain files of unknown origin: bounded, regular files alone, strict JSON, errors in one line."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.message import Phrase, chinese

MOST_TEXT = 16 << 20
"""Bytes that a document which is read as a whole may have."""
LONGEST_LINE = 1 << 20
"""Characters of a line beyond which its rest is dropped."""
MOST_DEPTH = 64
"""Lists and mappings within each other in a JSON document."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class DocumentError(ValueError):
    """A document that cannot be read as what it should be; the message is one line.

    Attributes:
        line: Where, counted from 1; ``None`` where that is not known.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(Phrase(*(" ".join(text.split())[:300] for text in (problem, chinese(problem)))))
        self.line = line


def require_regular(path: Path) -> None:
    """Refuse what is no regular file: reading a pipe may wait for ever, and a device may never end.

    Raises:
        InputError: It is a folder, a pipe, a device or a socket, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        kind = kinds.get(stat.S_IFMT(mode), "a socket")
        raise InputError(f"{path}: is {kind} and no regular file; give a file")
    if os.path.realpath(path).startswith(("/proc/", "/sys/")):
        raise InputError(f"{path}: is a file of the system's kernel, which reading may wait on for ever; give a file")


def read_text(path: Path, most: int = MOST_TEXT, errors: str = "replace") -> str:
    """Return the text of a regular file.

    Args:
        path: The file.
        most: Bytes that it may have.
        errors: What to do about undecodable bytes, as ``bytes.decode`` has it.

    Raises:
        FileNotFoundError: There is none.
        InputError: It is no regular file, or too large.
        OSError: It cannot be read.
    """
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(2, "no such file", str(path))
    require_regular(path)
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path}: is larger than {most >> 20} MiB, which is too much for a file of this kind")
    return data.decode("utf-8-sig", errors)


def read_lines(path: Path, longest: int = LONGEST_LINE, most: int | None = None) -> Iterator[str]:
    """Yield the lines of a regular text file, gzipped or not, in bounded memory.

    Args:
        path: The file; gunzipped where its name ends in ``.gz``.
        longest: Characters of a line beyond which its rest is dropped.
        most: Characters in all after which reading ends with an error; no bound unless given.

    Raises:
        FileNotFoundError: There is none.
        InputError: It is no regular file, or holds more than ``most``.
        OSError, EOFError, zlib.error: It cannot be read, or is a damaged archive.
    """
    if not path.exists() and not path.is_symlink():
        raise FileNotFoundError(2, "no such file", str(path))
    require_regular(path)
    seen = 0
    with path.open("rb") as raw:
        packed: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        file = io.TextIOWrapper(packed, encoding="utf-8", errors="replace", newline="\n")
        while line := file.readline(longest):
            yield line
            seen += len(line)
            while line and not line.endswith("\n"):
                line = file.readline(longest)
                seen += len(line)
                if most is not None and seen > most:
                    break
            if most is not None and seen > most:
                raise InputError(f"{path}: holds more than {most >> 20} MiB of text; the rest was not read")


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON on one line, or indented.

    A number that is not finite is written as text (``"nan"``, ``"inf"``, ``"-inf"``), for JSON has no such number; half
    of a surrogate pair is escaped, for UTF-8 has no such character; what JSON does not know is written as its text.
    """
    text = json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, indent=indent, default=str)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {_strict(key) if isinstance(key, float) else key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def load_json(text: str) -> Any:
    """Parse a JSON document of limited depth.

    Raises:
        DocumentError: It is none, or nested too deeply.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"not valid JSON: {error}", getattr(error, "lineno", None)) from None
    if text.count("[") + text.count("{") > MOST_DEPTH and _depth(value) > MOST_DEPTH:
        raise DocumentError("not valid JSON: nested too deeply")
    return value


def _depth(value: Any) -> int:
    """How deep lists and mappings stand in each other; one beyond :data:`MOST_DEPTH` at most."""
    layer, depth, kinds = [value], 0, (dict, list)  # `dict | list` would be built anew for every item
    while layer and depth <= MOST_DEPTH:
        holders = [item for item in layer if isinstance(item, kinds)]
        layer = [inner for item in holders for inner in (item.values() if isinstance(item, dict) else item)]
        depth += bool(holders)
    return depth


def load_own(path: Path) -> Any:
    """Return a YAML file of our own; for one of unknown origin see :mod:`levelhead.documents.yaml_text`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast where PyYAML was built with libyaml
    return yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 - a safe loader
