"""What the task promises, in a real Chromium."""

from __future__ import annotations

import asyncio
import http.server
import random
import socket
import threading
from collections.abc import Iterator

import pytest
import pytest_asyncio

from levelhead.contrib.browser.actions import Action, ActionError
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.pages import page_names
from levelhead.contrib.browser.tab import Tab
from levelhead.contrib.browser.task import BrowserTask
from levelhead.contrib.browser.view import View
from levelhead.recipe.environments import Browser
from night import cases

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SHOWN = [
    "click-test", "click-button", "focus-text", "enter-text", "click-dialog", "navigate-tree", "click-checkboxes",
    "click-link", "click-option", "use-autocomplete", "login-user", "choose-list", "search-engine",
]  # fmt: skip


async def reset(tab: Tab, page: str, seed: int) -> View:
    await tab.load(page)
    return await tab.reset(seed)


@pytest_asyncio.fixture(loop_scope="session")
async def tab(task: BrowserTask) -> Tab:
    """An idle tab of the task's own pool."""
    pool = task.pool()
    lent = await pool.lend("click-test")
    await pool.give_back(lent, fit=True)
    return lent


@pytest.mark.night
@pytest.mark.parametrize("page", SHOWN)
async def test_the_oracle_always_succeeds(task: BrowserTask, page: str) -> None:
    gate = asyncio.Semaphore(3)

    async def play(seed: int) -> float:
        async with gate:
            turns, score = await task.play_oracle(task.prompt(page, seed))
            assert score is not None
            assert score.valid
            assert len(turns) == score.info["steps"]
            return score.total

    seeds = range(cases(6, 20))
    assert await asyncio.gather(*(play(seed) for seed in seeds)) == [1.0] * len(seeds)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_page_loads_and_resets_to_the_same_page_again(task: BrowserTask) -> None:
    gate = asyncio.Semaphore(3)
    other: dict[str, tuple[View, View]] = {}

    async def visit(page: str) -> None:
        async with gate:
            lent = await task.pool().lend(page)
            first, _, again = [await lent.reset(seed) for seed in (1, 2, 1)]
            await task.pool().give_back(lent, fit=True)
            assert first.goal or first.lines
            if first != again:
                other[page] = first, again

    await asyncio.gather(*(visit(page) for page in page_names()))
    assert other == {}


async def test_an_empty_answer_scores_nothing(task: BrowserTask) -> None:
    for page in SHOWN:
        episode = task.episode(task.prompt(page, 3))
        await episode.observe()
        step = await episode.act("")
        while not step.done:
            messages = await episode.observe()
            assert "Error: no action" in messages[-1]["content"]
            step = await episode.act("")
        assert step.score is not None
        assert (step.score.total, step.score.valid) == (0.0, False)
        assert step.score.info["ended"] == "step_limit"


async def test_a_seed_gives_the_same_page_whatever_was_played_before(tab: Tab) -> None:
    noise = random.Random(0)
    for page in ("click-button", "click-dialog", "navigate-tree", "use-autocomplete", "email-inbox", "choose-date"):
        first = {seed: await reset(tab, page, seed) for seed in (1, 2, 3)}
        for seed in (3, 1, 2, 1):
            view = await reset(tab, page, seed)
            assert view == first[seed]
            for element in noise.sample(view.elements, min(2, len(view.elements))):
                if not view.done:
                    try:
                        view = await tab.perform(Action("click", element.ref))
                    except ActionError:
                        continue


async def test_the_same_actions_lead_to_the_same_page_however_long_the_policy_thinks(tab: Tab) -> None:
    runs = []
    for pause in (0.0, 0.7):
        seen = [await reset(tab, "chase-circle", 5)]
        for _ in range(3):
            await asyncio.sleep(pause)
            seen.append(await tab.perform(Action("noop")))
        runs.append(seen)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1  # the circle does move


async def test_the_reward_does_not_decay_with_time(tab: Tab) -> None:
    await reset(tab, "click-test", 0)
    await tab.page.evaluate("__levelhead.advance(9000)")
    view = await tab.perform(Action("click", 1))
    assert (view.done, view.reward) == (True, 1.0)
    assert await tab.page.evaluate("WOB_REWARD_GLOBAL") < 1


async def test_the_pages_own_time_limit_never_ends_an_episode(tab: Tab) -> None:
    await reset(tab, "click-test", 0)
    await tab.page.evaluate("__levelhead.advance(3_600_000)")
    assert not (await tab.look()).done


