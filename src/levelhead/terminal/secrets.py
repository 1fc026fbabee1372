"""The one place through which what an endpoint says leaves for messages and files: secrets in it are taken out."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from levelhead.errors import InputError

REDACTED = "[key]"
_SHORTEST_IN_TEXT = 12
"""Characters of a secret that is looked for in replies: a shorter one (``EMPTY``) may be a word of the reply."""
_SHORTEST_WRAPPED = 8
"""Characters of a secret that is looked for with line breaks in it."""
_SHORTEST_PART = 6
"""Characters of a secret at the end of a text that was cut off there."""
_KEY = re.compile(r"[\x21-\x7e]+(?: +[\x21-\x7e]+)*")
_CUT_ESCAPE = re.compile(r"(?:[&%\\][#xXuU{]*\w{0,8})?\Z")
_BETWEEN = r"(?:\s|\\+[nrt]|%0[ad]|&#1[03];|[\"'>|\\\u200b\u00ad])*"
"""What may stand between two characters where a line is wrapped, quoted or escaped."""


class Secrets:
    r"""What must not be shown: a key, and what stands in an address to let one in.

    A secret is found as it is, URL-encoded (once or more), with escapes of JSON, HTML or a string's ``\x41``, in
    base64 (alone or within something longer), in hexadecimal digits, in small or capital letters, wrapped over lines,
    and cut off at the end of a text.

    Args:
        values: The secrets; empty ones are none.
    """

    def __init__(self, *values: str) -> None:
        values = tuple(sorted({value for value in values if value}, key=len, reverse=True))
        self._pattern = _compiled(values)
        self._in_text = _compiled([value for value in values if len(value) >= _SHORTEST_IN_TEXT])
        self._letters = [[re.compile(_spelt(c) + _BETWEEN, re.IGNORECASE) for c in value] for value in values]

    def clean(self, text: str) -> str:
        """Return text of an error, a header or an exception without the secrets, one that is cut off included."""
        if self._pattern is None:
            return text
        text = self._pattern.sub(REDACTED, text)
        for letters in self._letters:
            if (at := _cut_off(text, letters)) is not None:
                text = text[:at] + REDACTED
        return text

    def clean_reply(self, text: str) -> str:
        """Return a model's reply without the secrets; short ones, which may be words, stay."""
        return self._in_text.sub(REDACTED, text) if self._in_text is not None else text


def key_in(variable: str | None, where: str) -> str:
    """Return the key that an environment variable holds; an empty text where no variable is named.

    Args:
        variable: Its name.
        where: The recipe's section whose ``api_key_env`` names it.

    Raises:
        InputError: The variable is not set, or what it holds can be no key.
    """
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        how = "holds nothing but blanks" if os.environ.get(variable) else "is not set"
        raise InputError(f"{where}.api_key_env names {variable}, and that environment variable {how}")
    if not _KEY.fullmatch(key):
        raise InputError(
            f"{where}.api_key_env names {variable}, and that environment variable holds no key: a key is ASCII"
        )
    return key


def secrets_of(url: str) -> list[str]:
    """Return the secrets in an address: its password or sole user, and long values of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.findall(r"//([^/@]+)@", url)
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= _SHORTEST_IN_TEXT]
    words = [parts.password or parts.username or "", *values]
    return [one for word in words for one in {word, unquote(word)} if one]


def without_secrets(url: str) -> str:
    """Return an address as it may be shown: without user, password and query."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def _compiled(values: Sequence[str]) -> re.Pattern[str] | None:
    patterns = [pattern for value in values for pattern in _patterns(value)]
    return re.compile("|".join(patterns), re.IGNORECASE) if patterns else None


def _patterns(value: str) -> Iterator[str]:
    """Regular expressions of a secret in all its spellings."""
    between = _BETWEEN if len(value) >= _SHORTEST_WRAPPED else ""
    yield between.join(map(_spelt, value))
    raw = value.encode(errors="surrogatepass")
    if len(raw) >= _SHORTEST_WRAPPED:
        yield r"[\s:]*".join(f"{byte:02x}" for byte in raw)
        for lead in range(3):
            yield _in_base64(raw, lead)


def _cut_off(text: str, letters: Sequence[re.Pattern[str]]) -> int | None:
    """Where the beginning of a secret stands at the end of a text."""
    for start in (match.start() for match in letters[0].finditer(text)):
        at, length = start, 0
        while length < len(letters) and (match := letters[length].match(text, at)):
            at, length = match.end(), length + 1
        if length >= _SHORTEST_PART and _CUT_ESCAPE.match(text, at):
            return start
    return None


def _spelt(character: str) -> str:
    """A character as it is, or in any of the usual escapes."""
    code = ord(character)
    percent = "".join(f"%(?:25)*{byte:02x}" for byte in character.encode(errors="surrogatepass"))
    escapes = [rf"\\+u0*{code:x}", rf"\\+u\{{0*{code:x}\}}", rf"\\+x0*{code:x}", f"&#0*{code};", f"&#x0*{code:x};"]
    plain = rf"\\*{re.escape(character)}" if not character.isalnum() else re.escape(character)
    return f"(?:{'|'.join([plain, percent, *escapes])})"


def _in_base64(raw: bytes, lead: int) -> str:
    """The characters of a base64 text that a secret decides alone, where ``lead`` bytes before it share their group."""
    coded = base64.b64encode(b"\0" * lead + raw).decode().rstrip("=")
    first = -(-lead * 8 // 6)
    last = (lead + len(raw)) * 8 // 6
    spelt = ["[+-]" if c == "+" else "[/_]" if c == "/" else c for c in coded[first:last]]
    # Capital and small letters are different digits.
    return f"(?-i:{_WRAPPED.join(spelt)})"


_WRAPPED = r"(?:\s|\\+[nr]|%0[ad])*"
