"""JSON from the other end of a connection: one object in UTF-8 without repeated names, and text that can be stored."""

from __future__ import annotations

import json
import re
from typing import Any

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_object(raw: bytes | str, *, whole: bool = True) -> dict[str, Any]:
    """Read a JSON object; with ``whole=False`` other text may follow it.

    Numbers may be infinite or not a number (Python's reading of ``Infinity`` and ``1e999``): whoever uses a number
    checks it.

    Raises:
        ValueError: It is not JSON or not in UTF-8, is nested too deeply to be read, holds an integer of thousands of
            digits, gives two values to one name of an object, or is no object.
    """
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
        value = json.loads(text, object_pairs_hook=_unique) if whole else _BEGINNING.raw_decode(text)[0]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} where an object should be")
    return value


def encodable(text: str) -> str:
    """Return text that any encoding of Unicode can write: lone surrogates, which none can, become U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", text)


def lone_surrogate(value: Any) -> str | None:
    """Return a text within a value that holds half of a surrogate pair, which no encoding can write; or ``None``."""
    if isinstance(value, str):
        return value if _LONE_SURROGATE.search(value) else None
    inside = (*value.keys(), *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((text for entry in inside if (text := lone_surrogate(entry)) is not None), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object names a key twice")
    return value


_BEGINNING = json.JSONDecoder(object_pairs_hook=_unique)
