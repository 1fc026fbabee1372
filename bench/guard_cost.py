"""What the guard costs: processor seconds spent in it, as a share of the step, on the tiny recipes.

python bench/guard_cost.py                                 every tiny recipe
python bench/guard_cost.py --steps 40 --json FILE

Measured inside one run rather than between two, so that a busy machine changes little: the seconds of the probe, the
copies of weights and the judgement are added up, and divided by those of the whole step, evaluation left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from levelhead.api import train
from levelhead.guard import LiveGuard
from levelhead.recipe import load
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.optim import Updater
from levelhead.training.trust_region import TrustRegion

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("dual-tiny", "workflow-tiny", "workflow-collapse")
PARTS = ((TrustRegion, "begin"), (TrustRegion, "step"), (TrustRegion, "keep"), (LiveGuard, "after_update"))


@contextmanager
def timed(owner: type, name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add up the processor seconds of a method in the reinforcement stage."""
    real: Callable[..., Any] = getattr(owner, name)
    key = f"{owner.__name__}.{name}"
    seconds[key] = 0.0

    def method(self: Any, *args: Any, **options: Any) -> Any:
        began = time.process_time()
        result = real(self, *args, **options)
        # Every stage steps its optimizer; there is a trust region in this one alone.
        if seconds["TrustRegion.begin"] or name == "begin":
            seconds[key] += time.process_time() - began
        return result

    with patch.object(owner, name, method):
        yield


def measure(name: str, steps: int) -> dict[str, Any]:
    """Seconds of the guard and of the steps of one run."""
    settings = [f"grpo.steps={steps}", "sft.steps=12", "eval.every=0", "eval.final_items=8", "threads=1", "check=false"]
    seconds: dict[str, float] = {}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for owner, part in (*PARTS, (Updater, "step"), (GrpoTrainer, "step")):
            stack.enter_context(timed(owner, part, seconds))
        train(load(ROOT / "recipes" / f"{name}.yaml", settings), out=Path(folder) / "run")
    whole = seconds.pop("GrpoTrainer.step")
    # The optimizer's own step runs inside the trust region's.
    seconds["TrustRegion.step"] -= seconds.pop("Updater.step")
    guard = sum(seconds.values())
    parts = {part: round(value / whole, 5) for part, value in seconds.items()}
    return {"recipe": name, "steps": steps, "seconds": round(whole, 2), "guard": round(guard / whole, 4), **parts}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.recipes:
        rows.append(measure(name, arguments.steps))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
