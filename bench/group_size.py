"""What group size and advantage estimator do to a policy that writes workflows: does it collapse after updates?

python bench/group_size.py                  run what is missing of the grid and of the harsh cells, then write the page
python bench/group_size.py --study grid     the grid alone
python bench/group_size.py --study harsh    the fatal configuration, made harsher and harsher, and remedies
python bench/group_size.py --study none     only write the page from the cells that are there

Every cell (group size, estimator, learning rate, ..., seed) is a run of GRPO from its seed's one SFT checkpoint, with
the same budget of rollouts and no guard.  Cells are lines of a JSON Lines file (--cells); a cell that is there is not
run again, so that the command can be stopped and started at will.  One thread, one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import group_size_page

from levelhead.contrib.workflow.analysis import collapse_after_update
from levelhead.policy.load import load_checkpoint
from levelhead.recipe import Recipe, validate
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.make import make_generator
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.collect import Collector
from levelhead.training.evaluate import TaskResult, evaluate
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.loop import EventLoop
from levelhead.training.optim import Updater
from levelhead.training.prepare import make_objective, make_tasks, prepare, seed_everything
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir
from levelhead.training.stream import PromptStream

ROOT = Path(__file__).resolve().parents[1]
CELLS = ROOT / "runs" / "group_size.jsonl"
SEEDS = (0, 1, 2)

MODEL = {
    "preset": "tiny",
    "tiny": {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 160, "vocab_size": 512,
             "context": 256},
}  # fmt: skip
TASK = {
    "kind": "workflow",
    "items": 900,
    "demonstrations": "varied",
    "executor": {"kind": "simulated"},
    "reward": {"kind": "three_level", "right": 1.0, "wrong": 0.2, "invalid": 0.0},
}
SFT = {
    "steps": 120,
    "batch_size": 32,
    "optimizer": {"learning_rate": 4.0e-3, "warmup_steps": 20, "schedule": "cosine", "final_fraction": 0.1},
}
ADVANTAGES: dict[str, dict[str, Any]] = {
    "grpo": {"kind": "grpo", "ddof": 0, "eps": 0.0},
    "dr_grpo": {"kind": "dr_grpo"},
    "batch": {"kind": "batch", "ddof": 0, "eps": 0.0},
    "grpo, clipped at 2": {"kind": "grpo", "ddof": 0, "eps": 0.0, "clip": 2.0},
    "workflow_aware": {"kind": "workflow_aware", "ddof": 0, "eps": 0.0},
}


@dataclass(frozen=True)
class Cell:
    """One run.

    ``rollouts`` a batch (one update each, ``epochs`` passes), ``budget`` rollouts in all.
    """

    study: str
    k: int
    advantage: str
    lr: float
    rollouts: int
    budget: int
    seed: int
    epochs: int = 1
    kl: float = 0.005
    entropy: float = 0.0
    max_grad_norm: float = 1.0

    @property
    def name(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def grid(seeds: Sequence[int] = SEEDS) -> Iterator[Cell]:
    """The experiment: group size x estimator x learning rate x seed."""
    for seed, lr, k, advantage in itertools.product(seeds, (1e-3, 4e-3), (2, 4, 8), ADVANTAGES):
        yield Cell("grid", k, advantage, lr, rollouts=24, budget=576, seed=seed)


def harsh(seeds: Sequence[int] = SEEDS) -> Iterator[Cell]:
    """The fatal configuration (K=2, three problems a batch, group deviation), harsher and harsher, then remedies.

    All with the same number of updates, so that a remedy with larger batches draws more rollouts.
    """
    for seed in seeds:
        fatal = Cell("harsh", 2, "grpo", 5e-3, rollouts=6, budget=360, seed=seed)
        for lr in (1.25e-3, 2.5e-3, 5e-3, 1e-2):
            yield replace(fatal, lr=lr)
        for advantage in list(ADVANTAGES)[1:]:
            yield replace(fatal, advantage=advantage)
        for k in (4, 8):
            yield replace(fatal, k=k, rollouts=3 * k, budget=fatal.budget * k // 2)
        yield replace(fatal, rollouts=24, budget=4 * fatal.budget)
        yield replace(fatal, entropy=0.01)


def both() -> Iterator[Cell]:
    """Everything."""
    yield from harsh()
    yield from grid()


def base(seed: int) -> dict[str, Any]:
    return {
        "name": "group-size",
        "seed": seed,
        "threads": 1,
        "check": False,
        "guard": {"policy": "off"},
        "model": MODEL,
        "tasks": [TASK],
        "eval": {"final_items": 96, "batch_size": 96, "sampling": {"max_new_tokens": 32, "temperature": 1.0}},
        "checkpoint": {"every": 0, "best": False, "keep_last": 1},
        "log": {"rollouts_every": 0},
    }


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of a cell."""
    keys = base(cell.seed)
    keys["grpo"] = {
        "steps": cell.budget // cell.rollouts,
        "batch_size": cell.rollouts,
        "group_size": cell.k,
        "epochs": cell.epochs,
        "sampling": {"max_new_tokens": 32},
        "advantage": ADVANTAGES[cell.advantage],
        "kl": {"coef": cell.kl, "estimator": "k2"},
        "entropy": {"coef": cell.entropy},
        "optimizer": {"learning_rate": cell.lr, "max_grad_norm": cell.max_grad_norm},
        "audit": {"first": 0},
    }
    return validate(keys)


