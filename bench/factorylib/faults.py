# ruff: noqa: ARG005 -- every change has one signature, whether it needs the plan and the strength or not
"""Faults of graded strength that are put into a sound plan, each with what a doctor should call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from factorylib.plans import Plan
from factorylib.worlds import World

Change = Callable[[Plan, float], dict[str, object]]


def always(_: World) -> bool:
    return True


def ends(world: World) -> bool:
    return world.ends


def zero_or_one(world: World) -> bool:
    return world.top == 1.0


def far_from_top(world: World) -> bool:
    return world.kind != "near ceiling"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: Of the fault.
        root: The finding that names it.
        expected: Findings that are right too.
        change: Fields of the plan at a strength between 0 and 1.
        fits: Families in which it makes sense.
        shows: Whether its symptom alone makes the run unhealthy; otherwise it must have cost true reward.
        late: Whether it may begin in the middle of a run.
        acceptable: Findings that are not wrong.
    """

    name: str
    root: str
    expected: frozenset[str]
    change: Change
    fits: Callable[[World], bool] = always
    shows: bool = False
    late: bool = False
    acceptable: frozenset[str] = frozenset()


FAULTS: dict[str, Fault] = {}
_UNSTABLE = (
    "lr-too-high", "kl-blowup", "gradient-spike", "entropy-collapse", "entropy-explosion", "catastrophic-update",
    "deadlock",
)  # fmt: skip
_FLAT = ("no-improvement",)
_DEAD = ("reward-dead-groups",)
_BLIND = ("kl-blowup", "reference-drift", "no-improvement", "entropy-collapse", "entropy-explosion")
_APART = ("logprob-mismatch", "stale-policy")
_LENGTH = ("length-runaway", "length-truncation", "eos-never")


def _fault(
    name: str,
    root: str,
    also: tuple[str, ...],
    change: Change,
    fits: Callable[[World], bool] = always,
    **settings: bool,
) -> None:
    acceptable = frozenset({"reward-dead-groups", "no-improvement", "group-size-too-small"}) - {root, *also}
    FAULTS[name] = Fault(name, root, frozenset({root, *also}), change, fits, acceptable=acceptable, **settings)


