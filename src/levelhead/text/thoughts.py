"""Thoughts (``<think>...</think>``) where a generation prompt opens them, and in the answers that go on from there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from levelhead.records import ChatMessage

_TAG = re.compile(r"(<[A-Za-z][\w:.-]*>|\[[A-Z_]+\]|<\|START_\w+\|>)(\s*)\Z")
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of an assistant message that templates read a thought from."""


@dataclass(frozen=True, slots=True)
class Thought:
    """How a thought is marked, and where a generation prompt opens it.

    Attributes:
        tag: Opens it: ``<think>``, ``[THINK]``, ``<|START_THINKING|>``.
        space: White space that the prompt writes behind the tag.
        start: Character of the prompt at which the tag stands; ``None`` where the prompt opens no thought.
    """

    tag: str = "<think>"
    space: str = "\n"
    start: int | None = None

    @property
    def closer(self) -> str:
        """The tag that closes the thought."""
        if self.tag.startswith("<|START_"):
            return self.tag.replace("START_", "END_", 1)
        return f"{self.tag[0]}/{self.tag[1:]}"

    @property
    def empty(self) -> str:
        """What closes it without a word, behind a prompt that opens it."""
        return f"\n{self.closer}\n\n" if self.space else self.closer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer split into thought and rest.

    Attributes:
        body: All of it but the tag that it begins with.
        thought: What stands before the closing tag; ``None`` where the answer holds no thought.
        rest: What stands behind it, without white space before; the whole answer where it holds no thought.
        opens: Whether it begins with the tag itself.
    """

    body: str
    thought: str | None
    rest: str
    opens: bool


def opened_by(prompt: str) -> Thought:
    """Return the thought that a rendered prompt leaves open at its end; one without ``start`` where it opens none."""
    match = _TAG.search(prompt)
    return Thought() if match is None else Thought(match[1], match[2], match.start())


_CLOSER = r"</[\w:.-]*think[\w:.-]*>|\[/THINK\]|<\|END_THINKING\|>"


def holds_thought(text: str) -> bool:
    """Whether an answer closes a thought."""
    return re.search(_CLOSER, text) is not None


def plain_answer(message: ChatMessage, mark: Thought) -> str:
    """Return the text of an assistant message behind its thought, without white space."""
    content = message.get("content")
    return squeezed(take_apart(content, mark).rest) if isinstance(content, str) else ""


def clash(prompt: str, answer: str) -> bool:
    """Whether an answer thinks behind a rendered prompt that has closed its thought already."""
    return holds_thought(answer) and re.search(rf"(?:{_CLOSER})\s*\Z", prompt) is not None


def take_apart(text: str, mark: Thought) -> Answer:
    """Return the parts of an answer.

    Behind a prompt that opens a thought, an answer may begin with the tag all the same, or go on where the prompt ends.
    """
    opens = text.lstrip().startswith(mark.tag)
    body = text.lstrip().removeprefix(mark.tag) if opens else text
    if opens and mark.start is not None and mark.space:
        body = body.lstrip()
    thought, closer, rest = body.partition(mark.closer)
    if not closer or not (opens or mark.start is not None):
        return Answer(body, None, text, opens)
    return Answer(body, thought, rest.lstrip(), opens)


def spellings(message: ChatMessage, mark: Thought) -> Iterator[ChatMessage]:
    """Yield an assistant message in the ways in which templates read a thought, as it is first."""
    yield message
    content = message.get("content")
    parts = take_apart(content, mark) if isinstance(content, str) else None
    if parts is None or parts.thought is None:
        return
    if mark.start is not None:
        yield {**message, "content": mark.tag + mark.space + parts.body}
        yield {**message, "content": parts.body}
    for field in REASONING_FIELDS:
        yield {**message, field: parts.thought.strip("\n"), "content": parts.rest}


def goes_on(reply: str, message: ChatMessage, mark: Thought) -> bool:
    """Whether a reply holds all of an assistant message: its thought once, and nothing closed before it.

    Args:
        reply: What a template writes behind its generation prompt.
        message: The assistant's message.
        mark: What the generation prompt opens.
    """
    written = squeezed(reply)
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    wanted = [str(message[field]) for field in REASONING_FIELDS if isinstance(message.get(field), str)]
    if not all(squeezed(text) in written for text in [*wanted, *called(message)]):
        return False
    parts = take_apart(content, mark)
    if parts.thought is None and not parts.opens:
        return squeezed(content) in written
    if parts.thought is None:  # and it is never closed
        return written.startswith(squeezed(parts.body if mark.start is not None else content))
    whole = squeezed(parts.thought + mark.closer + parts.rest)
    if mark.start is not None:
        return written.startswith(whole)
    before, tag, _ = written.partition(squeezed(mark.tag) + whole)
    return bool(tag) and mark.closer not in before


def called(message: ChatMessage) -> list[str]:
    """Return the names of the functions that an assistant message calls."""
    return [str(call.get("function", call).get("name")) for call in message.get("tool_calls") or ()]


def squeezed(text: str) -> str:
    """Return a text without its white space."""
    return "".join(text.split())
