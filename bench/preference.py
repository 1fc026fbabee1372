"""One policy that moves along a front: the weights of two rewards stand in the prompt, and rewards are summed by them.

Run from the repository's root: ``.venv/bin/python bench/preference.py --out runs/preference``.  The rewards are those
of the conflicting pair ``trade`` of ``bench/merging.py``.  Every prompt says one of five weights, drawn by a seeded
generator; the reward of its answers is the sum of both by that weight.  Held-out prompts ask for all weights as well,
and each weight makes a point.  A policy that is told nothing but trained on the same rewards is the control.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from mergelib import rewards
from mergelib.conflicts import mean_and_error
from mergelib.pairs import PAIRS, TINY
from whole import train_whole

from levelhead.training.pareto import front_of, hypervolume

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of brevity; the rest is completeness's."""
ROWS = 600


def recipe(folder: Path, seed: int, steps: int, entropy: float, *, told: bool) -> dict[str, Any]:
    """Write the prompts to a folder, and return the recipe of a run on them."""
    rng = random.Random(f"preference {seed}")
    words = PAIRS["trade"].words
    rows = []
    for n in range(ROWS):
        weight = rng.choice(WEIGHTS)
        asked = f"brief {WEIGHTS.index(weight)} of {len(WEIGHTS) - 1}: " if told else ""
        answer = " ".join(rng.choice(words) for _ in range(rng.randint(2, rewards.LONGEST)))
        rows.append({"prompt": f"{asked}name colours {n}", "answer": answer, "weight": weight})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "kind": "function",
        "name": "preferred",
        "path": str(path),
        "oracle": "answer",
        "rewards": [f"{rewards.__file__}:{name}" for name in ("preferred", "complete", "brief")],
        "reward_weights": [1.0, 0.0, 0.0],
        "strata": ["weight"],
        "eval_fraction": 0.25,
    }
    return {
        "name": f"preference-{seed}",
        "seed": seed,
        "threads": 1,
        "check": False,
        "model": {"preset": "tiny", "tiny": TINY, "dtype": "float32"},
        "tasks": [task],
        "sft": {"steps": 40, "batch_size": 32, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 4}},
        "grpo": {
            "steps": steps,
            "batch_size": 128,
            "group_size": 8,
            "sampling": {"max_new_tokens": 28},
            "entropy": {"coef": entropy},
            "audit": {"first": 0},
            "optimizer": {"learning_rate": 2e-3, "betas": [0.9, 0.99], "warmup_steps": 3},
        },
        "guard": {"policy": "off"},
        "eval": {"final_items": 150, "constant": False, "sampling": {"temperature": 1.0, "max_new_tokens": 28}},
        "checkpoint": {"every": 0},
        "log": {"rollouts_every": 0},
    }


def measure(root: Path, seed: int, steps: int, entropy: float, *, told: bool) -> dict[str, Any]:
    """Train a policy, and return what it scores in both rewards where each weight is asked for."""
    from levelhead.api import evaluate

    folder = root / f"{'told' if told else 'untold'}-{entropy:g}-{seed}"
    done = folder / "measured.json"
    if done.exists():
        made: dict[str, Any] = json.loads(done.read_text())
        return made
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = recipe(folder, seed, steps, entropy, told=told)
    train_whole(keys, folder / "run")
    last = max((folder / "run" / "checkpoints").glob("step-*"))
    result = evaluate(keys, last, items=150, as_run=True)["run"]["preferred"]
    by: dict[float, list[tuple[float, float]]] = {weight: [] for weight in WEIGHTS}
    for group in result.groups:
        score = group.rollouts[0].score
        if score is not None:
            by[float(group.prompt.facts["columns"]["weight"])].append((score.parts["complete"], score.parts["brief"]))
    points = [
        {"weight": weight, "n": len(rows), "complete": _of(rows, 0), "brief": _of(rows, 1)}
        for weight, rows in by.items()
    ]
    values = [(point["complete"][0], point["brief"][0]) for point in points]
    measured = {
        "seed": seed,
        "told": told,
        "entropy": entropy,
        "points": points,
        "on_front": len(front_of(values)),
        "hypervolume": hypervolume(values, (0.0, 0.0)),
        "balanced": result.selection,
    }
    done.write_text(json.dumps(measured))
    print(json.dumps(measured), file=sys.stderr, flush=True)
    return measured


def _of(rows: list[tuple[float, float]], part: int) -> tuple[float, float]:
    return mean_and_error([row[part] for row in rows])


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table of docs/experiments/merging.md: means over seeds, and their standard errors."""
    kinds = [told for told in (True, False) if any(run["told"] is told for run in runs)]
    heads = [f"{'told' if told else 'not told'}: {part}" for told in kinds for part in ("complete", "brief")]
    lines = [f"| weight of brevity | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for index, weight in enumerate(WEIGHTS):
        cells = []
        for told in kinds:
            for part in ("complete", "brief"):
                mean, error = mean_and_error([run["points"][index][part][0] for run in runs if run["told"] is told])
                cells.append(f"{mean:.3f} ± {error:.3f}")
        lines.append(f"| {weight:g} | {' | '.join(cells)} |")
    for told in kinds:
        own = [run for run in runs if run["told"] is told]
        for key in ("hypervolume", "balanced"):
            mean, error = mean_and_error([run[key] for run in own])
            lines.append(f"{'told' if told else 'not told'}: {key} {mean:.3f} ± {error:.3f}")
        lines.append(f"points on the front: {statistics.fmean(run['on_front'] for run in own):.1f} of {len(WEIGHTS)}")
    return "\n".join(lines)


def main() -> None:
    """Parse the options and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--result", type=Path, default=Path("runs/preference.json"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--entropy", nargs="+", type=float, default=[0.005, 0.03], help="coefficients of the bonus")
    parser.add_argument("--told-only", action="store_true", help="leave out the control")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    runs = [
        measure(options.out, seed, options.steps, entropy, told=told)
        for entropy in options.entropy
        for seed in options.seeds
        for told in ((True,) if options.told_only else (True, False))
    ]
    options.result.write_text(json.dumps({"steps": options.steps, "runs": runs}, indent=1) + "\n")
    for entropy in options.entropy:
        print(f"entropy {entropy:g}")
        print(table([run for run in runs if run["entropy"] == entropy]))


if __name__ == "__main__":
    main()
