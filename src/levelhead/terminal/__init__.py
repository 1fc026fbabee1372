"""The one place where text leaves to the terminal, which obeys nothing that a model, a log or a file wrote.

Everything that a command prints goes through :func:`say`, :func:`say_json` or a
:class:`levelhead.terminal.console.SafeConsole`; a test holds the rest of the package to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from levelhead.documents import dump_json

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clearing
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_MARKS = "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_MARKS}\ud800-\udfff]")
_COLOUR = re.compile("[0-9;]*")
_WIDE = 0x2E80
"""Code point beyond which characters are as wide as two letters."""
_WIDTH = 100
"""Columns of text that goes to no terminal."""
_ENDS = "\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f\u201d"
"""Chinese marks that end a clause."""


class Pace:
    """Says when another line is due where no bar moves: so many seconds after the last one."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a line; if so, the seconds begin anew."""
        due = time.monotonic() - self._last >= self._seconds
        self._last = time.monotonic() if due else self._last
        return due


_reserved: list[TextIO] = []
"""Where commands print while stdout is theirs alone; see :func:`own_streams`."""


@contextlib.contextmanager
def own_streams(*, reserve: bool) -> Iterator[None]:
    """Let the standard streams take any text, and keep stdout for what commands print themselves.

    What a stream cannot encode is written as ``?``: a run that has finished does not fail at its last line.

    Args:
        reserve: Send what anything else writes to stdout (a reward's ``print``, a program that it starts) to stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if not reserve:
        yield
        return
    out: TextIO = sys.stdout
    copy = -1
    out.flush()
    if sys.__stdout__ is not None and out is sys.__stdout__:  # programs and libraries write to the descriptor itself
        copy = os.dup(out.fileno())
        os.dup2(sys.stderr.fileno(), out.fileno())
        _reserved.append(os.fdopen(os.dup(copy), "w", encoding=out.encoding, errors="replace"))
    else:
        _reserved.append(out)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        mine = _reserved.pop()
        sys.stdout = out
        if copy >= 0:
            with contextlib.suppress(OSError):  # a reader that has gone away is told of where the text was written
                mine.close()
            os.dup2(copy, out.fileno())
            os.close(copy)


def _stdout() -> TextIO:
    return _reserved[-1] if _reserved else sys.stdout


def safe(text: object) -> str:
    """Return text that is safe to print: no escape sequence and no control character but tabs and line ends.

    Taken out are C0 and C1 controls, DEL, CSI and OSC sequences, marks that turn the direction of writing (they make a
    line read otherwise than it is), and halves of surrogate pairs.
    """
    shown = str(text)
    return shown if shown.isascii() and shown.isprintable() else _CONTROL.sub("", _SEQUENCE.sub("", shown))


def counted(n: float, noun: str) -> str:
    """Return a whole number with its noun, in the singular (``1 warning``) or plural (``0 warnings``)."""
    shown = str(n) if isinstance(n, int) else f"{n:.0f}"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def paint(text: object, colour: str = "") -> str:
    """Return :func:`safe` text in a colour of ours (``"31;1"``); without one, the text alone."""
    return f"\x1b[{colour}m{safe(text)}\x1b[0m" if colour and _COLOUR.fullmatch(colour) else safe(text)


def say(text: object = "", *, error: bool = False, end: str = "\n", colour: str = "") -> None:
    """Print text, made safe first.

    Args:
        text: What to print.
        error: To stderr.
        end: Put behind it.
        colour: Of ours, as ``"31;1"``; lines alone are coloured, never what they quote.
    """
    _write(sys.stderr if error else _stdout(), paint(text, colour) + end)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print one document of strict JSON; control characters in its texts are escaped and so kept."""
    shown = _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", dump_json(value, indent))
    stream = _stdout()
    try:
        shown.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        shown = _escaped(shown)
    _write(stream, shown + "\n")


def _escaped(document: str) -> str:
    """Return a JSON document in ASCII: other characters as the escapes of its strings, in UTF-16."""
    units = ((c, c.encode("utf-16-be").hex()) for c in document)
    return "".join(c if c.isascii() else "".join(f"\\u{u[i : i + 4]}" for i in range(0, len(u), 4)) for c, u in units)


def columns(text: str) -> int:
    """Return the columns that text takes in a terminal: Chinese characters and their punctuation take two each."""
    return sum(2 if ord(character) > _WIDE else 1 for character in text)


def padded(text: str, size: int) -> str:
    """Return text with spaces behind it, so that it takes ``size`` columns; as it is where it takes more."""
    return text + " " * (size - columns(text))


def wrapped(words: str, most: int, indent: int = 0) -> Iterator[str]:
    """Break text at spaces, or anywhere between Chinese characters.

    Args:
        words: One paragraph.
        most: Columns of a line.
        indent: Spaces before the first line; the others get two more.
    """
    pad, line, filled = " " * indent, "", 0
    for piece in _pieces(words):
        size = columns(piece)
        # A mark that ends a clause stands with what it ends.
        if filled + size > most - len(pad) and line and piece not in _ENDS:
            yield pad + line.rstrip()
            line, filled, pad = "", 0, " " * (indent + 2)
            piece = piece.lstrip()
        line += piece
        filled += size
    if line:
        yield pad + line.rstrip()


def _pieces(words: str) -> Iterator[str]:
    piece = ""
    for character in words:
        wide = ord(character) > _WIDE
        if wide and piece:
            yield piece
            piece = ""
        piece += character
        if character == " " or wide:
            yield piece
            piece = ""
    if piece:
        yield piece


def width() -> int:
    """Return the columns that text may take: ``COLUMNS``, else the terminal's; 100 where there is neither.

    At least 40, for narrower tables and paragraphs cannot be read, and at most 1,000.
    """
    return min(max(shutil.get_terminal_size((_WIDTH, 24)).columns, 40), 1000)


def _write(stream: TextIO, text: str) -> None:
    """Write, whatever the stream can encode."""
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding, "replace"))
    stream.flush()
