"""Chats that are cut on the left until they have room: the oldest turns first, then the beginning of a text."""

from __future__ import annotations

from collections.abc import Sequence

from levelhead.records import ChatMessage, ChatOptions
from levelhead.text.codec import Codec


def shortened(
    codec: Codec, messages: Sequence[ChatMessage], options: ChatOptions, room: int
) -> tuple[ChatMessage, ...] | None:
    """Return a chat whose rendering takes at most ``room`` tokens.

    What a chat begins with (system, developer) stays.  Of the rest whole turns are left out, oldest first, up to the
    last message of the user; where that is not enough, the beginning of the longest text that is left is cut.  The
    rendered tokens themselves are never cut, so that a template's own tokens stay.

    Args:
        codec: Renders.
        messages: The chat, ending with what the assistant answers to.
        options: What the rendering depends on besides.
        room: Tokens at most, generation prompt included.

    Returns:
        The chat; ``None`` where even one character of the longest text has no room.
    """
    head = next((i for i, m in enumerate(messages) if m.get("role") not in ("system", "developer")), len(messages))
    starts = [i for i in range(head, len(messages)) if messages[i].get("role") == "user"] or [head]
    for start in starts:
        chat = [*messages[:head], *messages[start:]]
        if len(codec.render(chat, options)) <= room:
            return tuple(chat)
    texts = [m.get("content") if i >= head and isinstance(m.get("content"), str) else "" for i, m in enumerate(chat)]
    longest = max(range(len(chat)), key=lambda i: len(str(texts[i])))
    text = str(texts[longest])

    def cut(kept: int) -> list[ChatMessage]:
        return [*chat[:longest], {**chat[longest], "content": text[len(text) - kept :]}, *chat[longest + 1 :]]

    fits, low, high = 0, 1, len(text)
    while low <= high:
        middle = (low + high) // 2
        if len(codec.render(cut(middle), options)) <= room:
            fits, low = middle, middle + 1
        else:
            high = middle - 1
    return tuple(cut(fits)) if fits else None
