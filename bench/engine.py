"""Sampling on vLLM: how far a server is from the trainer, what a weight sync takes, and tokens a second.

Servers are started by the product's own command in the environment that LEVELHEAD_VLLM names, one after the other:

    LEVELHEAD_VLLM=V python bench/engine.py --out bench/results/engine.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from levelhead.policy.load import load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe import Recipe, validate
from levelhead.recipe.generator import Vllm
from levelhead.recipe.model import Model
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.base import Completion, Request
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.command import serve_command
from levelhead.rollout.generators.vllm.generator import VllmGenerator

SYNCS = 5
PROMPTS, GROUP, TOKENS = 8, 8, 64
CASES = [("files", "float32"), ("adapter", "float32"), ("files", "bfloat16")]


def recipe(url: str, sync: str, dtype: str, shared: str) -> Recipe:
    model: dict[str, Any] = {"preset": "base-tiny", "dtype": dtype}
    if sync == "adapter":
        model["lora"] = {"r": 8, "alpha": 16}
    engine = {"kind": "vllm", "urls": [url], "sync": sync, "shared": shared, "concurrency": PROMPTS * GROUP}
    return validate({"model": model, "generator": engine, "tasks": [{"kind": "fairness"}]})


@contextmanager
def server(made: Recipe, url: str, dtype: str, log: Path) -> Iterator[float]:
    """Start a server; yields the seconds that it took."""
    python = str(Path(os.environ["LEVELHEAD_VLLM"]) / "bin" / "python")
    command = serve_command(made, url, str(made.model.source), dtype=dtype, cpu=True, python=python)
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    began = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(command.arguments), env={**inherited, **quiet, **command.variables}, stdout=file, stderr=file
        )
    try:
        port = int(url.rpartition(":")[2])
        while True:
            if process.poll() is not None:
                raise SystemExit(f"the server has ended:\n{log.read_text(errors='replace')[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(60)


def moved(policy: Policy, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.add_(0.005 * torch.randn(weight.shape, generator=draws).to(weight))


def requests(temperature: float = 1.0) -> list[Request]:
    controls = Sampling(max_new_tokens=TOKENS, temperature=temperature)
    prompts = [Prompt(f"p{i}", "t", (), tuple(100 + (7 * j + i) % 900 for j in range(120))) for i in range(PROMPTS)]
    return [Request(p, k, controls, 1, i * GROUP + k) for i, p in enumerate(prompts) for k in range(GROUP)]


async def rate(one: Any, wanted: list[Request]) -> tuple[float, list[Completion]]:
    one.expect(len(wanted))
    began = time.perf_counter()
    completions = await asyncio.gather(*(one.generate(request) for request in wanted))
    seconds = time.perf_counter() - began
    one.expect(0)
    return sum(len(c.turn.completion_ids) for c in completions) / seconds, completions


@torch.no_grad()
def gap(policy: Policy, completions: list[Completion], temperature: float) -> dict[str, float]:
    """Mean and largest difference between a plain forward pass and what the server said."""
    gaps = []
    for completion in completions[:: GROUP // 2]:
        turn = completion.turn
        ids = torch.tensor([[*turn.context_ids, *turn.completion_ids]])
        logits = policy.forward(policy.model, input_ids=ids).logits[0, len(turn.context_ids) - 1 : -1].float()
        logp = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(turn.completion_ids)[:, None])[:, 0]
        gaps.append((logp - torch.tensor(turn.behaviour_logprobs)).abs())
    whole = torch.cat(gaps)
    return {"mean": float(whole.mean()), "max": float(whole.max())}


async def measure(made: Recipe, policy: Policy) -> dict[str, Any]:
    assert isinstance(made.generator, Vllm)
    one = make_generator(policy, None, made.generator)
    assert isinstance(one, VllmGenerator)
    await one.sync_weights()
    first = dict(one.drain_use())
    await rate(one, requests())
    rows = []
    for seed in range(SYNCS):
        moved(policy, seed)
        await one.sync_weights()
        rows.append(dict(one.drain_use()))
    speed, completions = await rate(one, requests())
    _, cooler = await rate(one, requests(0.7))
    await one.close()
    local = LocalGenerator(policy)
    await rate(local, requests())
    own, _ = await rate(local, requests())
    await local.close()
    return {
        "first_sync_s": first["time/sync"],
        "sync_s": sorted(row["time/sync"] for row in rows),
        "probe_mean": max(row["engine/mismatch/mean"] for row in rows),
        "probe_max": max(row["engine/mismatch/max"] for row in rows),
        "mismatch": gap(policy, completions, 1.0),
        "mismatch_at_0.7": gap(policy, cooler, 0.7),
        "tokens_per_s": speed,
        "local_tokens_per_s": own,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for sync, dtype in CASES:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            free.close()
            made = recipe(url, sync, dtype, folder)
            lora = made.model.lora
            policy = load_policy(Model(preset="base-tiny", dtype=dtype, lora=lora), seed=0)
            with server(made, url, dtype, Path(folder) / "log") as seconds:
                row = {"sync": sync, "dtype": dtype, "start_s": seconds, **asyncio.run(measure(made, policy))}
        results.append({**row, "load": os.getloadavg()[0]})
        print(json.dumps(results[-1]), flush=True)
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__}
        out.write_text(json.dumps({"machine": machine, "rows": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
