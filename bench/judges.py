"""Which judges a calibration refuses, and what training with each of them comes to when the truth is held back.

Run from the repository's root: ``.venv/bin/python bench/judges.py --out runs/judges --json bench/results/judges.json``.
With ``--train --seeds 0 1 2`` the tiny dual recipe is trained on the judges' grades alone, by a panel, by the best
judge and by the worst; how good its answers are by the tasks' rules, which no judge and no update sees, is measured on
the way.  A fourth arm trains on those rules: what the recipe can learn at all in so many steps.  The judges are fake
ones of several temperaments: behind a local server where they are calibrated (``bench/judgelib/temperaments.py``),
functions where they grade in training.  A second call over the same folder goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from judgelib.temperaments import CALLS, TEMPERAMENTS
from whole import train_whole

from levelhead.cli.judge import show
from levelhead.recipe.judge import Judges
from levelhead.recipe.load import load, validate
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.judges import JudgeGrader
from levelhead.tasks.judges.calibration import Entry, read_calibrations
from levelhead.tasks.judges.sessions import calibrate_recipe
from levelhead.tasks.registry import make_task

RECIPE = "recipes/dual-tiny.yaml"
JUDGES = [*TEMPERAMENTS, "dead"]
BATCH = 128
"""Rollouts of an update."""
ITEMS = 256
"""Held-out items of each task."""


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Run the fake judges; yields their port."""
    command = [sys.executable, str(Path(__file__).parent / "judgelib" / "temperaments.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def members(port: int, names: Sequence[str], task: str) -> list[dict[str, Any]]:
    """Sections of the recipe for some judges; the model's name tells the tasks apart, so that each drifts by itself."""
    keys = {"prompt_price": 1.0, "completion_price": 4.0, "backoff_s": 0.1, "concurrency": 16}
    return [{"name": name, "model": task, "base_url": f"http://127.0.0.1:{port}/{name}/v1", **keys} for name in names]


def calibrate(port: int, items: int, out: Path) -> dict[str, dict[str, Entry]]:
    """Calibrate all judges on both tasks; returns entries by task."""
    data = load(RECIPE).model_dump(mode="json", exclude_unset=True)
    for task in data["tasks"]:
        task["judges"] = {"members": members(port, JUDGES, task["kind"])}
    sessions = calibrate_recipe(validate(data), items, out)
    return {one.task: one.entries for one in sessions}


class HeldBack(SingleTurnTask):
    """A task whose rules nobody sees: any answer is worth the same, and what rules say of it is only reported.

    Args:
        task: With the rules.
    """

    def __init__(self, task: SingleTurnTask) -> None:
        self.task, self.name = task, task.name

    def prompts(self, split: Any, seed: int) -> Iterator[Prompt]:
        """Yield the task's prompts."""
        return self.task.prompts(split, seed)

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the task's perfect answer."""
        return self.task.oracle(prompt)

    def score(self, prompt: Prompt, text: str) -> Score:  # noqa: ARG002
        """Give any answer at all the same reward."""
        return Score(1.0 if text.strip() else 0.0)

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the mean score by the rules, and the mean grade."""
        truth = statistics.fmean(self.task.score(p, r.text[0]).total for p, r in results)
        return {**super().summarize(results), "truth": truth}


def run(root: Path, arm: str, names: Sequence[str], seed: int, steps: int) -> dict[str, Any]:
    """Train on some judges' grades alone, or on the rules where no judge is named; returns the truth on the way."""
    out = root / f"{arm}-{seed}"
    done = out / "measured.json"
    if done.exists():
        earlier: dict[str, Any] = json.loads(done.read_text())
        return earlier
    recipe = load(RECIPE, [
        f"seed={seed}", f"grpo.steps={steps}", f"grpo.batch_size={BATCH}", "sft.steps=4", f"eval.every={steps // 2}",
        f"eval.items={ITEMS}", f"eval.final_items={ITEMS}", "checkpoint.every=0", "check=false", "threads=1",
    ])  # fmt: skip
    tasks = [_graded(one, names) for one in recipe.tasks]
    CALLS.clear()  # what a run comes to must not hang on those before it in this process
    train_whole(recipe, out, tasks=tasks, check=False)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    evals = [row for row in rows if row["stage"] == "eval"]
    result = {"arm": arm, "seed": seed, "judges": list(names), "steps": steps, "batch": BATCH, "items": ITEMS}
    for name in ("truth", "judge", "length"):
        keys = {task.name: f"eval/{task.name}/{name}" for task in tasks}
        result[name] = {task: [row[key] for row in evals] for task, key in keys.items() if key in evals[0]}
    done.write_text(json.dumps(result))
    return result


def _graded(section: Any, names: Sequence[str]) -> SingleTurnTask:
    """A task whose rewards are the judges' grades alone; with no judge, the rules' own."""
    rules = make_task(section)
    assert isinstance(rules, SingleTurnTask)
    if not names:
        return Told(rules)
    path = Path(__file__).parent / "judgelib" / "functions.py"
    functions = [{"provider": "function", "name": one, "path": f"{path}:{one.replace('-', '_')}"} for one in names]
    panel = {"use": "panel", "combine": "median"} if len(names) > 1 else {}
    judges = Judges.model_validate({"members": functions, "weight": 1.0, **panel})
    task = HeldBack(rules)
    task.grader = JudgeGrader(task, section.kind, judges)
    return task


class Told(HeldBack):
    """A task that is scored by its rules, and reports them as one whose rules are held back does."""

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score by the rules."""
        return self.task.score(prompt, text)


def arms(entries: Mapping[str, Mapping[str, Entry]]) -> dict[str, list[str]]:
    """A panel of all judges that can be asked, the best of them, and the worst.

    The best passes on both tasks, with the smallest error; the worst fails most standards, with the largest one.
    """
    alive = [name for name in JUDGES if all(not e[name].figures["fault"] for e in entries.values())]
    error = {name: statistics.fmean(float(e[name].figures["error"] or 0) for e in entries.values()) for name in alive}
    passing = [name for name in alive if all(not e[name].refused for e in entries.values())]
    best = min(passing or alive, key=error.__getitem__)
    worst = max(alive, key=lambda name: (sum(len(e[name].refused) for e in entries.values()), error[name]))
    return {"best": [best], "panel": alive, "worst": [worst]}


def main() -> None:
    """Calibrate, and train if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--told", type=int, nargs="*", default=[0], help="seeds of the arm that trains on the rules")
    parser.add_argument("--steps", type=int, default=64)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with server() as port:
        path = given.out / "calibration.json"
        entries = read_calibrations(path).tasks if path.exists() else calibrate(port, given.items, path)
        for task, judges in entries.items():
            show(task, judges)
        document: dict[str, Any] = {
            "items": given.items,
            "calibration": {
                task: {name: {"refused": e.refused, **e.figures, "grades": e.grades} for name, e in judges.items()}
                for task, judges in entries.items()
            },
        }
        if given.train:
            plans = [(arm, names, seed) for seed in given.seeds for arm, names in arms(entries).items()]
            plans += [("rules", [], seed) for seed in given.told]
            document["training"] = [run(given.out, arm, names, seed, given.steps) for arm, names, seed in plans]
    if given.json:
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
