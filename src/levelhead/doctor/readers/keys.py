"""What each source calls a signal: raw metric keys to canonical names, by a table or by their words.

The table ``keys.yaml`` was collected from the trainers' own logging code.  A heading whose exact spelling nobody has
listed is judged by its words, or not at all: reports and hand-written loops call one signal by many names ("mean KL
per token", "groups with zero reward spread").  Two sets of rules stand in ``words.yaml``.  The exact ones take a
heading of which every word is known.  The inferred ones spell abbreviations out (``rwd`` is a reward, ``sd`` a
deviation) and let a word or two be unknown: every such word makes the match more doubtful, and words that change a
meaning (``target``, ``coef``, ``max``) end it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelhead.documents import load_own

WORDS = Path(__file__).with_name("words.yaml")
"""Rules and words."""
_RULES: dict[str, Any] = load_own(WORDS)
_SETS = {name: frozenset(words.split()) for name, words in _RULES["sets"].items()}
_PLAIN = _SETS["PLAIN"]
"""Words that leave a signal what it is."""
_NEUTRAL, _CHANGING, _WITH_CONTRAST = (frozenset(_RULES[name].split()) for name in ("neutral", "changing", "contrast"))
_SPELT = {short: word for word, spellings in _RULES["abbreviations"].items() for short in spellings.split()}
_GLUED = {glued: words.split() for glued, words in _RULES["glued"].items()}
_ENGLISH = {chinese: english for english, words in _RULES["chinese"].items() for chinese in words.split()}

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
_LONGEST_NAME = 60
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
        for rule in _RULES[name]
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
    words = frozenset(_spelt_out(raw)) if len(raw) <= _LONGEST_NAME else frozenset()
    rest = words - _NEUTRAL - _WITH_CONTRAST - {"group", "share", "reward", "signal", "std", "variance", "with"}
    return words >= {"group", "share"} and bool(words & _WITH_CONTRAST) and not rest


def by_meaning(raw: str, strangers: int = 1) -> tuple[str, float] | None:
    """The signal that a name means and how sure that is, between 0 and 1; ``None`` where it means none that is known.

    Args:
        raw: As the source spells it.
        strangers: Words of unknown meaning that may stand in the name.
    """
    if len(raw) > _LONGEST_NAME or _NO_NAME.search(raw):
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


_ONE_MINUS = "1-"
_INVERSE = "1/"

KEYS = Path(__file__).with_name("keys.yaml")
"""Raw keys by canonical name."""
_TABLES = load_own(KEYS)
_BY_FORMAT: dict[str, dict[str, str]] = _TABLES["by_format"]

# A word that a stripped prefix must not turn into the policy's own metric.
_NOT_THE_POLICY = re.compile(
    r"^(critic/(?!\w*scores?/|\w*rewards?/|advantages|kl)|value|vf_|ref/|timing|perf/|system|memory|gpu|val_|optimizer/|prompt_length|"
    r"grad_norm_critic|num_turns|turns|tools/|num_)"
)
_PREFIXES = re.compile(r"^(?:(?:train|training|metrics|actor|policy|rollout|optim|stats|env)/)+(?=.)", re.DOTALL)
_EVAL = re.compile(
    r"^(?:val-core|val-aux|evaluation|eval|validation|val|test|heldout|held[_-]out|holdout|dev)[/_ -]+(?P<rest>.+)$"
)
_EVAL_NOISE = re.compile(
    r"loss|time|runtime|per_second|length|num_|step|epoch|clip|kl|entropy|std|trunc|tokens|sequence|count|turns|max$|min$|"
    r"ratio|size|temperature"
)
_LEVEL = re.compile(r"(?:[a-z]|depth|level|hop)[ _-]?\d{1,3}")
"""A level of difficulty: what stands under one is what it scored."""
_PART_MEAN = re.compile(r"^(?:rewards?|reward_components?|reward_extra|reward_fn)/(?P<name>.+?)(?:/mean)?$")
_PART_TRL = re.compile(r"^rewards/(?P<name>.+)/(?P<kind>mean|std)$")
_PART_CRITIC = re.compile(r"^critic/(?P<name>\w*(?:score|reward)s?)/mean$")
_PART_AFFIX = re.compile(
    r"^(?:(?P<a>[\w@. -]+?)[_ /](?:reward|rew|score|rwd)(?:_fn|_func|_function)?(?:[_/ ]?mean|_?avg)?|"
    r"(?:reward|rew|r|score)[_/](?P<b>[\w@. -]+))$"
)
_PART_BARE = re.compile(
    r"^(?:(?:train|mean|avg|batch|rollout)[_/ ])?(?P<name>"
    r"(?:(?:strict|loose|exact|final|answer|outcome|format-blind)[_ ])?"
    r"(?:acc|accuracy|bacc|balanced accuracy|corr|correct|correctness|correct_rate|correct_ratio|"
    r"all_correct_ratio|exact_rate|correct%|exact%)|solve_rate|macro[ _-]?f1|"
    r"(?:ndcg|recall|mrr|precision)(?:@?\d+)?|solved|success|success_rate|win_rate|pass_rate|pass@?\d+|"
    r"(?:avg|mean|maj|best)@\d+|em|exact_match|f1|format|format_ok|format_rate|accuracy%|"
    r"acc%|frac_correct|solved%|solve%|(?:percentage|percent|fraction|share)[ _](?:of[ _])?correct(?:[ _]\w{3,12})?|"
    r"(?:format|answer)[ _](?:exact|numeric|match|rate|approx\w*)|正确率)(?:_mean|/mean|_avg)?$"
)
_BENCHMARK = re.compile(
    r"^(?P<name>(?:minerva|gsm8k|math|aime|amc|mmlu|humaneval|mbpp|ifeval|arc|gpqa|hellaswag|olympiad\w*|livecodebench|bbh)"
    r"(?:[ _-]?\d{2,4})?(?:[ _/-](?:math|cot|plus|hard|strict|flex|exact_match|math_verify|prompt_strict|verify|"
    r"acc|accuracy|pass@?\d{1,3}|avg@?\d{1,3}))*)(?:[ _/-]?%)?$"
)
"""Names of public benchmarks: what stands under one is held out."""
_PART_NOT = re.compile(
    r"(?:^|[_/ ])(?:std|max|min|var|loss|time|scale|scaling|weight|weights|coef|count|total|shaped|baseline|range|q\d+|"
    r"median|adv|advantage|model|margin|margins|chosen|rejected|threshold|target|best|num|p\d+)(?:$|[_/ ])"
)
_NUMBERED = re.compile(r"[:=]\s{0,4}[-+.]?\d")
_LETTER = re.compile(r"r[_/]")
_BY_A_LETTER = 0.8
_BY_WORDS = 0.85  # how sure a meaning by words alone is
_HELD_OUT = frozenset(("eval", "val", "test", "validation", "dev", "holdout", "held_out", "heldout"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a raw key leads.

    Attributes:
        name: Canonical signal name.
        rank: Trust among the raw keys of one signal; the lowest wins when a row has several.
        transform: ``""`` as is, ``"1-"`` one minus, ``"1/"`` the inverse.
        percent: The key says per cent, so that readings above 1 are divided by 100.
        confidence: How sure it is that the key means the signal; below 1 where its words alone say so.
    """

    name: str
    rank: int = 0
    transform: str = ""
    percent: bool = False
    confidence: float = 1.0

    @property
    def transformed(self) -> bool:
        """Whether a raw reading is changed on its way."""
        return self.percent or bool(self.transform)

    def apply(self, value: float) -> float:
        """The canonical reading for a raw one."""
        if self.percent and abs(value) > 1:
            value /= 100
        if self.transform == _ONE_MINUS:
            return 1 - value
        if self.transform == _INVERSE:
            return 1 / value if value else float("nan")
        return value


