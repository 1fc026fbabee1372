"""What ``levelhead check`` costs: processor seconds of imports, tasks, policy, lengths and each check.

    python bench/check_cost.py recipes/dual-tiny.yaml --runs 3

Every run is a process of its own with one thread.  Processor time is taken and not the clock's, so that neighbours on
the machine count less; of several runs the least is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        sys.stdout.write(json.dumps(parts(arguments.recipe, arguments.overrides)) + "\n")
        return
    runs = [_run(arguments) for _ in range(arguments.runs)]
    best: dict[str, float] = {name: min(run.get(name, 0.0) for run in runs) for name in runs[0]}
    for name, seconds in best.items():
        sys.stdout.write(f"{name:40}{seconds:8.2f}\n")
    sys.stdout.write(f"{'sum':40}{sum(best.values()):8.2f}\n")


def parts(recipe: Path, overrides: list[str]) -> dict[str, float]:
    """Check a recipe once; return processor seconds by part, in the order in which they came."""
    spent = {"interpreter": time.process_time()}
    clock = _Clock(spent)
    from levelhead import startup
    from levelhead.api import resolve
    from levelhead.cli import main as cli
    from levelhead.recipe import load
    from levelhead.startup import uncollected

    command = startup.one_command()  # as long as it is referred to
    command.__enter__()
    resolved = resolve(load(recipe, overrides))
    del cli
    clock.lap("recipe")
    with uncollected():
        import torch

        clock.lap("import torch")
        import levelhead.preflight.run as run
        from levelhead.training import prepare
        from levelhead.training.prepare import seed_everything

        del torch
        clock.lap("import the rest")
        seed_everything(resolved.seed)
    for name in ("make_tasks", "load_policy", "_check_lengths"):
        setattr(prepare, name, clock.timed(name.strip("_").replace("_", " "), getattr(prepare, name)))
    with uncollected():
        setup = prepare.prepare(resolved)
    clock.lap("prepare, else")
    run.preflight(setup, progress=clock.begin)
    clock.lap(clock.check)
    return spent


class _Clock:
    """Adds processor seconds to parts; what is timed within a lap is taken off it.

    Args:
        spent: Where they are added.
    """

    def __init__(self, spent: dict[str, float]) -> None:
        self.spent = spent
        self.check = "check, begin"
        self._since = time.process_time()
        self._within = 0.0

    def add(self, name: str, start: float) -> None:
        """Count the time since a start for a part."""
        seconds = time.process_time() - start
        self.spent[name] = self.spent.get(name, 0.0) + seconds
        self._within += seconds

    def lap(self, name: str) -> None:
        """Count what was not counted since the last lap."""
        now = time.process_time()
        self.spent[name] = now - self._since - self._within
        self._since, self._within = now, 0.0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def within(*args: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **named)
            finally:
                self.add(name, start)

        return within

    def begin(self, check: str, _share: float) -> None:
        """Count what has passed for the check before; the first of a kind carries what its kind shares."""
        self.lap(self.check)
        self.check = f"check {check}"


def _run(arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, str(arguments.recipe), "--inner"]
    for override in arguments.overrides:
        command += ["--set", override]
    threads = str(arguments.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


if __name__ == "__main__":
    main()
