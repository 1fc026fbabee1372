"""Digests of small runs, so that a change of the code is known to change no number.

python bench/digests.py --out digests.json                 make the runs and write their digests
python bench/digests.py --against digests.json             make them and compare; exit code 1 where one differs
python bench/digests.py --only async-3 --against FILE      one of them

Each run is made in a process of its own.  Its digest is a hash of ``metrics.jsonl`` without times, and one of the
tensors of the newest checkpoint.  Runs of a few thousand weights; all of them take a minute or two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TINY = {
    "hidden_size": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "intermediate_size": 48,
    "vocab_size": 300,
    "context": 128,
}
FUNCTIONS = """
def parity(prompts, completions, completion_ids, **columns):
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]


def spread(prompts, completions, completion_ids, **columns):
    return [float(sum(ids) % 7) / 6 - 0.5 for ids in completion_ids]


def grade(question, answer, reference):
    return len(answer) % 4 / 3
"""
Keys = dict[str, Any]


def recipe(folder: Path, *, tasks: int = 1, sft: bool = False, grpo: Mapping[str, Any] | None = None) -> Keys:
    """Write data and functions to a folder, and return a recipe of so many tasks."""
    (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    sections = []
    for name, function in [("one", "parity"), ("two", "spread")][:tasks]:
        rows = [{"prompt": f"{name} {i}?", "answer": f"the number is {i}."} for i in range(16)]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        rewards = [f"{folder / 'functions.py'}:{function}"]
        keys = {"kind": "function", "name": name, "path": str(path), "oracle": "answer", "eval_fraction": 0.25}
        sections.append({**keys, "rewards": rewards})
    optimizer = {"learning_rate": 3e-3, "warmup_steps": 1, "schedule": "cosine", "eps": 1e-4}
    document: Keys = {
        "name": "digest",
        "seed": 3,
        "check": False,
        "threads": 1,
        "model": {"preset": "tiny", "tiny": TINY, "dtype": "float32"},
        "tasks": sections,
        "eval": {"items": 2, "final_items": 3, "every": 2, "sampling": {"max_new_tokens": 4}},
        "guard": {"policy": "protect", "max_kl": 0.05},
        "checkpoint": {"every": 2, "keep_last": 2},
    }
    if sft:
        document["sft"] = {"steps": 3, "batch_size": 4, "optimizer": optimizer}
    if grpo is not None:
        document["grpo"] = {
            "steps": 5,
            "batch_size": 12,
            "group_size": 3,
            "updates_per_batch": 2,
            "sampling": {"max_new_tokens": 6},
            "kl": {"coef": 0.05},
            "entropy": {"coef": 0.01},
            "optimizer": optimizer,
            "tokens_per_microbatch": 128,
            "audit": {"first": 1},
            **grpo,
        }
    return document


TRUNCATED = {"loss": {"importance": "token_truncate"}}
SHARED = {"updates_per_batch": 1, "batch_size": 9, "optimizer": {"learning_rate": 3e-3, "eps": 1e-3}}


def build(name: str, folder: Path) -> tuple[Keys, int, int | None]:
    """The recipe of a run, its processes, and the step after which it is interrupted and resumed."""
    if name == "sft":
        return recipe(folder, sft=True), 1, None
    if name == "grpo":
        return recipe(folder, sft=True, grpo={"dynamic_sampling": 1, "epochs": 2}), 1, None
    if name == "lora":
        keys = recipe(folder, sft=True, grpo={})
        return {**keys, "model": {**keys["model"], "lora": {"r": 4, "alpha": 8}}}, 1, None
    if name == "cagrad":
        return recipe(folder, tasks=2, grpo={"merge": {"kind": "cagrad"}}), 1, None
    if name.startswith("async"):
        return recipe(folder, tasks=2, grpo={"async": int(name[-1]), **TRUNCATED, "dynamic_sampling": 1}), 1, None
    if name == "judged":
        keys = recipe(folder, tasks=2, grpo={})
        judge = {"provider": "function", "path": f"{folder / 'functions.py'}:grade"}
        keys["tasks"][0]["judges"] = {"members": [judge], "rubric": "How long is it?"}
        return keys, 1, None
    if name == "resumed":
        return recipe(folder, sft=True, grpo={}), 1, 3
    if name == "resumed-async":
        return recipe(folder, grpo={"async": 2, **TRUNCATED}), 1, 3
    keys = recipe(folder, tasks=2, grpo={"merge": {"kind": "cagrad"}, **SHARED})
    shard = {"distributed": {"shard": "full", "timeout_s": 60}} if name.startswith("sharded") else {}
    if name.endswith("async"):
        keys["grpo"] |= {"async": 2, **TRUNCATED}
    return {**keys, **shard}, 2, None


RUNS = (
    *("sft", "grpo", "lora", "cagrad", "async-1", "async-3", "judged", "resumed", "resumed-async"),
    *("two", "two-async", "sharded", "sharded-async"),
)


class Interrupt:
    """An observer that asks the run to end after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def before_update(self, record: Any) -> list[Any]:  # noqa: ARG002
        """Decide nothing."""
        return []

    def after_update(self, record: Any) -> list[Any]:
        """Raise the signal of Ctrl-C after the step."""
        if record.step == self._step:
            signal.raise_signal(signal.SIGINT)
        return []


