"""What the guard's bound on an update costs sound runs, and what it saves others: paired runs at several bounds.

    python bench/guard_bound.py [--seeds 4] [--steps 60] [--only NAME ...] [--out bench/results/guard_bound.json]

Each setting is trained with the guard looking on (no bound) and acting at several bounds, from the same seeds: mean
reward of the first and last ten steps, and the share of steps with an update that was shortened or went beyond 0.05.  A
guard with nothing to correct changes no bit: runs that the looking guard would have left alone are not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

BOUNDS = (None, 0.2, 0.1, 0.05)
AGAIN = ("grpo.updates_per_batch=2", "grpo.epochs=2", "grpo.optimizer.learning_rate=3e-4")
SOUND: dict[str, tuple[str, tuple[str, ...], str]] = {
    "as it is": ("single", (), "closeness"),
    "fixed length": ("single", ("grpo.loss.aggregation=fixed_length", "grpo.tokens_per_microbatch=128"), "closeness"),
    "per token, scaled": (
        "single",
        ("tasks.0.shaping={length: {kind: per_token, coef: 0.1}, scale: 2.0, clip: [-3, 3]}",),
        "closeness",
    ),
    "two tasks, pcgrad": ("dual", ("grpo.merge.kind=pcgrad", "grpo.kl.coef=0.01"), "closeness"),
    "cosine, weight decay": (
        "single",
        ("grpo.optimizer={learning_rate: 1.0e-3, schedule: cosine, weight_decay: 0.1}",),
        "closeness",
    ),
    "several turns": ("episodes", (), "closeness"),
    "batches used twice": ("single", AGAIN, "closeness"),
}
FAST: dict[str, tuple[str, tuple[str, ...], str]] = {
    "three times the rate": ("single", ("grpo.optimizer.learning_rate=3e-3",), "closeness"),
    "ten times the rate": ("single", ("grpo.optimizer.learning_rate=1e-2",), "closeness"),
}


def run(kind: str, settings: tuple[str, ...], reward: str, bound: float | None) -> dict[str, float]:
    """Train once; returns the mean reward of the first and the last ten steps, and how many updates were shortened.

    ``most`` is the bound from which on the guard would have left every update alone.
    """
    from faults.probes import Probe
    from levelhead.guard import LiveGuard
    from levelhead.recipe.guard import Guard
    from levelhead.training.run import Run
    from levelhead.training.rundir import RunDir

    guard = Guard(policy="observe") if bound is None else Guard(policy="protect", max_kl=bound)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        directory = RunDir(Path(folder) / "run")
        directory.claim(resume=False)
        Run(Probe(kind, settings, reward).setup(), directory, observers=[LiveGuard(guard)]).execute()
        lines = [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text().splitlines()]
        wanted = _corrected(directory.path / "events.jsonl")
    steps = [line for line in lines if line["stage"] == "grpo"]
    rewards = [line["reward"] for line in steps]
    return {
        "first": statistics.fmean(rewards[:10]),
        "last": statistics.fmean(rewards[-10:]),
        "shrunk": sum(line.get("guard/scale", 1.0) < 1 or line.get("guard/kl", 0.0) > 0.05 for line in steps)
        / len(steps),
        "most": max(wanted, default=0.0),
    }


def _corrected(path: Path) -> list[float]:
    """Bounds at which the updates that a looking guard would have corrected stand; infinite for other corrections."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    events = [event for event in map(json.loads, lines) if "would" in event["evidence"]]
    numbers = [event["evidence"] for event in events if event["code"] == "large-update"]
    others = [math.inf] * (len(events) - len(numbers))
    return [*others, *(max(found["kl"], found["drift"] / 2) for found in numbers)]


def main() -> None:
    """Train all pairs and write their differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[], help="settings; all unless given")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "guard_bound.json")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, (kind, settings, reward) in {**SOUND, **FAST}.items():
        for bound in BOUNDS if not given.only or name in given.only else ():
            seeds = [(*settings, f"grpo.steps={given.steps}", f"seed={seed}") for seed in range(given.seeds)]
            if bound is None:
                runs = watched = [run(kind, each, reward, None) for each in seeds]
            else:
                pairs = zip(watched, seeds, strict=True)
                runs = [run(kind, each, reward, bound) if one["most"] > bound else one for one, each in pairs]
            row = {"setting": name, "bound": bound, "sound": name in SOUND}
            row |= {key: [round(one[key], 4) for one in runs] for key in ("first", "last", "shrunk")}
            rows.append(row)
            last, shrunk = statistics.fmean(row["last"]), statistics.fmean(row["shrunk"])
            print(f"{name:24} {bound!s:5} last {last:.3f} shrunk {shrunk:.2f}", flush=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
