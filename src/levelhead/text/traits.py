"""What a chat template does to messages, found out by trying it."""

from __future__ import annotations

from dataclasses import dataclass

from levelhead.errors import InputError
from levelhead.records import Message
from levelhead.text.codec import Codec

_INSTRUCTION: Message = {"role": "system", "content": "Instruction"}
_QUESTION: Message = {"role": "user", "content": "Question"}
_FOLLOW_UP: Message = {"role": "user", "content": "Follow-up"}
_ANSWER: Message = {"role": "assistant", "content": "Answer"}
_REASONED: Message = {"role": "assistant", "content": "<think>\nReasons\n</think>\n\nAnswer"}


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


def _text(codec: Codec, *messages: Message) -> str:
    return codec.template.render(messages, generation_prompt=True).text


def _try(codec: Codec, *messages: Message, default: str) -> str:
    try:
        return _text(codec, *messages)
    except InputError:
        return default


def _rewrites(codec: Codec, start: list[Message], answer: Message) -> bool:
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