def make(name: str, folder: Path, rank: int, port: int) -> None:
    """Make a run, in the process of a rank."""
    from levelhead import train

    keys, count, interrupted = build(name, folder)
    if count > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"})
    with (folder / f"errors-{rank}.txt").open("w") as errors:
        os.dup2(errors.fileno(), 2)
        out = folder / "run"
        if interrupted is not None:
            train(keys, out=out, observers=[Interrupt(interrupted)])
        result = train(keys, out=out, resume=interrupted is not None)
    os._exit(0 if result.outcome == "done" else 1)


def digest(run: Path) -> dict[str, str]:
    """Hashes of a run: of its numbers without times, of its events, and of the tensors that it has saved."""
    import torch
    from safetensors.torch import load_file

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = ("time/", "step_time")
    numbers = [{key: value for key, value in row.items() if not key.startswith(timed)} for row in rows]
    numbers = [{key: value for key, value in row.items() if "latency" not in key} for row in numbers]
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    newest = max((run / "checkpoints").glob("step-*"))
    weights = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(load_file(next(newest.glob("*.safetensors"))).items()):
        weights.update(name.encode() + tensor.float().contiguous().numpy().tobytes())
    training = torch.load(newest / "training.pt", weights_only=True)
    codes = [[event["step"], event["code"]] for event in events]
    return {
        "rows": str(len(rows)),
        "metrics": _hash(numbers),
        "events": _hash(codes),
        "weights": weights.hexdigest(),
        "updates": str(training["updates"]),
    }


def _hash(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def measure(name: str, folder: Path) -> dict[str, str]:
    """Make a run in fresh processes, and return its digest.

    Raises:
        SystemExit: A process of the run failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=make, args=(name, folder, rank, port)) for rank in range(build(name, folder)[1])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        errors = [path.read_text(encoding="utf-8")[-1500:] for path in sorted(folder.glob("errors-*.txt"))]
        raise SystemExit(f"{name}: {' '.join(errors)}")
    return digest(folder / "run")


def main() -> None:
    """Make the runs, and write or compare their digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--against", type=Path, help="compare with the digests of this file")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=RUNS, metavar="RUN")
    parser.add_argument("--keep", type=Path, help="make the runs below this folder and leave them there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import levelhead.training.run  # noqa: F401 - once, for all the processes that are forked

    digests: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.only:
            folder = (options.keep or Path(scratch)) / name
            folder.mkdir(parents=True)
            digests[name] = measure(name, folder)
            print(name, *digests[name].values(), flush=True)
    if options.out:
        options.out.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
    if options.against:
        wanted = json.loads(options.against.read_text(encoding="utf-8"))
        other = [
            f"{name}: {part}"
            for name, own in digests.items()
            for part, value in own.items()
            if wanted.get(name, {}).get(part) != value
        ]
        print("\n".join(other) or f"{len(digests)} runs as in {options.against}")
        sys.exit(bool(other))


if __name__ == "__main__":
    main()
