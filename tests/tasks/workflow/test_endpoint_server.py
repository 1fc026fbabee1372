"""The endpoint executor against a real OpenAI-compatible server, which is killed and started again in the middle."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits
from levelhead.tasks.endpoint import ReplyCache
from levelhead.tasks.workflow.endpoint import EndpointRunner
from levelhead.tasks.workflow.executor import Job
from levelhead.tasks.workflow.language import check, parse, to_text
from levelhead.tasks.workflow.problems import generate
from levelhead.tasks.workflow.sandbox import run_program

COMMAND = Path(sys.executable).with_name("transformers")
MISSING = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not COMMAND.exists() or bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING)}"),
    pytest.mark.skipif(run_program("").status == "refused", reason="programs cannot run here"),
]

WORKFLOWS = (
    "Custom -> Review ? Revise : done",
    "[Custom, AnswerGenerate, Custom] -> ScEnsemble -> Format",
    "Programmer -> (Test ? Revise : done) * 2",
    "[Custom, CustomCodeGenerate] -> MdEnsemble",
)


class Server:
    """``transformers serve`` on a port of its own, with a tiny random model."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.model = model
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait_s: float = 180) -> None:
        command = [str(COMMAND), "serve", str(self.model), "--device", "cpu", "--host", "127.0.0.1"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"the server ended by itself:\n{self.log.read_text()[-2000:]}")
            try:
                if httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=2).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.3)
        pytest.fail(f"the server did not come up:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from levelhead.text.tiny import train_tokenizer

    tokenizer = train_tokenizer([problem.question for problem in generate(120)], 600)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Server]:
    one = Server(model, tmp_path / "server.log")
    one.start()
    yield one
    one.kill()


def jobs() -> list[Job]:
    made = []
    for i, problem in enumerate(generate(9)):
        tree = parse(WORKFLOWS[i % len(WORKFLOWS)])
        check(tree)
        made += [Job(tree, to_text(tree), problem, sample) for sample in range(2)]
    return made


def test_a_server_killed_and_restarted_costs_no_rollout_and_no_call_twice(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = str(tmp_path / "replies.sqlite")
    section = EndpointExecutor(
        kind="endpoint",
        base_url=f"http://127.0.0.1:{server.port}/v1",
        model=str(server.model),
        max_tokens=32,
        concurrency=3,
        backoff_s=0.2,
        patience_s=300,
        cache=cache,
    )
    runner = EndpointRunner(section, SandboxLimits(cpu_s=1, wall_s=60))
    todo = jobs()

    async def interrupt() -> int:
        while runner.usage.calls < 8:
            await asyncio.sleep(0.02)
        before = runner.usage.calls
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(server.start)
        return before

    async def both() -> tuple[object, int]:
        ran, before = await asyncio.gather(runner.execute(todo), interrupt())
        return ran, before

    with caplog.at_level(logging.WARNING, logger="levelhead"):
        ran, before = asyncio.run(both())
    assert isinstance(ran, list)
    assert len(ran) == len(todo)
    assert all(outcome.calls > 0 and outcome.tokens > 0 for outcome in ran)
    assert 8 <= before < runner.usage.calls
    assert runner.usage.retries > 0
    assert "does not answer" in caplog.text
    assert "answers again" in caplog.text

    # Every reply was counted once: those on disk are those counted, and a second run asks for nothing.
    replies = ReplyCache(cache)
    assert len(replies) == runner.usage.calls
    again = EndpointRunner(section, SandboxLimits(cpu_s=1, wall_s=60))
    server.kill()
    assert asyncio.run(again.execute(todo)) == ran
    assert (again.usage.calls, again.usage.cached) == (0, len(replies))
