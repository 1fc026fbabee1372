"""Tools that the policy may call: their schemas, calls that are executed within limits, and the episode around them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError
from levelhead.recipe.tools import ToolUse
from levelhead.records import ChatOptions, Message, Prompt, Tool
from levelhead.tasks import threads
from levelhead.tasks.base import Answer, SingleTurnTask, Step
from levelhead.tasks.main_thread import OverrunError
from levelhead.tasks.mcp_server import McpServer, ServerDiedError
from levelhead.tasks.sandbox import run_program
from levelhead.tasks.strict_json import encodable
from levelhead.tasks.tool_formats import FORMATS, Call, CallError, CallFormat
from levelhead.usercode import load_object

if TYPE_CHECKING:
    from levelhead.text.codec import Codec


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

_EXAMPLES: Mapping[str, Any] = {"integer": 3, "number": 2.5, "boolean": True, "array": [1], "object": {"key": 1}}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave.

    Attributes:
        text: What the policy is shown.
        failed: Whether it is an error.
    """

    text: str
    failed: bool = False


class Toolbox:
    """Functions that the policy may call.

    Args:
        section: The recipe's ``tasks[].tools``.
        functions: Callables in place of ``section.functions``.

    Raises:
        InputError: A function is missing, has no readable signature and docstring, or the name of another; a server
            does not start or lacks a tool that is named.
    """

    def __init__(self, section: ToolUse, functions: Sequence[Callable[..., Any]] = ()) -> None:
        self.section = section
        self.schemas: dict[str, Tool] = {}
        self._runs: dict[str, Callable[[Mapping[str, Any]], Awaitable[Result]]] = {}
        self._format: CallFormat | None = None
        self._codec: Codec | None = None
        self.room = 0
        self._special: tuple[str, ...] = ()
        self._most = section.calls
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

    def learn_format(self, codec: Codec, task: str, room: int) -> None:
        """Find out how the template writes calls, and that each tool's calls and results go through it.

        Args:
            codec: Of the policy.
            task: Name of the task, for errors.
            room: Tokens that a conversation may have before a turn.

        Raises:
            InputError: The template shows no tools, or writes calls in no format that is known, or loses one.
        """
        for name, schema in self.schemas.items():
            example = Call(name, _example(schema))
            written = self._rendered(codec, [example], schema)
            fits = [one for one in FORMATS if self._reads(one, written, example)]
            if not fits or (self._format is not None and self._format not in fits):
                raise InputError(
                    f"tasks: {task}: tools: the chat template writes a call of {name!r} as {written[:120]!r}, which is "
                    f"read in none of the formats {', '.join(one.name for one in FORMATS)}; give a template that "
                    "writes one of them with model.chat_template: FILE"
                )
            self._format = self._format or fits[0]
        assert self._format is not None  # noqa: S101 - a toolbox has at least one tool
        self._codec, self.room = codec, room
        vocabulary = codec.tokenizer.get_vocab()
        self._special = tuple(token for token in self._format.tokens if token in codec.template.special_tokens)
        self._special = tuple(token for token in self._special if vocabulary[token] not in codec.stop_ids)
        try:
            self._rendered(codec, [example, example], schema)
        except InputError:
            self._most = 1  # Llama 3's template takes one call a turn

    @property
    def names(self) -> list[str]:
        """What the tools are called."""
        return list(self.schemas)

    @property
    def format(self) -> str:
        """Name of the template's format; empty before :meth:`learn_format`."""
        return "" if self._format is None else self._format.name

    def chat(self, options: ChatOptions) -> ChatOptions:
        """Return a row's options with its tools (all where it names none) and the tokens that calls are made of."""
        special = tuple(dict.fromkeys([*options.special_tokens, *self._special]))
        return replace(options, tools=options.tools or tuple(self.schemas.values()), special_tokens=special)

    def has_room(self, messages: Sequence[Message], options: ChatOptions) -> bool:
        """Whether the policy's context has room for another turn of a conversation."""
        return self._codec is None or len(self._codec.render(messages, options)) <= self.room

    def read(self, text: str) -> tuple[str, list[Call]]:
        """Return what a turn says before its first call, and its calls.

        Raises:
            CallError: A call cannot be read, or there are too many.
        """
        if self._format is None:
            raise RuntimeError("learn_format comes before read")
        said, calls = self._format.read(text)
        if len(calls) > self._most:
            raise CallError(f"{len(calls)} calls in a turn, and at most {self._most} are allowed")
        return said, calls

    async def run(self, call: Call, options: ChatOptions) -> Result:
        """Execute a call; whatever goes wrong is a result that says so."""
        schema = next((tool for tool in options.tools if _named(tool) == call.name), None)
        if schema is None or call.name not in self._runs:
            there = ", ".join(_named(tool) for tool in options.tools if _named(tool) in self._runs)
            return Result(
                f"error: there is no tool called {self._shown(call.name)[:80]}; there are {there}", failed=True
            )
        try:
            return await self._runs[call.name](_typed(call, self.schemas[call.name]))
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
        """Return a result as it is shown: bounded, without control characters or marks that calls are written with."""
        most = self.section.result_chars
        text = _CONTROL.sub("", encodable(text[: 4 * most]))
        for token in self._format.tokens if self._format is not None else ():
            text = text.replace(token, "")
        return text if len(text) <= most else f"{text[: most - 3]}..."

    def _rendered(self, codec: Codec, calls: Sequence[Call], schema: Tool) -> str:
        """Render calls and their results; return how the template writes the turn of the calls."""
        chat: list[Message] = [{"role": "user", "content": "Question"}]
        options = ChatOptions(tools=(schema,))
        before = codec.template.render(chat, generation_prompt=False, options=options).text
        turn = calling("", calls)
        written = codec.template.render([*chat, turn], generation_prompt=False, options=options).text
        whole = [*chat, turn, *(answering(i, call, f"result {i} of it") for i, call in enumerate(calls))]
        shown = codec.template.render(whole, generation_prompt=True, options=options).text
        if any(f"result {i} of it" not in shown for i in range(len(calls))):
            raise InputError(f"the chat template leaves the result of the tool {calls[0].name!r} out")
        return written[len(before) :] if written.startswith(before) else written

    def _reads(self, form: CallFormat, written: str, example: Call) -> bool:
        for header in (r"", r"<\|start_header_id\|>assistant<\|end_header_id\|>\s*"):
            body = re.sub(r"<\|eot_id\|>|<\|eom_id\|>", "", re.sub(rf"\A{header}", "", written))
            try:
                _, calls = form.read(body)
            except CallError:
                continue
            if [(c.name, _typed(c, self.schemas[example.name])) for c in calls] == [(example.name, example.arguments)]:
                return True
        return False


