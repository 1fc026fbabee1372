"""Reading data files: every complaint names the file, the line and the way out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.message import Message, Phrase
from levelhead.tasks.strict_json import lone_surrogate

ORIGINS: Mapping[str, str] = {
    "bbq": "BBQ is at https://github.com/nyu-mll/BBQ, in data/*.jsonl",
    "halueval": "HaluEval is at https://github.com/RUCAIBox/HaluEval, in data/*.json",
    "gsm8k": "GSM8K is at https://github.com/openai/grade-school-math, in grade_school_math/data/train.jsonl",
}
"""Where the public data sets that the shipped recipes name come from, by a word of their usual paths."""

LONGEST_TEXT = 5_000_000
"""Most characters of a text field; a longer one is a file that lost its line breaks, not a question."""
LONGEST_LIST = 300
"""Most characters of the list of fields in an error."""


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object of a data file, and where it stands.

    Attributes:
        path: The file.
        line: Line number, counted from 1 (the position in the list, for a file that is one JSON array).
        values: The object.
        unit: What ``line`` counts: lines, or the rows of a table without lines.
    """

    path: Path
    line: int
    values: Mapping[str, Any]
    unit: str = "line"

    @property
    def where(self) -> str:
        """File and line, to begin an error message with."""
        return f"{self.path}, {self.unit} {self.line}"

    def error(self, message: str) -> InputError:
        """Return (not raise) an error about this row."""
        return InputError(f"{self.where}: {message}")

    def require(self, key: str) -> Any:
        """Return a field that must be there.

        Raises:
            InputError: The row has no such field.
        """
        if key not in self.values:
            have = ", ".join(map(repr, self.values)) or "none"
            raise self.error(f"the field {key!r} is missing; the fields are: {have[:LONGEST_LIST]}")
        return self.values[key]

    def text(self, key: str, *, empty: bool = False) -> str:
        """Return a field that must be text.

        Args:
            key: The field.
            empty: Whether text of nothing but white space is accepted.

        Raises:
            InputError: The field is missing, is no text, or is empty where it must not be.
        """
        value = self.require(key)
        if not isinstance(value, str):
            raise self.error(f"the field {key!r} must be text, not {kind_of(value)}")
        if not empty and not value.strip():
            raise self.error(f"the field {key!r} is empty")
        if len(value) > LONGEST_TEXT:
            raise self.error(f"the field {key!r} holds {len(value):,} characters; at most {LONGEST_TEXT:,} are read")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return a text field that takes one of a few values.

        Raises:
            InputError: The field is missing or holds anything else.
        """
        value = self.text(key)
        if value not in choices:
            raise self.error(f"the field {key!r} must be {' or '.join(choices)}, not {value[:60]!r}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number in ``[low, high]``.

        Raises:
            InputError: The field is missing or holds anything else.
        """
        value = self.require(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"the field {key!r} must be a whole number from {low} to {high}, not {value!r}")
        return value

    def mapping(self, key: str) -> Row:
        """Return a field that is itself an object, as a row at the same place.

        Raises:
            InputError: The field is missing or is no object.
        """
        value = self.require(key)
        if not isinstance(value, dict):
            raise self.error(f"the field {key!r} must be an object, not {kind_of(value)}")
        return Row(self.path, self.line, value, self.unit)

    def texts(self, key: str, *, length: int | None = None) -> list[str]:
        """Return a list of texts.

        Raises:
            InputError: The field is missing, is no list of texts, or has another length than asked for.
        """
        value = self.require(key)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.error(f"the field {key!r} must be a list of texts, not {kind_of(value)}")
        if length is not None and len(value) != length:
            raise self.error(f"the field {key!r} must hold {length} texts, not {len(value)}")
        return list(value)


