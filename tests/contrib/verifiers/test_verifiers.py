"""Environments of ``verifiers``: their own loop, rubric and tools, with our policy's tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="needs the package verifiers (pip install 'levelhead[verifiers]')")

import verifiers.v1 as vf

from levelhead.contrib.verifiers import VerifiersTask
from levelhead.errors import InputError
from levelhead.recipe.environments import Verifiers
from levelhead.records import Prompt, Score
from levelhead.tasks.base import EpisodeLostError
from text.families import codec_of

ENVIRONMENTS = Path(__file__).parent / "environments"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ENVIRONMENTS))
    monkeypatch.setenv("PYTHONPATH", f"{ENVIRONMENTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def make(env: str, room: int = 1000, **keys: Any) -> VerifiersTask:
    task = VerifiersTask(Verifiers(kind="verifiers", env=env, **keys))
    task.tools.learn_format(codec_of("qwen25"), task.name, room)
    return task


def first(task: VerifiersTask, row: int = 0) -> Prompt:
    return next(p for side in ("train", "eval") for p in task.prompts(side, 0) if p.facts["row"] == row)


async def play(task: VerifiersTask, answers: list[str], row: int = 0) -> tuple[Score, list[list[dict[str, Any]]]]:
    """Play an episode to its end; return the score and what was seen before each answer."""
    episode = task.episode(first(task, row))
    seen: list[Any] = []
    try:
        for answer in answers:
            seen.append(await episode.observe())
            step = await episode.act(answer)
            if step.done:
                assert step.score is not None
                return step.score, seen
    finally:
        await episode.close()
    raise AssertionError("the episode wants more answers")


async def test_an_answer_gets_the_environments_weighted_rewards() -> None:
    task = make("repeat-word", args={"words": 5})
    score, ((system, user),) = await play(task, ["It is w0, to be sure of that."])
    assert (system["content"], user["content"]) == ("Be brief.", "Say w0.")
    assert score.total == pytest.approx(2.0 - 0.1)
    assert score.parts == {"said": 1.0, "long": 1.0}
    assert (score.info["letters"], score.info["turns"]) == (29.0, 1)
    assert (await play(task, ["no"]))[0].total == 0
    await task.close()


async def test_what_the_policy_sees_is_the_prompt() -> None:
    task = make("repeat-word")
    _, (seen,) = await play(task, ["x"])
    assert seen == list(first(task).messages)
    await task.close()


async def test_splits_hold_each_row_once_in_an_order_of_the_seed() -> None:
    task = make("repeat-word", args={"words": 40}, eval_fraction=0.25)
    train, held = ([p.id for p in task.prompts(side, 3)] for side in ("train", "eval"))
    assert sorted(train + held, key=int) == [str(i) for i in range(40)]
    assert [p.id for p in task.prompts("train", 3)] == train != [p.id for p in task.prompts("train", 4)]


async def test_the_environment_leads_through_several_turns() -> None:
    task = make("count-up", items=4)
    score, seen = await play(task, ["1", "2", "nine"], row=1)
    assert score.total == pytest.approx(2 / 3)
    assert [m["content"] for m in seen[2]] == ["Count from 1, a number a turn.", "1", "Next.", "2", "Next."]
    await task.close()


async def test_an_infinite_environment_gives_as_many_rows_as_are_asked_for() -> None:
    assert len(make("count-up", items=7).rows) == 7


async def test_turns_bound_an_episode_that_is_scored_for_what_it_did() -> None:
    score, _ = await play(make("count-up", items=4, turns=2), ["1", "2"], row=1)
    assert (score.total, score.info["ended"]) == (pytest.approx(2 / 3), "max_turns")


async def test_a_conversation_that_outgrows_the_context_ends_and_is_scored() -> None:
    score, seen = await play(make("count-up", items=4, room=200), ["1 flood"], row=1)
    assert (score.total, len(seen)) == (pytest.approx(1 / 3), 1)


async def test_an_environment_that_breaks_loses_the_episode_and_says_why() -> None:
    task = make("count-up", items=4)
    episode = task.episode(first(task))
    await episode.observe()
    with pytest.raises(EpisodeLostError, match="the table fell over"):
        await episode.act("break")
    (event,) = task.drain_events(3)
    assert (event.code, event.step) == ("environment-lost", 3)
    assert "the table fell over" in str(event.message)
    await episode.close()
    assert (await play(task, ["0", "1", "2"]))[0].total == 1
    await task.close()


async def test_a_tool_is_called_in_the_templates_format_and_its_result_is_plain() -> None:
    task = make("shelf")
    assert task.tools.names == ["shelf_look"]
    assert first(task).chat.tools[0]["function"]["parameters"]["required"] == ["board"]
    call = '<tool_call>\n{"name": "shelf_look", "arguments": {"board": "top"}}\n</tool_call>'
    score, (_, second) = await play(task, [f"I look. {call}", "It is a lamp."])
    assert score.total == 1
    assert second[1]["content"] == "I look."
    assert second[1]["tool_calls"][0]["function"] == {"name": "shelf_look", "arguments": {"board": "top"}}
    assert (second[2]["role"], second[2]["content"]) == ("tool", "[1ma lamp[0m")
    await task.close()


async def test_a_wrong_call_is_answered_with_an_error_and_one_that_cannot_be_read_is_the_answer() -> None:
    task = make("shelf")
    wrong = '<tool_call>\n{"name": "%s", "arguments": {"board": "cellar"}}\n</tool_call>'
    score, (_, unknown, failed) = await play(task, [wrong % "climb", wrong % "shelf_look", "nothing"])
    assert "no tool called climb" in unknown[-1]["content"]
    assert "Error" in failed[-1]["content"]
    assert score.total == 0
    score, _ = await play(task, ["<tool_call>a lamp"])
    assert score.total == 1
    await task.close()


SEATS = """
from repeat_word import *
import verifiers.v1 as vf

