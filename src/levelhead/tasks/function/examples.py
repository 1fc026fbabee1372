"""Rows to examples: the prompt column is validated and becomes chat messages, the rest goes to the rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tasks import Function
from levelhead.records import Message
from levelhead.tasks.base import MAX_VALUES, stratum_value
from levelhead.tasks.function.sources import Record, Table

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles a chat message may have."""

NOT_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not hand to a reward function."""

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
        strata: Value of each column that scores are told apart by.
    """

    id: str
    record: Record
    prompt: str | list[dict[str, Any]]
    messages: tuple[Message, ...]
    columns: Mapping[str, Any]
    oracle: str | None
    strata: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for examples that ask the same, so that they fall on one side of the split."""
        return json.dumps(self.messages, sort_keys=True, default=str)


def make_examples(table: Table, section: Function) -> list[Example]:
    """Turn rows into examples.

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
    given = [record.values.get("id") for record in records]
    if all(isinstance(value, str | int) and not isinstance(value, bool) for value in given):
        texts = [str(value) for value in given]
        if len(set(texts)) == len(texts):
            return texts
    return [f"row-{record.number}" for record in records]


def _example(record: Record, identifier: str, section: Function) -> Example:
    value = record.values[section.prompt]
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
    return Example(
        id=identifier,
        record=record,
        prompt=prompt,
        messages=tuple(messages),
        columns={key: value for key, value in record.values.items() if key not in NOT_COLUMNS},
        oracle=None if section.oracle is None else _oracle(record, section.oracle),
        strata={name: stratum_value(record.values.get(name)) for name in section.strata},
    )


def _messages(record: Record, column: str, value: Any) -> list[dict[str, Any]]:
    """Validate a conversation: dicts with a known role and text, ending in a turn that wants an answer."""
    if not isinstance(value, Sequence) or not value:
        raise record.error(
            f"the prompt (column {column!r}) must be text or a list of chat messages, not {_kind(value)}"
        )
    # Columnar formats fill the fields that a message does not have with nulls.
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
    if "content" not in fields and fields.get("tool_calls"):
        return fields
    if not isinstance(fields.get("content"), str):
        raise record.error(f"message {n} of the prompt needs a text as content, not {_kind(message.get('content'))}")
    return fields


def _oracle(record: Record, column: str) -> str | None:
    """Read a perfect answer: text, or a list of one assistant message; ``None`` where the row has none."""
    value = record.values[column]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Mapping):
        content = value[0].get("content")
        if value[0].get("role") == "assistant" and isinstance(content, str):
            return content
    raise record.error(
        f"the oracle (column {column!r}) must be text or a list of one assistant message, not {_kind(value)}"
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
