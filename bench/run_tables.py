"""The tables of a dual run's page, from its folder: ``python bench/run_tables.py runs/demo``."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STAGES = {"start": "untrained", "sft": "after SFT", "grpo": "after GRPO"}


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def scores(tasks: dict[str, Any]) -> Iterator[str]:
    """Held-out score, validity and length by task and stage."""
    rows = [
        [
            task,
            STAGES[stage],
            f"{r['score']:+.3f} ± {r['se']:.3f}",
            f"{r['validity']:.1%}",
            f"{r['length']:.1f}",
            str(r["n"]),
        ]
        for task, stages in tasks.items()
        for stage, r in stages.items()
    ]
    yield from table(["task", "stage", "score", "valid", "tokens", "items"], rows)


def fairness(stages: dict[str, Any]) -> Iterator[str]:
    """Accuracy by category and condition, and BBQ's bias scores, by stage."""
    trained = [stage for stage in ("sft", "grpo") if stage in stages]
    names = dict.fromkeys(name.split("/")[1] for name in stages[trained[-1]]["metrics"] if name.startswith("s_dis/"))
    columns = ["accuracy/{}/ambig", "accuracy/{}/disambig", "s_amb/{}", "s_dis/{}"]
    rows = [
        [place or "all", STAGES[stage], *(_metric(stages[stage]["metrics"], column, place) for column in columns)]
        for place in ("", *names)
        for stage in trained
    ]
    yield from table(["category", "stage", "ambiguous", "disambiguated", "s_AMB", "s_DIS"], rows)


def _metric(metrics: dict[str, float], column: str, place: str) -> str:
    """One cell; empty where there was nothing to take a mean of."""
    name = column.format(place) if place else column.replace("/{}", "")
    if name not in metrics:
        return ""
    return f"{metrics[name]:.2f}" if column.startswith("accuracy") else f"{metrics[name]:+.2f}"


def faithfulness(stages: dict[str, Any]) -> Iterator[str]:
    """Every reported metric of the faithfulness task, by stage."""
    trained = [stage for stage in ("sft", "grpo") if stage in stages]
    rows = [
        [f"`{name}`", *(f"{stages[stage]['metrics'].get(name, float('nan')):.3f}" for stage in trained)]
        for name in stages[trained[-1]]["metrics"]
    ]
    yield from table(["metric", *(STAGES[stage] for stage in trained)], rows)


def curve(run: Path, bins: int) -> Iterator[str]:
    """Means over stretches of GRPO steps."""
    rows = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if row["stage"] == "grpo"]
    tasks = [key.removeprefix("reward/") for key in rows[0] if key.startswith("reward/")]
    keys = [*(f"reward/{task}" for task in tasks), "entropy", "frac_reward_zero_std", "kl", "step_time"]
    size = -(-len(rows) // bins)
    stretches = [rows[start : start + size] for start in range(0, len(rows), size)]
    body = [
        [f"{part[0]['step']}-{part[-1]['step']}"]
        + [f"{statistics.fmean(row[key] for row in part if key in row):.3f}" for key in keys]
        for part in stretches
    ]
    head = ["steps", *(f"reward, {task}" for task in tasks), "entropy", "dead groups", "KL", "seconds a step"]
    yield from table(head, body)


def main() -> None:
    """Print all tables of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--bins", type=int, default=10)
    options = parser.parse_args()
    summary = json.loads((options.run / "summary.json").read_text())
    parts = {"fairness": fairness, "faithfulness": faithfulness}
    print("\n".join(scores(summary["tasks"])))
    for task, stages in summary["tasks"].items():
        if task in parts:
            print("\n".join(parts[task](stages)))
    print("\n".join(curve(options.run, options.bins)))
    print(f"{summary['seconds']:.0f} s")


if __name__ == "__main__":
    main()
