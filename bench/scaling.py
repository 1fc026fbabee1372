"""What a step costs as K, prompt, answer, vocabulary and model grow, each by itself, in processor seconds.

    python bench/scaling.py [--threads 1] [--repeats 1] [--out bench/results/scaling.json] [--plot docs/scaling.svg]

Every point is a fresh random model and trainer (the worker of ``bench/speed.py``), one warm-up step, then ``--repeats``
measured ones.  The slope is that of log cost over log size, by least squares: 1 is proportional.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from dots import Panel, figure
from speedlib.ours import Ours
from speedlib.ours import load as policy_of
from speedlib.workloads import Workload, load, write

BASE = Workload("base", 256, 4, 8192, 128, 32, 8, 2)
SWEEPS: dict[str, tuple[int, ...]] = {
    "k": (2, 4, 8, 16),
    "prompt": (64, 128, 256, 512),
    "answer": (16, 32, 64),
    "vocab": (2048, 8192, 32768),
    "hidden": (128, 256, 512),
}
TITLES = {
    "k": "rollouts of a prompt",
    "prompt": "prompt tokens",
    "answer": "answer tokens",
    "vocab": "vocabulary",
    "hidden": "width of the model",
}
PARTS = {"cpu": "step", "sampling_cpu": "sampling", "backward_cpu": "training"}


def measured(workload: Workload, repeats: int) -> dict[str, float]:
    """Median processor seconds of a step and of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        write(workload, Path(folder))
        ours = Ours(*load(Path(folder)), policy_of(Path(folder), {}), {})
        ours.step()
        steps = [ours.step() for _ in range(repeats)]
    return {part: statistics.median(step[part] for step in steps) for part in PARTS}


def slope(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Least-squares slope of log cost over log size."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def panel(name: str, result: dict[str, Any]) -> Panel:
    sizes = [str(size) for size in result["sizes"]]
    points = {label: [(cost, 0.0) for cost in result["costs"][part]] for part, label in PARTS.items()}
    title = f"{TITLES[name]}: slope {result['slopes']['cpu']:.2f}"
    return Panel(title, sizes, points, 0.0, 1.1 * max(result["costs"]["cpu"]))


def save(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write what has been measured so far."""
    document = {"base": asdict(BASE), "threads": options.threads, "command": sys.argv, "results": results}
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        panels = [panel(name, result) for name, result in results.items()]
        options.plot.write_text(figure(panels, 2, "Processor seconds of a step"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    baselines: dict[Workload, dict[str, float]] = {}
    results: dict[str, Any] = {}
    for name in options.sweeps:
        sizes = SWEEPS[name]
        for size in sizes:
            workload = replace(BASE, **{name: size})
            if workload not in baselines:
                baselines[workload] = measured(workload, options.repeats)
                print(f"{name} {size}: {baselines[workload]}", file=sys.stderr, flush=True)
        rows = [baselines[replace(BASE, **{name: size})] for size in sizes]
        costs = {part: [row[part] for row in rows] for part in PARTS}
        slopes = {part: slope(sizes, cost) for part, cost in costs.items()}
        results[name] = {"sizes": sizes, "costs": costs, "slopes": slopes}
        save(options, results)
    print("| grows | from, to | step, processor s | slope of the step | sampling | forward and backward |")
    print("|---|---|---|---|---|---|")
    for name, result in results.items():
        cost, slopes = result["costs"]["cpu"], result["slopes"]
        print(f"| {TITLES[name]} | {result['sizes'][0]:,}, {result['sizes'][-1]:,} | {cost[0]:.2f}, {cost[-1]:.2f} "
              f"| {' | '.join(f'{slopes[part]:.2f}' for part in PARTS)} |")  # fmt: skip


if __name__ == "__main__":
    main()
