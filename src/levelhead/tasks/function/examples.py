"""Rows to examples: the prompt column is validated and becomes chat messages, the rest goes to the rewards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tasks import OwnPrompts
from levelhead.recipe.tools import ToolUse
from levelhead.records import PLAIN_CHAT, ChatMessage, ChatOptions
from levelhead.tasks.function.sources import Record, Table
from levelhead.tasks.splits import MAX_VALUES, stratum_value
from levelhead.tasks.tool_formats import CallError, call_of
from levelhead.tasks.tool_reader import calling

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles a chat message may have."""

NOT_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not hand to a reward function."""

_CHAT_TEXT = re.compile(r"\s*(?P<open>\[\s*\{|\{)\s*(?P<quote>[\"'])(?:role|content|messages)(?P=quote)\s*:")
_TAKEN_VARIABLES = {"messages", "tools", "tokenize", "add_generation_prompt", "chat_template", "conversation"}

TAKEN = ("prompts", "completions")
"""Keyword arguments of a reward function that no column may be called."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with all that its rewards may see.

    Attributes:
        id: Unique within the task and stable across runs: the ``id`` column where every row has its own, else the row.
        record: The row it came from.
        prompt: The prompt as a reward function gets it: text, or chat messages.
        messages: The prompt as the policy gets it.
        columns: What goes to the reward functions as keyword arguments, one value of each.
        oracle: A perfect answer, where the data hold one.
        calls: The assistant's messages before it, which call tools.
        strata: Value of each column that scores are told apart by.
        chat: What the rendering of the prompt depends on besides its messages.
    """

    id: str
    record: Record
    prompt: str | list[dict[str, Any]]
    messages: tuple[ChatMessage, ...]
    columns: Mapping[str, Any]
    oracle: str | None
    strata: Mapping[str, str] = field(default_factory=dict)
    chat: ChatOptions = PLAIN_CHAT
    calls: tuple[ChatMessage, ...] = ()

    @property
    def key(self) -> str:
        """Equal for examples that ask the same, so that they fall on one side of the split."""
        return json.dumps(self.messages, sort_keys=True, default=str)

    def with_messages(self, messages: tuple[ChatMessage, ...]) -> Example:
        """Return this example with another prompt, which rewards see as well."""
        text = isinstance(self.prompt, str)
        prompt: str | list[dict[str, Any]] = str(messages[-1]["content"]) if text else [dict(m) for m in messages]
        return replace(self, messages=messages, prompt=prompt)


def make_examples(table: Table, section: OwnPrompts) -> list[Example]:
    """Turn the rows of a table into examples.

    Raises:
        InputError: A column is missing or has a name that is taken, or a prompt or oracle is malformed.
    """
    columns = table.columns
    named = [("prompt", section.prompt), ("oracle", section.oracle), *(("strata", name) for name in section.strata)]
    for key, column in named:
        if column is not None and column not in columns:
            raise InputError(
                f"{table.source}: there is no column {column!r} (tasks[].{key}); the columns are: {', '.join(columns)}"
            )
    for column in TAKEN:
        if column in columns:
            raise InputError(
                f"{table.source}: rename the column {column!r}; reward functions get the {column} under it"
            )
    _check_strata(table, section.strata)
    ids = _ids(table.records)
    return [_example(record, identifier, section) for record, identifier in zip(table.records, ids, strict=True)]


def _check_strata(table: Table, columns: Sequence[str]) -> None:
    """Refuse strata of a column with a value of its own for almost every row."""
    for column in columns:
        values = {stratum_value(record.values.get(column)) for record in table.records}
        if len(values) > MAX_VALUES:
            raise InputError(
                f"{table.source}: the column {column!r} has {len(values)} different values; strata (tasks[].strata) "
                f"need a column of at most {MAX_VALUES}"
            )


def _ids(records: Sequence[Record]) -> list[str]:
    ids = [record.values.get("id") for record in records]
    if all(isinstance(value, str | int) and not isinstance(value, bool) for value in ids):
        texts = [str(value) for value in ids]
        if len(set(texts)) == len(texts):
            return texts
    return [f"row-{record.number}" for record in records]


def _example(record: Record, identifier: str, section: OwnPrompts) -> Example:
    value = _chat_in(record, section.prompt, record.values[section.prompt])
    system: list[dict[str, Any]] = [] if section.system is None else [{"role": "system", "content": section.system}]
    prompt: str | list[dict[str, Any]]
    if isinstance(value, str):
        if not value.strip():
            raise record.error(f"the prompt (column {section.prompt!r}) is empty")
        prompt = value
        messages = [*system, {"role": "user", "content": value}]
    else:
        prompt = [*system, *_messages(record, section.prompt, value)]
        if len(system) and any(message["role"] == "system" for message in prompt[1:]):
            raise record.error("the prompt has a system message of its own; leave tasks[].system out")
        messages = prompt
    calls, oracle = ((), None) if section.oracle is None else _oracle(record, section)
    return Example(
        id=identifier,
        record=record,
        prompt=prompt,
        messages=tuple(messages),
        columns={key: _column(record, section, key) for key in record.values if key not in NOT_COLUMNS},
        oracle=oracle,
        calls=calls,
        strata={name: stratum_value(record.values.get(name)) for name in section.strata},
        chat=_chat_options(record, section),
    )


def _chat_in(record: Record, column: str, value: Any) -> Any:
    """Return the messages of a chat that a column holds as JSON text; the value itself where it holds none."""
    if not isinstance(value, str) or not (match := _CHAT_TEXT.match(value)):
        return value
    if match["quote"] == "'" or match["open"] == "{":
        raise record.error(
            f"the prompt (column {column!r}) is text that looks like a chat, but is no JSON list of messages: "
            f'{value[:60]!r}; write it as [{{"role": "user", "content": ...}}]'
        )
    return _from_json(record, f"the prompt (column {column!r})", value)


def _from_json(record: Record, what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise record.error(f"{what} is text that is no JSON ({error}): {text[:60]!r}") from None


def _chat_options(record: Record, section: OwnPrompts) -> ChatOptions:
    """Read what a row says of its rendering: its tools and its variables of the chat template."""
    tools = _nested(record, "tools", section.tools_column) or []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) and _tool_name(tool) for tool in tools):
        raise record.error(
            f"the tools (column {section.tools_column!r}) must be a list of JSON schemas with a name each, "
            f"not {_kind(tools)}; tasks[].tools: null leaves the column to the rewards"
        )
    variables = _nested(record, "chat_template_kwargs", section.chat_template_kwargs) or {}
    if not isinstance(variables, Mapping) or _TAKEN_VARIABLES & set(variables):
        raise record.error(
            f"the column {section.chat_template_kwargs!r} must be an object of the chat template's own variables, "
            f"not {_kind(variables)}; tasks[].chat_template_kwargs: null leaves the column to the rewards"
        )
    special_tokens = tuple(dict.fromkeys(section.keep_special_tokens))
    return ChatOptions(tuple(tools), variables, special_tokens) if tools or variables or special_tokens else PLAIN_CHAT


def _column(record: Record, section: OwnPrompts, key: str) -> Any:
    """Return what rewards get of a column: tools without what Arrow fills in, anything else as it is."""
    value = record.values[key]
    return (
        without_nulls(value)
        if record.columnar and key in (section.tools_column, section.chat_template_kwargs)
        else value
    )


def _nested(record: Record, key: str, column: str | None) -> Any:
    """Return a column of lists and objects, parsed where it is JSON text, without what Arrow fills in."""
    value = None if column is None else record.values.get(column)
    if isinstance(value, str) and value.strip():
        value = _from_json(record, f"the column {column!r} (tasks[].{key})", value)
    return without_nulls(value) if record.columnar else value


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def without_nulls(value: Any) -> Any:
    """Return a value without the fields that hold nothing.

    Columnar formats (Arrow, Parquet) give every object of a column the fields of all of them, and fill in nulls.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _messages(record: Record, column: str, value: Any) -> list[dict[str, Any]]:
    """Validate a conversation: dicts with a known role and text, ending in a turn that wants an answer."""
    if not isinstance(value, Sequence) or not value:
        raise record.error(
            f"the prompt (column {column!r}) must be text or a list of chat messages, not {_kind(value)}"
        )
    value = without_nulls(list(value)) if record.columnar else value
    messages = [_message(record, n, message) for n, message in enumerate(value, start=1)]
    if messages[-1]["role"] not in ("user", "tool"):
        raise record.error(
            f"the prompt's last message is from {messages[-1]['role']!r}; it must be from 'user' or 'tool', "
            "and the answer to learn from belongs in a column of its own (tasks[].oracle)"
        )
    return messages