def find_files(path: str | Sequence[str], suffixes: Sequence[str]) -> list[Path]:
    """Resolve a recipe's ``path``: one file, several, or folders, whose matching files are taken in name order.

    Args:
        path: File or folder, or several of either; ``~`` is expanded.
        suffixes: Endings that a folder's files are chosen by (``[".jsonl"]``); a file named outright may have any.

    Raises:
        InputError: Something named does not exist, a folder holds no matching file, or nothing is named.
    """
    entries = [path] if isinstance(path, str) else list(path)
    if not entries:
        raise InputError("tasks[].path is an empty list; name a data file, or leave path out for built-in items")
    files: list[Path] = []
    for entry in entries:
        place = Path(entry).expanduser()
        if place.is_dir():
            inside = sorted(file for file in place.iterdir() if file.is_file() and file.suffix in suffixes)
            if not inside:
                raise missing_data(entry, f"the folder holds no {' or '.join('*' + s for s in suffixes)} file")
            files += inside
        elif place.is_file():
            files.append(place)
        else:
            raise missing_data(entry, NEITHER)
    return list(dict.fromkeys(files))


NO_FILE = Phrase("no such file", "没有这个文件")
NEITHER = Phrase("no such file or folder", "没有这个文件或文件夹")
_MISSING = Message(
    "{path}: {what} (tasks[].path, seen from {folder})", "{path}：{what}（tasks[].path，相对于 {folder}）"
)
_COPY = Message("{origin}; copy it there, or set path to your copy.", "{origin}；请复制到那里，或改 path。")


def missing_data(path: str | Path, what: str) -> InputError:
    """Return (not raise) an error about data that are not there, with where a well-known data set comes from."""
    message = _MISSING(path=Path(path).expanduser(), what=what, folder=Path.cwd())
    name = str(path).lower()
    origin = next((origin for word, origin in ORIGINS.items() if word in name), None)
    return InputError(message if origin is None else message + "\n" + _COPY(origin=origin))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read a file of text inside.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert the file to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_rows(path: Path) -> list[Row]:
    """Read a file of JSON objects: one a line (blank lines are passed over), or one JSON array of objects.

    Raises:
        InputError: The file is missing, unreadable, not UTF-8 or empty, or a line is not a JSON object.
    """
    with reading(path):
        return rows_of_text(path, path.read_text(encoding="utf-8-sig"), whole=False)


def rows_of_text(path: Path, text: str, *, whole: bool = True) -> list[Row]:
    """Return the JSON objects of a file's text, as :func:`read_rows` does.

    Args:
        path: Where the text comes from.
        text: The text.
        whole: Whether the file may also be one JSON object over several lines, which is then the only row.

    Raises:
        InputError: The text is empty, or no such JSON.
    """
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    if text.lstrip().startswith("["):
        return list(_array(path, text))
    first = text.strip().split("\n", 1)[0].rstrip()
    if whole and first.endswith(("{", ",", "[")) and not _is_json(first):
        return [_row(path, 1, _json(path, text))]
    return list(_lines(path, text))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(path: Path, text: str) -> Iterator[Row]:
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped, and those end no line of a file.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = _reason(error)
            raise InputError(f"{path}, line {number}: not a JSON object ({reason}): {line.strip()[:60]!r}") from error
        yield _row(path, number, value)


def _array(path: Path, text: str) -> Iterator[Row]:
    values = _json(path, text)
    if not values:
        raise InputError(f"{path}: the file holds an empty list")
    for number, value in enumerate(values, start=1):
        yield _row(path, number, value)


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({_reason(error)})") from error


def _row(path: Path, number: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{path}, line {number}: a JSON object is wanted, not {kind_of(value)}")
    check_text(f"{path}, line {number}", value)
    return Row(path, number, value)


def check_text(where: str, value: Any) -> None:
    """Refuse a row with a text that no encoding can write, so that it fails where it is read.

    Raises:
        InputError: A text holds half of a surrogate pair.
    """
    text = lone_surrogate(value)
    if text is not None:
        raise InputError(
            f"{where}: {text[:60]!a} holds half of a surrogate pair, which is no character; write the character whole, "
            "or leave it out"
        )


def _reason(error: Exception) -> str:
    """Why JSON could not be read, in a few words."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"


def kind_of(value: Any) -> str:
    """Return what a JSON value is, in words for an error."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "NaN" if value != value else "a number")  # NaN alone differs from itself
