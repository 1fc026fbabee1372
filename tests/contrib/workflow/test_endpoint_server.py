"""The endpoint executor against OpenAI-compatible servers: a real one, and one that is killed and started again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from chat_server import Server, needs_server
from levelhead.contrib.workflow.endpoint import EndpointRunner
from levelhead.contrib.workflow.interpret import Job
from levelhead.contrib.workflow.language import check, parse, to_text
from levelhead.contrib.workflow.problems import generate
from levelhead.recipe.workflow import EndpointExecutor, SandboxLimits
from levelhead.tasks.endpoint import ReplyCache
from parrot_server import ParrotServer
from sandboxed import can_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    can_run,
]

WORKFLOWS = (
    "Custom -> Review ? Revise : done",
    "[Custom, AnswerGenerate, Custom] -> ScEnsemble -> Format",
    "Programmer -> (Test ? Revise : done) * 2",
    "[Custom, CustomCodeGenerate] -> MdEnsemble",
)


def jobs() -> list[Job]:
    made = []
    for i, problem in enumerate(generate(9)):
        tree = parse(WORKFLOWS[i % len(WORKFLOWS)])
        check(tree)
        made += [Job(tree, to_text(tree), problem, sample) for sample in range(2)]
    return made


def runner_at(server: Server | ParrotServer, cache: str | None = None) -> EndpointRunner:
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
    return EndpointRunner(section, SandboxLimits(cpu_s=1, wall_s=60, isolation="none"))


@needs_server
def test_a_real_server_answers_the_calls_of_a_workflow(real_server: Server) -> None:
    runner = runner_at(real_server)
    (ran,) = asyncio.run(runner.execute(jobs()[2:3]))
    assert ran.calls > 1
    assert ran.tokens > 0
    assert runner.usage.retries == 0


def test_a_server_killed_and_restarted_costs_no_rollout_and_no_call_twice(
    server: Server | ParrotServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = str(tmp_path / "replies.sqlite")
    runner = runner_at(server, cache)
    todo = jobs()

    async def interrupt() -> int:
        while runner.usage.calls < 8:
            await asyncio.sleep(0.02)
        before = runner.usage.calls
        await asyncio.to_thread(server.kill)
        while "does not answer" not in caplog.text:
            await asyncio.sleep(0.02)
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
    again = runner_at(server, cache)
    server.kill()
    assert asyncio.run(again.execute(todo)) == ran
    assert (again.usage.calls, again.usage.cached) == (0, len(replies))
