"""The memory that ``levelhead check --plan`` foretells, held against measured peaks of real runs on a CPU.

    python bench/plan.py [--cases NAME ...] [--out bench/results/plan.json] [--show bench/results/plan.json]

Every case is a process of its own: a policy of random weights, and two steps of GRPO with the guard, the audit and
a reference, by the run's own trainer and sampler.  A peak is the highest sum of the bytes that torch's allocator had
handed out, from the events of its profiler, which hold every allocation of every operator, kernels' own included.  The
resident size of a process would add what the C library keeps back of freed memory, which differs from run to run; what
lies outside of torch, the interpreter and libraries, is measured once, before, as the resident size, and stands in the
plan as a constant.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from speedlib import workloads
from speedlib.workloads import Workload

LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "tie_word_embeddings": False}
LFM2 = {"model_type": "lfm2", "max_position_embeddings": 2048, "block_auto_adjust_ff_dim": False}


@dataclass(frozen=True)
class Case:
    """A run: a workload, and recipe keys beside it."""

    work: Workload
    model: dict[str, Any] = field(default_factory=dict)
    grpo: dict[str, Any] = field(default_factory=dict)
    masked: bool = False
    """Whether prefix trees are computed under a dense mask, as the reference backend does on a GPU."""


def shaped(
    base: dict[str, Any], hidden: int, layers: int, heads: int, kv: int, inner: int, **more: Any
) -> dict[str, Any]:
    return base | {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "intermediate_size": inner,
    } | more  # fmt: skip


def conv(layers: int) -> list[str]:
    """Layer types of an LFM2: one of three looks at other tokens."""
    return ["full_attention" if i % 3 == 2 else "conv" for i in range(layers)]


AUDIT = {"audit": {"first": 3}}
CHECKPOINTING = {"gradient_checkpointing": True}
SMALL = Workload(
    "qwen2 0.5M", 96, 3, 1024, 96, 32, 4, 4, config=shaped(LLAMA | {"model_type": "qwen2"}, 96, 3, 4, 2, 256)
)
MIDDLE = Workload("llama 5M", 256, 4, 4096, 128, 48, 8, 4, config=shaped(LLAMA, 256, 4, 4, 2, 704))
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 64, "tie_word_embeddings": True}
LARGE = Workload("qwen3 30M", 512, 6, 16384, 192, 32, 8, 4, config=shaped(QWEN3, 512, 6, 8, 4, 2048))
HYBRID = Workload("lfm2 5M", 256, 6, 4096, 96, 32, 4, 4,
                  config=shaped(LFM2, 256, 6, 4, 2, 704, layer_types=conv(6)))  # fmt: skip


def variant(work: Workload, **changes: Any) -> Workload:
    return Workload(**{**work.__dict__, **changes})


CASES = {
    "0.5M": Case(SMALL, grpo=AUDIT),
    "0.5M checkpointing": Case(SMALL, CHECKPOINTING, AUDIT),
    "0.5M lora": Case(variant(SMALL, lora=8), grpo=AUDIT),
    "5M": Case(MIDDLE, grpo=AUDIT),
    "5M two micro-batches": Case(MIDDLE, grpo=AUDIT | {"tokens_per_microbatch": 1200}),
    "5M no audit": Case(MIDDLE),
    "5M checkpointing": Case(MIDDLE, CHECKPOINTING, AUDIT),
    "5M lora": Case(variant(MIDDLE, lora=16, kl=0.04), grpo=AUDIT),
    "5M lora checkpointing": Case(variant(MIDDLE, lora=16), CHECKPOINTING, AUDIT),
    "5M lfm2": Case(HYBRID, grpo=AUDIT),
    "5M lfm2 lora checkpointing": Case(variant(HYBRID, lora=8), CHECKPOINTING, AUDIT),
    "30M": Case(LARGE, grpo=AUDIT),
    "30M reference, no audit": Case(variant(LARGE, kl=0.04)),
    "30M checkpointing": Case(LARGE, CHECKPOINTING),
    "30M lora": Case(variant(LARGE, lora=16, kl=0.04), grpo=AUDIT),
    "5M trees under a mask": Case(MIDDLE, masked=True),
    "5M trees under a mask, checkpointing": Case(MIDDLE, CHECKPOINTING, masked=True),
    "5M bfloat16": Case(MIDDLE, {"dtype": "bfloat16"}),
}


def recipe_of(case: Case, folder: Path) -> Any:
    """The case as a recipe."""
    from speedlib.ours import grpo

    from levelhead.recipe import Recipe

    w = case.work
    lora = {"r": w.lora, "alpha": 2 * w.lora} if w.lora else None
    model = {
        "name": str(folder),
        "tokenizer": str(folder / "tokenizer"),
        "dtype": "float32",
        "lora": lora,
        **case.model,
    }
    task = {"kind": "function", "name": "bench", "path": "bench.jsonl", "rewards": ["bench.py:f"]}
    section = grpo(w, case.grpo)
    # Evaluation draws as rollouts do, so that it is never the larger one.
    evaluation = {"items": 1, "final_items": 1, "sampling": {"max_new_tokens": 1}}
    return Recipe(model=model, tasks=[task], grpo=section.model_dump(by_alias=True), eval=evaluation)


def planned(case: Case, folder: Path) -> Any:
    """The plan of a case."""
    from levelhead.preflight.memory_plan import Prompts, target_of
    from levelhead.preflight.planner import Planner

    if case.masked:
        from levelhead.policy import footprint

        footprint.expected_backend = lambda *_: "sdpa"
    recipe = recipe_of(case, folder)
    return Planner(target_of(recipe.model), Prompts(case.work.prompt, "given")).plan(recipe)


def measured(case: Case, folder: Path, steps: int = 2) -> dict[str, int]:
    """Peaks of the bytes that torch's allocator had handed out, while sampling and in the rest of a step."""
    from speedlib.ours import Ours, load
    from torch.profiler import ProfilerActivity, profile, record_function

    from levelhead.policy.backends.sdpa import Sdpa

    options = {"model": case.model, "grpo": case.grpo, "guard": {"max_kl": 1e9}}
    gc.collect()  # what earlier work in this process has left would be subtracted when it is let go
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        policy = load(folder, options)
        if case.masked:
            policy._backend = Sdpa()
        ours = Ours(*workloads.load(folder), policy, options)
        # The profiler sees this thread alone, and rollouts are drawn in another: here they are drawn in this one.
        ours.generator._executor = Here()
        sampler = ours.trainer.queue._sampler

        def submit(coroutine: Any) -> Any:
            done: Future[Any] = Future()
            with record_function("sampling phase"):
                done.set_result(asyncio.run(coroutine))
            return done

        sampler._loop.submit = submit
        for _ in range(steps):
            with record_function("step phase"):
                ours.step()
    return peaks(recorded)


