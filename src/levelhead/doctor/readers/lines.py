"""From bytes to lines in bounded memory, whatever the bytes are; and what stands before a line and is not its own."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator

MAX_LINE = 1 << 20
"""Characters after which a line without an end is cut (at a closing brace where there is one)."""

MOST_EXPANSION = 100
"""Times its size that a compressed log may come to,"""
MOST_UNPACKED = 8 << 20
"""and bytes that any may."""


class Lines:
    """Splits a byte stream into decoded lines; undecodable bytes become replacement characters."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._rest = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Lines completed by ``chunk``, without their line ends; carriage returns stay inside."""
        if self._decoder is None:
            wide = chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            self._decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8-sig")(errors="replace")
        text = self._rest + self._decoder.decode(chunk)
        *lines, self._rest = text.split("\n")
        yield from lines
        while len(self._rest) > MAX_LINE:
            brace = self._rest.rfind("}", 0, MAX_LINE)
            cut = brace + 1 if brace > 0 else MAX_LINE
            head, self._rest = self._rest[:cut], self._rest[cut:]
            yield head

    def close(self) -> Iterator[str]:
        """What stood after the last line end."""
        rest, self._rest = self._rest, ""
        if rest:
            yield rest


def gunzip(chunks: Iterator[bytes], size: int = 1 << 18) -> Iterator[bytes]:
    """Decompress a gzip stream in bounded memory; a damaged or missing tail ends it quietly.

    Raises:
        OSError: It expands as no log does.
    """
    member = zlib.decompressobj(wbits=31)
    taken = gave = 0
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                piece = member.decompress(rest, size)
            except zlib.error:
                return
            taken += len(rest) - len(member.unconsumed_tail) - len(member.unused_data)
            gave += len(piece)
            if gave > max(MOST_UNPACKED, MOST_EXPANSION * taken):
                raise OSError(f"it expands more than {MOST_EXPANSION}-fold, as no log does")
            if piece:
                yield piece
            rest = member.unconsumed_tail
            if member.eof:
                rest = member.unused_data
                member = zlib.decompressobj(wbits=31)


_STAMP = (
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?![,;\t\d])[:,]?\s{0,4}"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?(?![,;\t\d])[:,]?\s{1,4}"
    r"|\[?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2} \d\d:\d\d:\d\d\]?"
    r"(?: [\w.-]{1,60}(?=\s))?\s{1,4}"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?\s{1,4}"
)
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|TRACE|SUCCESS)\]?(?=[\s:|\-\[])\s{0,8}[:|-]?\s{0,4}"
_SOURCE = (
    r"\[?[\w./-]{1,80}\.py:\d{1,6}(?::[\w.<>]{1,60})?\]?\s{0,4}[:\-|]?\s{0,4}"
    r"|\[[A-Za-z_][\w.]{1,60}\](?:\[\w{1,10}\])?\s{0,4}[:-]?\s{0,4}"
    r"|[A-Za-z_][\w.]{0,60}\s{1,4}[-|]\s{1,4}"
    r"|[a-z_][\w.]{0,60}:(?=[A-Za-z{\[('\"])"
    r"|[-|:]\s{1,4}"
)
_ALWAYS = (
    r">{1,4}\s{1,2}|>{1,4}(?=[\w{(\[])"
    r"|\s{1,6}\d{1,7}\t"
    r"|[\w./-]{1,80}\.(?:log|txt|out|err|jsonl?|csv|md):(?:\d{1,9}[:-])?\s{0,2}"
    r"|[\[(]\s?(?:local[ _]?)?(?:rank|node|worker|gpu|process|proc)[ _=:#]{0,2}\d{1,6}\s?[\])][:,]?\s{0,4}"
    r"|(?:rank|node|worker|gpu)[ _=#]?\d{1,6}\s?:\s{1,4}"
    r"|\[\d{1,4},\d{1,5}\]<std(?:out|err)>:\s{0,4}"
    r"|\([A-Za-z_][\w. -]{0,60}\bpid=\d{1,9}[^()\n]{0,60}\)\s{0,4}"
    r"|[A-Za-z][\w.]{0,40}[-_]\d{1,4}\s{1,20}\|\s{1,2}"
    r"|std(?:out|err) [FP] "
    r"|\d{1,4}: (?=\{|\(|\[[a-z]|['\"]|[Ss]tep|[Ii]ter|[Ee]poch|[Gg]lobal)"
)
_ANY = re.compile(f"(?:(?P<level>{_STAMP}|{_LEVEL})|(?P<other>{_ALWAYS}))")
_AFTER = re.compile(_SOURCE)
_MOST = 6


def strip(text: str) -> str:
    """``text`` without the prefixes that loggers, launchers, containers and people who quote put before a line.

    What may be a cell of a table (a time stamp before a comma or tab) stays.
    """
    if text.startswith("\u200b"):
        text = text.lstrip("\u200b")
    at, logged = 0, False
    for _ in range(_MOST):
        match = _ANY.match(text, at)
        if match is None and logged:
            match = _AFTER.match(text, at)
        if match is None or match.end() == at:
            break
        logged = match.re is _ANY and (logged or match.group("level") is not None)
        at = match.end()
    return text[at:] if at else text