def _message(record: Record, n: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise record.error(f"message {n} of the prompt must be a dict with role and content, not {_kind(message)}")
    fields = {key: value for key, value in message.items() if value is not None}
    if fields.get("role") not in ROLES:
        raise record.error(f"message {n} of the prompt has role {message.get('role')!r}; known are {', '.join(ROLES)}")
    calls = fields.get("tool_calls")
    if isinstance(calls, str):
        fields["tool_calls"] = calls = _from_json(record, f"the tool_calls of message {n} of the prompt", calls)
    if calls is not None and not (isinstance(calls, Sequence) and all(isinstance(c, Mapping) for c in calls)):
        raise record.error(f"the tool_calls of message {n} of the prompt must be a list of objects, not {_kind(calls)}")
    if "content" not in fields and calls:
        return fields
    if not isinstance(fields.get("content"), str):
        raise record.error(f"message {n} of the prompt needs a text as content, not {_kind(message.get('content'))}")
    return fields


def _oracle(record: Record, section: OwnPrompts) -> tuple[tuple[ChatMessage, ...], str | None]:
    """Read a perfect answer, ``None`` where the row has none, and the calls of tools that come before it.

    A number, true and false are written as Python's ``str`` does, as a reward that compares texts reads them.
    """
    column, value = section.oracle or "", record.values[section.oracle or ""]
    if isinstance(value, list) and value and not isinstance(value[0], Mapping | list):
        value = next((answer for answer in value if answer is not None), None)
    if value is None or value == []:
        return (), None
    if isinstance(value, str | int | float):
        return (), str(value)
    executed = isinstance(section.tools, ToolUse)
    if isinstance(value, list) and all(isinstance(m, Mapping) for m in value) and (len(value) == 1 or executed):
        turns = [dict(m) for m in (without_nulls(value) if record.columnar else value) if m.get("role") != "tool"]
        *calls, last = turns or [{}]
        content, others = last.get("content"), [key for key in last if key not in ("role", "content")]
        if last.get("role") == "assistant" and isinstance(content, str) and not others:
            return tuple(_calls(record, column, message) for message in calls), content
        if others:
            raise record.error(
                f"the oracle (column {column!r}) is a message with {', '.join(map(repr, others))}, which is not shown "
                "in demonstrations; write all that the policy should write into its content"
            )
    raise record.error(
        f"the oracle (column {column!r}) must be a text, a number, true or false, a list of these (right answers), or "
        f"a list of one assistant message{', behind those that call tools' if executed else ''}, not {_kind(value)}"
    )


def _calls(record: Record, column: str, message: Mapping[str, Any]) -> ChatMessage:
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    try:
        if isinstance(calls, list) and calls:
            return calling(
                message.get("content") or "", [call_of(one.get("function", one), "arguments") for one in calls]
            )
    except (CallError, AttributeError) as error:
        raise record.error(f"the oracle (column {column!r}): a call of a tool has {error}") from error
    raise record.error(f"the oracle (column {column!r}): each message before the last one must call tools")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
