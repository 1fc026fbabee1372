"""Survival: configurations that break, with the guard off and with it on, five seeds each; what is left at the end.

python bench/survival.py --out FOLDER                        run what FOLDER does not hold yet
python bench/survival.py --out FOLDER --only deadlock --seeds 0 1
python bench/survival.py --out FOLDER --write                results and table from what FOLDER holds

All runs of a family begin with the same fine-tuned policy; the seed is that of the reinforcement stage: its prompts,
draws and updates.  Seconds are the processor's, so that a busy machine changes nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.guard import make_guard
from levelhead.policy.load import load_checkpoint
from levelhead.policy.policy import Policy
from levelhead.recipe import load
from levelhead.recipe.environments import BROWSER_TASKS
from levelhead.rollout.generators.make import make_generator
from levelhead.training.checkpoint import newest_checkpoint
from levelhead.training.collect import Collector
from levelhead.training.evaluate import evaluate
from levelhead.training.loop import EventLoop
from levelhead.training.prepare import Setup, prepare, seed_everything
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults import probe  # noqa: E402

RESULTS = ROOT / "runs" / "survival.json"
PAGE = ROOT / "docs" / "experiments" / "survival.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
POLICIES = ("off", "protect")
SEEDS = (0, 1, 2, 3, 4)
COLLAPSED = 0.5
"""A run has collapsed that ends with less than this share of the held-out score it began with."""

ALWAYS = (
    "threads=1", "check=false", "model.dtype=float32", "eval.every=0", "eval.final_items=96",
    "eval.sampling.temperature=1.0", "log.rollouts_every=0", "checkpoint.every=0", "checkpoint.best=false",
)  # fmt: skip
ROWS = tuple(
    {"prompt": f"{opening} {n}.{' Take your time.' * times}", "answer": f"It is {n}."}
    for opening in ("Say the number", "Say", "Tell me the number", "Number")
    for times in range(5)
    for n in range(8)
)


RECIPES = {"workflow": "workflow-collapse", "browser": "browser-deadlock"}
"""Families that start from a recipe; the others start from the probe."""
SIX_PAGES = f"tasks.0.tasks=[{', '.join(BROWSER_TASKS)}]"
BEFORE: Mapping[str, Sequence[str]] = {"workflow": (), "browser": (SIX_PAGES,), "echo": ()}
"""What is different in the fine-tuning that a family's runs begin with."""
WIDER: Mapping[str, Sequence[str]] = {"browser": (SIX_PAGES, "eval.final_items=96")}
"""Where a family is trained on less than it was fine-tuned on: the whole, to see what became of the rest."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to break a run.

    Attributes:
        family: Where it starts from: ``workflow``, ``browser`` or ``echo``.
        story: What is wrong with it.
        settings: Changes of the recipe.
    """

    family: str
    story: str
    settings: Sequence[str] = ()


SCENARIOS: Mapping[str, Scenario] = {
    "workflow-collapse": Scenario(
        "workflow",
        "`recipes/workflow-collapse.yaml`: two rollouts of three problems, deviation-normalised, learning rate 5e-3",
        ("grpo.steps=40", "grpo.audit.first=0"),
    ),
    "deadlock": Scenario(
        "echo",
        "like `recipes/browser-deadlock.yaml`, on an easy task without a browser: four groups of six, a "
        "learning rate ten times too high, no leash and no bonus",
        ("grpo.steps=50", "grpo.batch_size=24", "grpo.group_size=6", "grpo.optimizer.learning_rate=1e-2"),
    ),
    "browser-deadlock": Scenario(
        "browser",
        "`recipes/browser-deadlock.yaml` as it stands, in a real browser, after a fine-tuning on six pages",
        ("eval.final_items=48",),
    ),
    "browser-high-rate": Scenario(
        "browser",
        "the same recipe with forty times its learning rate, in a real browser",
        ("eval.final_items=48", "grpo.steps=15", "grpo.optimizer.learning_rate=2e-2"),
    ),
    "high-rate": Scenario(
        "echo", "thirty times the learning rate", ("grpo.steps=40", "grpo.optimizer.learning_rate=3e-2")
    ),
    "huge-bonus": Scenario(
        "echo",
        "an entropy coefficient of 0.5: the policy dissolves into noise",
        ("grpo.steps=40", "grpo.entropy.coef=0.5", "grpo.optimizer.learning_rate=3e-3"),
    ),
    "many-epochs": Scenario(
        "echo",
        "groups of two, deviation-normalised, twelve epochs over each batch with a clip range that never clips",
        ("grpo.steps=20", "grpo.batch_size=16", "grpo.group_size=2", "grpo.epochs=12", "grpo.loss.clip_low=0.9",
         "grpo.loss.clip_high=9.0", "grpo.optimizer.learning_rate=3e-3"),
    ),
}  # fmt: skip


def setup_of(family: str, settings: Sequence[str], policy: Policy | None = None) -> Setup:
    """What a run of a family works on."""
    settings = [*ALWAYS, *settings]
    if family in RECIPES:
        return prepare(load(ROOT / "recipes" / f"{RECIPES[family]}.yaml", settings), policy=policy)
    return probe.setup_of("tasks.0.eval_fraction=0.5", "sft.steps=140", *settings, rows=ROWS, policy=policy)


def start_of(family: str, folder: Path) -> Path:
    """The fine-tuned policy that a family's runs begin with; made once."""
    run = RunDir(folder / f"start-{family}")
    tasks = (run.read_json("summary.json") or {}).get("tasks", {})
    if not any("sft" in stages for stages in tasks.values()):
        seed_everything(0)
        shutil.rmtree(run.path, ignore_errors=True)
        run.claim(resume=False)
        Run(setup_of(family, ["grpo=null", *BEFORE[family]]), run).execute()
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    return checkpoint


