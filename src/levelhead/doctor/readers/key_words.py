"""What a heading means whose exact spelling nobody has listed: judged by its words, or not at all.

Reports and hand-written loops call one signal by many names ("mean KL per token", "groups with zero reward spread").  A
name is understood where it holds the signal's own word and otherwise only words that do not change its meaning.
"""

from __future__ import annotations

import re


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[a-z]+|%|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PLAIN = _set(
    "mean avg average per token tok tokens policy train training rollout rollouts batch step steps "
    "current raw total overall the of in to from vs and a sampled observed actual measured nats "
    "actor rl grpo ppo k1 k2 k3 est estimate estimated 1 2 3"
)
"""Words that leave a signal what it is."""
_KL = _set("kl divergence div ref reference base sft init initial model k")
_KL_OLD = _set("old approx behaviour behavior")
_KL_ENGINES = _set("sampler vllm sglang inference engine mismatch generation gen trainer")
_ENTROPY = _set("entropy action output distribution generation response completion h")
_REWARD = _set("reward rewards return returns episode group shaped scalar")
_SPREAD = _set("std stdev spread sigma deviation dev")
_NONE = _set("zero no dead flat identical uniform degenerate collapsed tied constant same null without")
_CONTRAST = _set("std stdev variance var spread contrast signal advantage advantages adv diversity group groups")
_SHARE = _set("frac fraction ratio rate share percent pct % prop proportion")
_LENGTH = _set("length len lengths words toks")
_ANSWER = _set(
    "completion completions response responses resp output outputs answer answers gen generated "
    "generation generations decode decoded reply replies"
)
_VALID = _set("valid parse parsed parseable parses wellformed")


def by_words(raw: str) -> str | None:
    """The canonical signal that a heading names by its words; ``None`` where they do not settle it.

    Args:
        raw: As the source spells it.
    """
    words = _WORD.findall(_CAMEL.sub(" ", raw.replace("_", " ")).lower())
    word_set, rest = frozenset(words), frozenset(words) - _PLAIN
    if not word_set or len(words) > 8:
        return None
    if "kl" in word_set:
        return _kl(rest)
    if "entropy" in word_set:
        return "entropy" if rest <= _ENTROPY else None
    if word_set & {"grad", "gradient", "gradients"} and "norm" in word_set:
        return "grad_norm" if rest <= {"grad", "gradient", "gradients", "norm", "l", "global"} else None
    return _groups(word_set, rest) or _answers(word_set, rest)


def _kl(rest: frozenset[str]) -> str | None:
    if rest <= _KL:
        return "kl"
    if rest & _KL_OLD and rest <= _KL | _KL_OLD:
        return "ppo_kl"
    return "mismatch/kl" if rest & _KL_ENGINES and rest <= _KL | _KL_ENGINES else None


def _groups(words: frozenset[str], rest: frozenset[str]) -> str | None:
    """Rewards, their spread, and groups that have none."""
    about = _CONTRAST | _REWARD | _SHARE | {"with", "having", "whose", "are", "all", "equal", "prompts"}
    if words & _NONE and words & _CONTRAST and words & {"group", "groups", "frac", "fraction", "ratio", "share", "%"}:
        return "frac_reward_zero_std" if rest <= about | _NONE else None
    if words & _REWARD and words & _SPREAD:
        return "reward_std" if rest <= _REWARD | _SPREAD | {"within", "inside"} else None
    return "reward" if words & {"reward", "rewards"} and rest <= _REWARD else None


def _answers(words: frozenset[str], rest: frozenset[str]) -> str | None:
    """Lengths, answers that are cut, and answers that parse."""
    if words & _ANSWER and (words & _LENGTH or words & {"tokens", "token"}):
        return "completions/mean_length" if rest <= _ANSWER | _LENGTH else None
    if words & _LENGTH and rest <= _LENGTH - {"words"}:
        return "completions/mean_length"
    cut = [word for word in words if word.startswith("trunc")]
    if cut or "overlong" in words:
        return "completions/clipped_ratio" if rest <= _ANSWER | _SHARE | {*cut, "overlong", "at", "max"} else None
    if words & _VALID and words & _SHARE:
        return (
            "validity" if rest <= _VALID | _SHARE | _ANSWER | {"json", "format", "action", "actions", "tool"} else None
        )
    return None
