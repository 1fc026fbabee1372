"""The report in another language: its own words are exchanged in the finished page, whatever a run wrote stays.

A page is made in English.  Translated is what stands between tags; not the contents of ``pre``, ``code``, ``script``
and ``style``, which hold what a policy wrote, the recipe, and the drawing library.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from levelhead.diagnosis.findings import Language
from levelhead.documents.yaml_text import load_yaml

_PIECE = re.compile(
    r"(?P<kept><(?P<name>pre|code|script|style)\b.*?</(?P=name)>|<[^>]*>)|(?P<text>[^<]+)", re.DOTALL | re.IGNORECASE
)
_HTML = re.compile(r'<html lang="en">')


def translated(page: str, language: Language) -> str:
    """Return a page of the report in a language; a text without a translation stays as it is.

    Args:
        page: As HTML, in English.
        language: Of the reader.
    """
    if language == "en":
        return page
    page = _HTML.sub(f'<html lang="{language}">', page, count=1)
    return _PIECE.sub(lambda piece: piece["kept"] or _translated(piece["text"]), page)


def in_chinese(text: str) -> str:
    """Return a piece of text in Chinese; as it is where it has no translation."""
    phrases, patterns = own_words()
    if text in phrases:
        return phrases[text]
    for pattern, words in patterns.items():
        if match := pattern.fullmatch(text):
            return words.format(*(phrases.get(group, group) for group in match.groups()))
    return text


def _translated(escaped: str) -> str:
    text = html.unescape(escaped)
    bare = text.strip()
    words = in_chinese(bare) if bare else bare
    return escaped if words == bare else html.escape(text.replace(bare, words, 1), quote=True)


@cache
def own_words() -> tuple[Mapping[str, str], Mapping[re.Pattern[str], str]]:
    """Return the report's own words in Chinese: by whole phrase, and by pattern with a ``{}`` for each group."""
    data = load_yaml(files("levelhead.report").joinpath("chinese.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)  # noqa: S101 - our own file
    return data["phrases"], {re.compile(pattern, re.DOTALL): words for pattern, words in data["patterns"].items()}