class C(vf.EnvConfig):
    a: vf.AgentConfig = vf.AgentConfig(harness={"id": HARNESS})
    b: SECOND

class E(vf.Env[C]):
    async def run(self, task, agents): ...

__all__ = ["Words", "E"]
"""
ROWS = """
import repeat_word as r
import verifiers.v1 as vf

class TC(vf.TaskConfig):
    JUDGE

class T(vf.Task[r.Data, vf.State, TC]):
    NEEDS_CONTAINER = BOXED

class C(vf.TasksetConfig):
    task: TC = TC()

class W(vf.Taskset[T, C]):
    def load(self):
        return [T(r.Data(prompt=p, word=p)) for p in "ab"]

__all__ = ["W"]
"""
REFUSED = {
    "nowhere": ("", "'nowhere' not found"),
    "old_style": ("def load_environment(): ...\n__all__ = ['load_environment']", "exports no Taskset"),
    "asks_hub": ("raise ConnectionError('cannot reach the hub')", "ConnectionError: cannot reach the hub"),
    "two_seats": (
        SEATS.replace("HARNESS", "'null'").replace("SECOND", "vf.AgentConfig = vf.AgentConfig()"),
        "has 2 agents (a, b)",
    ),
    "programs": (
        SEATS.replace("HARNESS", "'codex'").replace("SECOND", "int = 1"),
        "runs the program codex",
    ),
    "boxed": (ROWS.replace("JUDGE", "...").replace("BOXED", "True"), "needs containers"),
    "judged": (
        ROWS.replace("JUDGE", "judge: vf.JudgeConfig = vf.JudgeConfig(model='m', api_key_var='NO_SUCH_KEY')").replace(
            "BOXED", "False"
        ),
        "is judged by m, whose key NO_SUCH_KEY holds",
    ),
}
"""Environments that cannot be trained on, and what is said of each."""


@pytest.mark.parametrize("env", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, says = REFUSED[env]
    if source:
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / f"{env}.py").write_text(source)
    with pytest.raises(InputError) as raised:
        make(env)
    assert says in str(raised.value)
    assert f"tasks[].env: {env}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(InputError, match=r"tasks\[\].args: word_count: Extra inputs"):
        make("repeat-word", args={"word_count": 3})


def test_no_harness_of_ours_runs_what_the_policy_writes() -> None:
    harness = make("repeat-word").env.config.agent.harness
    assert not vf.load_harness(harness).EXECUTES_CODE
