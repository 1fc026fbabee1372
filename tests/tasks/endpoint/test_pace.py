"""Endpoints are asked no faster than they say: rates over all processes, and a width that 429 narrows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from levelhead.recipe.judge import JudgeEndpoint
from levelhead.tasks.endpoint import ChatClient, Pace
from levelhead.tasks.endpoint.pace import BURST_S, Gate, Rates, Width
from levelhead.tasks.metering import Usage

FINE = {"choices": [{"message": {"content": "fine"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}


def section(**keys: object) -> JudgeEndpoint:
    return JudgeEndpoint.model_validate({"base_url": "http://x.test/v1", "model": "m", "backoff_s": 0.001, **keys})


def test_requests_beyond_a_burst_wait_their_turn(tmp_path: Path) -> None:
    rates = Rates(section(requests_per_minute=60), tmp_path)
    waits = [rates.reserve(1) for _ in range(14)]
    assert waits[: int(BURST_S)] == [0] * 10
    assert waits[10:] == [pytest.approx(n, abs=0.5) for n in (1, 2, 3, 4)]


def test_tokens_that_were_not_needed_are_given_back(tmp_path: Path) -> None:
    rates = Rates(section(tokens_per_minute=6000), tmp_path)
    assert rates.reserve(3000) == 0
    assert rates.reserve(100) == pytest.approx(20, abs=0.5)
    rates.correct(-2000)
    assert rates.reserve(100) == pytest.approx(1, abs=0.5)


def test_processes_share_the_rates(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from levelhead.recipe.judge import JudgeEndpoint\n"
        "from levelhead.tasks.endpoint.pace import Rates\n"
        "s = JudgeEndpoint(base_url='http://x.test/v1', model='m', requests_per_minute=6)\n"
        "r = Rates(s, Path(sys.argv[1]))\n"
        "for _ in range(20): r.reserve(1)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [one.wait(60) for one in running] == [0, 0, 0]
    wait = Rates(section(requests_per_minute=6), tmp_path).reserve(1)
    assert wait == pytest.approx(600, abs=20), "60 calls of 10 s each were taken, none twice"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"requests": "x"}', '{"requests": 1e99}'])
def test_a_broken_file_of_rates_begins_anew(tmp_path: Path, content: str) -> None:
    rates = Rates(section(requests_per_minute=60), tmp_path)
    rates.path.write_text(content)
    assert rates.reserve(1) == 0


def test_another_key_has_rates_of_its_own(tmp_path: Path) -> None:
    one, other = (Rates(section(requests_per_minute=1, api_key_env=name), tmp_path) for name in ("A", "B"))
    one.reserve(1)
    assert other.reserve(1) == 0


def test_a_width_halves_once_for_refusals_that_belong_together_and_grows_back() -> None:
    width = Width(8)
    assert width.refuse(began=1.0)
    assert not width.refuse(began=1.0)
    assert int(width) == 4
    for _ in range(5):
        width.reply()
    assert int(width) == 5
    for _ in range(100):
        width.reply()
    assert int(width) == 8


def test_a_gate_lets_in_no_more_than_the_width_and_everybody_in_the_end() -> None:
    width = Width(3)
    inside: list[int] = []
    now = 0

    async def call() -> None:
        nonlocal now
        async with gate:
            now += 1
            inside.append(now)
            await asyncio.sleep(0)
            now -= 1

    async def run() -> None:
        await asyncio.gather(*(call() for _ in range(20)))

    gate = Gate(width)
    asyncio.run(run())
    assert (len(inside), max(inside)) == (20, 3)


def test_a_storm_of_429_narrows_the_width_and_costs_no_reply() -> None:
    busy = most = 0

    async def reply(request: httpx2.Request) -> httpx2.Response:
        nonlocal busy, most
        busy += 1
        await asyncio.sleep(0.001)
        answer = httpx2.Response(429) if busy > 2 else httpx2.Response(200, json=FINE)
        most, busy = max(most, busy), busy - 1
        return answer

    async def run() -> list[str]:
        one = section(concurrency=16)
        async with ChatClient(one, usage, None, httpx2.MockTransport(reply), pace=pace) as client:
            asks = (client.ask([{"role": "user", "content": str(n)}], 0.0, "s") for n in range(48))
            return [one.text for one in await asyncio.gather(*asks)]

    usage, pace = Usage(), Pace(section(concurrency=16))
    assert asyncio.run(run()) == ["fine"] * 48
    assert most == 16
    assert usage.throttled == usage.retries > 0
    assert int(pace.width) < 8
    assert usage.calls == 48
    assert any("too many calls (429)" in line for line in usage.take_news())
