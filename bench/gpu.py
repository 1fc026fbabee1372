"""One GPU, no network, in two steps: does it work there (three minutes), and how fast and how large is a step (eight).

    python bench/gpu.py --first [--minutes 3] [--out bench/results/gpu_first.jsonl]
    python bench/gpu.py --table [--minutes 8] [--out bench/results/gpu_table.jsonl] [--model DIR]

``--first``: agreement of all backends with the reference, values and gradients, in float32 and bfloat16; the tests
marked ``gpu``; one step of Qwen2.5-0.5B's shape.  ``--table``: for each true shape (``bench/gpulib/shapes.py``, random
weights) the memory plan, our step, our step on the reference backend where another one ran, and TRL's; with
``--model``, twenty steps of ``recipes/real/sums.yaml`` on a real model.  ``--toy`` does either at toy size on a CPU.

A row is written as a line of JSON, and flushed, after each measurement, so that the process may be ended at any moment.
What the time, the device or a package does not allow, and what runs out of memory, is a row that says so; the rest goes
on; a measurement that outlasts the time ends the process, and the last row names it.

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

EXPECTED = {"agree": 20.0, "tests": 40.0, "plan": 20.0, "ours": 60.0, "trl": 100.0, "sums": 60.0}
"""Seconds that a measurement is taken to need before one of its kind has been made, on a GPU."""

TESTS = ("tests/policy/backends/flex", "tests/training/sharding/test_gpu.py")
"""Where tests marked ``gpu`` are."""


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

    from levelhead.preflight.memory_plan import Prompts, Target, capacity
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


def gpu_tests(limit: float) -> dict[str, Any]:
    """The repository's tests marked ``gpu``."""
    # Without the repository's own options: a bare machine lacks their plugins.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-o", "addopts=--import-mode=importlib"]
    run = subprocess.run(
        [*command, *TESTS], capture_output=True, text=True, timeout=max(limit, 1.0), check=False, cwd=HERE.parent
    )
    lines = [text for text in run.stdout.splitlines() if text.strip()]
    failed = [text[:300] for text in lines if text.startswith(("FAILED", "ERROR"))]
    return {"passes": run.returncode in (0, 5), "summary": (lines or ["no output"])[-1], "failed": failed}


def real_sums(model: Path, steps: int, folder: Path, limit: float) -> dict[str, Any]:
    """A short run of ``recipes/real/sums.yaml`` on a real model: rewards, seconds and peak memory by step."""
    recipe, out = HERE.parent / "recipes" / "real" / "sums.yaml", folder / "run"
    command = [sys.executable, "-m", "levelhead", "train", str(recipe), "--out", str(out), "--no-check"]
    changes = (f"model.name={model}", f"grpo.steps={steps}", "eval.every=0")
    command += [word for change in changes for word in ("--set", change)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=max(limit, 1.0), check=False)
    metrics = out / "metrics.jsonl"
    if not metrics.exists():
        raise RuntimeError(([*run.stderr.strip().splitlines()] or ["it ended"])[-1])
    rows = [json.loads(text) for text in metrics.read_text(encoding="utf-8").splitlines()]
    shown = ("step", "reward", "time/step", "memory/peak")
    return {"exit": run.returncode, "steps": [{k: row[k] for k in shown if k in row} for row in rows]}


class Measurements:
    """What is measured, on one device.

    Args:
        record: Where rows go.
        options: The command's.
    """

    def __init__(self, record: Record, options: argparse.Namespace) -> None:
        import torch
        from gpulib.peaks import peak_of

        self.record, self.options = record, options
        self.device = torch.device("cuda" if torch.cuda.is_available() and not options.toy else "cpu")
        self.compute = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        about = machine(self.device)
        record.write(kind="machine", toy=options.toy, **about)
        self.peak = peak_of(about["device"])
        torch.set_float32_matmul_precision("highest")

    def first(self) -> None:
        """Does everything work on this device?"""
        from gpulib import agree

        layers, width = (2, 32) if self.options.toy else (4, 256)
        for model in agree.MODELS:
            self.record.measure("agree", lambda model=model: agree.compare(model, self.device, layers, width))
        self.record.measure("tests", lambda: gpu_tests(self.record.left))
        self._ours(self._shapes()[0])

    def table(self) -> None:
        """How fast and how large is a step, beside TRL's?"""
        for shape in self._shapes():
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                name = shape.work.name
                self.record.measure("plan", lambda s=shape, f=folder: planned(s, self.device, f), shape=name)
                self._ours(shape)
                self.record.measure(
                    "trl", lambda s=shape, f=folder: self._trl(s, f),
                    shape=name, side="trl",
                )  # fmt: skip
        if self.options.model:
            with tempfile.TemporaryDirectory() as place:
                model = self.options.model.absolute()
                self.record.measure("sums", lambda: real_sums(model, 20, Path(place), self.record.left))

    def _trl(self, shape: Any, folder: Path) -> dict[str, Any]:
        return trl_steps(shape, self.device, self.options.repeats, folder, self.record.left)

    def _shapes(self) -> tuple[Any, ...]:
        from gpulib import shapes

        return shapes.toys(2, 32 if self.options.smallest else 64) if self.options.toy else shapes.SHAPES

    def _ours(self, shape: Any) -> None:
        from gpulib import steps

        def timed(backend: str | None) -> dict[str, Any]:
            return steps.time_steps(shape, self.device, self.compute, self.peak, self.options.repeats, backend)

        name = shape.work.name
        self.record.measure("ours", lambda: timed(None), shape=name, side="ours")
        if self.record.rows[-1].get("backend") not in (None, "sdpa"):
            self.record.measure("ours", lambda: timed("sdpa"), shape=name, side="ours, reference backend")
        steps.empty(self.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="does it work: three minutes")
    parser.add_argument("--table", action="store_true", help="how fast and how large: eight minutes")
    parser.add_argument("--minutes", type=float, help="for everything (3 with --first, 8 with --table, else 11)")
    parser.add_argument("--model", type=Path, help="folder of a real model, for twenty steps of recipes/real/sums.yaml")
    parser.add_argument("--repeats", type=int, default=2, help="steps that are timed, after one that is not")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.jsonl", help="file of JSON lines")
    parser.add_argument("--toy", action="store_true", help="toy shapes on a CPU, so that the script cannot rot")
    parser.add_argument("--smallest", action="store_true", help="with --toy: the smallest shapes")
    options = parser.parse_args()
    parts = [part for part in ("first", "table") if getattr(options, part)] or ["first", "table"]
    minutes = options.minutes or sum({"first": 3.0, "table": 8.0}[part] for part in parts)
    record = Record(options.out, 60 * minutes, toy=options.toy)
    timer = record.stop_at_the_end()
    measurements = Measurements(record, options)
    for part in parts:
        getattr(measurements, part)()
    record.write(kind="end", seconds_left=record.left)
    timer.cancel()
    if any(row.get("agrees") is False or row.get("passes") is False for row in record.rows):
        raise SystemExit("something does not work on this device; see the rows above")


if __name__ == "__main__":
    main()
