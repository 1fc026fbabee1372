"""What a chat template does to messages, found out by trying it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from levelhead.errors import InputError
from levelhead.records import PLAIN_CHAT, ChatMessage, ChatOptions
from levelhead.text.codec import Codec
from levelhead.text.rendered import plain, strings
from levelhead.text.thoughts import REASONING_FIELDS, called, squeezed

_INSTRUCTION: ChatMessage = {"role": "system", "content": "Instruction"}
_QUESTION: ChatMessage = {"role": "user", "content": "Question"}
_FOLLOW_UP: ChatMessage = {"role": "user", "content": "Follow-up"}
_ANSWER: ChatMessage = {"role": "assistant", "content": "Answer"}
_REASONED: ChatMessage = {"role": "assistant", "content": "<think>\nReasons\n</think>\n\nAnswer"}


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template does.

    Attributes:
        after_stop: What it puts behind the token that closes the answer.
        drops_reasoning: Whether reasoning of an earlier turn is gone from later prompts.
        rewrites_turns: Whether a later prompt is anything but the earlier prompt, the answer and more; each turn
            must then be trained on in its own context.
    """

    after_stop: str
    drops_reasoning: bool
    rewrites_turns: bool


def probe(codec: Codec) -> Traits:
    """Return the traits of a codec's chat template.

    Raises:
        InputError: The template refuses even a plain question.
    """
    prompt = _text(codec, _QUESTION)
    answered = codec.template.render([_QUESTION, _ANSWER], generation_prompt=False).text
    after = answered.removeprefix(prompt).partition("Answer")[2]
    return Traits(
        after_stop=_behind_first_stop(codec, after),
        drops_reasoning="Reasons" not in _try(codec, _QUESTION, _REASONED, _FOLLOW_UP, default="Reasons"),
        rewrites_turns=any(_rewrites(codec, start, _ANSWER) for start in ([_QUESTION], [_INSTRUCTION, _QUESTION]))
        or _rewrites(codec, [_QUESTION], _REASONED),
    )


def left_out(codec: Codec, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> list[tuple[str, str]]:
    """Return the texts of a chat that its rendering does not show, each with the role of its message.

    What counts are the text, the reasoning and the tool calls of a message, whatever white space or escaping a template
    puts into them; not ids and names that no template writes.

    Raises:
        InputError: The template refuses the messages.
    """
    shown = squeezed(codec.template.render(messages, generation_prompt=True, options=options).text)
    lost = []
    for message in messages:
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        arguments = [text for call in calls for text in strings(plain(call.get("arguments") or {}))]
        texts = [message.get("content"), *(message.get(field) for field in REASONING_FIELDS), *called(message)]
        for text in [*texts, *(() if any(isinstance(c.get("arguments"), str) for c in calls) else arguments)]:
            wanted = squeezed(text) if isinstance(text, str) else ""
            if wanted not in shown and squeezed(json.dumps(text)[1:-1]) not in shown:
                lost.append((str(message.get("role")), str(text)))
    return lost


def _text(codec: Codec, *messages: ChatMessage) -> str:
    return codec.template.render(messages, generation_prompt=True).text


def _try(codec: Codec, *messages: ChatMessage, default: str) -> str:
    try:
        return _text(codec, *messages)
    except InputError:
        return default


def _rewrites(codec: Codec, start: list[ChatMessage], answer: ChatMessage) -> bool:
    try:
        first = codec.demonstration(start, answer)
        later = codec.render([*start, answer, _FOLLOW_UP])
    except InputError:
        return False
    written = (*first.context_ids, *first.completion_ids)
    return later[: len(written)] != written


def _behind_first_stop(codec: Codec, text: str) -> str:
    starts = [(text.find(stop.text), stop.text) for stop in codec.stops if stop.text in text]
    if not starts:
        return text
    at, stop = min(starts)
    return text[at + len(stop) :]