# Steps that are too large.
_fault("rate-high", "lr-too-high", _UNSTABLE, lambda p, s: {"rate_factor": 15 + 80 * s, "max_norm": 1e9}, late=False)
_fault("rate-high-sgd", "lr-too-high", _UNSTABLE, lambda p, s: {"adam": False, "rate": 300 + 3000 * s, "max_norm": 1e9})
_fault("rate-jumps", "lr-too-high", _UNSTABLE, lambda p, s: {"rate_factor": 20 + 80 * s}, late=True)
_fault(
    "loss-summed",
    "lr-too-high",
    _UNSTABLE,
    lambda p, s: {"summed": True, "adam": False, "rate": 3 + 10 * s, "max_norm": 1e9},
)
_fault(
    "gradients-kept",
    "lr-too-high",
    (*_UNSTABLE, "no-improvement"),
    lambda p, s: {"accumulates": True, "max_norm": 1e9, "rate": p.rate * (3 + 9 * s)},
)
_fault(
    "many-epochs",
    "lr-too-high",
    _UNSTABLE,
    lambda p, s: {"epochs": 6 + int(10 * s), "clipped_off": True, "rate": p.rate * (3 + 6 * s)},
)
_fault(
    "reward-unscaled",
    "lr-too-high",
    _UNSTABLE,
    lambda p, s: {"reward_scale": 20 + 200 * s, "normalised": False, "adam": False, "rate": 2.0, "max_norm": 1e9},
)
_fault(
    "one-huge-update", "catastrophic-update", _UNSTABLE, lambda p, s: {"jolt_at": 0.3 + 0.4 * s, "jolt": 100 + 400 * s}
)
_fault(
    "one-huge-update-late",
    "catastrophic-update",
    _UNSTABLE,
    lambda p, s: {"jolt_at": 0.6 + 0.1 * s, "jolt": 60 + 800 * s},
)
# Steps that go the wrong way, or nowhere.
_fault("sign-of-advantage", "no-improvement", (*_BLIND, "catastrophic-update"), lambda p, s: {"sign": -1.0}, late=True)
_fault("rewards-shuffled", "no-improvement", _BLIND, lambda p, s: {"shuffle": 0.9 + 0.1 * s}, far_from_top)
_fault("rewards-of-another-prompt", "no-improvement", _BLIND, lambda p, s: {"wrong_prompt": True}, far_from_top)
_fault("rate-tiny", "no-improvement", _FLAT, lambda p, s: {"rate_factor": 0.01 * (1.2 - s)}, far_from_top)
_fault("rate-ends-early", "no-improvement", _FLAT, lambda p, s: {"rate_stop": 0.12 - 0.1 * s}, far_from_top)
_fault("warmup-of-all-steps", "no-improvement", _FLAT, lambda p, s: {"rate_factor": 0.03 * (1.1 - s)}, far_from_top)
_fault(
    "updates-rounded-away", "no-improvement", _FLAT, lambda p, s: {"least_update": p.rate * (1 + 4 * s)}, far_from_top
)
_fault(
    "epsilon-huge",
    "no-improvement",
    _FLAT,
    lambda p, s: {"adam": True, "rate": 0.04, "adam_eps": 1 + 9 * s},
    far_from_top,
)
_fault("kl-too-strong", "no-improvement", _FLAT, lambda p, s: {"beta": 3 + 30 * s}, far_from_top)
_fault("noise-drowns-reward", "no-improvement", _BLIND, lambda p, s: {"noise": 3 + 10 * s}, far_from_top)
_fault("wrong-labels", "no-improvement", _BLIND, lambda p, s: {"flips": 0.42 + 0.1 * s}, zero_or_one)
_fault("gradient-zero", "zero-gradient-despite-signal", _FLAT, lambda p, s: {"gradient_scale": 0.0}, shows=True)
_fault("all-masked", "zero-gradient-despite-signal", _FLAT, lambda p, s: {"masked": 1.0, "beta": 0.0}, shows=True)
_fault(
    "gradient-tiny",
    "zero-gradient-despite-signal",
    _FLAT,
    lambda p, s: {"gradient_scale": 10 ** (-5 - 3 * s), "adam": False, "rate": 2.0},
    shows=True,
)
_fault("weights-frozen", "no-improvement", _FLAT, lambda p, s: {"frozen": True}, far_from_top)
# Entropy.
_fault("entropy-sign", "entropy-collapse", ("entropy-sign", "deadlock"), lambda p, s: {"bonus": -(0.3 + 2.5 * s)})
_fault("entropy-bonus-huge", "entropy-explosion", (*_FLAT, "length-truncation"), lambda p, s: {"bonus": 0.15 + 0.8 * s})
_fault(
    "weight-decay-huge",
    "entropy-explosion",
    (*_FLAT, "kl-blowup", "catastrophic-update"),
    lambda p, s: {"decay": 0.2 + 1.0 * s},
    late=True,
)
_fault(
    "greedy-too-soon",
    "entropy-collapse",
    ("deadlock", *_DEAD),
    lambda p, s: {"rate": p.rate * (10 + 20 * s), "group": 4, "batch": min(4, p.batch)},
)
# Distance to the reference.
_fault("kl-sign", "kl-blowup", (*_BLIND, "reference-drift"), lambda p, s: {"beta": -(0.5 + 3 * s)})
_fault(
    "kl-off-noise",
    "kl-blowup",
    (*_BLIND, "reference-drift"),
    lambda p, s: {"beta": 0.0, "noise": 2.0, "shuffle": 1.0, "rate": p.rate * (2 + 3 * s)},
)
_fault(
    "wrong-reference",
    "logprob-mismatch",
    ("kl-blowup", "template-mismatch"),
    lambda p, s: {"wrong_reference": 0.8 + 2.0 * s, "beta": 0.01},
    shows=True,
)
# Rewards.
_fault(
    "reward-zero",
    "no-learning-signal-all-zero-reward",
    (*_DEAD, "template-mismatch", "rewards-stopped"),
    lambda p, s: {"zero_reward": 1.0},
    shows=True,
)
_fault(
    "reward-nearly-zero",
    "no-learning-signal-all-zero-reward",
    _DEAD,
    lambda p, s: {"zero_reward": 0.985 + 0.014 * s},
    lambda w: w.top > 0 and w.kind not in ("sparse", "noisy"),
)
_fault(
    "reward-stops",
    "judge-failure",
    ("no-learning-signal-all-zero-reward", "reward-dead-groups", "rewards-stopped", "deadlock", "catastrophic-update"),
    lambda p, s: {"zero_reward": 1.0, "begin": 0.3 + 0.4 * s},
    lambda w: w.top > 0,
    shows=True,
)
_fault(
    "reward-constant",
    "reward-dead-groups",
    ("saturated-all-one-reward",),
    lambda p, s: {"constant_reward": True, "noise": 0.0},
    shows=True,
)
_fault(
    "reward-capped",
    "reward-dead-groups",
    ("saturated-all-one-reward",),
    lambda p, s: {"capped": 0.25 - 0.15 * s, "noise": 0.0},
    lambda w: w.top == 1.0 and w.kind == "plain",
)
_fault(
    "one-answer-a-group",
    "reward-dead-groups",
    _FLAT,
    lambda p, s: {"copies": 0.9 + 0.1 * s, "noise": 0.0},
    lambda w: w.kind != "noisy",
    shows=True,
)
_fault(
    "greedy-sampling",
    "reward-dead-groups",
    _FLAT,
    lambda p, s: {"sampler_temperature": 0.01, "noise": 0.0, "flips": 0.0},
    lambda w: w.kind != "noisy",
    shows=True,
)
_fault(
    "cold-sampling",
    "reward-dead-groups",
    (*_APART, "no-improvement"),
    lambda p, s: {"sampler_temperature": 0.25 - 0.15 * s, "noise": 0.0},
    lambda w: w.kind not in ("noisy", "near ceiling"),
)
_fault(
    "groups-of-two", "group-size-too-small", (*_DEAD, "advantage-two-valued"), lambda p, s: {"group": 2}, zero_or_one
)
_fault("judge-fails", "judge-failure", ("reward-errors",), lambda p, s: {"errors": 0.3 + 0.6 * s}, late=True)
_fault("hack-tokens", "reward-hacking", (), lambda p, s: {"hack": 3 + 5 * s}, far_from_top)
_fault("hack-late", "reward-hacking", (), lambda p, s: {"hack": 4 + 6 * s, "begin": 0.3}, far_from_top)
_fault(
    "curriculum-jumps",
    "catastrophic-update",
    ("no-learning-signal-all-zero-reward", *_DEAD, "judge-failure"),
    lambda p, s: {"jump_at": 0.5 + 0.2 * s},
    lambda w: w.curriculum,
    shows=True,
)
# Length.
_fault("end-forbidden", "eos-never", _LENGTH, lambda p, s: {"no_end": True, "cut_reward": s > 0.5}, ends, shows=True)
_fault(
    "limit-short",
    "length-truncation",
    (*_LENGTH, "length-fixed"),
    lambda p, s: {"room": 0.35 - 0.2 * s, "cut_reward": s > 0.5},
    ends,
)
_fault("paid-by-length", "length-runaway", (*_LENGTH, "reward-hacking"), lambda p, s: {"per_token": 2 + 4 * s}, ends)
_fault("fined-by-length", "length-collapse", ("reward-hacking",), lambda p, s: {"per_token": -(2 + 4 * s)}, ends)
_fault("end-untrained", "length-runaway", _LENGTH, lambda p, s: {"end_untrained": True, "rate": p.rate * (1 + s)}, ends)
# Two policies.
_fault(
    "engines-differ", "logprob-mismatch", ("stale-policy",), lambda p, s: {"sampler_noise": 0.6 + 2.0 * s}, shows=True
)
_fault(
    "engines-differ-late",
    "logprob-mismatch",
    ("stale-policy",),
    lambda p, s: {"sampler_noise": 0.8 + 2.0 * s},
    shows=True,
    late=True,
)
_fault(
    "temperature-forgotten",
    "logprob-mismatch",
    ("stale-policy", "entropy-explosion", "no-improvement"),
    lambda p, s: {"sampler_temperature": 1.4 + 0.8 * s},
    shows=True,
)
_fault(
    "top-k-forgotten", "logprob-mismatch", ("stale-policy",), lambda p, s: {"top_k": 2 if s > 0.5 else 3}, shows=True
)
_fault("weights-late", "stale-policy", ("logprob-mismatch",), lambda p, s: {"lag": 8 + int(40 * s)})
_fault(
    "weights-never-sent", "stale-policy", ("logprob-mismatch", *_FLAT, "kl-blowup"), lambda p, s: {"never_synced": True}
)
# Numbers.
_fault("nan-gradient", "nonfinite", (), lambda p, s: {"nan_from": 0.1 + 0.5 * s}, shows=True)
_fault("nan-from-start", "nonfinite", (), lambda p, s: {"nan_from": 0.0}, shows=True)
_fault("nan-kl", "nonfinite", (), lambda p, s: {"nan_from": 0.3 * s, "nan_loss_only": True}, shows=True)
_fault(
    "steps-cost-nothing",
    "step-time-collapse",
    (),
    lambda p, s: {"slow_factor": 15 + 60 * s, "begin": 0.5, "frozen": True},
    shows=True,
)
# Combinations that are seen together.
_fault(
    "hot-and-fast",
    "lr-too-high",
    _UNSTABLE,
    lambda p, s: {"rate": p.rate * (6 + 10 * s), "max_norm": 1e9, "sampler_temperature": 1.2, "same_temperature": True},
)
_fault(
    "no-clip-stale",
    "stale-policy",
    (*_APART, *_UNSTABLE),
    lambda p, s: {"lag": 6 + int(20 * s), "clipped_off": True, "rate": p.rate * (2 + 2 * s)},
)
_fault(
    "cut-answers-unpaid",
    "length-truncation",
    (*_LENGTH, *_DEAD),
    lambda p, s: {"room": 0.3 - 0.15 * s, "cut_reward": True, "end_untrained": True},
    ends,
)
_fault("rate-high-mild", "lr-too-high", _UNSTABLE, lambda p, s: {"rate": p.rate * (8 + 20 * s)})
_fault(
    "bonus-and-rate",
    "entropy-explosion",
    (*_UNSTABLE, *_FLAT),
    lambda p, s: {"bonus": 0.1 + 0.3 * s, "rate": p.rate * 3},
)
_fault(
    "masked-mostly",
    "no-improvement",
    _FLAT,
    lambda p, s: {"masked": 0.97 + 0.03 * s, "adam": False, "rate": 2.0},
    far_from_top,
)
