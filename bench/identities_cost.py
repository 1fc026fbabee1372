"""What the identities cost a training run: processor seconds spent in them, as a share of the reinforcement step.

python bench/identities_cost.py                                  dual-tiny and workflow-tiny
python bench/identities_cost.py dual-tiny --steps 6

Measured inside one run rather than between two, so that a busy machine changes little: the seconds of every method that
a stage calls, and of the optimizer's hooks, are added up and divided by those of the whole step.  Steps after the first
one are given apart, because held-out items are read and watched entries chosen in the first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from levelhead.api import train
from levelhead.recipe import load
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.identities.merge import MergeWitness
from levelhead.training.identities.stepping import Stepping
from levelhead.training.identities.watcher import Identities

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("dual-tiny", "workflow-tiny")


class Meter:
    """Adds up processor seconds of methods; of those that call each other, the outermost counts."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.steps: list[tuple[float, float]] = []
        self._depth = 0

    def within(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that is timed."""

        def method(*args: Any, **options: Any) -> Any:
            self._depth += 1
            start = time.process_time()
            try:
                return real(*args, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.spent += time.process_time() - start

        return method

    def step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that is timed, and what of it is spent in the others."""

        def method(*args: Any, **options: Any) -> Any:
            start, before = time.process_time(), self.spent
            result = real(*args, **options)
            self.steps.append((self.spent - before, time.process_time() - start))
            return result

        return method


def methods(owner: type) -> list[str]:
    """Names of the methods of a class, its constructor left out."""
    return [name for name, value in vars(owner).items() if callable(value) and not name.startswith("__")]


def measure(name: str, steps: int) -> dict[str, Any]:
    """Seconds of the identities and of the steps of one run."""
    settings = [f"grpo.steps={steps}", "sft.steps=2", "eval.every=0", "eval.final_items=8", "threads=1", "check=false"]
    meter = Meter()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for owner in (Identities, Stepping, MergeWitness):
            for part in methods(owner):
                # Generators do their work where they are consumed, which is inside of the watcher.
                stack.enter_context(patch.object(owner, part, meter.within(getattr(owner, part))))
        stack.enter_context(patch.object(GrpoTrainer, "step", meter.step(GrpoTrainer.step)))
        train(load(ROOT / "recipes" / f"{name}.yaml", settings), out=Path(folder) / "run")
    first, *others = meter.steps
    spent, whole = (sum(column) for column in zip(*others, strict=True))
    return {
        "recipe": name,
        "first": {"seconds": round(first[1], 2), "identities_ms": round(1e3 * first[0], 1)},
        "later": {
            "steps": len(others),
            "seconds": round(whole / len(others), 2),
            "identities_ms": round(1e3 * spent / len(others), 1),
            "share": round(spent / whole, 5),
        },
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    for name in arguments.recipes:
        print(json.dumps(measure(name, arguments.steps)), flush=True)


if __name__ == "__main__":
    main()
