"""Calls of tools in the chat template's own format, which is learnt from what the template writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError
from levelhead.records import ChatMessage, ChatOptions, Tool
from levelhead.tasks.strict_json import encodable
from levelhead.tasks.tool_formats import FORMATS, Call, CallError, CallFormat

if TYPE_CHECKING:
    from levelhead.text.codec import Codec

_EXAMPLES: Mapping[str, Any] = {"integer": 3, "number": 2.5, "boolean": True, "array": [1], "object": {"key": 1}}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


class CallReader:
    """Reads the calls of tools, whoever executes them.

    Args:
        calls: Most calls in a turn.
        schemas: The tools; with none, every turn is read as an answer.
    """

    def __init__(self, calls: int, schemas: Sequence[Tool] = ()) -> None:
        self.schemas = {named(schema): schema for schema in schemas}
        self._format: CallFormat | None = None
        self._codec: Codec | None = None
        self.room = 0
        self._special: tuple[str, ...] = ()
        self._most = calls

    def learn_format(self, codec: Codec, task: str, room: int) -> None:
        """Find out how the template writes calls, and that each tool's calls and results go through it.

        Args:
            codec: Of the policy.
            task: Name of the task, for errors.
            room: Tokens that a conversation may have before a turn.

        Raises:
            InputError: The template shows no tools, or writes calls in no format that is known, or loses one.
        """
        self._codec, self.room = codec, room
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
        if self._format is None:
            return
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

    def has_room(self, messages: Sequence[ChatMessage], options: ChatOptions) -> bool:
        """Whether the policy's context has room for another turn of a conversation."""
        return self._codec is None or len(self._codec.render(messages, options)) <= self.room

    def ended(self, completion_ids: Sequence[int]) -> bool:
        """Whether a turn came to its end, and not to that of its budget."""
        return self._codec is None or bool(completion_ids and completion_ids[-1] in self._codec.stop_ids)

    def read(self, text: str) -> tuple[str, list[Call]]:
        """Return what a turn says before its first call, and its calls.

        Raises:
            CallError: A call cannot be read, or there are too many.
        """
        if self._format is None and self.schemas:
            raise RuntimeError("learn_format comes before read")
        if self._format is None:
            return text, []
        prose, calls = self._format.read(text)
        if len(calls) > self._most:
            raise CallError(f"{len(calls)} calls in a turn, and at most {self._most} are allowed")
        return prose, calls

    def written(self, messages: Sequence[ChatMessage], turn: ChatMessage, options: ChatOptions) -> str:
        """Return the text of a turn, which may call tools, as it is read where the policy writes it."""
        if self._codec is None:
            raise RuntimeError("learn_format comes before written")
        return self._codec.decode(self._codec.demonstration(messages, turn, options).completion_ids, options)

    def plain(self, text: str) -> str:
        """Return a result without control characters or marks that calls are written with."""
        text = _CONTROL.sub("", encodable(text))
        for token in self._format.tokens if self._format is not None else ():
            text = text.replace(token, "")
        return text

    def _rendered(self, codec: Codec, calls: Sequence[Call], schema: Tool) -> str:
        """Render calls and their results; return how the template writes the turn of the calls."""
        chat: list[ChatMessage] = [{"role": "user", "content": "Question"}]
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
            if [(c.name, typed(c, self.schemas[example.name])) for c in calls] == [(example.name, example.arguments)]:
                return True
        return False


def calling(said: str, calls: Sequence[Call]) -> ChatMessage:
    """Return the assistant's message that calls tools, as chat templates take it."""
    functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return {
        "role": "assistant",
        "content": said,
        "tool_calls": [{"type": "function", "id": call_id(i), "function": one} for i, one in enumerate(functions)],
    }


def answering(index: int, call: Call, text: str) -> ChatMessage:
    """Return the message with the result of a turn's call."""
    return {"role": "tool", "name": call.name, "tool_call_id": call_id(index), "content": text}


def call_id(index: int) -> str:
    """Return the id of a call, by its number."""
    return f"call{index:05d}"  # nine letters and digits, as Mistral's template wants them


def named(tool: Tool) -> str:
    """Return what a tool is called."""
    return str(tool.get("function", tool).get("name"))


def _properties(schema: Tool) -> Mapping[str, Any]:
    parameters = schema.get("function", schema).get("parameters") or {}
    return dict(parameters.get("properties") or {})


def _example(schema: Tool) -> dict[str, Any]:
    """Return arguments of the types that a schema asks for."""
    kinds = {name: one.get("type", "string") for name, one in _properties(schema).items()}
    return {name: _EXAMPLES.get(kind if isinstance(kind, str) else kind[0], "a text") for name, kind in kinds.items()}


def typed(call: Call, schema: Tool) -> dict[str, Any]:
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