def calling(said: str, calls: Sequence[Call]) -> Message:
    """Return the assistant's message that calls tools, as chat templates take it."""
    functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return {
        "role": "assistant",
        "content": said,
        "tool_calls": [{"type": "function", "id": _id(i), "function": one} for i, one in enumerate(functions)],
    }


def answering(index: int, call: Call, text: str) -> Message:
    """Return the message with the result of a turn's call."""
    return {"role": "tool", "name": call.name, "tool_call_id": _id(index), "content": text}


def _id(index: int) -> str:
    return f"call{index:05d}"  # nine letters and digits, as Mistral's template wants them


def _schema(function: Callable[..., Any], label: str) -> Tool:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Tool = get_json_schema(function)
    except Exception as error:
        raise InputError(f"tasks[].tools.functions: {label}: {str(error).splitlines()[0]}") from error
    return schema


def _named(tool: Tool) -> str:
    return str(tool.get("function", tool).get("name"))


def _properties(schema: Tool) -> Mapping[str, Any]:
    parameters = schema.get("function", schema).get("parameters") or {}
    return dict(parameters.get("properties") or {})


def _example(schema: Tool) -> dict[str, Any]:
    """Return arguments of the types that a schema asks for."""
    kinds = {name: one.get("type", "string") for name, one in _properties(schema).items()}
    return {name: _EXAMPLES.get(kind if isinstance(kind, str) else kind[0], "a text") for name, kind in kinds.items()}


def _typed(call: Call, schema: Tool) -> dict[str, Any]:
    """Return a call's arguments; texts are read as JSON where the schema asks for anything but a text."""
    if not call.texts:
        return dict(call.arguments)
    kinds = {name: one.get("type", "string") for name, one in _properties(schema).items()}
    arguments: dict[str, Any] = {}
    for name, text in call.arguments.items():
        try:
            arguments[name] = text if kinds.get(name, "string") == "string" else json.loads(text)
        except ValueError:
            arguments[name] = text
    return arguments


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
        self._messages: list[Message] = list(prompt.messages)
        self._before: tuple[Message, ...] = ()
        self.completion_ids: tuple[int, ...] = ()
        self._turns = self._calls = self._failed = 0

    async def observe(self) -> list[Message]:
        """Return the conversation so far."""
        return list(self._messages)

    async def act(self, text: str) -> Step:
        """Execute the calls of a turn; one that calls nothing, or that no other can follow, is the answer."""
        self._turns += 1
        self._before = tuple(self._messages[len(self._prompt.messages) :])
        if self._turns >= self._tools.section.turns:
            return await self._score(text)
        try:
            said, calls = self._tools.read(text)
        except CallError as error:
            self._failed += 1
            self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"error: {error}"}]
            return await self._go_on(text)
        if not calls:
            return await self._score(text)
        self._messages.append(calling(said.strip(), calls))
        for index, call in enumerate(calls):
            result = await self._tools.run(call, self._prompt.chat)
            self._calls, self._failed = self._calls + 1, self._failed + result.failed
            self._messages.append(answering(index, call, result.text))
        return await self._go_on(text)

    async def close(self) -> None:
        """Hold nothing."""

    async def _go_on(self, text: str) -> Step:
        room = self._tools.has_room(self._messages, self._prompt.chat)
        return Step(done=False) if room else await self._score(text)

    async def _score(self, text: str) -> Step:
        (score,) = await self._task.rewarded([Answer(self._prompt, text, self.completion_ids, self._before)])
        counts = {"turns": self._turns, "calls": self._calls, "failed_calls": self._failed}
        return Step(True, None if score is None else replace(score, info={**score.info, **counts}))
