"""Cuts an answer in LaTeX or plain text into tokens, without what carries no meaning: spaces, dollars, units."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 2000
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_POWER_OF_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*[a-zA-Z. ]{2,}\}\s*\^\s*\{?\s*[23]\s*\}?")
_PLAIN = (
    ("\\\\", "\\cr "),
    ("\u2212", "-"), ("\u2013", "-"), ("\u00d7", r"\times "),
    ("·", r"\cdot "), ("÷", r"\div "), ("π", r"\pi "), ("∞", r"\infty "),
    ("≤", r"\le "), ("≥", r"\ge "), ("≠", r"\ne "), ("\u222a", r"\cup "), ("±", r"\pm "), ("°", ""), ("²", "^2"),
    ("³", "^3"), ("**", "^"), (r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\cfrac", r"\frac"), ("{,}", ","),
    (r"\lvert", "|"), (r"\rvert", "|"), (r"\lbrace", r"\{"), (r"\rbrace", r"\}"), (r"\backslash", "\\"),
)  # fmt: skip
_NOTHING = re.compile(
    r"\\(?:left|right|displaystyle|limits|bigl?|bigr?|Bigl?|Bigr?|quad|qquad)(?![a-zA-Z])"
    r"|\^\s*\{?\s*\\circ\s*\}?|\\[,;:! ]|\\%|%|\\\$|[$~]|\\degree\b|\\[()\[\]]"
)
_ROOT = re.compile(r"√\s*(\d+|\([^()]*\)|[a-z])|\bsqrt\s*\(([^()]*)\)")
_NAMED = re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|ln|log|exp|pi|infty)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_SCANNER = re.compile(
    r"(?P<space>\s+)|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<command>\\[a-zA-Z]+)|(?P<escaped>\\[{}|])"
    r"|(?P<letter>[a-zA-Z\u0391-\u03c9])|(?P<sign>[-+*/^_=<>()\[\]{},;:|!'&])"
)
_SIGNS = frozenset(
    {
        r"\cr", r"\cdot", r"\times", r"\div", r"\pm", r"\mp", r"\cup", r"\le", r"\leq", r"\ge", r"\geq", r"\ne",
        r"\neq",
        r"\in", r"\approx", r"\equiv", r"\lfloor", r"\rfloor", r"\lceil", r"\rceil", r"\end", r"\text",
    }
)  # fmt: skip


class UnreadableError(Exception):
    """A text is no mathematics that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """One piece: a ``number``, a ``letter``, a ``command`` that begins a value, or a ``sign``."""

    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """Return the tokens of an answer.

    Raises:
        UnreadableError: It is empty or too long, or holds a character that no answer has.
    """
    plain = _plain(text)
    if not plain:
        raise UnreadableError("it is empty")
    if len(plain) > _LONGEST:
        raise UnreadableError(f"it is longer than {_LONGEST} characters")
    items: list[Token] = []
    position = 0
    while position < len(plain):
        match = _SCANNER.match(plain, position)
        if match is None:
            raise UnreadableError(f"{plain[position]!r} is not understood")
        position = match.end()
        kind, piece = str(match.lastgroup), match[0]
        if kind == "space":
            continue
        if kind == "escaped" or piece in _SIGNS:
            kind = "sign"
        items.append(Token(kind, piece))
    return items


def words_of(text: str) -> str:
    r"""Return an answer as words, where it is words: ``\text{Evelyn}``, ``(C)``, ``even``; empty where it is not."""
    bare = _TEXT.sub(r"\1", text).strip(" $.")
    bare = re.sub(r"^\(([A-Za-z])\)$", r"\1", bare.strip())
    return " ".join(bare.casefold().split()) if re.fullmatch(r"[A-Za-z][A-Za-z ,'-]*", bare) else ""


def _plain(text: str) -> str:
    for old, new in _PLAIN:
        text = text.replace(old, new)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = re.sub(r",\\!\s*", ",", text)
    text = _POWER_OF_UNIT.sub(" ", text)
    text = _TEXT.sub(lambda match: "," if match[1].strip() in ("and", "or") else _label(match[1]), text)
    text = _NAMED.sub(r"\\\1 ", _NOTHING.sub(" ", text)).strip()
    text = re.sub(r"(?<=[0-9)}])\s*(?:and|or)\s*(?=[-0-9(\\])", ",", text)
    # Inside brackets a comma divides; outside it may group digits.
    if not re.search(r"[(\[{]", text):
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text.rstrip(". ").strip()


def _label(words: str) -> str:
    """What stands in text is a unit or a remark, but for a single letter, which is an option or a variable."""
    bare = words.strip(" ()")
    return f" {bare} " if len(bare) == 1 and bare.isalpha() else " "
