"""Made-up runs with a known cause, drawn from mechanisms: what moves, what follows it, and how noisy it is.

Each scenario gives rows under TRL's names.  They are used to test claims about the detectors over many seeds and
lengths; none of their numbers is taken from a real log.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Row = dict[str, float]
Scenario = Callable[[random.Random, int], list[Row]]


def _ramp(t: float, a: float, b: float, start: float = 0.0, end: float = 1.0) -> float:
    """From ``a`` to ``b`` while ``t`` goes from ``start`` to ``end``."""
    x = min(1.0, max(0.0, (t - start) / max(end - start, 1e-9)))
    return a + (b - a) * x


def _geometric(t: float, a: float, b: float, start: float = 0.0, end: float = 1.0) -> float:
    return math.exp(_ramp(t, math.log(a), math.log(b), start, end))


def _base(rng: random.Random, i: int) -> Row:
    """An ordinary step of a run that goes nowhere in particular."""
    return {
        "loss": rng.gauss(0, 0.01),
        "reward": min(1.0, max(0.0, rng.gauss(0.4, 0.05))),
        "reward_std": max(0.05, rng.gauss(0.35, 0.05)),
        "frac_reward_zero_std": min(0.9, max(0.0, rng.gauss(0.2, 0.08))),
        "entropy": rng.lognormvariate(math.log(0.5), 0.08),
        "kl": 0.0005 * (1 + i) ** 0.5 * rng.lognormvariate(0, 0.2),
        "grad_norm": rng.lognormvariate(math.log(0.4), 0.3),
        "learning_rate": 1e-6,
        "completions/mean_length": rng.gauss(300, 15),
        "completions/max_length": rng.gauss(700, 60),
        "completions/min_length": rng.gauss(60, 10),
        "completions/clipped_ratio": min(0.2, max(0.0, rng.gauss(0.03, 0.02))),
        "step_time": rng.lognormvariate(math.log(30), 0.1),
    }


def _make(change: Callable[[random.Random, float, int, Row], None]) -> Scenario:
    def scenario(rng: random.Random, n: int) -> list[Row]:
        rows = []
        for i in range(n):
            row = _base(rng, i)
            change(rng, i / max(n - 1, 1), i, row)
            rows.append(row)
        return rows

    return scenario


def _reward(rng: random.Random, level: float, noise: float = 0.05) -> float:
    return min(1.0, max(0.0, rng.gauss(level, noise)))


# --- healthy runs that alarm a list of thresholds


def _learning(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.2, 0.7))
    row["entropy"] *= _geometric(t, 1.0, 0.3)
    row["kl"] = _geometric(t, 0.001, 0.2) * rng.lognormvariate(0, 0.2)


def _mostly_dead(rng: random.Random, t: float, i: int, row: Row) -> None:
    _learning(rng, t, i, row)
    row["frac_reward_zero_std"] = min(1.0, max(0.6, rng.gauss(0.8, 0.1)))


def _one_group_a_step(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.75), 0.25)
    dead = float(rng.random() < 0.7)
    row.update({"frac_reward_zero_std": dead, "reward_std": 0.0 if dead else 0.4})
    row["grad_norm"] *= 1 - dead


def _entropy_doubles(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.6))
    row["entropy"] *= _geometric(t, 1.0, 2.2)


def _one_spike(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.6))
    if abs(t - 0.6) < 1e-9 or i == 12:
        row["grad_norm"] *= 20


def _spike_in_flat_run(rng: random.Random, t: float, i: int, row: Row) -> None:
    if i == 9:
        row["grad_norm"] *= 25


def _cut_but_learning(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.1, 0.5))
    row.update(
        {"completions/clipped_ratio": min(1.0, rng.gauss(0.97, 0.02)), "completions/mean_length": rng.gauss(505, 3)}
    )


def _low_entropy(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["entropy"] = rng.lognormvariate(math.log(0.04), 0.1)
    row["reward"] = _reward(rng, _ramp(t, 0.55, 0.75))


def _longer_and_better(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.2, 0.6))
    row["completions/mean_length"] = _geometric(t, 300, 1500) * rng.lognormvariate(0, 0.05)
    row["completions/clipped_ratio"] = _ramp(t, 0.02, 0.25)


def _shorter_and_better(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.8))
    row["completions/mean_length"] = _geometric(t, 400, 130) * rng.lognormvariate(0, 0.05)


def _saturating(rng: random.Random, t: float, i: int, row: Row) -> None:
    level = 1 - 0.55 * math.exp(-4 * t)
    row["reward"] = _reward(rng, level, 0.03)
    row["frac_reward_zero_std"] = _reward(rng, _ramp(t, 0.1, 0.85), 0.05)
    row["entropy"] *= _geometric(t, 1.0, 0.15)


def _far_but_better(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.1, 0.8))
    row["kl"] = _geometric(t, 0.001, 0.7) * rng.lognormvariate(0, 0.3)


def _hard_start(rng: random.Random, t: float, i: int, row: Row) -> None:
    if t < 0.35:
        row.update({"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0})
    else:
        row["reward"] = _reward(rng, _ramp(t, 0.1, 0.7, 0.35))


def _heavy_tails(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["grad_norm"] = rng.lognormvariate(math.log(0.4), 0.9)
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.55))


def _kl_outliers(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.6))
    if rng.random() < 0.03:
        row["kl"] = 40.0


def _one_nan(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, _ramp(t, 0.3, 0.6))
    if i == 7:
        row["grad_norm"] = math.nan


def _flat(rng: random.Random, t: float, i: int, row: Row) -> None:
    pass


def _few_rows_bare(rng: random.Random, t: float, i: int, row: Row) -> None:
    for name in ("frac_reward_zero_std", "entropy", "step_time", "completions/clipped_ratio"):
        row.pop(name)
    row["loss"] = 0.0


def _noisy_reward(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = rng.gauss(-1.0, 3.0)
    row["reward_std"] = abs(rng.gauss(3, 1))
    row["completions/mean_length"] = max(80.0, rng.gauss(550, 220))
    row["completions/clipped_ratio"] = 0.25 if rng.random() < 0.15 else 0.0


HEALTHY: dict[str, Scenario] = {
    "learning": _make(_learning),
    "mostly-dead-but-learning": _make(_mostly_dead),
    "one-group-a-step": _make(_one_group_a_step),
    "entropy-doubles": _make(_entropy_doubles),
    "one-spike": _make(_one_spike),
    "spike-in-a-flat-run": _make(_spike_in_flat_run),
    "cut-but-learning": _make(_cut_but_learning),
    "low-entropy-and-learning": _make(_low_entropy),
    "longer-and-better": _make(_longer_and_better),
    "shorter-and-better": _make(_shorter_and_better),
    "saturating": _make(_saturating),
    "far-but-better": _make(_far_but_better),
    "hard-start": _make(_hard_start),
    "heavy-tails": _make(_heavy_tails),
    "kl-outliers": _make(_kl_outliers),
    "one-nan": _make(_one_nan),
    "flat": _make(_flat),
    "few-signals": _make(_few_rows_bare),
    "noisy-reward": _make(_noisy_reward),
}


# --- runs that failed, by cause


def _entropy_gone(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["entropy"] *= _geometric(t, 1.0, 0.03, 0.1, 0.5)
    row["reward"] = _reward(rng, _ramp(t, 0.4, 0.3, 0.3))
    row["frac_reward_zero_std"] = _reward(rng, _ramp(t, 0.2, 0.9, 0.2, 0.6), 0.05)


def _entropy_explodes(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["entropy"] *= _geometric(t, 1.0, 10.0, 0.3, 0.9)
    row["reward"] = _reward(rng, _ramp(t, 0.45, 0.05, 0.5, 0.9))
    row["completions/clipped_ratio"] = _ramp(t, 0.03, 0.9, 0.6)


def _kl_runs(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["kl"] = _geometric(t, 0.001, 8.0, 0.05, 0.8) * rng.lognormvariate(0, 0.25)
    row["reward"] = _reward(rng, _ramp(t, 0.45, 0.25, 0.5))
    row["grad_norm"] *= _geometric(t, 1.0, 8.0, 0.3)


def _spike_kills(rng: random.Random, t: float, i: int, row: Row) -> None:
    if t >= 0.6:
        row["reward"] = _reward(rng, 0.03, 0.02)
        row["entropy"] *= 4
        row["completions/mean_length"] *= 2
    if 0.6 <= t < 0.6 + 0.02 or (t >= 0.6 and row.get("first")):
        row["grad_norm"] *= 800


def _nan_for_good(rng: random.Random, t: float, i: int, row: Row) -> None:
    if t >= 0.5:
        row.update({"loss": math.nan, "grad_norm": math.nan, "kl": math.nan, "reward": 0.0, "reward_std": 0.0})


def _never_right(rng: random.Random, t: float, i: int, row: Row) -> None:
    row.update({"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0})


def _dead(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["frac_reward_zero_std"] = min(1.0, rng.gauss(0.97, 0.02))
    row["reward"] = _reward(rng, 0.5, 0.04)
    row["reward_std"] = 0.01


def _cut(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["completions/clipped_ratio"] = _reward(rng, _ramp(t, 0.3, 0.95, 0.1, 0.7), 0.03)
    row["completions/mean_length"] = _ramp(t, 400, 500, 0.1, 0.7)
    row["reward"] = _reward(rng, _ramp(t, 0.4, 0.15, 0.4))


def _runs_away(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["completions/mean_length"] = _geometric(t, 200, 3000, 0.1) * rng.lognormvariate(0, 0.08)
    row["completions/clipped_ratio"] = _ramp(t, 0.0, 0.3, 0.5)


def _shrinks(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["completions/mean_length"] = _geometric(t, 400, 8, 0.3, 0.6) * rng.lognormvariate(0, 0.05)
    row["reward"] = _reward(rng, _ramp(t, 0.4, 0.1, 0.4, 0.7))


def _mismatch(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["sampling/sampling_logp_difference/mean"] = rng.lognormvariate(math.log(0.5), 0.1)
    row["sampling/importance_sampling_ratio/mean"] = rng.lognormvariate(math.log(0.3), 0.1)


def _hacked(rng: random.Random, t: float, i: int, row: Row) -> None:
    right, form = _reward(rng, _ramp(t, 0.4, 0.1, 0.2, 0.8), 0.03), _reward(rng, _ramp(t, 0.3, 0.95, 0.1, 0.7), 0.03)
    row.update({"rewards/accuracy_reward/mean": right, "rewards/format_reward/mean": form, "reward": right + form})


def _deadlock(rng: random.Random, t: float, i: int, row: Row) -> None:
    if t < 0.3:
        return
    row["entropy"] *= _geometric(t, 1.0, 0.02, 0.3, 0.4)
    if t >= 0.4:
        row.update({"reward": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0})


def _never_ends(rng: random.Random, t: float, i: int, row: Row) -> None:
    row.update(
        {"completions/clipped_ratio": 1.0, "completions/mean_length": 1024.0, "completions/mean_terminated_length": 0.0}
    )
    row.update({"completions/min_length": 1024.0, "completions/max_length": 1024.0, "reward": _reward(rng, 0.05, 0.02)})


def _judge_out(rng: random.Random, t: float, i: int, row: Row) -> None:
    if 0.4 <= t < 0.6:
        row.update({"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0})


def _no_gradient(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["grad_norm"] = 0.0
    row["kl"] = 0.0


def _too_easy(rng: random.Random, t: float, i: int, row: Row) -> None:
    row.update({"reward": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0})


def _breaks(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["reward"] = _reward(rng, 0.55 if t < 0.5 else 0.02, 0.04)
    row.pop("grad_norm")
    if t >= 0.5:
        row["completions/mean_length"] *= 0.4


def _invalid(rng: random.Random, t: float, i: int, row: Row) -> None:
    row["validity"] = _reward(rng, 0.9, 0.05) if t < 0.5 else _reward(rng, 0.03, 0.02)


UNHEALTHY: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "entropy-gone": (_make(_entropy_gone), ("entropy-collapse",)),
    "entropy-explodes": (_make(_entropy_explodes), ("entropy-explosion",)),
    "kl-runs": (_make(_kl_runs), ("kl-blowup", "lr-too-high")),
    "spike-kills": (_make(_spike_kills), ("gradient-spike", "catastrophic-update", "lr-too-high")),
    "nan-for-good": (_make(_nan_for_good), ("nonfinite",)),
    "never-right": (_make(_never_right), ("no-learning-signal-all-zero-reward",)),
    "dead": (_make(_dead), ("reward-dead-groups",)),
    "cut": (_make(_cut), ("length-truncation",)),
    "runs-away": (_make(_runs_away), ("length-runaway", "length-truncation")),
    "shrinks": (_make(_shrinks), ("length-collapse",)),
    "mismatch": (_make(_mismatch), ("logprob-mismatch",)),
    "hacked": (_make(_hacked), ("reward-hacking",)),
    "deadlock": (_make(_deadlock), ("deadlock",)),
    "never-ends": (_make(_never_ends), ("eos-never",)),
    "judge-out": (_make(_judge_out), ("judge-failure",)),
    "no-gradient": (_make(_no_gradient), ("zero-gradient-despite-signal",)),
    "too-easy": (_make(_too_easy), ("saturated-all-one-reward",)),
    "breaks": (_make(_breaks), ("catastrophic-update",)),
    "invalid": (_make(_invalid), ("update-collapse",)),
}


def rows(scenario: Scenario, seed: int, n: int) -> list[Row]:
    """``n`` rows of a scenario; the same for the same seed."""
    return scenario(random.Random(seed), n)
