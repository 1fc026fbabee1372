"""Runs of the conflicting pairs, what each came to, and who is ahead of whom by hypervolume over seeds."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole import train_whole

from levelhead.training.pareto import dominates, hypervolume
from mergelib.pairs import PAIRS, recipe

SURE = 2.0
"""Standard errors by which two policies must differ in an objective for one to be better in it."""


def measure(
    root: Path, names: Sequence[str], kinds: Sequence[str], seeds: Sequence[int], steps: Mapping[str, int]
) -> dict[str, Any]:
    """Train every pair of tasks by every aggregator and seed; what was done before in this folder is read again."""
    return {
        name: {
            "about": PAIRS[name].about,
            "grpo_steps": steps[name],
            "runs": [_run(root, name, kind, seed, steps[name]) for seed in seeds for kind in kinds],
        }
        for name in names
    }


def _run(root: Path, name: str, kind: str, seed: int, steps: int) -> dict[str, Any]:
    folder = root / f"{name}-{kind}-{seed}"
    done = folder / "measured.json"
    if done.exists():
        made: dict[str, Any] = json.loads(done.read_text())
        return made

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.process_time()
    train_whole(recipe(name, folder, seed, kind, steps), folder / "run")
    measured = {"seed": seed, "kind": kind, **read(folder / "run"), "cpu_s": round(time.process_time() - start, 1)}
    done.write_text(json.dumps(measured))
    print(json.dumps({k: v for k, v in measured.items() if k not in ("cosine", "path")}), file=sys.stderr, flush=True)
    return measured


def read(run: Path) -> dict[str, Any]:
    """Return what a run came to: its last policy, its front, and the cosine of the tasks' gradients at every update."""
    page = json.loads((run / "pareto.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [point for point in page["points"] if point["stage"] != "start"]
    last, reference = points[-1], page["reference"]
    return {
        "objectives": page["objectives"],
        "reference": reference,
        "last": {"values": last["values"], "errors": last["errors"]},
        "hypervolume_last": hypervolume([last["values"]], reference),
        "hypervolume_front": page["hypervolume"],
        "hypervolume_front_se": page["hypervolume_se"],
        "path": [[point["step"], *point["values"]] for point in points],
        "cosine": [
            round(v, 4) for row in rows for key, v in row.items() if row["stage"] == "grpo" and "merge/cosine" in key
        ],
    }


def ahead(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a run's last policy dominates another's, told apart only where they differ by :data:`SURE` errors."""
    pairs = zip(
        one["last"]["values"], other["last"]["values"], one["last"]["errors"], other["last"]["errors"], strict=True
    )
    clear = [(a - b) if abs(a - b) > SURE * math.hypot(s, t) else 0.0 for a, b, s, t in pairs]
    return dominates(clear, [0.0] * len(clear))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def tables(pairs: Mapping[str, Any]) -> str:
    """Return the tables of docs/experiments/merging.md."""
    return "\n\n".join(_table(name, pair["runs"]) for name, pair in pairs.items())


def _table(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    kinds = list(dict.fromkeys(run["kind"] for run in runs))
    by = {kind: {run["seed"]: run for run in runs if run["kind"] == kind} for kind in kinds}
    objectives = runs[0]["objectives"]
    lines = [
        (
            f"| {name} | cosine | {' | '.join(objectives)} | hypervolume, last | against `sum` "
            "| hypervolume, front | against `sum` | dominates `sum` | is dominated |"
        ),
        "|" + "---|" * (8 + len(objectives)),
    ]
    for kind, own in by.items():
        sums = by.get("sum", own)
        cells = [_cell(mean_and_error([statistics.fmean(run["cosine"]) for run in own.values()]), 2)]
        cells += [
            _cell(mean_and_error([run["last"]["values"][i] for run in own.values()])) for i in range(len(objectives))
        ]
        for key in ("hypervolume_last", "hypervolume_front"):
            cells.append(_cell(mean_and_error([run[key] for run in own.values()])))
            gains = [run[key] - sums[seed][key] for seed, run in own.items() if seed in sums]
            cells.append("" if kind == "sum" else _cell(mean_and_error(gains), sign=True))
        counts = [
            sum(ahead(run, sums[seed]) for seed, run in own.items()),
            sum(ahead(sums[seed], run) for seed, run in own.items()),
        ]
        cells += [""] * 2 if kind == "sum" else [f"{count} of {len(own)}" for count in counts]
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(pair: tuple[float, float], digits: int = 3, *, sign: bool = False) -> str:
    mean, error = pair
    return f"{mean:{'+' if sign else ''}.{digits}f} ± {error:.{digits}f}"
