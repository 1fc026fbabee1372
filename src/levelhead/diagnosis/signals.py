"""Canonical signals: what each metric means, and how two readings of it merge into one.

Canonical names are TRL's; a few that TRL lacks follow its style (``dead_groups/all_failed``).  Readers map their
source's keys to these names and never to a signal that means something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from levelhead import metrics as metric
from levelhead.metrics.catalogue import find

Merge = Literal["mean", "max", "min", "last"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One canonical metric.

    Attributes:
        name: Canonical name.
        meaning: What the number is, unit included.
        merge: How neighbouring readings are merged when a history outgrows its capacity: peaks of spiky signals
            are kept (``max``), levels are averaged (``mean``), counters keep the ``last`` reading.
    """

    name: str
    meaning: str
    merge: Merge = "mean"


def _meaning(name: str, note: str) -> str:
    """What a metric of our own means, and how other sources differ."""
    declared = find(name)
    meaning = declared.meaning if declared is not None else ""
    return f"{meaning} ({note})" if note else meaning


_OWN: tuple[tuple[str, Merge, str], ...] = (
    (metric.LOSS, "mean", ""),
    (metric.REWARD, "mean", ""),
    (metric.REWARD_STD, "mean", "of the whole batch where the source says so"),
    (metric.ZERO_STD, "mean", ""),
    (metric.ALL_FAILED, "mean", ""),
    (metric.ALL_SOLVED, "mean", ""),
    (metric.ENTROPY, "mean", ""),
    (metric.ENTROPY_COEF, "last", ""),
    (metric.KL, "mean", ""),
    (metric.GRAD_NORM, "max", "TRL logs the last step of the window"),
    (metric.LEARNING_RATE, "last", ""),
    (metric.CLIP_REGION, "mean", ""),
    (metric.MEAN_LENGTH, "mean", ""),
    (metric.MIN_LENGTH, "min", ""),
    (metric.MAX_LENGTH, "max", ""),
    (metric.MEAN_TERMINATED_LENGTH, "mean", ""),
    (metric.CLIPPED_RATIO, "mean", ""),
    (metric.VALIDITY, "mean", ""),
    (metric.STEP_TIME, "mean", ""),
    (metric.NUM_TOKENS, "last", "other trainers count the tokens seen so far"),
    (metric.LOGP_DIFFERENCE_MEAN, "mean", ""),
    (metric.LOGP_DIFFERENCE_MAX, "max", ""),
    (metric.BEYOND_ROUNDING, "max", ""),
    (metric.IMPORTANCE_MEAN, "mean", ""),
    (metric.IMPORTANCE_MIN, "min", ""),
    (metric.IMPORTANCE_MAX, "max", ""),
    (metric.OFF_POLICY, "mean", ""),
    (metric.TEMPERATURE, "mean", ""),
)
"""What Levelhead's own runs write too: name, merge, and how other sources differ."""

_OTHERS = (
    Signal("policy_loss", "policy part of the loss"),
    Signal("reward/max", "largest reward of the batch", "max"),
    Signal("reward/min", "smallest reward of the batch", "min"),
    Signal("advantages/mean", "mean advantage"),
    Signal("advantages/max", "largest advantage of the batch", "max"),
    Signal("advantages/min", "smallest advantage of the batch", "min"),
    Signal("kl_coef", "coefficient of the KL penalty", "last"),
    Signal("ppo_kl", "KL of the policy to the one that drew the rollouts, as the trainer computes it"),
    Signal("epoch", "passes over the data", "last"),
    Signal("mismatch/kl", "KL between trainer and sampler per token, nats"),
    Signal("mismatch/prob_diff_mean", "mean |probability in the trainer - probability in the sampler|"),
    Signal("mismatch/prob_diff_max", "largest such difference", "max"),
    Signal("mismatch/correlation", "Pearson correlation of trainer and sampler probabilities", "min"),
    Signal("mismatch/mult_prob_error", "mean exp|log-prob difference| of trainer and sampler; 1 is agreement", "max"),
    Signal("updates", "optimizer updates so far", "last"),
    Signal("group_size", "rollouts of one prompt", "last"),
    Signal("reward/errors", "share of rollouts whose reward function failed", "max"),
    Signal("gradients/cosine", "cosine between the gradients of two tasks", "min"),
    Signal("value_loss", "loss of the value function, where there is one"),
    Signal("eval/score", "held-out score"),
)
"""What only other trainers log."""

SIGNALS: dict[str, Signal] = {
    **{name: Signal(name, _meaning(name, note), merge) for name, merge, note in _OWN},
    **{signal.name: signal for signal in _OTHERS},
}
"""Canonical signals by name."""

REWARD_PART = re.compile(f"^{metric.PART_MEAN.prefix}(?P<name>.+){metric.PART_MEAN.suffix}$")
"""Canonical name of one named reward."""

_STRONG_OUTCOME = re.compile(
    r"accura|(?:^|[_/ -])(?:ndcg|recall|mrr)|(?:^|[_/ -])acc(?:$|[_/ -])|correct|solve|success|pass", re.IGNORECASE
)
_FORM = re.compile(
    r"format|length|think|tag|xml|style|repet|language|cosine|brev|concis|reason|step|structure|syntax|cite|json|"
    r"schema|int_reward|penalty|divers",
    re.IGNORECASE,
)
_OUTCOME = re.compile(
    r"corr$|answer|exact|match|outcome|verif|math|test|em$|(^|[_/ ])f1|label|ground|result|rule|"
    r"gold|human|win|^env|strict|true|task|execut|compil|number",
    re.IGNORECASE,
)


def signal(name: str) -> Signal:
    """The signal called ``name``; named rewards and held-out metrics are made up on the fly."""
    return SIGNALS.get(name) or Signal(name, "a metric of the source", "mean")


def part_kind(name: str) -> Literal["outcome", "form", "other"]:
    """Whether a named reward judges the outcome (is it right) or the form (how it is written).

    Args:
        name: The reward's name, without ``rewards/`` and ``/mean``.
    """
    if _STRONG_OUTCOME.search(name):
        return "outcome"
    if _FORM.search(name):
        return "form"
    return "outcome" if _OUTCOME.search(name) else "other"
