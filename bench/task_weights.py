"""Weights over tasks on a conflicting pair: fixed, by inverse loss, and under constraints on one task's reward.

Run from the repository's root: ``.venv/bin/python bench/task_weights.py --out runs/task-weights``.  The pair is
``trade`` of ``bench/merging.py``.  Prints one line a rule: held-out scores at the end, over seeds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from mergelib.conflicts import mean_and_error, read
from mergelib.pairs import recipe
from whole import train_whole

RULES: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed"},
    "inverse_loss": {"kind": "inverse_loss"},
    "complete >= 0.7": {"kind": "constraint", "least": {"complete": 0.7}, "eta": 0.2},
    "complete >= 0.7, PID": {"kind": "constraint", "least": {"complete": 0.7}, "eta": 0.2, "kp": 2.0, "kd": 2.0},
}


def measure(root: Path, label: str, seed: int, steps: int) -> dict[str, Any]:
    """Train the pair by a rule, and return its last held-out scores and multipliers."""

    folder = root / f"{''.join(c if c.isalnum() else '-' for c in label)}-{seed}"
    done = folder / "measured.json"
    if done.exists():
        made: dict[str, Any] = json.loads(done.read_text())
        return made
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = recipe("trade", folder, seed, "sum", steps)
    keys["grpo"]["task_weights"] = RULES[label]
    train_whole(keys, folder / "run")
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["stage"] == "grpo"]
    moved = {key: last[-1][key] for key in last[-1] if key.startswith(("task_weight/", "multiplier/"))}
    rewards = {task: [round(row[f"reward/{task}"], 4) for row in last] for task in ("complete", "brief")}
    measured = {"rule": label, "seed": seed, **read(folder / "run"), "moved": moved, "rewards": rewards}
    done.write_text(json.dumps(measured))
    print(json.dumps({key: measured[key] for key in ("rule", "seed", "last", "moved")}), file=sys.stderr, flush=True)
    return measured


def main() -> None:
    """Parse the options, write the document and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--result", type=Path, default=Path("runs/task_weights.json"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    runs = [measure(options.out, label, seed, options.steps) for label in options.rules for seed in options.seeds]
    options.result.write_text(json.dumps({"steps": options.steps, "rules": RULES, "runs": runs}, indent=1) + "\n")
    print("| rule | complete | brief | weight of the constrained task, last |\n|---|---|---|---|")
    for label in options.rules:
        rule = RULES[label]
        own = [run for run in runs if run["rule"] == label]
        cells = [mean_and_error([run["last"]["values"][i] for run in own]) for i in (0, 1)]
        task = next(iter(rule.get("least", {"complete": 0})))
        weights = [run["moved"].get(f"task_weight/{task}", 0.5) for run in own]
        shown = [f"{mean:.3f} ± {error:.3f}" for mean, error in [*cells, mean_and_error(weights)]]
        print(f"| `{label}` | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