def run_one(name: str, policy: str, seed: int, folder: Path, extra: Sequence[str] = ()) -> dict[str, Any]:
    """One run; returns what is left of it."""
    scenario = SCENARIOS[name]
    start = start_of(scenario.family, folder)
    settings = [*scenario.settings, f"seed={seed}", f"guard.policy={policy}", "sft=null", *extra]
    recipe = setup_of(scenario.family, settings).recipe
    run = RunDir(folder / f"{name}-{policy}-{seed}")
    shutil.rmtree(run.path, ignore_errors=True)
    run.claim(resume=False)
    seed_everything(seed)
    setup = setup_of(scenario.family, settings, load_checkpoint(recipe.model, start))
    guard = make_guard(recipe.guard)
    began = time.process_time()
    outcome = Run(setup, run, observers=[guard] if guard else []).execute()
    seconds = time.process_time() - began
    (task,) = (run.read_json("summary.json") or {})["tasks"].values()
    records = list(run.steps("grpo"))
    return {
        "scenario": name,
        "policy": policy,
        "seed": seed,
        "outcome": outcome,
        "start": task["start"]["score"],
        "final": task["grpo"]["score"],
        "validity": task["grpo"]["validity"],
        "collapsed": task["grpo"]["score"] < COLLAPSED * task["start"]["score"],
        "best_step_reward": max(record.values["reward"] for record in records),
        "entropy_last": records[-1].values.get("entropy"),
        "steps": len(records),
        "seconds": round(seconds, 1),
        "actions": actions_of(run.path / "events.jsonl"),
        "rewards": [round(record.values["reward"], 3) for record in records],
        **wider(scenario.family, start, setup.policy),
    }


def wider(family: str, start: Path, policy: Policy) -> dict[str, float]:
    """Score on all that the family's start was fine-tuned on, before and after the run."""
    if family not in WIDER:
        return {}
    begun = load_checkpoint(setup_of(family, WIDER[family]).recipe.model, start)
    return {"wider_start": score_of(family, begun), "wider_final": score_of(family, policy)}


def score_of(family: str, policy: Policy) -> float:
    """Held-out score of a policy on all of a family."""
    setup, loop = setup_of(family, WIDER[family], policy), EventLoop()
    try:
        collector = Collector(setup.tasks, policy.codec, make_generator(policy, loop.waiter), loop)
        (result,) = evaluate(setup.tasks, collector, setup.recipe.eval, 0, setup.recipe.eval.final_items).values()
        return result.score
    finally:
        for task in setup.tasks.values():
            loop.run(task.close())
        loop.close()


def actions_of(path: Path) -> dict[str, int]:
    """How often a guard did what."""
    counts: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        action = json.loads(line)["action"] or "note"
        counts[action] = counts.get(action, 0) + 1
    return counts


def read(folder: Path) -> list[dict[str, Any]]:
    """All results of a folder, in the order of scenarios, policies and seeds."""
    wanted = [folder / f"{n}-{p}-{s}" / "result.json" for n in SCENARIOS for p in POLICIES for s in SEEDS]
    return [json.loads(path.read_text(encoding="utf-8")) for path in wanted if path.is_file()]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Write results as Markdown: a row a scenario and policy, and what protection is worth, seed by seed."""
    lines = [
        "| configuration | guard | collapsed | held-out: start | end | protect - off | seconds | actions a run |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name in SCENARIOS:
        finals: dict[str, dict[int, float]] = {}
        for policy in POLICIES:
            rows = [r for r in results if r["scenario"] == name and r["policy"] == policy]
            if not rows:
                continue
            finals[policy] = {r["seed"]: r["final"] for r in rows}
            gain = ""
            if len(finals) == 2:
                gain = shown([finals["protect"][s] - finals["off"][s] for s in finals["off"] if s in finals["protect"]])
            actions: dict[str, int] = {}
            for r in rows:
                for action, count in r["actions"].items():
                    actions[action] = actions.get(action, 0) + count
            told = ", ".join(f"{count / len(rows):.1f} {action}" for action, count in sorted(actions.items()))
            collapsed = f"{sum(r['collapsed'] for r in rows)} of {len(rows)}"
            start = f"{statistics.fmean(r['start'] for r in rows):.2f}"
            seconds = f"{statistics.fmean(r['seconds'] for r in rows):.1f}"
            end = shown([r["final"] for r in rows])
            lines.append(
                f"| `{name}` | {policy} | {collapsed} | {start} | {end} | {gain} | {seconds} | {told or '-'} |"
            )
    return "\n".join(lines)


def shown(values: Sequence[float]) -> str:
    """A mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.2f} ± {error:.2f}"


def write(folder: Path) -> None:
    """Put results and table where they belong."""
    results = read(folder)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    """Run, or write what has been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--set", nargs="*", default=[], help="further changes, for trials")
    parser.add_argument("--write", action="store_true", help="write results and page")
    arguments = parser.parse_args()
    for seed in arguments.seeds if not arguments.write else ():
        for name in arguments.only:
            for policy in arguments.policies:
                result = arguments.out / f"{name}-{policy}-{seed}" / "result.json"
                if not result.is_file():
                    outcome = run_one(name, policy, seed, arguments.out, arguments.set)
                    result.write_text(json.dumps(outcome) + "\n", encoding="utf-8")
                    print(json.dumps(outcome), flush=True)
    if arguments.write:
        write(arguments.out)
    else:
        print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
