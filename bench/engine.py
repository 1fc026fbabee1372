"""Sampling on vLLM: how far a server is from the trainer, what a weight sync takes, and tokens a second.

Also what the trainer would take for the ratio of two policies if a control's distribution were not told from the
policy's (``uncorrected_ratio``), and whether a request's tokens depend on what it is computed beside.

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
from levelhead.policy.rounding import exact_policy
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
CONTROLS = {"top_p": 0.8, "top_k": 20, "min_p": 0.05}
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


def requests(**changes: float) -> list[Request]:
    controls = Sampling(**{"max_new_tokens": TOKENS, "temperature": 1.0, **changes})
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
def differences(policy: Policy, completions: list[Completion], temperature: float = 1.0) -> torch.Tensor:
    """Of every token, what a plain forward pass says less what the server said."""
    parts = []
    for completion in completions[:: GROUP // 2]:
        turn = completion.turn
        ids = torch.tensor([[*turn.context_ids, *turn.completion_ids]])
        logits = policy.forward(policy.model, input_ids=ids).logits[0, len(turn.context_ids) - 1 : -1].float()
        logp = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(turn.completion_ids)[:, None])[:, 0]
        parts.append(logp - torch.tensor(turn.behaviour_logprobs))
    return torch.cat(parts)


def gap(policy: Policy, completions: list[Completion], temperature: float = 1.0) -> dict[str, float]:
    """Mean and largest difference between a plain forward pass and what the server said."""
    whole = differences(policy, completions, temperature).abs()
    return {"mean": float(whole.mean()), "max": float(whole.max())}


def against_exact(policy: Policy, completions: list[Completion]) -> dict[str, dict[str, float]]:
    """The gap to the same weights in float32, where the policy computes in a coarser type."""
    if policy.compute_dtype == torch.float32:
        return {}
    return {"mismatch_to_float32": gap(exact_policy(policy), completions)}


async def ratios(one: VllmGenerator, policy: Policy) -> dict[str, float]:
    """Mean ratio of the policy to the draws under each control, were it not corrected."""
    means = {}
    for name, value in CONTROLS.items():
        _, completions = await rate(one, requests(**{name: value}))
        means[f"{name} {value:g}"] = float(differences(policy, completions).exp().mean())
    return means


async def transfers(one: VllmGenerator, policy: Policy) -> list[float]:
    """Seconds from a version of the weights to servers that hold it, without the probe."""
    engine, times = one.engine, []
    for number in range(SYNCS):
        began = time.perf_counter()
        payload = engine.transport.prepare(policy, f"transfer-{number}")
        await engine._sync.push(engine.servers.there, payload)
        times.append(time.perf_counter() - began)
        await engine.transport.drop(engine.servers.there, payload)
    return sorted(times)


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
    _, cooler = await rate(one, requests(temperature=0.7))
    apart = [(await rate(one, [request]))[1][0] for request in requests()[:GROUP]]
    same = sum(a.turn.completion_ids == b.turn.completion_ids for a, b in zip(apart, completions, strict=False))
    uncorrected = await ratios(one, policy)
    sends = await transfers(one, policy)
    await one.close()
    local = LocalGenerator(policy)
    await rate(local, requests())
    own, _ = await rate(local, requests())
    await local.close()
    return {
        "first_sync_s": first["time/sync"],
        "sync_s": sorted(row["time/sync"] for row in rows),
        "transfer_s": sends,
        "same_tokens_alone": f"{same} of {GROUP}",
        "uncorrected_ratio": uncorrected,
        "probe_mean": max(row["engine/mismatch/mean"] for row in rows),
        "probe_max": max(row["engine/mismatch/max"] for row in rows),
        "mismatch": gap(policy, completions),
        "mismatch_at_0.7": gap(policy, cooler, 0.7),
        **against_exact(policy, completions),
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