class Bench:
    """Runs cells; the task is made once, and the SFT checkpoint of each seed is kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks = make_tasks(validate(base(0)))

    def run(self, cell: Cell) -> dict[str, Any]:
        """Run a cell and return its line: the loop of ``levelhead train``, without what it writes on the way."""
        recipe = recipe_of(cell)
        assert recipe.grpo is not None
        seed_everything(recipe.seed)
        policy = load_checkpoint(recipe.model, self._sft(cell.seed), seed=recipe.seed)
        began = time.process_time()
        objective, estimator = make_objective(recipe, recipe.grpo)
        policy.keep_reference(trained=True)
        loop = EventLoop()
        generator = make_generator(policy, loop.waiter)
        collector = Collector(self._tasks, policy.codec, generator, loop)
        stream = PromptStream(list(self._tasks.values()), [1.0], derive(cell.seed, "stream"))
        updater = Updater(policy.parameters, recipe.grpo.optimizer, recipe.grpo.steps * cell.epochs)
        trainer = GrpoTrainer(policy, collector, stream, objective, updater, recipe.grpo, cell.seed, (), estimator)
        rows = [trainer.step(step).record.values for step in range(1, recipe.grpo.steps + 1)]
        held_out = evaluate(self._tasks, collector, recipe.eval, cell.seed, recipe.eval.final_items)["workflow"]
        loop.run(generator.close())
        loop.close()
        return {**asdict(cell), **measure(rows, held_out), "cpu_s": round(time.process_time() - began, 1)}

    def _sft(self, seed: int) -> Path:
        """The checkpoint that all cells of a seed begin from."""
        folder = self._folder / f"sft-{seed}"
        checkpoints = Checkpoints(RunDir(folder), 1, {})
        if checkpoints.latest() is None:
            recipe = validate({**base(seed), "sft": SFT})
            seed_everything(seed)
            shutil.rmtree(folder, ignore_errors=True)
            out = RunDir(folder)
            out.claim(resume=False)
            Run(prepare(recipe, tasks=self._tasks), out).execute()
        checkpoint = checkpoints.latest()
        assert checkpoint is not None
        return checkpoint


def measure(rows: Sequence[Mapping[str, float]], held_out: TaskResult) -> dict[str, Any]:
    """What a run came to: collapses after updates, and the policy's end on held-out problems, sampled."""
    validity = [row["validity"] for row in rows]
    collapse = collapse_after_update(validity, [row["grad_norm"] > 0 for row in rows])
    return {
        "updates": collapse.updates,
        "collapsed": collapse.collapsed,
        "rate": collapse.rate or 0.0,
        "lowest": min(validity),
        "dead": sum(value == 0 for value in validity) / len(validity),
        "validity": held_out.validity,
        "reward": held_out.score,
        "accuracy": held_out.metrics["accuracy"],
        "drift": rows[-1].get("kl"),
        "curve": [round(value, 3) for value in validity],
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Cells that are there, by name."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = Cell.__dataclass_fields__
    results = {}
    for row in map(json.loads, filter(None, lines)):
        results[Cell(**{name: row[name] for name in names if name in row}).name] = row
    return results


def work(cells: list[Cell], path: Path, folder: Path, most: int | None) -> None:
    """Run what is missing and append it, a line a cell."""
    results = read(path)
    missing = [cell for cell in cells if cell.name not in results][:most]
    path.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder)
    for number, cell in enumerate(missing, start=1):
        twin = results.get(unclipped(cell).name)
        row = {**twin, "advantage": cell.advantage} if twin and cell != unclipped(cell) else bench.run(cell)
        results[cell.name] = row
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number}/{len(missing)} {brief(row)}", file=sys.stderr, flush=True)


def unclipped(cell: Cell) -> Cell:
    """The cell whose run is this one's, where the clip cannot act.

    Rewards of a group of K divided by their deviation never pass sqrt(K - 1), which is below 2 up to K = 4.
    """
    idle = cell.advantage == "grpo, clipped at 2" and math.sqrt(cell.k - 1) < 2
    return replace(cell, advantage="grpo") if idle else cell


def brief(row: Mapping[str, Any]) -> str:
    shown = (
        "study",
        "k",
        "advantage",
        "lr",
        "rollouts",
        "epochs",
        "seed",
        "updates",
        "collapsed",
        "lowest",
        "validity",
    )
    return " ".join(f"{key}={row[key]}" for key in (*shown, "reward", "cpu_s"))


STUDIES: dict[str, Callable[[], Iterable[Cell]]] = {"all": both, "grid": grid, "harsh": harsh, "none": tuple}
PAGE = ROOT / "docs" / "experiments" / "group-size.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=STUDIES, default="all")
    parser.add_argument("--cells", type=Path, default=CELLS, help="where cells are kept")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "group-size", help="where SFT checkpoints are kept"
    )
    parser.add_argument("--most", type=int, help="stop after so many cells")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    work(list(STUDIES[given.study]()), given.cells, given.work, given.most)
    group_size_page.write(PAGE, list(read(given.cells).values()))


if __name__ == "__main__":
    main()
