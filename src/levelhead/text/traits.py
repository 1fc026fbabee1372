"""What a chat template does to messages, found out by trying it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levelhead.errors import InputError
from levelhead.records import Message
from levelhead.text.codec import Codec
from levelhead.text.stops import PROBE_TOOL

_INSTRUCTION: Message = {"role": "system", "content": "Instruction"}
_QUESTION: Message = {"role": "user", "content": "Question"}
_FOLLOW_UP: Message = {"role": "user", "content": "Follow-up"}
_ANSWER: Message = {"role": "assistant", "content": "Answer"}
_REASONED: Message = {"role": "assistant", "content": "<think>\nReasons\n</think>\n\nAnswer"}
_SPACED: Message = {"role": "user", "content": "\nQuestion\n"}


@dataclass(frozen=True, slots=True)
class Traits:
    """What a chat template does.

    Attributes:
        system: Whether system text is ``kept``, ``dropped`` or ``refused``.
        shows_tools: Whether tools given to the template appear in the prompt.
        generation_prompt: What is written for the assistant to go on from.
        before_answer: What the template puts between the generation prompt and a plain answer.
        after_stop: What it puts behind the token that closes the answer.
        trims: Whether line breaks around a message's text are taken off.
        drops_reasoning: Whether reasoning of an earlier turn is gone from later prompts.
        rewrites_turns: Whether a later prompt is anything but the earlier prompt, the answer and more; each turn
            must then be trained on in its own context.
        reads_the_clock: Whether it asks for today's date, which is kept fixed.
    """

    system: Literal["kept", "dropped", "refused"]
    shows_tools: bool
    generation_prompt: str
    before_answer: str
    after_stop: str
    trims: bool
    drops_reasoning: bool
    rewrites_turns: bool
    reads_the_clock: bool


def probe(codec: Codec) -> Traits:
    """Return the traits of a codec's chat template.

    Raises:
        InputError: The template refuses even a plain question.
    """
    prompt = _text(codec, _QUESTION)
    answered = codec.template.render([_QUESTION, _ANSWER], generation_prompt=False).text
    before, _, after = answered.removeprefix(prompt).partition("Answer")
    return Traits(
        system=_system(codec),
        shows_tools=_shows_tools(codec),
        generation_prompt=codec.layout([_QUESTION]).generation_prompt,
        before_answer=before if answered.startswith(prompt) else "",
        after_stop=_behind_first_stop(codec, after),
        trims="\nQuestion\n" not in _text(codec, _SPACED),
        drops_reasoning="Reasons" not in _try(codec, _QUESTION, _REASONED, _FOLLOW_UP, default="Reasons"),
        rewrites_turns=any(_rewrites(codec, start, _ANSWER) for start in ([_QUESTION], [_INSTRUCTION, _QUESTION]))
        or _rewrites(codec, [_QUESTION], _REASONED),
        reads_the_clock=codec.template.reads_the_clock,
    )


def _text(codec: Codec, *messages: Message) -> str:
    return codec.template.render(messages, generation_prompt=True).text


def _try(codec: Codec, *messages: Message, default: str) -> str:
    try:
        return _text(codec, *messages)
    except InputError:
        return default


def _system(codec: Codec) -> Literal["kept", "dropped", "refused"]:
    text = _try(codec, _INSTRUCTION, _QUESTION, default="")
    if not text:
        return "refused"
    return "kept" if "Instruction" in text else "dropped"


def _shows_tools(codec: Codec) -> bool:
    try:
        codec.template.render([_QUESTION], generation_prompt=True, tools=[PROBE_TOOL])
    except InputError:
        return False
    return True


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
