"""Where the last message's own text landed in a rendered chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from levelhead.errors import InputError
from levelhead.records import ChatMessage
from levelhead.text.rendered import map_strings, plain, strings, unused_character


def locate(
    messages: Sequence[ChatMessage], text: str, render: Callable[[Sequence[ChatMessage]], str]
) -> tuple[int, int] | None:
    """Return the characters [start, end) of the last message's text in the rendered chat; ``None`` if it is not there.

    A private character is put into the message's text and the chat rendered again: where the character comes
    out, that text is.  From there it is followed as far as it reads the same in both directions, so that text
    which a template trims or cuts is found as far as it is there.  Of text that a template escapes, at least
    the place where the character came out is found.

    Args:
        messages: The chat.
        text: What ``render`` makes of it.
        render: Renders a chat.
    """
    mark = unused_character([text, *strings([plain(message) for message in messages])])
    ranges = _find(plain(messages[-1]), text, mark, lambda variant: render([*messages[:-1], variant]))
    return (min(start for start, _ in ranges), max(end for _, end in ranges)) if ranges else None


def _find(
    message: dict[str, Any], text: str, mark: str, render_with: Callable[[ChatMessage], str]
) -> list[tuple[int, int]]:
    """Return where each string of a message is in ``text``, as far as it is there."""
    ranges: list[tuple[int, int]] = []
    for number, string in enumerate(strings(message)):
        for cut in _cuts(string):
            before, after = string[:cut], string[cut:]
            try:
                marked = render_with(_with_string(message, number, before + mark + after))
            except InputError:
                continue
            at = marked.find(mark)
            if at < 0 or marked.replace(mark, "") != text or marked.count(mark) != 1:
                continue
            start = at - common_prefix(before[::-1], text[:at][::-1])
            end = at + common_prefix(after, text[at:])
            own = text[start:end]
            start, end = start + len(own) - len(own.lstrip()), end - len(own) + len(own.rstrip())
            if start < end:
                ranges.append((start, end))
            if end - start >= len(string.strip()):
                break
    return ranges


def _cuts(string: str) -> Iterator[int]:
    """Yield where to put the mark: inside the text first, where no trimming or comparison of its ends sees it."""
    end = len(string.rstrip())
    start = len(string) - len(string.lstrip())
    if start < end:
        yield from ((start + end) // 2, end, start)


def _with_string(message: dict[str, Any], number: int, replacement: str) -> ChatMessage:
    """Return the message with its ``number``-th string replaced."""
    count = iter(range(number + 1))
    changed: dict[str, Any] = map_strings(message, lambda string: replacement if next(count, -1) == number else string)
    return changed


def common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many characters or tokens two sequences share at their start."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
