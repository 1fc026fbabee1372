"""One GPU, at most nine minutes, no network: do the backends agree, and how fast and how large is a step beside TRL's.

    python bench/gpu.py [--minutes 9] [--out bench/results/gpu.jsonl] [--toy [--smallest]]

Random weights of the true shapes (``bench/gpulib/shapes.py``), in this order: agreement of all backends with the
reference, values and gradients, in float32 and bfloat16; then for each shape the memory plan, our step, our step on the
reference backend where another one ran, and TRL's.  A row is written as a line of JSON, and flushed, after each
measurement.  What the time, the device or a package does not allow, and what runs out of memory, is a row that says
so; the rest goes on; a measurement that outlasts the time ends the process, and the last row names it.  ``--toy`` does
all of it at toy size on a CPU.

TRL's steps run in a process of their own, with this Python or that of ``LEVELHEAD_BENCH_TRL``.  Leaves with 1 where a
backend does not agree, with 3 where the time was up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent
PEER = "LEVELHEAD_BENCH_TRL"
PACKAGES = ("levelhead", "torch", "transformers", "accelerate", "peft", "trl", "triton")

EXPECTED = {"agree": 20.0, "plan": 20.0, "ours": 60.0, "trl": 100.0}
"""Seconds that a measurement is taken to need before one of its kind has been made, on a GPU."""


class Record:
    """Where rows go, and what the time allows.

    Args:
        out: File of JSON lines, started anew.
        seconds: For everything.
        toy: Whether measurements take no time.
    """

    def __init__(self, out: Path, seconds: float, *, toy: bool) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self._file = out.open("w", encoding="utf-8")
        self._end, self._toy = time.monotonic() + seconds, toy
        self._taken: dict[str, float] = {}
        self._doing: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def write(self, **row: Any) -> None:
        """Write a row, at once."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        print(line(row), flush=True)

    def stop_at_the_end(self, grace: float = 10.0) -> threading.Timer:
        """End this process where a measurement outlasts the time, with what it was doing as the last row."""
        timer = threading.Timer(max(0.0, self.left) + grace, self._stop)
        timer.daemon = True
        timer.start()
        return timer

    def _stop(self) -> None:
        self.write(kind="end", cut=" ".join(self._doing), seconds_left=self.left)
        os._exit(3)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    def measure(self, kind: str, make: Callable[[], dict[str, Any] | list[dict[str, Any]]], **what: Any) -> None:
        """Make a measurement and write its rows; one that fails, or that the time does not allow, is a row as well."""
        needed = self._taken.get(kind, 0.0 if self._toy else EXPECTED[kind])
        if self.left < needed:
            self.write(kind=kind, **what, left_out=f"{self.left:.0f} s are left, and it would take about {needed:.0f}")
            return
        start = time.monotonic()
        self._doing = [kind, *map(str, what.values())]
        try:
            entry = make()
        except Exception as error:
            entry = {
                "error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300] if str(error) else ''}"
            }
        self._taken[kind] = max(self._taken.get(kind, 0.0), time.monotonic() - start)
        for row in entry if isinstance(entry, list) else [entry]:
            self.write(kind=kind, **what, **row, took=round(time.monotonic() - start, 2))


def line(row: dict[str, Any]) -> str:
    """A row as a line for a person."""
    name = " ".join(str(row[key]) for key in ("kind", "shape", "model", "side", "backend", "dtype") if row.get(key))
    for key in ("error", "skipped", "left_out", "cut"):
        if key in row:
            return f"{name}: {key.replace('_', ' ')}: {row[key]}"
    shown = {k: v for k, v in row.items() if k not in ("kind", "shape", "model", "side", "backend", "dtype", "steps")}
    return f"{name}: " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())


