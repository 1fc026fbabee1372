"""When episodes begin, and how long all of them wait for tokens."""

from __future__ import annotations

import asyncio

from levelhead.training.episodes import EpisodeClock


async def begun_while_another_acts(clock: EpisodeClock) -> bool:
    """Whether the second of two episodes may begin although the first one neither waits nor has ended."""
    second = asyncio.create_task(clock.turn_over())
    await asyncio.sleep(0)
    begun = second.done()
    clock.leave()
    await second
    return begun


async def test_an_episode_waits_for_those_that_act_where_the_policy_draws() -> None:
    assert not await begun_while_another_acts(EpisodeClock(2, together=True))


async def test_an_episode_waits_for_nobody_where_servers_draw() -> None:
    assert await begun_while_another_acts(EpisodeClock(2, together=False))


async def test_an_episode_that_waits_for_tokens_holds_up_no_beginning() -> None:
    clock = EpisodeClock(2, together=True)
    with clock:
        await asyncio.wait_for(clock.turn_over(), timeout=5)
    assert clock.seconds == 0, "the other one was beginning: not all waited for tokens"
