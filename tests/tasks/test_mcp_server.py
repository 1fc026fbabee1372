"""Tools of MCP servers: called through the client library, and one that goes wrong harms the rollout that called it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.recipe.tools import ToolUse
from levelhead.records import PLAIN_CHAT
from levelhead.tasks.tool_formats import Call
from levelhead.tasks.tools import Result, Toolbox
from text.families import codec_of

pytest.importorskip("mcp", reason="the package mcp is not installed: no tool of an MCP server can be called")

PROGRAM = Path(__file__).parents[1] / "mcp_program.py"
COMMAND = [sys.executable, str(PROGRAM)]
OFFICIAL = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")


@server.tool()
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


server.run()
'''


def box(*tools: str, template: str = "qwen25", timeout_s: float = 10.0, **server: Any) -> Toolbox:
    program = {"command": COMMAND, "tools": list(tools), **server}
    made = Toolbox(ToolUse(servers=[program], timeout_s=timeout_s, result_chars=100))
    made.learn_format(codec_of(template), "task", 10_000)
    return made


def call(made: Toolbox, name: str, **arguments: Any) -> Result:
    return asyncio.run(made.run(Call(name, {"word": "ab"} | arguments), made.chat(PLAIN_CHAT)))


@pytest.mark.parametrize("template", ["qwen25", "llama3", "mistral"])
def test_a_tool_is_shown_by_the_template_and_answers(template: str) -> None:
    made = box("double", template=template)
    assert made.schemas["double"]["function"]["parameters"]["required"] == ["word"]
    assert call(made, "double") == Result("abab")


def test_a_server_written_with_the_official_library_answers(tmp_path: Path) -> None:
    (tmp_path / "adder.py").write_text(OFFICIAL, encoding="utf-8")
    made = box(command=[sys.executable, str(tmp_path / "adder.py")], env=["PYTHONPATH"])
    assert made.names == ["add"]
    run = made.run(Call("add", {"first": 2, "second": 40}), made.chat(PLAIN_CHAT))
    assert asyncio.run(run) == Result("42")
    run = made.run(Call("add", {"first": "two"}), made.chat(PLAIN_CHAT))
    assert asyncio.run(run).failed


@pytest.mark.parametrize(
    ("name", "says", "failed"),
    [
        ("control", "[31mred[0m flip", False),
        ("flood", "x" * 97 + "...", False),
        ("junk", "abab", False),
        ("picture", "[image]", False),
        ("fail", "error: no such word", True),
        ("refuse", "error: no such argument", True),
        ("die", "error: the server ended: out of \\x1b[31mluck", True),
    ],
)
def test_whatever_a_server_does_is_a_result_that_says_so(name: str, says: str, failed: bool) -> None:
    made = box(name, "double")
    assert call(made, name) == Result(says, failed)
    assert call(made, "double") == Result("abab")


@pytest.mark.parametrize("name", ["hang", "line"])
def test_a_server_that_does_not_answer_is_stopped_and_the_next_call_has_another(name: str) -> None:
    made = box("pid", name, timeout_s=1.0)
    before = call(made, "pid").text
    begun = time.monotonic()
    assert call(made, name) == Result("error: took longer than 1 s", failed=True)
    assert time.monotonic() - begun < 30
    assert call(made, "pid").text not in ("", before)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{before}").exists():  # the one that hung is not left behind
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_calls_beside_one_that_kills_its_server_are_answered() -> None:
    made = box("die", "double", "pid", processes=3)

    async def side_by_side() -> list[Result]:
        chat = made.chat(PLAIN_CHAT)
        names = ["double", "die", "double", "die", "double", "die"]
        return await asyncio.gather(*(made.run(Call(name, {"word": "ab"}), chat) for name in names))

    results = asyncio.run(side_by_side())
    assert [result.failed for result in results] == [False, True] * 3


def test_a_server_that_ended_after_its_answer_is_replaced_without_harm() -> None:
    made = box("leave", "double")
    assert call(made, "leave") == Result("abab")
    time.sleep(0.3)
    assert call(made, "double") == Result("abab")


def test_processes_answer_side_by_side_and_are_used_again() -> None:
    made = box("pid", processes=2)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: call(made, "pid").text, range(12)))
    assert 1 <= len(set(answers)) <= 2


def test_the_environment_holds_what_the_recipe_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LET_THROUGH", "yes")
    monkeypatch.setenv("KEPT_BACK", "no")
    made = box("secret", env=["LET_THROUGH"])
    assert json.loads(call(made, "secret").text) == {"LET_THROUGH": "yes", "KEPT_BACK": None}


def test_arguments_reach_the_tool_as_data() -> None:
    hostile = {"word": "$(touch /tmp/x); \ud800 \x1b[0m", "command": ["rm"], "number": 3}
    text = call(box("echo"), "echo", **hostile).text
    assert json.loads(text) == {**hostile, "word": "$(touch /tmp/x); \ufffd \x1b[0m"}


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"command": ["no-such-program"]}, r"tasks\[\].tools.servers\[0\]: no-such-program does not start"),
        ({"command": [sys.executable, "-c", "raise SystemExit('no licence')"]}, "ended: no licence"),
        ({"command": ["sleep", "60"], "start_timeout_s": 0.5}, "did not answer within 0.5 s"),
        ({"tools": ["double", "nope"]}, "the server has no 'nope'; it has control, die"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_before_the_first_step(server: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        box(**server)


RUN = """
import asyncio, sys
from levelhead.recipe.tools import ToolUse
from levelhead.records import PLAIN_CHAT
from levelhead.tasks.tool_formats import Call
from levelhead.tasks.tools import Toolbox

tools = Toolbox(ToolUse(servers=[{"command": sys.argv[1:], "tools": ["pid", "hang"]}], timeout_s=0.2))
for name in tools.names:
    print(asyncio.run(tools.run(Call(name, {"word": "ab"}), tools.chat(PLAIN_CHAT))).text, flush=True)
"""


def test_servers_end_with_the_run_even_one_that_hangs() -> None:
    ran = subprocess.run([sys.executable, "-c", RUN, *COMMAND], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    pid, hung = ran.stdout.splitlines()
    assert not Path(f"/proc/{pid}").exists()
    assert hung == "error: took longer than 0.2 s"
    assert ran.stderr == ""
