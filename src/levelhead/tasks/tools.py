"""Tools that the policy may call: their schemas, calls that are executed within limits, and the episode around them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelhead.errors import InputError, first_line
from levelhead.recipe.tools import ToolUse
from levelhead.records import ChatMessage, ChatOptions, Prompt, Tool
from levelhead.tasks import threads
from levelhead.tasks.base import Answer, ShownTurn, SingleTurnTask, Step
from levelhead.tasks.main_thread import OverrunError
from levelhead.tasks.mcp_server import McpServer, ServerDiedError
from levelhead.tasks.sandbox import run_program
from levelhead.tasks.tool_formats import Call, CallError
from levelhead.tasks.tool_reader import CallReader, answering, calling, named, typed
from levelhead.usercode import load_object

PYTHON: Tool = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run a Python program and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
        },
    },
}
"""The sandbox as a tool."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one call of a tool returned.

    Attributes:
        text: What the policy is shown.
        failed: Whether it is an error.
    """

    text: str
    failed: bool = False


class Toolbox(CallReader):
    """Functions that the policy may call.

    Args:
        section: The recipe's ``tasks[].tools``.
        functions: Callables in place of ``section.functions``.

    Raises:
        InputError: A function is missing, has no readable signature and docstring, or the name of another; a server
            does not start or lacks a tool that is named.
    """

    def __init__(self, section: ToolUse, functions: Sequence[Callable[..., Any]] = ()) -> None:
        super().__init__(section.calls)
        self.section = section
        self._runs: dict[str, Callable[[Mapping[str, Any]], Awaitable[Result]]] = {}
        for entry in functions or section.functions:
            if entry == "python":
                self._add("python", PYTHON, self._program)
            else:
                key = "tasks[].tools.functions"
                function = load_object(entry, key, "function", callable) if isinstance(entry, str) else entry
                schema = _schema(function, str(entry))
                self._add(str(schema["function"]["name"]), schema, functools.partial(self._call, function))
        for index, program in enumerate(section.servers):
            server = McpServer(program, f"tasks[].tools.servers[{index}]")
            for name, schema in server.schemas.items():
                self._add(name, schema, functools.partial(self._served, server, name))

    def _add(self, name: str, schema: Tool, run: Callable[[Mapping[str, Any]], Awaitable[Result]]) -> None:
        if name in self.schemas:
            raise InputError(f"tasks[].tools: there are two tools called {name!r}")
        self.schemas[name], self._runs[name] = schema, run

    async def run(self, call: Call, options: ChatOptions) -> Result:
        """Execute a call; whatever goes wrong is a result that says so."""
        schema = next((tool for tool in options.tools if named(tool) == call.name), None)
        if schema is None or call.name not in self._runs:
            there = ", ".join(named(tool) for tool in options.tools if named(tool) in self._runs)
            return Result(
                f"error: there is no tool called {self._shown(call.name)[:80]}; there are {there}", failed=True
            )
        try:
            return await self._runs[call.name](typed(call, self.schemas[call.name]))
        except (OverrunError, TimeoutError):
            return Result(f"error: took longer than {self.section.timeout_s:g} s", failed=True)

    async def _call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Result:
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return Result(self._shown(f"error: {error}"), failed=True)
        if inspect.iscoroutinefunction(function):
            outcome = await threads.run_async(lambda: function(**arguments), self.section.timeout_s)
        else:
            outcome = await threads.run(lambda: function(**arguments), self.section.timeout_s)
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
        if outcome.error is not None:
            return Result(self._shown(f"error: {type(outcome.error).__name__}: {outcome.error}"), failed=True)
        try:
            value = outcome.value
            return Result(self._shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
        except (TypeError, ValueError, RecursionError) as error:
            return Result(self._shown(f"error: the result is no JSON: {error}"), failed=True)

    async def _program(self, arguments: Mapping[str, Any]) -> Result:
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) != 1:
            return Result("error: python takes one argument, code, a text", failed=True)
        ran = await asyncio.to_thread(run_program, code, self.section.sandbox)
        if ran.status == "ok":
            return Result(self._shown(ran.stdout))
        last = ran.stderr.strip().splitlines()[-1:] or [ran.note]
        return Result(self._shown(f"error: {ran.status}: {last[0]}\n{ran.stdout}".strip()), failed=True)

    async def _served(self, server: McpServer, name: str, arguments: Mapping[str, Any]) -> Result:
        try:
            text, failed = await asyncio.to_thread(server.call, name, arguments, self.section.timeout_s)
        except ServerDiedError as error:
            text, failed = f"the server {error}", True
        return Result(self._shown(f"error: {text}" if failed else text), failed)

    def _shown(self, text: str) -> str:
        """Return a result as it is shown: bounded, and plain."""
        most = self.section.result_chars
        text = self.plain(text[: 4 * most])
        return text if len(text) <= most else f"{text[: most - 3]}..."


def _schema(function: Callable[..., Any], label: str) -> Tool:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Tool = get_json_schema(function)
    except Exception as error:
        raise InputError(f"tasks[].tools.functions: {label}: {first_line(error)}") from error
    return schema


class ToolEpisode:
    """One attempt at a prompt with tools.

    The score's ``info`` holds the number of ``turns``, ``calls`` and ``failed_calls``.

    Args:
        task: Scores the last turn's text; shown the turns before it.
        tools: What may be called.
        prompt: What is asked.
    """

    def __init__(self, task: SingleTurnTask, tools: Toolbox, prompt: Prompt) -> None:
        self._task, self._tools, self._prompt = task, tools, prompt
        self._messages: list[ChatMessage] = list(prompt.messages)
        self._before: tuple[ChatMessage, ...] = ()
        self.completion_ids: tuple[int, ...] = ()
        self._turns = self._calls = self._failed = 0

    async def demonstrate(self, calls: Sequence[ChatMessage], answer: str) -> list[ShownTurn]:
        """Return what is seen and written at each turn of an oracle; nothing where a call fails or ends the episode."""
        shown: list[ShownTurn] = []
        for message in calls:
            shown.append((seen := await self.observe(), message))
            step = await self.act(self._tools.written(seen, message, self._prompt.chat))
            if step.done or self._failed:
                return []
        return [*shown, (await self.observe(), answer)]

    async def observe(self) -> list[ChatMessage]:
        """Return the conversation so far."""
        return list(self._messages)

    async def act(self, text: str) -> Step:
        """Execute the calls of a turn; one that calls nothing, or that no other can follow, is the answer."""
        self._turns += 1
        self._before = tuple(self._messages[len(self._prompt.messages) :])
        if self._turns >= self._tools.section.turns:
            return await self._score(text)
        try:
            prose, calls = self._tools.read(text)
        except CallError as error:
            self._failed += 1
            self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"error: {error}"}]
            return await self._go_on(text)
        if not calls:
            return await self._score(text)
        self._messages.append(calling(prose.strip(), calls))
        for index, call in enumerate(calls):
            result = await self._tools.run(call, self._prompt.chat)
            self._calls, self._failed = self._calls + 1, self._failed + result.failed
            self._messages.append(answering(index, call, result.text))
        return await self._go_on(text)

    async def close(self) -> None:
        """Do nothing: an episode holds no resource."""

    async def _go_on(self, text: str) -> Step:
        room = self._tools.has_room(self._messages, self._prompt.chat)
        return Step(done=False) if room else await self._score(text)

    async def _score(self, text: str) -> Step:
        (score,) = await self._task.rewarded([Answer(self._prompt, text, self.completion_ids, self._before)])
        counts = {"turns": self._turns, "calls": self._calls, "failed_calls": self._failed}
        return Step(True, None if score is None else replace(score, info={**score.info, **counts}))
