"""Aggregators of task gradients against each other: on the dual task, and on pairs of tasks that do conflict.

Run from the repository's root: ``.venv/bin/python bench/merging.py --out runs/merging`` for the dual task, with
``--conflict`` for the pairs, and with ``--table`` to print the tables of what is written down.  All are put into one
JSON document: final held-out scores by seed and aggregator, the cosine between the tasks' reward gradients, and for the
dual task seconds a step and peak memory, for the pairs hypervolumes.  A second call over the same folder goes on where
the first was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mergelib import conflicts

STEPS = {"trade": 40, "apart": 80}
"""GRPO steps of each conflicting pair."""
RECIPE = "recipes/dual-constant.yaml"


def train(out: Path, *settings: str, resume: bool = False) -> int:
    """Run the command line; returns the peak resident memory of the process in bytes."""
    command = [sys.executable, "-m", "levelhead.cli", "train", RECIPE, "--out", str(out)]
    for setting in settings:
        command += ["--set", setting]
    again = ["--resume", "--accept-changes", "all"] if resume else []
    process = subprocess.Popen(command + again, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{out}: training failed")
    return usage.ru_maxrss * 1024


def lines(run: Path) -> list[dict[str, Any]]:
    """Return the GRPO records of a run."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == "grpo"]


def measure(root: Path, kinds: list[str], seeds: list[int], sft: int, steps: int) -> list[dict[str, Any]]:
    """Train every pair of seed and aggregator, from one SFT policy a seed."""
    results = []
    for seed in seeds:
        base = root / f"sft-{seed}"
        common = [f"seed={seed}", f"sft.steps={sft}", "eval.every=0", "checkpoint.every=0", "threads=1", "check=false"]
        if not (base / "summary.json").exists():
            train(base, *common, "grpo=null")
        for kind in kinds:
            run = root / f"{kind}-{seed}"
            done = run / "measured.json"
            if done.exists():
                results.append(json.loads(done.read_text()))
                continue
            if not run.exists():
                shutil.copytree(base, run)
            monitor = ["grpo.merge.monitor_every=1"] if kind == "sum" else []
            settings = [*common, f"grpo.steps={steps}", f"grpo.merge.kind={kind}", *monitor]
            memory = train(run, *settings, resume=True)
            rows = lines(run)
            summary = json.loads((run / "summary.json").read_text())["tasks"]
            cosine = "merge/cosine/fairness/faithfulness"
            results.append(
                {
                    "seed": seed,
                    "kind": kind,
                    "tasks": {
                        task: {
                            stage: {key: result[key] for key in ("score", "se", "n")}
                            for stage, result in stages.items()
                        }
                        for task, stages in summary.items()
                    },
                    "step_time": statistics.median(row["step_time"] for row in rows),
                    "time/train": statistics.median(row["time/train"] for row in rows),
                    "peak_bytes": memory,
                    "cosine": [round(row[cosine], 4) for row in rows if cosine in row],
                }
            )
            done.write_text(json.dumps(results[-1]))
            print(json.dumps({k: v for k, v in results[-1].items() if k != "cosine"}), file=sys.stderr, flush=True)
    return results


def main() -> None:
    """Parse the options and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the runs")
    parser.add_argument("--result", type=Path, default=Path("runs/merging.json"))
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--sft", type=int, default=200)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--conflict", action="store_true", help="train the conflicting pairs")
    parser.add_argument("--pairs", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--table", action="store_true", help="print the tables of the conflicting pairs")
    options = parser.parse_args()
    document = json.loads(options.result.read_text()) if options.result.exists() else {}
    if options.table:
        print(conflicts.tables(document["pairs"]))
        return
    if options.out is None:
        parser.error("--out is needed to train")
    if options.conflict:
        kinds = options.kinds or ["sum", "cagrad", "pcgrad", "upgrad", "nash_mtl"]
        pairs = conflicts.measure(options.out, options.pairs, kinds, options.seeds or [0, 1, 2, 3, 4], STEPS)
        document["pairs"] = {**document.get("pairs", {}), **pairs}
    else:
        kinds = options.kinds or ["sum", "cagrad", "upgrad"]
        runs = measure(options.out, kinds, options.seeds or [0, 1, 2], options.sft, options.steps)
        document |= {"recipe": RECIPE, "sft_steps": options.sft, "grpo_steps": options.steps, "runs": runs}
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
