"""What is exported is what vLLM draws from: weights, chat template and stops, of an adapter and of a whole model."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import vllm_server
from levelhead import train
from levelhead.export.write import export
from levelhead.policy.load import load_checkpoint
from levelhead.recipe import load
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Turn
from levelhead.rollout.generators.base import Request
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.prepare import make_tasks
from small_run import alone

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
PROMPTS, TOKENS = 10, 32


def trained(folder: Path, lora: dict[str, Any] | None) -> Path:
    content = vllm_server.settings(folder, "http://127.0.0.1:1", "files")
    del content["generator"]
    if lora is not None:
        content["model"]["lora"] = lora
    return train(content, out=folder / "run").folder


async def drawn(generator: LocalGenerator, prompts: list[Prompt]) -> list[Turn]:
    controls = Sampling(temperature=0.0, max_new_tokens=TOKENS)
    generator.expect(len(prompts))
    asked = [generator.generate(Request(prompt, 0, controls, 1, place)) for place, prompt in enumerate(prompts)]
    turns = [completion.turn for completion in await asyncio.gather(*asked)]
    await generator.close()
    return turns


def vllm_draws(folder: Path, chats: list[Any], context: int) -> list[dict[str, Any]]:
    """What vLLM makes of an exported folder, as it is, with its defaults for a chat."""
    script = Path(__file__).with_name("vllm_draws.py")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    asked = json.dumps({"chats": chats, "context": context, "max_new_tokens": TOKENS})
    command = [vllm_server.python(), str(script), str(folder)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, env=env, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("lora", [None, vllm_server.LORA], ids=["whole", "adapter"])
def test_vllm_answers_as_the_policy_that_was_trained(lora: dict[str, Any] | None, tmp_path: Path) -> None:
    vllm_server.python()  # or skip, before anything is trained
    run = trained(tmp_path, lora)
    exported = export(run, tmp_path / "out", merge=True)
    recipe = load(run / "recipe.yaml")
    policy = load_checkpoint(recipe.model, run / "checkpoints" / exported.checkpoint, seed=recipe.seed)
    held_out = [itertools.islice(task.prompts("eval", 0), PROMPTS // 2) for task in make_tasks(recipe).values()]
    chats = [list(prompt.messages) for prompts in held_out for prompt in prompts]
    assert len(chats) == PROMPTS
    prompts = [Prompt(f"p{i}", "t", (), policy.codec.render(chat)) for i, chat in enumerate(chats)]
    ours = asyncio.run(drawn(LocalGenerator(policy), prompts))
    theirs = vllm_draws(exported.folder, chats, policy.context)

    gaps: list[float] = []
    for turn, answer in zip(ours, theirs, strict=True):
        assert tuple(answer["context"]) == turn.context_ids, "the chat template has arrived"
        assert tuple(answer["ids"]) == turn.completion_ids, "and the stops: generation ends at the same token"
        with torch.no_grad():
            logps, _ = alone(policy, turn.context_ids, turn.completion_ids)
        gaps.append(float((logps - torch.tensor(answer["logprobs"])).abs().max()))
    assert {turn.finish for turn in ours} >= {"stop"}
    print(f"largest gap {max(gaps):.1e} nats over {sum(len(turn.completion_ids) for turn in ours)} tokens")
    assert max(gaps) < 3e-4
