"""What others wrote of what a judge is shown: made harmless, put between marks, and known where it is quoted."""

from __future__ import annotations

import functools
import hashlib
import hmac
import html
import itertools
import json
import re
import unicodedata
from collections.abc import Sequence

from levelhead.tasks.endpoint.verdicts import Material

MARK = 12
"""Hexadecimal digits of the mark around the material."""
VERDICT_MARK = 6
"""Digits of it that a verdict carries."""
_CONTROL_TOKEN = re.compile(
    r"<(?=[|\uff5c][^<>\n]{1,60}[|\uff5c]>"  # <|im_end|>, <|eot_id|>, and DeepSeek's with full-width bars
    r"|/?(?:think|thinking|thought|reasoning|s|bos|eos|pad|unk|start_of_turn|end_of_turn|tool_call|tool_response)>"
    r"|/?<SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|THINK)\])",
    re.IGNORECASE,
)
_HARMLESS = {"<": "\u2039", "[": "\u2045"}
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\[nrt]")
_WORD = re.compile(r"[^\W_]+")
_CLAUSE = re.compile(r"[^\n\r.!?;:,\"'`()\[\]<>*_|\u201c\u201d\u2018\u2019\u2028\u2029\x85-]+")


def harmless(text: str) -> str:
    """Return text without control tokens of chat templates: the bracket that opens one becomes another character.

    A server turns ``<|im_end|>`` into the token that ends a message wherever it stands, and ``</think>`` ends thoughts.
    """
    return _CONTROL_TOKEN.sub(lambda match: _HARMLESS[match[0]], text)


def make_mark(key: str, texts: Sequence[str]) -> str:
    """Return the mark of some material: a keyed hash of it that stands nowhere in it, however it is spelt.

    The same material has the same mark, so that replies can be cached and runs repeated.  Spelling means letters and
    digits alone: blanks, case, punctuation, accents and invisible characters between the digits do not hide a mark.

    Args:
        key: What the policy cannot know: the judge and its rubric.
        texts: All that the judge is shown of others' writing.
    """
    content = json.dumps(texts).encode()
    spelt = "".join(_words(" ".join(texts)))
    secret = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
    number = 0
    while True:
        mark = hmac.new(secret, b"%d/" % number + content, "sha256").hexdigest()[:MARK]
        if mark[:VERDICT_MARK] not in spelt and mark[:VERDICT_MARK][::-1] not in spelt:
            return mark
        number += 1


class JudgedMaterial(Material):
    """What others wrote of what a judge is shown.

    Args:
        written: What the policy wrote.
        beside: What the judge is shown beside it: the task, and a perfect answer.
    """

    def __init__(self, written: Sequence[str], beside: Sequence[str] = ()) -> None:
        super().__init__(*written, *beside)
        self._written, self._beside = written, beside

    def holds(self, words: str) -> bool:
        """Whether a verdict's words could be quoted from the material.

        Several words are looked for anywhere; a single one (``Yes``) as a clause of what the policy wrote, or a line
        of what stands beside it.
        """
        quoted = " ".join(_words(words))
        return quoted in self._pieces or (" " in quoted and any(f" {quoted} " in text for text in self._plain))

    @functools.cached_property
    def _pieces(self) -> frozenset[str]:
        clauses = (clause for text in self._written for clause in _CLAUSE.findall(_decoded(text)))
        lines = (line for text in self._beside for line in _decoded(text).splitlines())
        return frozenset(" ".join(_words(piece)) for piece in itertools.chain(clauses, lines))

    @functools.cached_property
    def _plain(self) -> Sequence[str]:
        return [f" {' '.join(_words(text))} " for text in (*self._written, *self._beside)]


NOTHING = JudgedMaterial(())
"""Where a judge was shown nothing of others' writing."""


def _decoded(text: str) -> str:
    """Text with the escapes of HTML and JSON read, which a judge that quotes it may read as well."""
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "\n", html.unescape(text))
    folded = unicodedata.normalize("NFKC", plain)
    return "".join(c for c in folded if unicodedata.category(c) != "Cf")


def _words(text: str) -> list[str]:
    return _WORD.findall(_decoded(text).casefold())
