"""Our client against servers made with the package openenv-core itself, in an environment of its own.

``LEVELHEAD_OPENENV`` names the Python that has the package; without it, this one where it has.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from levelhead.api import train
from levelhead.contrib.openenv import OpenEnvTask
from levelhead.contrib.openenv.client import OpenEnvClient
from levelhead.contrib.openenv.wire import WireError
from levelhead.errors import InputError
from levelhead.recipe.environments import OpenEnv
from levelhead.tasks.tool_formats import Call
from levelhead.tasks.tool_reader import CallReader, calling, named
from small_run import metrics, recipe
from text.families import codec_of

PYTHON = os.environ.get("LEVELHEAD_OPENENV") or (sys.executable if find_spec("openenv") else "")
SERVER = Path(__file__).resolve().parents[2] / "openenv_server.py"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="needs the package openenv-core: LEVELHEAD_OPENENV names a Python that has it"
)


@contextmanager
def serving(name: str) -> Iterator[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    program = subprocess.Popen(
        [PYTHON, str(SERVER), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(program.stdout.readline())}"
    finally:
        program.stdin.close()
        program.wait(20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("guess") as address:
        yield address


@pytest.fixture(scope="module")
def tools_url() -> Iterator[str]:
    with serving("counter") as address:
        yield address


async def test_our_client_plays_on_openenvs_own_server(url: str) -> None:
    client = OpenEnvClient(url)
    reply = await client.reset(seed=7, episode_id="mine")
    assert (reply.observation["text"], reply.done) == ("?", False)
    assert not (await client.step({"number": 3})).done
    state = await client.state()
    assert (state["episode_id"], state["step_count"]) == ("mine", 1)
    last = await client.step({"number": 7})
    assert (last.reward, last.done) == (1.0, True)
    with pytest.raises(WireError) as caught:
        await client.step({"numbr": 7})
    assert caught.value.code == "VALIDATION_ERROR"
    assert (await client.reset(seed=1)).observation["text"] == "?"
    await client.close()


async def test_episodes_of_a_task_run_on_openenvs_own_server(url: str) -> None:
    task = OpenEnvTask(OpenEnv(kind="openenv", url=url, action="number", sessions=3))

    async def play(seed: int) -> float:
        episode = task.episode(task.prompt("", seed))
        for guess in range(10):
            assert (await episode.observe())[-1]["content"].startswith(f"Step {guess + 1}\nGoal: guess\nPage:\n")
            step = await episode.act(str(guess))
            if step.score is not None:
                return step.score.total
        raise AssertionError("the episode did not end")

    assert await asyncio.gather(*(play(seed) for seed in range(5))) == [1.0] * 5
    await task.close()


async def test_the_tools_of_openenvs_own_server_are_called_and_each_call_has_its_reward(tools_url: str) -> None:
    task = OpenEnvTask(OpenEnv(kind="openenv", url=tools_url, tools=True, sessions=3))
    assert task.tools is not None
    assert task.tools.names == ["add", "fail"]
    task.tools.learn_format(codec_of("qwen25"), task.name, 4000)

    def call(name: str, **arguments: int) -> str:
        return task.tools.written(prompt.messages, calling("", [Call(name, arguments)]), prompt.chat)  # type: ignore[union-attr]

    prompt = task.prompt("", 5)
    assert [named(tool) for tool in prompt.chat.tools] == ["add", "fail"]
    episode = task.episode(prompt)
    assert (await episode.observe())[-1]["content"] == "Step 1\nGoal: count to 5\nPage:\nnow 0"
    step = await episode.act("First three." + call("add", number=3))
    assert (step.done, step.reward) == (False, 0.5)
    *_, turn, result = await episode.observe()
    assert (turn["content"], result["role"], result["content"]) == ("First three.", "tool", "now 3")
    assert (await episode.act(call("fail"))).reward == 0.0
    assert "it went wrong" in (await episode.observe())[-1]["content"]
    assert (await episode.act(call("nothing"))).reward == 0.0
    assert (await episode.observe())[-1]["content"].startswith("error: ")
    step = await episode.act(call("add", number=1) + call("add", number=1) + call("add", number=1))
    assert (step.done, step.reward) == (True, 1.0)
    assert step.score is not None
    assert (step.score.total, step.score.info["calls"], step.score.info["failed_calls"]) == (1.5, 5, 2)
    await task.close()


def test_a_server_without_tools_is_refused_before_the_first_step(url: str) -> None:
    with pytest.raises(InputError, match=r"tasks\[\]\.tools: .* lists no tools"):
        OpenEnvTask(OpenEnv(kind="openenv", url=url, tools=True))


TEMPLATE = """{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>
{%- endfor -%}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def test_a_run_trains_on_the_tools_of_openenvs_own_server(
    tools_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    # An untrained policy calls nothing by itself: its first turns are read as calls of one step each.
    monkeypatch.setattr(CallReader, "read", lambda _, text: (text, [Call("add", {"number": 1 - 2 * (len(text) % 2)})]))
    document = recipe(
        tmp_path, sft=None, grpo__steps=1, model__tiny__context=1024, model__chat_template=f"{tmp_path}/template.jinja"
    )
    document["tasks"] = [{"kind": "openenv", "url": tools_url, "tools": True, "items": 16, "step_limit": 2}]
    folder = train(document, out=tmp_path / "run").folder
    (row,) = [row for row in metrics(folder) if row["stage"] == "grpo"]
    assert 1 < row["num_turns"] <= 2
    assert 0 < row["reward"] <= 1
