"""What each process of a divided run holds while it starts, and once it has: peak and resident memory over the imports.

A model of some 80 million float32 weights in a folder, several processes over gloo on one machine:

    python bench/sharded_memory.py --out bench/results/sharded_memory.json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

SHAPE = {
    "hidden_size": 768,
    "layers": 12,
    "heads": 12,
    "kv_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 300,
    "context": 256,
}
ENGINE = {"kind": "vllm", "urls": ["http://127.0.0.1:1"], "sync": "files"}
CASES: dict[str, dict[str, Any]] = {
    "drawn here, with a reference": {"kl": {"coef": 0.05}},
    "drawn here": {},
    "drawn by servers, with a reference": {"kl": {"coef": 0.05}, "generator": ENGINE},
    "drawn by servers": {"generator": ENGINE},
    "drawn by servers, checked": {"check": True, "generator": ENGINE},
}
CHECKED = ("tokens", "memory")
"""Families of the preflight that are made where a case is checked: that of the largest micro-batch is among them."""
MIB = 1 << 20


def status(key: str) -> float:
    """A number of this process's status, in MiB."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
    return int(line.split()[1]) / 1024


def content(folder: Path, case: str) -> dict[str, Any]:
    """The recipe of a case."""
    changes = dict(CASES[case])
    generator, check = changes.pop("generator", None), changes.pop("check", False)
    grpo = {"steps": 1, "batch_size": 8, "group_size": 4, "loss": {"importance": "token_truncate"}, **changes}
    recipe = {
        "check": check,
        "threads": 1,
        "model": {"name": str(folder / "model"), "dtype": "float32"},
        "tasks": [{"kind": "function", "path": str(folder / "rows.jsonl"), "rewards": [f"{folder / 'r.py'}:one"]}],
        "grpo": grpo,
        "distributed": {"shard": "full"},
    }
    return recipe | ({"generator": {**generator, "shared": str(folder / "shared")}} if generator else {})


def process(folder: Path, case: str) -> None:
    """Start as a run does, up to its first step; prints what that took."""
    from levelhead.preflight import preflight
    from levelhead.recipe import validate
    from levelhead.training import prepare as preparing
    from levelhead.training.prepare import prepare
    from levelhead.training.ranks import Ranks
    from levelhead.training.sharding import setup

    recipe = validate(content(folder, case))
    ranks = Ranks.joined(60)
    ranks.gathered(None)
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    loading = getattr(setup, "loading", None)
    options = {} if loading is None else {"load": loading(recipe, ranks, checks=recipe.check)}
    made = prepare(recipe, **options)
    if recipe.check:
        preflight(made, families=CHECKED, ranks=ranks)
        reloaded = getattr(preparing, "reloaded", None)  # earlier versions do not
        made = made if reloaded is None else reloaded(made, loading(recipe, ranks, checks=False))
    divided = setup.shared_setup(made, ranks)
    del made  # whole weights that the run no longer needs
    peak = status("VmHWM") - before
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    rest = status("VmRSS") - before
    print(json.dumps({"rank": ranks.rank, "peak_mib": round(peak), "rest_mib": round(rest)}), flush=True)
    ranks.gathered(divided is None)


def run(folder: Path, case: str, count: int) -> list[dict[str, Any]]:
    """Start some processes of a case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["MALLOC_MMAP_THRESHOLD_"] = str(MIB)  # what is let go of is given back, and not kept for later
    command = [sys.executable, __file__, "--folder", str(folder), "--case", case, "--out", os.devnull]
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    rows = [json.loads(each.communicate(timeout=600)[0].splitlines()[-1]) for each in processes]
    return sorted(rows, key=lambda row: row["rank"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--counts", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        process(args.folder, args.case)
        return
    from levelhead.policy.load import load_policy
    from levelhead.recipe.model import Model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [f"question {n}: what is the number {n}? the number is {n}." for n in range(12)]
        policy = load_policy(Model(preset="tiny", tiny=SHAPE, dtype="float32"), texts=texts)
        policy.save(folder / "model")
        weights = sum(p.numel() for p in policy.parameters)
        (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        (folder / "r.py").write_text("def one(prompts, completions, **columns):\n    return [1.0] * len(completions)\n")
        del policy
        rows = []
        for case in args.cases:
            for count in args.counts:
                rows.append({"case": case, "processes": count, "ranks": run(folder, case, count)})
                print(json.dumps(rows[-1]), flush=True)
        model = {"weights": weights, "mib": round(4 * weights / MIB)}
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__}
        args.out.write_text(json.dumps({"machine": machine, "model": model, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
