"""Runs with nothing wrong, which the guard must leave alone: the tiny recipes, short, several seeds.

python bench/clean_runs.py --out FOLDER              thirty runs; goes on with what FOLDER does not hold yet
python bench/clean_runs.py --out FOLDER --write      results and table from what FOLDER holds

The guard is as it comes (``protect``).  A critical finding, a rollback or a stop in any of them is a false alarm; the
doctor's verdict on each finished log is kept beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelhead.api import train
from levelhead.doctor.report import examine
from levelhead.guard import make_guard
from levelhead.policy.load import load_checkpoint
from levelhead.recipe import load
from levelhead.training.checkpoint import newest_checkpoint
from levelhead.training.prepare import Setup, prepare, seed_everything
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "clean_runs.json"
PAGE = ROOT / "docs" / "experiments" / "faults.md"
MARKS = ("<!-- clean -->", "<!-- end of clean -->")
ALWAYS = (
    "threads=1", "check=false", "eval.every=0", "eval.final_items=8", "log.rollouts_every=0", "checkpoint.every=0",
    "checkpoint.best=false",
)  # fmt: skip
RUNS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "dual-tiny": (
        13,
        ("tasks.0.items=400", "tasks.1.items=400", "sft.steps=30", "sft.batch_size=12", "grpo.steps=14",
         "grpo.batch_size=32", "grpo.sampling.max_new_tokens=40", "eval.sampling.max_new_tokens=40"),
    ),
    "workflow-tiny": (
        12,
        ("tasks.0.items=400", "sft.steps=60", "sft.batch_size=16", "grpo.steps=16", "grpo.batch_size=32",
         "grpo.optimizer.learning_rate=5e-4"),
    ),
    "browser-tiny": (
        5,
        ("tasks.0.items=60", "tasks.0.pages=8", "tasks.0.spare_pages=8", "grpo.steps=8", "grpo.batch_size=24"),
    ),
}  # fmt: skip
"""Recipe, seeds, and what makes it short."""


def setup_of(name: str, settings: Sequence[str], start: Path) -> Setup:
    """What a run works on, from a fine-tuned policy."""
    recipe = load(ROOT / "recipes" / f"{name}.yaml", [*ALWAYS, *RUNS[name][1], *settings])
    return prepare(recipe, policy=load_checkpoint(recipe.model, start))


def start_of(name: str, folder: Path) -> Path:
    """The fine-tuned policy that a recipe's runs begin with."""
    run = RunDir(folder / f"start-{name}")
    if newest_checkpoint(run) is None:
        given = [*ALWAYS, *RUNS[name][1], "grpo=null"]
        train(load(ROOT / "recipes" / f"{name}.yaml", given), out=run.path, check=False)
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    return checkpoint


def run_one(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run, and what guard and doctor said of it."""
    start = start_of(name, folder)
    seed_everything(seed)
    setup = setup_of(name, [f"seed={seed}", "sft=null"], start)
    run = RunDir(folder / f"{name}-{seed}")
    shutil.rmtree(run.path, ignore_errors=True)
    run.claim(resume=False)
    guard = make_guard(setup.recipe.guard)
    began = time.process_time()
    outcome = Run(setup, run, observers=[guard] if guard else []).execute()
    path = run.path / "events.jsonl"
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    report = examine(run.path)
    return {
        "recipe": name,
        "seed": seed,
        "outcome": outcome,
        "steps": len(list(run.steps("grpo"))),
        "seconds": round(time.process_time() - began, 1),
        "critical": [event["code"] for event in events if event["severity"] == "critical"],
        "actions": dict(Counter(event["action"] or "note" for event in events)),
        "codes": dict(Counter(event["code"] for event in events)),
        "doctor": report.diagnosis.verdict,
        "doctor_first": report.diagnosis.findings[0].code,
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Write results as Markdown, a row a recipe."""
    lines = [
        "| recipe | runs | steps | critical | rollbacks, stops | others | doctor: healthy, warned, critical |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for name in RUNS:
        rows = [r for r in results if r["recipe"] == name]
        if not rows:
            continue
        actions: Counter[str] = Counter()
        for r in rows:
            actions.update(r["actions"])
        grave = actions.pop("rollback", 0) + actions.pop("stop", 0)
        verdicts = Counter(r["doctor"] for r in rows)
        cells = (
            f"`{name}`",
            len(rows),
            sum(r["steps"] for r in rows),
            sum(len(r["critical"]) for r in rows),
            grave,
            ", ".join(f"{count} {action}" for action, count in sorted(actions.items())) or "-",
            ", ".join(str(verdicts[verdict]) for verdict in ("healthy", "learns", "undecided", "warning", "critical")),
        )
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, or write what has been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--write", action="store_true", help="write results and page")
    arguments = parser.parse_args()
    files = {(name, seed): arguments.out / f"{name}-{seed}.json" for name in RUNS for seed in range(RUNS[name][0])}
    for (name, seed), path in () if arguments.write else sorted(files.items(), key=lambda item: item[0][1]):
        if name in arguments.only and not path.is_file():
            result = run_one(name, seed, arguments.out)
            path.write_text(json.dumps(result) + "\n", encoding="utf-8")
            print(json.dumps(result), flush=True)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files.values() if path.is_file()]
    print(table(results))
    if arguments.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        PAGE.write_text(f"{before}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