def _table() -> dict[str, Target]:
    table: dict[str, Target] = {}
    for name, keys in _TABLES["common"].items():
        for rank, raw in enumerate(keys):
            transform = raw[:2] if raw[:2] in (_ONE_MINUS, _INVERSE) else ""
            key = raw[len(transform) :]
            table.setdefault(key, Target(name, rank, transform, "%" in key))
    return table


_TABLE = _table()
_CACHE_LIMIT = 4096


class KeyMap:
    """Translates raw keys of one source.

    Args:
        source: Format name, which settles words that mean different things in different trainers.
        extra: The user's own ``canonical -> raw key`` pairs; they win over everything.
    """

    def __init__(self, source: str, extra: Mapping[str, str] | None = None) -> None:
        self._source = _BY_FORMAT.get(source.split("-")[0], {})
        self._extra = {raw.strip().lower(): Target(name, -1) for name, raw in (extra or {}).items()}
        self._cache: dict[str, Target | None] = {}

    def lookup(self, raw: str) -> Target | None:
        """Where ``raw`` leads; ``None`` for a key that is no known signal."""
        try:
            return self._cache[raw]
        except KeyError:
            target = self._resolve(raw)
            if len(self._cache) < _CACHE_LIMIT:
                self._cache[raw] = target
            return target

    def _resolve(self, raw: str) -> Target | None:
        """Ranks: from 0 listed, from 50 behind a prefix, 200 by words, 300 inferred; the lowest of a row wins."""
        if len(raw) > 120:
            return None
        key = raw.strip().strip("'\"*`").strip().lower()
        if key in self._extra:
            return self._extra[key]
        if " / " in raw:
            # Notebooks print "rewards / format / mean".
            raw, key = raw.replace(" / ", "/"), key.replace(" / ", "/")
        if key in self._source:
            return Target(self._source[key]) if self._source[key] else None
        if key in _TABLE:
            return _TABLE[key]
        plain = key.replace(" ", "_").replace("-", "_")
        if plain in _TABLE:
            return _TABLE[plain]
        if is_chinese(key):
            english = in_english(key)
            return self._resolve(english) if english else None
        if evaluation := _EVAL.match(key):
            rest = evaluation.group("rest")
            # A metric that a user has called eval/... gets the trainer's own eval_ before it.
            while again := _EVAL.match(rest):
                rest = again.group("rest")
            rest += "/score" if _LEVEL.fullmatch(rest) else ""
            return None if _EVAL_NOISE.search(rest) else Target(f"eval/{rest}")
        if _BENCHMARK.match(plain) and plain != "math":
            return Target(f"eval/{plain}/score", 10, percent="%" in key)
        if plain in _HELD_OUT:
            return Target("eval/score", 20, confidence=_BY_A_LETTER)
        stripped = _PREFIXES.sub("", key)
        if _NOT_THE_POLICY.match(key):
            return None
        if stripped != key and (target := _TABLE.get(stripped)):
            return Target(target.name, target.rank + 50, target.transform, target.percent)
        name = None if _NUMBERED.search(raw) else by_words(raw)
        if name:
            return Target(name, 200, percent="%" in key)
        if with_contrast(raw):
            return Target("frac_reward_zero_std", 300, _ONE_MINUS, "%" in key, _BY_WORDS)
        meant = None if _PART_MEAN.match(stripped) else by_meaning(raw, strangers=0)
        part = None if meant else _part(raw.strip().strip("'\"*`").strip(), stripped)
        if part:
            # "r_outcome" is a reward by a single letter.
            return replace(part, confidence=_BY_A_LETTER) if _LETTER.match(stripped) else part
        meant = meant or by_meaning(raw)
        return Target(meant[0], 300, percent="%" in key or "pct" in key, confidence=meant[1]) if meant else None


def _part(raw: str, key: str) -> Target | None:
    """A named reward, under any of the ways in which sources write one; ``raw`` keeps the name's case."""
    if trl := _PART_TRL.match(key):
        return Target(f"rewards/{_cased(raw, trl.group('name'))}/{trl.group('kind')}")
    if _PART_NOT.search(key):
        return None
    for pattern in (_PART_MEAN, _PART_CRITIC, _PART_AFFIX, _PART_BARE):
        if match := pattern.match(key):
            name = next(group for group in match.groups() if group)
            return Target(f"rewards/{_cased(raw, name)}/mean", 1, percent="%" in key)
    return None


def _cased(raw: str, name: str) -> str:
    start = raw.lower().find(name)
    return raw[start : start + len(name)] if start >= 0 else name
