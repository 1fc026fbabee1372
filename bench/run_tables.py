"""The tables of a dual run's page, from its folder: ``python bench/run_tables.py runs/demo``.

Of several runs, one table beside each other: ``python bench/run_tables.py runs/seed-0 runs/seed-1``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelhead.report.scores import Score, Stage, measured, stages_of, strata_names, telling, verdict_of

STAGES = {"start": "untrained", "sft": "after SFT", "grpo": "after GRPO"}


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def scores(summary: dict[str, Any]) -> Iterator[str]:
    """A table a task: strata by stage beside the best constant answer, that answer, and the verdict."""
    for task, entry in summary["tasks"].items():
        stages = stages_of(entry)
        if not stages:
            continue
        yield f"### {task}"
        yield ""
        against = measured(stages)
        head = ["", "items", *(STAGES[stage.name] for stage in stages), *(["best constant answer"] if against else [])]
        yield from table(head, [_padded(row, len(head)) for row in _strata(stages, against)])
        if against is not None:
            yield f"The best constant answer: `{' / '.join(against.answer.split(chr(10))) or '(nothing)'}`"
            yield ""
        verdict = verdict_of(summary, task)
        yield f"Verdict: {verdict.text if verdict else 'none.'}"
        yield ""


def _strata(stages: list[Stage], against: Stage | None) -> Iterator[list[str]]:
    """Rows of a task's table: strata with their metrics, means over strata and items, the distance to the baseline."""
    for name in strata_names(stages):
        own = [stage.strata.get(name) for stage in stages]
        n = next((stratum.n for stratum in reversed(own) if stratum), None)
        constant = against.strata[name].constant if against and name in against.strata else None
        yield [
            f"`{name}`",
            str(n or ""),
            *(_score(stratum.score if stratum else None) for stratum in own),
            _score(constant),
        ]
        metrics = [stratum.metrics if stratum else {} for stratum in own]
        for metric in telling(metrics):
            yield [f"{metric}, `{name}`", "", *(f"{row[metric]:.1%}" if metric in row else "" for row in metrics)]
    if strata_names(stages):
        even = against.baseline if against and against.over_balanced else None
        yield ["**balanced score**", "", *(_score(stage.balanced) for stage in stages), _score(even)]
    whole = against.constant if against else None
    yield ["all items", str(stages[-1].n or ""), *(_score(stage.score) for stage in stages), _score(whole)]
    if against:
        yield ["above the constant", "", *(_score(stage.over_constant) for stage in stages)]
        yield ["in standard errors", "", *(_errors(stage.over_constant) for stage in stages)]
    yield ["valid", "", *("" if stage.validity is None else f"{stage.validity:.1%}" for stage in stages)]
    yield ["tokens", "", *("" if stage.length is None else f"{stage.length:.1f}" for stage in stages)]


def _padded(row: list[str], size: int) -> list[str]:
    return (row + [""] * size)[:size]


def _score(score: Score | None) -> str:
    return "" if score is None else f"{score.value:+.3f}" + ("" if score.se is None else f" ± {score.se:.3f}")


def _errors(score: Score | None) -> str:
    return "" if score is None or score.errors is None else f"{score.errors:+.1f}"


def beside(runs: list[Path]) -> Iterator[str]:
    """Several runs beside each other: what each stage came to, by task and stratum, and how far above the constant."""
    made = [(json.loads((run / "summary.json").read_text()), run) for run in runs]
    rows: dict[str, list[str]] = {}
    for summary, _ in made:
        for task, entry in summary["tasks"].items():
            stages = [stage for stage in stages_of(entry) if stage.name != "start"]
            for name in strata_names(stages):
                metrics = [stage.strata[name].metrics for stage in stages]
                for metric in telling(metrics):
                    cell = " to ".join(f"{row[metric]:.1%}" for row in metrics)
                    rows.setdefault(f"{task}, {metric}, `{name}`", []).append(cell)
            cell = " to ".join(f"{stage.balanced.value:+.2f}" if stage.balanced else "" for stage in stages)
            rows.setdefault(f"{task}, balanced score", []).append(cell)
            rows.setdefault(f"{task}, that above the constant, in standard errors", []).append(
                _errors(stages[-1].over_balanced)
            )
        rows.setdefault("seconds", []).append(f"{summary['seconds']:.0f}")
    yield from table(["", *(run.name for _, run in made)], [[name, *cells] for name, cells in rows.items()])


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
    """Print all tables of one run, or one of several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--bins", type=int, default=10)
    options = parser.parse_args()
    run, *more = options.runs
    if more:
        print("\n".join(beside(options.runs)))
        return
    summary = json.loads((run / "summary.json").read_text())
    parts = {"fairness": fairness, "faithfulness": faithfulness}
    print("\n".join(scores(summary)))
    for task, stages in summary["tasks"].items():
        if task in parts:
            print("\n".join(parts[task](stages)))
    print("\n".join(curve(run, options.bins)))
    print(f"{summary['seconds']:.0f} s")


if __name__ == "__main__":
    main()