def machine(device: Any) -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    facts: dict[str, Any] = {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    facts |= {"device": "cpu"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"device": properties.name, "memory": properties.total_memory, "cuda": torch.version.cuda}
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return facts | {"versions": versions}


def planned(shape: Any, device: Any, folder: Path) -> dict[str, Any]:
    """What ``levelhead check --plan`` says of a shape on this device."""
    import torch
    from speedlib import workloads
    from speedlib.ours import grpo

    from levelhead.preflight.memory import capacity
    from levelhead.preflight.plan import Prompts, Target
    from levelhead.preflight.planner import Planner
    from levelhead.recipe import Recipe

    w = shape.work
    workloads.model_config(w).save_pretrained(folder)
    lora = {"r": w.lora, "alpha": 2 * w.lora} if w.lora else None
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = {"name": str(folder), "lora": lora, "gradient_checkpointing": shape.checkpointing}
    model |= {"dtype": str(compute).removeprefix("torch.")}
    section = grpo(w, {"tokens_per_microbatch": shape.tokens}).model_dump(by_alias=True)
    task = {"kind": "function", "path": "bench.jsonl", "rewards": ["bench.py:f"]}
    evaluation = {"items": 1, "final_items": 1, "batch_size": 1, "sampling": {"max_new_tokens": 1}}
    recipe = Recipe.model_validate(
        {"model": model, "tasks": [task], "grpo": section, "eval": evaluation, "guard": {"policy": "off"}}
    )
    target = Target(device.type, compute, capacity(device), str(device))
    plan = Planner(target, Prompts(w.prompt, "given")).plan(recipe)
    return {"backend": plan.backend, "parameters": plan.parameters, "total_bytes": plan.total, "phases": plan.phases}


def pieces(shape: Any) -> int:
    """Micro-batches of TRL's step: as few as keep one within the tokens that ours may have."""
    w = shape.work
    fit = (n for n in range(1, w.rows + 1) if w.rows % n == 0 and w.rows // n * (w.prompt + w.answer) <= shape.tokens)
    return next(fit, w.rows)


def trl_steps(shape: Any, device: Any, repeats: int, folder: Path, limit: float) -> dict[str, Any]:
    """TRL's steps on the same shape, in a process that is ended when the time is up."""
    peer = os.environ.get(PEER, "")
    if not peer and importlib.util.find_spec("trl") is None:
        return {"skipped": f"trl is not installed here, and {PEER} names no Python that has it"}
    from speedlib import compare, workloads

    workloads.write(shape.work, folder, weights=False)
    settings = {"device": device.type, "random": True, "gradient_checkpointing": shape.checkpointing}
    settings |= {"bf16": device.type == "cuda", "accumulate": pieces(shape)}
    command = [peer or sys.executable, str(HERE / "speedlib" / "trl_side.py"), str(folder), json.dumps(settings)]
    asked = "step\n" * (1 + repeats) + "memory\n"
    run = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=max(limit, 1.0), check=False)
    answers = [json.loads(text) for text in run.stdout.splitlines() if text.startswith("{")]
    if len(answers) < repeats + 3:
        raise RuntimeError(([*run.stderr.strip().splitlines()] or ["it ended"])[-1])
    steps, last = answers[2 : 2 + repeats], answers[2 + repeats]
    seconds = compare.summary(steps)["seconds"]["median"]
    return {"seconds": seconds, "tokens_a_second": shape.work.drawn / seconds, "peak_bytes": last["peak"],
            "accumulate": settings["accumulate"], "versions": answers[0]["versions"], "steps": steps}  # fmt: skip


def measure(record: Record, options: argparse.Namespace) -> None:
    """Everything, in order."""
    import torch
    from gpulib import agree, shapes, steps
    from gpulib.peaks import peak_of

    device = torch.device("cuda" if torch.cuda.is_available() and not options.toy else "cpu")
    compute = torch.bfloat16 if device.type == "cuda" else torch.float32
    about = machine(device)
    record.write(kind="machine", toy=options.toy, **about)
    peak = peak_of(about["device"])
    torch.set_float32_matmul_precision("highest")
    width = 32 if options.toy else 256
    for model in agree.MODELS:
        record.measure("agree", lambda model=model: agree.compare(model, device, 2 if options.toy else 4, width))
    sizes = shapes.toys(2, 32 if options.smallest else 64) if options.toy else shapes.SHAPES
    for shape in sizes:
        name = shape.work.name
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            record.measure("plan", lambda s=shape, f=folder: planned(s, device, f), shape=name)

            def ours(backend: str | None, shape: Any = shape) -> dict[str, Any]:
                return steps.time_steps(shape, device, compute, peak, options.repeats, backend)

            record.measure("ours", lambda ours=ours: ours(None), shape=name, side="ours")
            if record.rows[-1].get("backend") not in (None, "sdpa"):
                record.measure("ours", lambda ours=ours: ours("sdpa"), shape=name, side="ours, reference backend")
            steps.empty(device)
            record.measure(
                "trl", lambda s=shape, f=folder: trl_steps(s, device, options.repeats, f, record.left),
                shape=name, side="trl",
            )  # fmt: skip
    record.write(kind="end", seconds_left=record.left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--repeats", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.jsonl", help="file of JSON lines")
    parser.add_argument("--toy", action="store_true", help="toy shapes on a CPU, so that the script cannot rot")
    parser.add_argument("--smallest", action="store_true", help="with --toy: the smallest shapes")
    options = parser.parse_args()
    record = Record(options.out, 60 * options.minutes, toy=options.toy)
    timer = record.stop_at_the_end()
    measure(record, options)
    timer.cancel()
    if any(row.get("agrees") is False for row in record.rows):
        raise SystemExit("a backend does not agree with the reference; see the rows above")


if __name__ == "__main__":
    main()
