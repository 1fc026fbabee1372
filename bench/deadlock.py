"""One easy task in the deadlock, and the same run with a mix of tasks out of it.

    python bench/deadlock.py --out runs/deadlock --json runs/deadlock/result.json

``alone`` is ``recipes/browser-deadlock.yaml`` as it stands, ``alone-slow`` has a tenth of its learning rate, ``mix``
has the six pages, and ``learnability`` the six pages with that curriculum and up to two redraws.

Every run is fine-tuned by its own recipe, so that ``alone`` is the whole of what ``levelhead train`` does.  With
``--shared``, one policy is fine-tuned on the six pages, and with ``--start``, one is given as a checkpoint: every run
then starts from it, with its own seed, and the arms differ in nothing but the pages that they practise on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelhead import Recipe, train
from levelhead.recipe import load
from levelhead.recipe.environments import BROWSER_TASKS

RECIPE = Path(__file__).parents[1] / "recipes" / "browser-deadlock.yaml"
MIX = {"tasks.0.tasks": list(BROWSER_TASKS)}
ARMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "alone-slow": {"grpo.optimizer.learning_rate": 5e-5},
    "mix": MIX,
    "learnability": {**MIX, "grpo.curriculum": "learnability", "grpo.dynamic_sampling": 2},
}
SHOWN = (1, 2, 4, 6, 8, 10, 12, 16, 20, 25, 30)
COLUMNS = ("entropy", "reward", "reward_std", "frac_reward_zero_std", "grad_norm", "step_time")


def changed(changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some keys changed."""
    return load(RECIPE, [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def fine_tuned(out: Path, sft_steps: int) -> Path:
    """Return the checkpoint that every run starts from."""
    run = out / "sft"
    if not (run / "summary.json").exists():
        train(changed({**MIX, "grpo": None, "sft.steps": sft_steps}), out=run, check=False)
    return max((run / "checkpoints").glob("step-*"))


def play(out: Path, arm: str, seed: int, start: Path | None) -> list[dict[str, float]]:
    """Make one run, or read it where it has been made, and return its steps."""
    run = out / f"{arm}-{seed}"
    if not (run / "checkpoints").exists():
        model = {} if start is None else {"model": {"name": str(start), "dtype": "float32"}, "sft": None}
        train(changed({**ARMS[arm], **model, "seed": seed}), out=run, check=start is None)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = []
    for row in lines:
        if row["stage"] == "grpo":
            # A step in which nothing has contrast makes no forward pass; its draws still tell of the entropy.
            row["entropy"] = row.get("entropy", row["sampling/entropy"])
            steps.append({"step": row["step"], **{name: row[name] for name in COLUMNS}})
    return steps


def verdict(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return when the last gradient came, and what the last ten steps were like."""
    alive = [row["step"] for row in steps if row["grad_norm"] > 0]
    last = steps[-10:]
    return {
        "last_gradient": max(alive, default=0),
        "steps_without_gradient": sum(row["grad_norm"] == 0 for row in steps),
        "entropy": statistics.fmean(row["entropy"] for row in last),
        "reward": statistics.fmean(row["reward"] for row in last),
        "reward_std": statistics.fmean(row["reward_std"] for row in last),
        "step_time": statistics.median(row["step_time"] for row in last),
    }


def table(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """Write rows as a Markdown table."""
    head = f"| {' | '.join(names)} |\n|{'---:|' * len(names)}"
    return "\n".join([head, *("| " + " | ".join(f"{row[name]:.4g}" for name in names) + " |" for row in rows)])


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/deadlock"))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sft-steps", type=int, default=5)
    parser.add_argument("--shared", action="store_true", help="start every run from one fine-tuned policy")
    parser.add_argument("--start", type=Path, help="start every run from this checkpoint")
    parser.add_argument("--json", type=Path, help="write every step of every run here")
    options = parser.parse_args()
    start = options.start or (fine_tuned(options.out, options.sft_steps) if options.shared else None)
    outcomes: dict[str, Any] = {}
    for seed in options.seeds:
        for arm in options.arms:
            steps = play(options.out, arm, seed, start)
            outcomes[f"{arm}/{seed}"] = {"verdict": verdict(steps), "steps": steps}
            print(f"\n{arm}, seed {seed}: {json.dumps(outcomes[f'{arm}/{seed}']['verdict'])}\n")
            print(table([row for row in steps if row["step"] in SHOWN], ("step", *COLUMNS)), flush=True)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(outcomes, indent=1) + "\n")


if __name__ == "__main__":
    main()
