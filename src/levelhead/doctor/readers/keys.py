"""What each source calls a signal: raw metric keys to canonical names.

The table ``keys.yaml`` was collected from the trainers' own logging code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from levelhead.doctor.readers.words import by_meaning, by_words, in_english, is_chinese, with_contrast

_ONE_MINUS = "1-"
_INVERSE = "1/"

KEYS = Path(__file__).with_name("keys.yaml")
"""Raw keys by canonical name."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLES = yaml.load(KEYS.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe loader
_BY_FORMAT: dict[str, dict[str, str]] = _TABLES["by_format"]

# A word that a stripped prefix must not turn into the policy's own metric.
_NOT_THE_POLICY = re.compile(
    r"^(critic/(?!\w*scores?/|\w*rewards?/|advantages|kl)|value|vf_|ref/|timing|perf/|system|memory|gpu|val_|optimizer/|prompt_length|"
    r"grad_norm_critic|num_turns|turns|tools/|num_)"
)
_PREFIXES = ("train/", "training/", "metrics/", "actor/", "policy/", "rollout/", "optim/", "stats/", "env/")
_EVAL = re.compile(
    r"^(?:val-core|val-aux|evaluation|eval|validation|val|test|heldout|held[_-]out|holdout|dev)[/_ -]+(?P<rest>.+)$"
)
_EVAL_NOISE = re.compile(
    r"loss|time|runtime|per_second|length|num_|step|epoch|clip|kl|entropy|std|trunc|tokens|sequence|count|turns|max$|min$|"
    r"ratio|size|temperature"
)
_PART_MEAN = re.compile(r"^(?:rewards?|reward_components?|reward_extra|reward_fn)/(?P<name>.+?)(?:/mean)?$")
_PART_TRL = re.compile(r"^rewards/(?P<name>.+)/mean$")
_PART_STD = re.compile(r"^rewards/(?P<name>.+)/std$")
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
    r"acc%|frac_correct|solved%|solve%|"
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
    def turns(self) -> bool:
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
        evaluation = _EVAL.match(key)
        if evaluation:
            rest = evaluation.group("rest")
            # A metric that a user has called eval/... gets the trainer's own eval_ before it.
            while again := _EVAL.match(rest):
                rest = again.group("rest")
            return None if _EVAL_NOISE.search(rest) else Target(f"eval/{rest}")
        if _BENCHMARK.match(plain) and plain != "math":
            return Target(f"eval/{plain}/score", 10, percent="%" in key)
        if plain in _HELD_OUT:
            return Target("eval/score", 20, confidence=_BY_A_LETTER)
        stripped = _without_prefix(key)
        if stripped != key and not _NOT_THE_POLICY.match(key):
            target = _TABLE.get(stripped)
            if target:
                return Target(target.name, target.rank + 50, target.transform, target.percent)
        if _NOT_THE_POLICY.match(key):
            return None
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


def _without_prefix(key: str) -> str:
    while True:
        for prefix in _PREFIXES:
            if key.startswith(prefix) and len(key) > len(prefix):
                key = key[len(prefix) :]
                break
        else:
            return key


def _part(raw: str, key: str) -> Target | None:
    """A named reward, under any of the ways in which sources write one; ``raw`` keeps the name's case."""
    std = _PART_STD.match(key)
    if std:
        return Target(f"rewards/{_cased(raw, std.group('name'))}/std")
    trl = _PART_TRL.match(key)
    if trl:
        return Target(f"rewards/{_cased(raw, trl.group('name'))}/mean", 0)
    if _PART_NOT.search(key):
        return None
    for pattern in (_PART_MEAN, _PART_CRITIC, _PART_AFFIX, _PART_BARE):
        match = pattern.match(key)
        if match:
            name = next(group for group in match.groups() if group)
            return Target(f"rewards/{_cased(raw, name)}/mean", 1, percent="%" in key)
    return None


def _cased(raw: str, name: str) -> str:
    start = raw.lower().find(name)
    return raw[start : start + len(name)] if start >= 0 else name
