"""What a project's own word for a signal means, and how sure that is: the last resort after lists and wording.

A name is cut into words, abbreviations are spelt out (``rwd`` is a reward, ``sd`` a deviation), and the signal is the
one whose defining words are all there.  Every word that is neither defining nor known to leave a meaning as it is makes
the match more doubtful; words that change a meaning (``target``, ``coef``, ``max``) end it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[a-z]+|%|[\u4e00-\u9fff]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MATH = re.compile(r"(?:^|[^A-Za-z])(?:D_?)?KL\s{0,4}[\[(]\s{0,4}(?:pi|π|policy|p)\w{0,8}\s{0,4}(?:\|\||∥|,|/)")

_NO_NAME = re.compile(r"[:=→;]|\s[-+~]?\d|\d\.\d|[.!?]$")
"""What holds numbers or ends a sentence is no name."""

_SPELT: dict[str, str] = {
    spelling: word
    for word, spellings in {
        "reward": "rew rews rwd rwds rewards return returns rwrd",
        "mean": "avg average averaged mu mn",
        "std": "sd stddev stdev sigma deviation dev spread",
        "variance": "var",
        "answer": "ans resp response responses completion completions answers gen generation generations output "
        "outputs out rollouts rollout sample samples decode reply",
        "length": "len lens lengths size",
        "token": "tok toks tokens",
        "entropy": "ent entropies",
        "gradient": "grad grads gradients",
        "share": "frac fraction ratio rate pct percent perc percentage prop proportion %",
        "cut": "trunc truncated truncation truncations truncate overlong clipped cutoff",
        "group": "grp grps groups",
        "dead": "flat degenerate collapsed zero no without tied identical uniform",
        "signal": "contrast variance var diversity",
        "kl": "kld kldiv",
        "reference": "ref base sft reference init initial baseline",
        "rate": "",
        "learning": "learn",
        "norm": "l2norm",
        "total": "tot sum overall combined all",
        "objective": "obj",
        "clip": "clipfrac clipping",
        "hit": "reached hits reaching",
        "limit": "cap ceiling budget",
    }.items()
    for spelling in spellings.split()
    if spelling not in ("variance",)
}
_GLUED = {
    "gnorm": ("gradient", "norm"),
    "gradnorm": ("gradient", "norm"),
    "klref": ("kl", "reference"),
    "lr": ("learning", "rate"),
    "clipfrac": ("clip", "share"),
    "maxlen": ("limit", "length"),
    "numtokens": ("token",),
}
_NEUTRAL = _words(
    "mean total batch train training policy actor step steps per a of the in to from vs and current cur "
    "now iter global l norm nats k value01 token env rl grpo ppo raw overall pi est approx scalar running "
    "smoothed ema"
)
_CHANGES = _words(
    "target coef coefficient coeff weight weights scale bonus threshold penalty max min maximum minimum p "
    "q top best worst value critic vf prompt query question input chosen rejected margin eval test val "
    "validation held heldout time seconds count num number n id seed loss std variance clip limit delta "
    "diff change budget cost baseline advantage adv schedule second sec hour scheduler sampler vllm "
    "inference engine old behaviour behavior model format ref_model lora vocab temp temperature first last"
)
"""Words under which a signal is another one, unless the rule asks for them."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A signal, the words that must stand in its name (one of each set), and others that may."""

    name: str
    need: tuple[frozenset[str], ...]
    allow: frozenset[str] = frozenset()


def _rule(name: str, need: str, allow: str = "") -> _Rule:
    return _Rule(name, tuple(frozenset(words.split("|")) for words in need.split()), frozenset(allow.split()))


_RULES = (
    _rule(
        "frac_reward_zero_std",
        "dead|dropped|skipped group",
        "share signal reward std variance advantage with equal same",
    ),
    _rule("frac_reward_zero_std", "dead reward std|variance share", "group signal"),
    _rule("completions/clipped_ratio", "cut share|answer|length", "token answer length share limit max hit"),
    _rule("completions/clipped_ratio", "hit|at|cut|over limit|max|maxlen", "share token answer length limit"),
    _rule("reward_std", "reward std", "within inside group share"),
    _rule("clip_ratio/region_mean", "clip share|pg|ratio|is", "pg share ratio is region importance token"),
    _rule("grad_norm", "gradient norm", "l global pre post clipping before"),
    _rule("learning_rate", "learning rate|share", ""),
    _rule("learning_rate", "learning", "rate"),
    _rule("kl", "kl", "reference divergence div loss"),
    _rule("entropy", "entropy", "action answer distribution"),
    _rule("loss", "loss|objective", "objective"),
    _rule("completions/mean_length", "answer|gen length|token|words|toks", "share length token"),
    _rule("reward", "reward", "episode shaped group train answer"),
)
_WITH_CONTRAST = _words("mixed informative effective nondegenerate live alive active useful")
_LONGEST = 60
_SURE, _DOUBTFUL, _FAINT = 0.85, 0.65, 0.5


def words_of(raw: str) -> list[str]:
    """The words of a name in lower case, abbreviations spelt out."""
    spaced = _CAMEL.sub(" ", raw.replace("_", " ").replace("/", " ")).lower()
    words: list[str] = []
    for word in _WORD.findall(spaced):
        words += _GLUED.get(word, (_SPELT.get(word, word),))
    return words


def with_contrast(raw: str) -> bool:
    """Whether a name means the share of groups with contrast, which is one minus the share without."""
    words = frozenset(words_of(raw)) if len(raw) <= _LONGEST else frozenset()
    rest = words - _NEUTRAL - _WITH_CONTRAST - _words("group share reward signal std variance with")
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
    words = words_of(raw)
    if not words or len(words) > 7:
        return None
    # A lone letter is a signal only beside a word that says of what.
    if words[0] == "r" and len(words) > 1:
        words[0] = "reward"
    if words[0] == "h" and len(words) > 1 and set(words[1:]) <= _NEUTRAL:
        words[0] = "entropy"
    present = frozenset(words)
    best: tuple[str, float] | None = None
    for rule in _RULES:
        if not all(need & present for need in rule.need):
            continue
        defining = frozenset().union(*rule.need)
        rest = present - defining - rule.allow - _NEUTRAL
        if rest & _CHANGES:
            continue
        sure = (_SURE, _DOUBTFUL, _FAINT)[min(len(rest), 2)]
        if len(rest) <= strangers and (best is None or sure > best[1]):
            best = rule.name, sure
    return best