async def test_half_a_success_is_partial_credit_and_no_success(task: BrowserTask) -> None:
    half = BrowserTask(Browser(kind="browser", tasks=["click-checkboxes"], partial_credit=0.5))
    half._pool, half._loop = task._pool, task._loop
    episode = half.episode(half.prompt("click-checkboxes", 2))  # two of its five boxes stay as they should be
    await episode.observe()
    wanted = episode.view.goal
    for _ in range(2):
        box = next(e for e in episode.view.elements if e.name in wanted and "checked" not in e.states and e.ref != 6)
        await episode.act(f"click({box.ref})")
    step = await episode.act("click(6)")
    assert step.score is not None
    assert step.score.parts["success"] == 0
    assert 0 < step.score.parts["partial"] < 1
    assert step.score.total == pytest.approx(step.score.parts["partial"] / 2)
    assert step.score.info["raw_reward"] == step.score.parts["partial"]


async def test_mistakes_are_told_next_turn(task: BrowserTask) -> None:
    episode = task.episode(task.prompt("click-checkboxes", 2))
    expected = [
        ("click(99)", "there is no element 99"),
        ("fill(1, 'x')", "element 1 is not a text field"),
        ("select(6, 'x')", "element 6 is not a list"),
        ("scroll('down')", "nothing to scroll down"),
        ("clik(1)", "unknown action clik"),
    ]
    await episode.observe()
    for text, error in expected:
        assert not (await episode.act(text)).done
        assert f"\nError: {error}" in (await episode.observe())[-1]["content"]
    await episode.act("click(1)")
    assert "Error" not in (await episode.observe())[-1]["content"]
    await episode.close()


async def test_every_action_does_what_it_says(tab: Tab) -> None:
    view = await reset(tab, "login-user", 1)
    view = await tab.perform(Action("fill", 1, 'it\'s "me" & ü'))
    assert view.elements[0].value == 'it\'s "me" & ü'
    view = await tab.perform(Action("type", 1, "+1"))
    assert view.elements[0].value == 'it\'s "me" & ü+1'
    view = await tab.perform(Action("press", None, "Backspace"))
    assert view.elements[0].value == 'it\'s "me" & ü+'
    view = await tab.perform(Action("fill", 1, ""))
    assert view.elements[0].value == ""
    view = await tab.perform(Action("focus", 2))
    assert "focused" in view.elements[1].states
    view = await tab.perform(Action("fill", 2, "secret"))
    assert view.elements[1].value == "******"
    await reset(tab, "choose-list", 1)
    view = await tab.perform(Action("select", 1, "koressa"))
    assert view.elements[0].value == "Koressa"
    await reset(tab, "email-inbox", 3)
    assert "Alexina" not in (await tab.look()).text
    view = await tab.perform(Action("scroll", 1, "down"))
    assert "Alexina" in view.text
    await reset(tab, "click-menu", 0)
    view = await tab.perform(Action("hover", 1))
    assert any(element.name == "Laurie" for element in view.elements)


async def test_dragging_moves_things(tab: Tab) -> None:
    view = await reset(tab, "drag-sort-numbers", 1)
    first, *rest = (element.name for element in view.elements if element.role == "item")
    view = await tab.perform(Action("drag", 1, to=len(rest) + 1))
    assert [element.name for element in view.elements if element.role == "item"] == [*rest, first]
    view = await tab.perform(Action("drag", len(rest) + 1, offset=(0, -150)))
    assert [element.name for element in view.elements if element.role == "item"] == [first, *rest]


async def test_a_covered_element_cannot_be_clicked(tab: Tab) -> None:
    await reset(tab, "login-user", 1)
    await tab.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<div style=\"position:fixed;inset:0;z-index:9\"></div>')"
    )
    with pytest.raises(ActionError, match="element 3 is covered"):
        await tab.perform(Action("click", 3))
    await tab.page.evaluate("document.body.lastElementChild.remove()")


async def test_what_cannot_be_seen_is_not_shown(tab: Tab) -> None:
    await reset(tab, "login-user", 1)
    await tab.page.evaluate(
        """document.getElementById('area').insertAdjacentHTML('beforeend',
        '<div id=x><p style="display:none">gone</p><p style="visibility:hidden">unseen</p>' +
        '<button style="opacity:0">clear</button><b>in sight</b></div>')"""
    )
    text = (await tab.look()).text
    assert "in sight" in text
    assert not any(hidden in text for hidden in ("gone", "unseen", "clear", "reward", "Episodes", "START"))
    await tab.page.evaluate("document.getElementById('x').remove()")


