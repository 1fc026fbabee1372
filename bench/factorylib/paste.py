"""How people show a run: in their trainer's words, some rows of it, some columns of it, rounded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from doctor_forms import FORMS, Rows

ALWAYS = "reward"
PRIME = {
    "reward": "Reward",
    "loss": "Loss",
    "entropy": "Entropy",
    "mismatch/kl": "Mismatch KL",
    "grad_norm": "Grad. Norm",
    "learning_rate": "LR",
    "completions/mean_length": "Seq. Length",
    "step_time": "Time",
}
NOT_TRL = ("reward/max", "reward/min", "mismatch/kl")


@dataclass(frozen=True, slots=True)
class Paste:
    """A log as it was pasted.

    Attributes:
        text: The log.
        suffix: Of the file.
        form: How it is written.
        rows: Index of each row of the run that is shown.
        columns: Canonical names that are shown.
    """

    text: str
    suffix: str
    form: str
    rows: tuple[int, ...]
    columns: frozenset[str]


def prime_rl(rows: Rows) -> str:
    """Console lines of trainer and orchestrator in one."""
    lines = []
    for step, row in rows:
        cells = [f"{PRIME[key]}: {value:.4g}" for key, value in row.items() if key in PRIME]
        lines.append(f"12:00:00 SUCCESS Step {step:.0f} | " + " | ".join(cells))
    return "\n".join(lines) + "\n"


def markdown(rows: Rows) -> str:
    """A table in a report."""
    names = list(dict.fromkeys(key for _, row in rows for key in row))
    lines = ["| step | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for step, row in rows:
        lines.append(f"| {step:.0f} | " + " | ".join(f"{row[n]:.4g}" if n in row else "" for n in names) + " |")
    return "\n".join(lines) + "\n"


ALL_FORMS = {**FORMS, "prime-rl console": ("log", prime_rl, frozenset(PRIME)), "markdown table": ("md", markdown, None)}
_NAMES = (
    "TRL stdout", "TRL stdout", "TRL stdout", "trainer_state.json", "notebook table", "W&B CSV", "ms-swift",
    "verl console", "verl console", "OpenRLHF console", "prime-rl console", "markdown table", "markdown table",
)  # fmt: skip


def shown_rows(count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Rows of a run of ``count`` that somebody shows."""
    how = rng.choice(["all", "every", "first", "later", "last", "few"], p=[0.4, 0.22, 0.1, 0.1, 0.08, 0.1])
    if how == "every":
        return tuple(range(0, count, int(rng.choice([2, 5, 10]))))
    if how == "first":
        return tuple(range(max(5, int(count * rng.uniform(0.2, 0.8)))))[:count]
    if how == "later":
        return tuple(range(int(count * rng.uniform(0.1, 0.5)), count))
    if how == "last":
        return tuple(range(max(0, count - int(rng.integers(5, 40))), count))
    if how == "few":
        picks = np.unique(np.linspace(0, count - 1, int(rng.integers(3, 9))).astype(int))
        return tuple(int(i) for i in picks)
    return tuple(range(count))


def shown_columns(names: Sequence[str], rng: np.random.Generator) -> frozenset[str]:
    """Columns that somebody shows; the reward nearly always among them."""
    how = rng.choice(["all", "three", "some"], p=[0.5, 0.2, 0.3])
    rest = sorted(set(names) - {ALWAYS})
    if how == "all":
        dropped = {name for name in rest if rng.random() < 0.15}
        return frozenset(names) - dropped
    size = 2 if how == "three" else int(rng.integers(4, 8))
    common = [n for n in rest if n in ("kl", "entropy", "loss", "grad_norm", "completions/mean_length", "reward_std")]
    pool = common if how == "three" else rest
    picks = set(rng.choice(pool, min(size, len(pool)), replace=False).tolist())
    return frozenset(picks | ({ALWAYS} if rng.random() < 0.92 else set()))


def paste(rows: Rows, rng: np.random.Generator) -> Paste:
    """Write a run down as somebody would show it."""
    form = str(rng.choice(_NAMES))
    suffix, write, carries = ALL_FORMS[form]
    names = {name for _, row in rows for name in row}
    names = names & carries if carries is not None else names - set(NOT_TRL)
    if carries is None and rng.random() < 0.5:
        # TRL logs neither step time of its own nor, unless asked, the sampler's side.
        names = {n for n in names if not n.startswith("sampling/") and n not in ("step_time", "eval/score")}
    columns = shown_columns(sorted(names), rng)
    picks = shown_rows(len(rows), rng)
    digits = int(rng.choice([3, 4, 6, 12]))
    shown = [(rows[i][0], {k: _rounded(v, digits) for k, v in rows[i][1].items() if k in columns}) for i in picks]
    shown = [(step, row) for step, row in shown if row]
    return Paste(write(shown) if shown else "", suffix, form, picks, columns)


def _rounded(value: float, digits: int) -> float:
    return value if value != value else float(f"{value:.{digits}g}")
