"""One run written down as other trainers would have: their keys, their line shapes, their traps.

Used by ``doctor_stability.py``.  A form carries the signals that its trainer logs, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

Rows = Sequence[tuple[float, dict[str, float]]]

VERL = {
    "reward": "critic/score/mean",
    "reward/max": "critic/score/max",
    "reward/min": "critic/score/min",
    "advantages/max": "critic/advantages/max",
    "advantages/min": "critic/advantages/min",
    "entropy": "actor/entropy",
    "policy_loss": "actor/pg_loss",
    "kl": "actor/kl_loss",
    "ppo_kl": "actor/ppo_kl",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
    "completions/mean_length": "response_length/mean",
    "completions/max_length": "response_length/max",
    "completions/min_length": "response_length/min",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "step_time": "timing_s/step",
    "mismatch/prob_diff_mean": "training/rollout_probs_diff_mean",
}
OPENRLHF = {
    "reward": "reward",
    "reward_std": "group_reward_std",
    "entropy": "entropy_loss",
    "policy_loss": "policy_loss",
    "kl": "kl",
    "ppo_kl": "ppo_kl",
    "mismatch/kl": "vllm_kl",
    "grad_norm": "actor_grad_norm",
    "learning_rate": "actor_lr",
    "completions/mean_length": "response_length",
    "completions/clipped_ratio": "response_clip_ratio",
    "step_time": "timing/step_total",
}


def _renamed(row: dict[str, float], names: dict[str, str]) -> dict[str, float]:
    return {names[key]: value for key, value in row.items() if key in names}


def verl(rows: Rows) -> str:
    """Console lines behind a coloured prefix."""
    lines = [
        f"\x1b[36m(TaskRunner pid=12)\x1b[0m step:{step:.0f} - "
        + " - ".join(f"{key}:{value!r}" for key, value in _renamed(row, VERL).items())
        for step, row in rows
    ]
    return "\n".join(lines) + "\n"


def openrlhf(rows: Rows) -> str:
    """Console lines with a dict each."""
    return "".join(f"Global step {step:.0f}: {_renamed(row, OPENRLHF)!r}\n" for step, row in rows)


def trl(rows: Rows) -> str:
    """Stdout of transformers 5: dict lines with every value quoted, and no step."""
    return "".join(f"{ {key: f'{value:.4g}' for key, value in row.items()}!r}\n" for _, row in rows)


def notebook(rows: Rows) -> str:
    """The table that Unsloth shows in a notebook, pasted."""
    names = list(dict.fromkeys(key for _, row in rows for key in row))
    head = ["Step", *({"loss": "Training Loss"}.get(name, name) for name in names)]
    lines = ["\t".join(head)]
    for step, row in rows:
        cells = [f"{row[name]:.6f}" if name in row else "No Log" for name in names]
        lines.append("\t".join([f"{step:.0f}", *cells]))
    return "\n".join(lines) + "\n"


def trainer_state(rows: Rows) -> str:
    """``trainer_state.json``."""
    history = [{**row, "step": step} for step, row in rows]
    return json.dumps({"global_step": rows[-1][0], "log_history": history}, indent=2)


def wandb(rows: Rows) -> str:
    """A CSV of ``run.history()``, whose ``_step`` is not the training step."""
    names = list(dict.fromkeys(key for _, row in rows for key in row))
    lines = [",".join(["_step", "train/global_step", *(f"train/{name}" for name in names)])]
    for i, (step, row) in enumerate(rows):
        lines.append(",".join([str(3 * i), f"{step:.0f}", *(repr(row[n]) if n in row else "" for n in names)]))
    return "\n".join(lines) + "\n"


def ms_swift(rows: Rows) -> str:
    """``logging.jsonl``: eight decimals, the step in a fraction."""
    last = rows[-1][0]
    return "".join(
        json.dumps({
            **{key: round(value, 8) for key, value in row.items()},
            "global_step/max_steps": f"{step:.0f}/{last:.0f}",
            "elapsed_time": "1m 3s",
        })
        + "\n"
        for step, row in rows
    )  # fmt: skip


FORMS: dict[str, tuple[str, Callable[[Rows], str], frozenset[str] | None]] = {
    "TRL stdout": ("log", trl, None),
    "trainer_state.json": ("json", trainer_state, None),
    "notebook table": ("txt", notebook, None),
    "W&B CSV": ("csv", wandb, None),
    "ms-swift": ("jsonl", ms_swift, None),
    "verl console": ("log", verl, frozenset(VERL)),
    "OpenRLHF console": ("log", openrlhf, frozenset(OPENRLHF)),
}
"""By name: the file's suffix, how it is written, and the signals that it carries (all, if ``None``)."""
