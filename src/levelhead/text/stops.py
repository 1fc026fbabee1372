"""Which tokens end the assistant's turn."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import Message
from levelhead.text.template import ChatTemplate

_QUESTION: Message = {"role": "user", "content": "Question"}
_ANSWER = "Answer"


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> tuple[int, ...]:
    """Return the ids with which the template closes an assistant's turn, the last turn's first.

    A probe conversation is rendered with the assistant's turn last and in the middle; the first added token
    after the answer, with at most white space between them, closes the turn.
    """
    reply: Message = {"role": "assistant", "content": _ANSWER}
    found: list[int] = []
    for messages in ([_QUESTION, reply], [_QUESTION, reply, _QUESTION]):
        token = _closing_token(tokenizer, template, messages)
        if token is not None and token not in found:
            found.append(token)
    return tuple(found)


def _closing_token(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, messages: Sequence[Message]
) -> int | None:
    try:
        text = template.render(messages, generation_prompt=False)
    except InputError:
        return None
    _, answered, rest = text.partition(_ANSWER)
    if not answered:
        return None
    rest = rest.lstrip()
    candidates = [(token, int(index)) for token, index in tokenizer.get_added_vocab().items() if rest.startswith(token)]
    return max(candidates, key=lambda pair: len(pair[0]))[1] if candidates else None