class Here(Executor):
    """Runs what it is given in the thread that asks."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Run it, and return its result."""
        done: Future[Any] = Future()
        done.set_result(work(*args, **options))
        return done


def peaks(recorded: Any) -> dict[str, int]:
    """Highest sums of allocated bytes inside of sampling, and in the rest of the steps."""
    events = recorded.profiler.kineto_results.events()
    inside = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == "sampling phase"]
    whole = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == "step phase"]
    now, highest = 0, {"sampling": 0, "update": 0}
    for moment, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        now += size
        phase = "sampling" if any(a <= moment <= b for a, b in inside) else "update"
        if any(a <= moment <= b for a, b in whole):
            highest[phase] = max(highest[phase], now)
    return highest


def child(name: str) -> None:
    """Plan and measure one case, and print both."""
    import torch
    from speedlib.worker import memory

    torch.set_num_threads(1)
    case = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        workloads.write(case.work, folder)
        import levelhead.policy.load
        import levelhead.training.grpo  # noqa: F401 - the resident size holds every library

        resident = memory("VmRSS")
        plan = planned(case, folder)
        peak = measured(case, folder)
    runtime = next(part.size for part in plan.parts if part.name == "runtime")
    foretold = {phase: size - runtime for phase, size in plan.phases.items()}
    parts = {part.name: part.size for part in plan.parts}
    print(json.dumps({"parameters": plan.parameters, "trained": plan.trained, "backend": plan.backend, "parts": parts,
                      "plan": foretold, "measured": peak, "resident": resident}))  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The Markdown table of plan, measurement and ratio."""
    lines = ["| policy | parameters (trained) | backend | phase | plan, MiB | measured, MiB | plan / measured |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, result in results.items():
        for phase in ("update", "sampling"):
            plan, peak = result["plan"][phase], result["measured"][phase]
            size = f"{result['parameters'] / 1e6:.1f}M ({result['trained'] / 1e6:.2f}M)"
            cells = [name, size, result["backend"], phase, f"{plan / 2**20:.1f}", f"{peak / 2**20:.1f}"]
            lines.append(f"| {' | '.join([*cells, f'{plan / peak:.3f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="where the raw numbers go")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of an earlier run instead")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    results: dict[str, Any] = json.loads(options.show.read_text(encoding="utf-8"))["results"] if options.show else {}
    for name in [] if options.show else options.cases:
        command = [sys.executable, __file__, "--child", name]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if run.returncode:
            raise SystemExit(run.stderr[-3000:])
        results[name] = json.loads(run.stdout.splitlines()[-1])
        print(f"{name}: measured", file=sys.stderr)
        if options.out:
            options.out.write_text(json.dumps({"results": results}, indent=1) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
