"""Token ids as quoted texts, and prompts as the tokenizer's own template renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.records import PLAIN_CHAT, ChatOptions, Prompt
from levelhead.text.codec import Codec
from levelhead.text.evidence import read
from levelhead.text.thoughts import Thought, opened_by, take_apart


def spelled(codec: Codec, ids: Sequence[int]) -> str:
    """Return token ids as a line of quoted texts."""
    return " ".join(repr(token.text) for token in read(codec, ids)) or "-"


def by_template(
    codec: Codec, messages: Sequence[Mapping[str, Any]], options: ChatOptions = PLAIN_CHAT, *, generation: bool
) -> str:
    """Render messages with the tokenizer alone."""
    chat = [dict(message) for message in messages]
    variables = {**codec.template.variables, **options.template_kwargs}
    tools: Any = [dict(tool) for tool in options.tools] or None
    text = codec.tokenizer.apply_chat_template(
        chat, tools=tools, tokenize=False, add_generation_prompt=generation, **variables
    )
    return str(text)


def opened_thought(codec: Codec, prompt: Prompt) -> Thought:
    """Return the thought that a prompt opens for its answer; one without ``start`` where it opens none."""
    return opened_by(codec.template.render(prompt.messages, generation_prompt=True, options=prompt.chat).text)


def behind_prompt(codec: Codec, prompt: Prompt, answer: str) -> str:
    """Return what a completion holds of an answer: all but the tag of a thought that the prompt opens already."""
    mark = opened_thought(codec, prompt)
    return answer if mark.start is None else take_apart(answer, mark).body
