"""Canonical signals: what each metric means, and how two readings of it merge into one.

Canonical names are TRL's; a few that TRL lacks follow its style (``dead_groups/all_failed``).  Readers map their
source's keys to these names and never to a signal that means something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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


_ALL = (
    Signal("loss", "total training loss"),
    Signal("policy_loss", "policy part of the loss"),
    Signal("reward", "mean reward over the rollouts of the step"),
    Signal("reward_std", "standard deviation of the reward; within groups unless the source says whole batch"),
    Signal("reward/max", "largest reward of the batch", "max"),
    Signal("reward/min", "smallest reward of the batch", "min"),
    Signal("frac_reward_zero_std", "share of groups whose rewards are all equal: they teach nothing"),
    Signal("dead_groups/all_failed", "share of groups in which every rollout failed"),
    Signal("dead_groups/all_solved", "share of groups in which every rollout succeeded"),
    Signal("advantages/mean", "mean advantage"),
    Signal("advantages/max", "largest advantage of the batch", "max"),
    Signal("advantages/min", "smallest advantage of the batch", "min"),
    Signal("entropy", "mean entropy of the policy per completion token, nats"),
    Signal("entropy_coef", "coefficient of the entropy bonus", "last"),
    Signal("kl", "KL of the policy to the reference per completion token, nats; absent where no reference is kept"),
    Signal("kl_coef", "coefficient of the KL penalty", "last"),
    Signal("ppo_kl", "KL of the policy to the one that drew the rollouts, as the trainer computes it"),
    Signal("grad_norm", "gradient norm before clipping; TRL logs the last step of the window", "max"),
    Signal("learning_rate", "learning rate", "last"),
    Signal("clip_ratio/region_mean", "share of completion tokens whose importance ratio is clipped"),
    Signal("completions/mean_length", "mean completion length, tokens"),
    Signal("completions/min_length", "shortest completion, tokens", "min"),
    Signal("completions/max_length", "longest completion, tokens", "max"),
    Signal("completions/mean_terminated_length", "mean length of the completions that ended by themselves"),
    Signal("completions/clipped_ratio", "share of completions cut at the length limit"),
    Signal("validity", "share of completions that parsed"),
    Signal("step_time", "seconds a step"),
    Signal("num_tokens", "tokens seen so far", "last"),
    Signal("epoch", "passes over the data", "last"),
    Signal(
        "sampling/sampling_logp_difference/mean", "mean |log-prob in the trainer - log-prob in the sampler| per token"
    ),
    Signal("sampling/sampling_logp_difference/max", "largest such difference", "max"),
    Signal(
        "sampling/logp_difference_beyond_rounding",
        "what of the mean difference rounding does not explain, where trainer and sampler hold the same weights",
        "max",
    ),
    Signal("sampling/importance_sampling_ratio/mean", "mean ratio of trainer to sampler probability, after truncation"),
    Signal("sampling/importance_sampling_ratio/min", "smallest such ratio", "min"),
    Signal("sampling/importance_sampling_ratio/max", "largest such ratio", "max"),
    Signal("mismatch/kl", "KL between trainer and sampler per token, nats"),
    Signal("mismatch/prob_diff_mean", "mean |probability in the trainer - probability in the sampler|"),
    Signal("mismatch/prob_diff_max", "largest such difference", "max"),
    Signal("mismatch/correlation", "Pearson correlation of trainer and sampler probabilities", "min"),
    Signal("mismatch/mult_prob_error", "mean exp|log-prob difference| of trainer and sampler; 1 is agreement", "max"),
    Signal("off_policy/mean", "policy updates between drawing a rollout and training on it"),
    Signal("sampling/temperature", "temperature at which the rollouts were drawn"),
    Signal("updates", "optimizer updates so far", "last"),
    Signal("group_size", "rollouts of one prompt", "last"),
    Signal("reward/errors", "share of rollouts whose reward function failed", "max"),
    Signal("gradients/cosine", "cosine between the gradients of two tasks", "min"),
    Signal("value_loss", "loss of the value function, where there is one"),
    Signal("eval/score", "held-out score"),
)

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in _ALL}

REWARD_PART = re.compile(r"^rewards/(?P<name>.+)/mean$")
"""Canonical name of one named reward."""

_STRONG_OUTCOME = re.compile(r"accura|(?:^|[_/ -])acc(?:$|[_/ -])|correct|solve|success|pass", re.IGNORECASE)
_FORM = re.compile(
    r"format|length|think|tag|xml|style|repet|language|cosine|brev|concis|reason|step|structure|syntax|cite|json|"
    r"schema|int_reward|penalty|divers",
    re.IGNORECASE,
)
_OUTCOME = re.compile(
    r"corr$|answer|exact|match|outcome|verif|math|test|em$|(^|[_/ ])f1|label|ground|result|win|execut|compil|number",
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
