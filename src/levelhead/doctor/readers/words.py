"""What a heading means whose exact spelling nobody has listed: judged by its words, or not at all.

Reports and hand-written loops call one signal by many names ("mean KL per token", "groups with zero reward spread").
Two sets of rules stand in ``words.yaml``.  The exact ones take a heading of which every word is known.  The inferred
ones spell abbreviations out (``rwd`` is a reward, ``sd`` a deviation) and let a word or two be unknown: every such word
makes the match more doubtful, and words that change a meaning (``target``, ``coef``, ``max``) end it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("words.yaml")
"""Rules and words."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLE: dict[str, Any] = yaml.load(TABLE.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe loader
_SETS = {name: frozenset(words.split()) for name, words in _TABLE["sets"].items()}
_PLAIN = _SETS["PLAIN"]
"""Words that leave a signal what it is."""
_NEUTRAL, _CHANGING, _WITH_CONTRAST = (frozenset(_TABLE[name].split()) for name in ("neutral", "changing", "contrast"))
_SPELT = {short: word for word, spellings in _TABLE["abbreviations"].items() for short in spellings.split()}
_GLUED = {glued: words.split() for glued, words in _TABLE["glued"].items()}
_ENGLISH = {chinese: english for english, words in _TABLE["chinese"].items() for chinese in words.split()}

_EXACT_WORD = re.compile(r"[a-z]+|%|\d+")
_WORD = re.compile(r"[a-z]+|%|[\u4e00-\u9fff]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CAMEL_OR_ACRONYM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MATH = re.compile(r"(?:^|[^A-Za-z])(?:D_?)?KL\s{0,4}[\[(]\s{0,4}(?:pi|π|policy|p)\w{0,8}\s{0,4}(?:\|\||∥|,|/)")
_NO_NAME = re.compile(r"[:=→;]|\s[-+~]?\d|\d\.\d|[.!?]$")
"""What holds numbers or ends a sentence is no name."""
_CHINESE_WORD = re.compile("|".join(sorted(_ENGLISH, key=len, reverse=True)))
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_FILLING = re.compile(r"[的数值每\uff08\uff09]")
_LONGEST = 60
_MOST_EXACT, _MOST_INFERRED = 8, 7  # words of a heading
_SURE, _DOUBTFUL, _FAINT = 0.85, 0.65, 0.5


@dataclass(frozen=True, slots=True)
class _Rule:
    """A signal, the words that must stand in its name (one of each set), and others that may."""

    signal: str
    need: tuple[frozenset[str], ...]
    may: frozenset[str]


def _words(text: str) -> frozenset[str]:
    return frozenset().union(*(_SETS.get(word, {word}) for word in text.split()))


def _rules(name: str) -> tuple[_Rule, ...]:
    return tuple(
        _Rule(
            rule["signal"],
            tuple(_words(one.replace("|", " ")) for one in rule["need"].split()),
            _words(rule["may"]),
        )
        for rule in _TABLE[name]
    )


_EXACT, _INFERRED = _rules("exact"), _rules("inferred")


def by_words(raw: str) -> str | None:
    """The canonical signal that a heading names by its words; ``None`` where they do not settle it.

    Args:
        raw: As the source spells it.
    """
    words = _EXACT_WORD.findall(_CAMEL.sub(" ", raw.replace("_", " ")).lower())
    present = frozenset(words)
    if not present or len(words) > _MOST_EXACT:
        return None
    rest = present - _PLAIN
    fitting = (r.signal for r in _EXACT if all(need & present for need in r.need) and rest <= r.may)
    return next(fitting, None)


def _spelt_out(raw: str) -> list[str]:
    """The words of a name in lower case, abbreviations spelt out."""
    spaced = _CAMEL_OR_ACRONYM.sub(" ", raw.replace("_", " ").replace("/", " ")).lower()
    return [spelt for word in _WORD.findall(spaced) for spelt in _GLUED.get(word, (_SPELT.get(word, word),))]


def with_contrast(raw: str) -> bool:
    """Whether a name means the share of groups with contrast, which is one minus the share without."""
    words = frozenset(_spelt_out(raw)) if len(raw) <= _LONGEST else frozenset()
    rest = words - _NEUTRAL - _WITH_CONTRAST - {"group", "share", "reward", "signal", "std", "variance", "with"}
    return words >= {"group", "share"} and bool(words & _WITH_CONTRAST) and not rest


def by_meaning(raw: str, strangers: int = 1) -> tuple[str, float] | None:
    """The signal that a name means and how sure that is, between 0 and 1; ``None`` where it means none that is known.

    Args:
        raw: As the source spells it.
        strangers: Words of unknown meaning that may stand in the name.
    """
    if len(raw) > _LONGEST or _NO_NAME.search(raw):
        return None
    if _MATH.search(raw):
        return "kl", _SURE
    words = _spelt_out(raw)
    if not words or len(words) > _MOST_INFERRED:
        return None
    # A lone letter is a signal only beside a word that says of what.
    if words[0] == "r" and len(words) > 1:
        words[0] = "reward"
    if words[0] == "h" and len(words) > 1 and set(words[1:]) <= _NEUTRAL:
        words[0] = "entropy"
    present = frozenset(words)
    best: tuple[str, float] | None = None
    for rule in _INFERRED:
        if not all(need & present for need in rule.need):
            continue
        rest = present - frozenset().union(*rule.need) - rule.may - _NEUTRAL
        sure = (_SURE, _DOUBTFUL, _FAINT)[min(len(rest), 2)]
        if not rest & _CHANGING and len(rest) <= strangers and (best is None or sure > best[1]):
            best = rule.signal, sure
    return best


def is_chinese(heading: str) -> bool:
    """Whether a heading has Chinese characters in it."""
    return _CHINESE.search(heading) is not None


def in_english(heading: str) -> str | None:
    """A heading of known Chinese words in English ones; ``None`` where a word is not known.

    ``in_english("平均生成长度")`` is ``"mean completion length"``.
    """
    spelt = _CHINESE_WORD.sub(lambda match: f" {_ENGLISH[match.group()]} ", heading)
    spelt = _FILLING.sub(" ", spelt)
    return None if is_chinese(spelt) else " ".join(spelt.split())
