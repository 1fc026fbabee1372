"""From bytes to lines in bounded memory, whatever the bytes are."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator

MAX_LINE = 1 << 20
"""Characters after which a line without an end is cut (at a closing brace where there is one)."""


class Lines:
    """Splits a byte stream into decoded lines; undecodable bytes become replacement characters."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._rest = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Lines completed by ``chunk``, without their line ends; carriage returns stay inside."""
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(_encoding(chunk))(errors="replace")
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


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def gunzip(chunks: Iterator[bytes], size: int = 1 << 18) -> Iterator[bytes]:
    """Decompress a gzip stream in bounded memory; a damaged or missing tail ends it quietly."""
    member = zlib.decompressobj(wbits=31)
    for chunk in chunks:
        rest = chunk
        while rest:
            try:
                piece = member.decompress(rest, size)
            except zlib.error:
                return
            if piece:
                yield piece
            rest = member.unconsumed_tail
            if member.eof:
                rest = member.unused_data
                member = zlib.decompressobj(wbits=31)
