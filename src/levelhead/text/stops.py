"""Which tokens end the assistant's turn, where each was learnt from, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import PLAIN_CHAT, ChatMessage, ChatOptions, Tool
from levelhead.text.template import ChatTemplate
from levelhead.text.thoughts import REASONING_FIELDS

_QUESTION: ChatMessage = {"role": "user", "content": "Question"}
_ANSWER: ChatMessage = {"role": "assistant", "content": "Answer"}
_CALL: ChatMessage = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {"word": "Answer"}}}
    ],
}
PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Look at a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token that ends a completion.

    Attributes:
        id: Its id.
        text: As the tokenizer spells it.
        sources: Where it was learnt from: ``template``, ``eos``, ``generation config``.
    """

    id: int
    text: str
    sources: tuple[str, ...]


def stop_tokens(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, generation_eos: Sequence[int]
) -> tuple[StopToken, ...]:
    """Return the stop set, the token that closes an ordinary turn first.

    Raises:
        InputError: Nothing ends a turn.
    """
    sources: dict[int, list[str]] = {}
    for token in end_of_turn_ids(tokenizer, template):
        sources.setdefault(token, []).append("template")
    if tokenizer.eos_token_id is not None:
        sources.setdefault(int(tokenizer.eos_token_id), []).append("eos")
    for token in generation_eos:
        sources.setdefault(int(token), []).append("generation config")
    if not sources:
        raise InputError(
            "no token ends a turn: the tokenizer has no eos_token and the chat template closes no assistant turn "
            "with a special token; set eos_token in the tokenizer's config, or give model.chat_template"
        )
    return tuple(
        StopToken(token, str(tokenizer.convert_ids_to_tokens(token)), tuple(where)) for token, where in sources.items()
    )


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> tuple[int, ...]:
    """Return the ids with which the template closes an assistant's turn, the last turn's first.

    Probe conversations are rendered: a plain answer last and in the middle, and a tool call.  After an answer
    the first added token counts, with at most white space before it; after a tool call the last.  Tokens that
    stand between a thought and its answer (harmony's ``<|end|>``) end no turn where another one does.
    """
    added = {token: int(index) for token, index in tokenizer.get_added_vocab().items()}
    thinking = _try_render(template, [_QUESTION, {**_ANSWER, **dict.fromkeys(REASONING_FIELDS, "Thought")}])
    between = thinking.partition("Thought")[2].rpartition("Answer")[0]
    inner = {token for token in added if token in between}
    ids: dict[int, None] = {}
    for messages in ([_QUESTION, _ANSWER], [_QUESTION, _ANSWER, _QUESTION]):
        rest = _try_render(template, messages).partition("Answer")[2].lstrip()
        closing = [token for token in added if rest.startswith(token)]
        if inner.intersection(closing):
            outer = [token for token in added if token in rest and token not in inner]
            closing = sorted(outer, key=rest.index)[:1] or ([] if ids else closing)
        ids.update(dict.fromkeys(_longest(added, closing)))
    call = _try_render(template, [_QUESTION, _CALL], ChatOptions(tools=(PROBE_TOOL,))).rstrip()
    if "probe" in call:
        ids.update(dict.fromkeys(_longest(added, [token for token in added if call.endswith(token)])))
    return tuple(ids)


def judge(
    tokenizer: PreTrainedTokenizerBase, stops: Sequence[StopToken], rendered_ids: Sequence[int]
) -> frozenset[str]:
    """Return what is odd about padding, end and first tokens, as the codes that docs/tokens.md explains.

    Args:
        tokenizer: The tokenizer.
        stops: The stop set.
        rendered_ids: Ids of a rendered prompt.
    """
    codes = set()
    pad, bos = tokenizer.pad_token_id, tokenizer.bos_token_id
    if pad is None:
        codes.add("pad-missing")
    elif pad in {stop.id for stop in stops}:
        codes.add("pad-is-stop")
    closing = [stop for stop in stops if "template" in stop.sources]
    if not closing:
        codes.add("end-of-turn-is-text")
    elif any(stop.sources == ("template",) for stop in closing):
        codes.add("eos-is-not-end-of-turn")
    if bos is not None and list(tokenizer.encode("x"))[:1] == [bos]:
        leading = next((i for i, token in enumerate(rendered_ids) if token != bos), len(rendered_ids))
        if leading != 1:
            codes.add("bos-doubled" if leading else "bos-missing")
    return frozenset(codes)


def _try_render(template: ChatTemplate, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> str:
    try:
        return template.render(messages, generation_prompt=False, options=options).text
    except InputError:
        return ""


def _longest(added: dict[str, int], tokens: Sequence[str]) -> list[int]:
    return [added[max(tokens, key=len)]] if tokens else []
