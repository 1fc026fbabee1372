"""How chat templates write a call of a tool, and how it is read again.

A template's format is not looked up by name: a call is rendered through it, and the format is the one that reads the
same call back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class CallError(ValueError):
    """A text calls a tool in a way that cannot be read."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, as the policy wrote it.

    Attributes:
        name: The tool.
        arguments: By name.
        texts: Whether all arguments are texts, to be read by the types of the tool's schema.
    """

    name: str
    arguments: Mapping[str, Any]
    texts: bool = False


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way to write calls.

    Attributes:
        name: What it is called in messages.
        marker: What every call begins with, as a pattern.
        tokens: Special tokens that calls are written with, which must count as text to be read.
        parse: From a text, its marker on, to calls; raises :class:`CallError`, ``ValueError`` or ``KeyError``.
    """

    name: str
    marker: re.Pattern[str]
    tokens: tuple[str, ...]
    parse: Callable[[str], Iterator[Call]]

    def read(self, text: str) -> tuple[str, list[Call]]:
        """Return what stands before the first call, and the calls; all of the text and none where it calls nothing.

        Raises:
            CallError: There is a call that cannot be read.
        """
        match = self.marker.search(text)
        if match is None:
            return text, []
        try:
            calls = list(self.parse(text[match.start() :]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CallError(f"the call of a tool cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
        if not calls:
            raise CallError("the call of a tool cannot be read: it does not end")
        return text[: match.start()], calls


def call_of(value: Any, *keys: str) -> Call:
    """Return the call that an object describes, its arguments under one of some keys.

    Raises:
        CallError: It describes none.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise CallError("no object with a name")
    arguments: Any = next((value[key] for key in keys if key in value), {})
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise CallError(f"arguments are no JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise CallError("arguments are no object")
    return Call(value["name"], dict(arguments))


_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _blocks(text: str) -> list[str]:
    blocks = _BLOCK.findall(text)
    if len(blocks) != text.count("<tool_call>"):
        raise CallError("a <tool_call> does not end")
    return blocks


def _hermes(text: str) -> Iterator[Call]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, SmolLM3."""
    return (call_of(json.loads(block), "arguments", "parameters") for block in _blocks(text))


def _llama(text: str) -> Iterator[Call]:
    """``{"name": ..., "parameters": {...}}``, several one after another: Llama 3.1 and later."""
    decoder, rest = json.JSONDecoder(), text.removeprefix("<|python_tag|>").strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        yield call_of(value, "parameters", "arguments")
        rest = rest[end:].lstrip("; \n\t")


def _mistral(text: str) -> Iterator[Call]:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""
    decoder = json.JSONDecoder()
    for part in text.split("[TOOL_CALLS]")[1:]:
        body = part.strip()
        if body.startswith("["):
            for value in decoder.raw_decode(body)[0]:
                yield call_of(value, "arguments")
            continue
        name, _, arguments = body.partition("{")
        name = re.split(r"\[(?:ARGS|CALL_ID)\]", name)[0].strip()
        yield call_of({"name": name, "arguments": decoder.raw_decode("{" + arguments)[0]}, "arguments")


_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _glm(text: str) -> Iterator[Call]:
    """``<tool_call>name`` with ``<arg_key>`` and ``<arg_value>`` pairs: GLM 4.5 and later."""
    for block in _blocks(text):
        name = block.partition("<arg_key>")[0].strip()
        if not re.fullmatch(r"[\w.-]+", name):
            raise CallError("no name behind <tool_call>")
        yield Call(name, {key.strip(): value for key, value in _PAIR.findall(block)}, texts=True)


_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _coder(text: str) -> Iterator[Call]:
    """``<function=name>`` with ``<parameter=key>`` blocks: Qwen3-Coder."""
    functions = _FUNCTION.findall(text)
    if len(functions) != text.count("<function=") or text.count("<tool_call>") != text.count("</tool_call>"):
        raise CallError("a <function=...> does not end")
    for name, body in functions:
        yield Call(name, dict(_PARAMETER.findall(body)), texts=True)


_TO = re.compile(r"to=functions\.([\w.-]+).*?<\|message\|>(.*?)(?=<\||$)", re.DOTALL)


def _harmony(text: str) -> Iterator[Call]:
    """``to=functions.name`` in a commentary channel, then a JSON message: gpt-oss."""
    return (call_of({"name": name, "arguments": json.loads(body)}, "arguments") for name, body in _TO.findall(text))


FORMATS = (
    CallFormat("hermes", re.compile(r"<tool_call>"), (), _hermes),
    CallFormat("qwen3-coder", re.compile(r"(?:<tool_call>\s*)?<function="), (), _coder),
    CallFormat("glm", re.compile(r"<tool_call>"), (), _glm),
    CallFormat("mistral", re.compile(r"\[TOOL_CALLS\]"), ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), _mistral),
    CallFormat(
        "harmony",
        re.compile(r"(?:<\|start\|>assistant\s*)?(?:<\|channel\|>commentary\s+)?to=functions\."),
        ("<|channel|>", "<|constrain|>", "<|message|>"),
        _harmony,
    ),
    CallFormat("llama", re.compile(r"\A\s*(?:<\|python_tag\|>\s*)?(?=\{)"), ("<|python_tag|>",), _llama),
)
"""Every format that is read, those with the plainer marks first."""