async def test_dates_and_timers_follow_page_time(tab: Tab) -> None:
    await reset(tab, "click-test", 0)
    script = """() => {
      const log = [];
      const start = Date.now();
      setTimeout(() => log.push(['late', Date.now() - start]), 300);
      setTimeout((what) => log.push([what, Date.now() - start]), 100, 'early');
      const gone = setTimeout(() => log.push(['never']), 50);
      clearTimeout(gone);
      let ticks = 0;
      const every = setInterval(() => { if (++ticks === 3) clearInterval(every); }, 20);
      let frames = 0;
      const frame = () => { frames++; requestAnimationFrame(frame); };
      requestAnimationFrame(frame);
      __levelhead.advance(320);
      return [log, ticks, frames, Date.now() - start, new Date().getFullYear(), new Date(2016, 9, 1).getMonth(),
              typeof Date(), performance.now() > 0];
    }"""
    log, ticks, frames, passed, year, month, kind, running = await tab.page.evaluate(script)
    assert log == [["early", 100], ["late", 300]]
    assert (ticks, passed, year, month, kind, running) == (3, 320, 2017, 9, "string", True)
    assert 18 <= frames <= 20


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(b"reached")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[int]:
    """A web server on all of this machine's addresses."""
    made = http.server.ThreadingHTTPServer(("", 0), Quiet)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


def own_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


async def test_only_loopback_can_be_reached(tab: Tab, server: int) -> None:
    fetch = "async url => { try { return await (await fetch(url)).text() } catch (error) { return String(error) } }"
    await reset(tab, "click-test", 0)
    assert await tab.page.evaluate(fetch, f"http://127.0.0.1:{server}/") == "reached"
    address = own_address()
    if address is None or address.startswith("127."):
        pytest.skip("this machine has no address but loopback, so there is nothing that must not be reached")
    assert "TypeError" in await tab.page.evaluate(fetch, f"http://{address}:{server}/")


async def test_observations_keep_their_bound(task: BrowserTask) -> None:
    for page in ("sign-agreement", "email-inbox", "click-checkboxes-large"):
        short = BrowserTask(Browser(kind="browser", tasks=[page], observation_chars=100))
        short._pool, short._loop = task._pool, task._loop
        episode = short.episode(short.prompt(page, 0))
        text = (await episode.observe())[-1]["content"].partition("Page:\n")[2]
        assert len(text) <= 100
        assert text.endswith("more lines)")
        await episode.close()


async def test_demonstrations_are_the_turns_of_a_perfect_episode(task: BrowserTask) -> None:
    turns = await task.demonstrate(task.prompt("enter-text", 1))
    assert [answer for _, answer in turns] == ["fill(1, 'Bernardine')", "click(2)"]
    assert "Step 1\n" in turns[0][0][-1]["content"]
    assert 'value="Bernardine"' in turns[1][0][-1]["content"]


async def test_a_page_without_oracle_gives_no_demonstration(task: BrowserTask) -> None:
    assert await task.demonstrate(task.prompt("tic-tac-toe", 1)) == []


async def test_a_closed_episode_gives_its_page_back_and_takes_no_more_actions(task: BrowserTask) -> None:
    episodes: list[BrowserEpisode] = []
    for _ in range(3):
        for seed in range(task.concurrency):
            episodes.append(task.episode(task.prompt("click-test", seed)))
            await asyncio.wait_for(episodes[-1].observe(), 30)
        for episode in episodes[-task.concurrency :]:
            await episode.close()
    with pytest.raises(RuntimeError, match="observe comes before act"):
        await episodes[0].act("click(1)")


async def test_one_episode_more_than_there_are_pages_waits(task: BrowserTask) -> None:
    held = [task.episode(task.prompt("click-test", seed)) for seed in range(task.concurrency)]
    for episode in held:
        await episode.observe()
    late = task.episode(task.prompt("click-test", 99))
    waiting = asyncio.ensure_future(late.observe())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await held[0].close()
    assert await asyncio.wait_for(waiting, 30)
    for episode in (*held, late):
        await episode.close()


async def test_scripts_solve_pages_that_ask_for_no_reading_and_none_that_asks_for_it() -> None:
    pages = ["click-test", "focus-text", "click-dialog", "click-button", "enter-text"]
    task = BrowserTask(Browser(kind="browser", tasks=pages, items=30, pages=2, spare_pages=3))
    try:
        prompts = [task.prompt(page, seed) for seed in range(1000, 1006) for page in pages]
        plays = [line.play for line in await task.baselines(len(prompts))]
        fixed, aimless = [tuple(await play(prompts)) for play in plays]
        assert fixed[:3] + fixed[4:8] == (1, 1, 1, 0, 1, 1, 1)
        by_page = {page: sum(fixed[i :: len(pages)]) for i, page in enumerate(pages)}
        assert (by_page["click-test"], by_page["focus-text"], by_page["click-dialog"], by_page["enter-text"]) == (
            6,
            6,
            6,
            0,
        )
        assert 0 < by_page["click-button"] < 6
        assert sum(aimless) < sum(fixed)
        # Another order, of fewer prompts: the same scores.
        again = [tuple(await play(prompts[7:3:-1])) for play in plays]
        assert again == [scores[7:3:-1] for scores in (fixed, aimless)]
        assert {event.code for event in task.drain_events(0)} <= {"browser-started"}
    finally:
        await task.close()
