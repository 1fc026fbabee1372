"""The one place where text and token ids meet: messages to ids, ids to text, and which ids end a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import Message
from levelhead.text import fingerprint
from levelhead.text.rendered import Rendered
from levelhead.text.spans import locate
from levelhead.text.stops import Judgement, judge, stop_tokens
from levelhead.text.template import ChatTemplate, Tool

_OF_THE_LOADING = ("is_local", "local_files_only")
"""What transformers notes in a tokenizer of how it was loaded; saved, it would tell a resumed run's from the others."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training pair: what the policy sees, and what it should write.

    Attributes:
        context_ids: Ids of the rendered messages, generation prompt included.
        completion_ids: Ids of the answer, ending with exactly one stop token.
    """

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class Codec:
    """Messages to token ids and back, the same way for demonstrations and for rollouts.

    Only the template writes control tokens: one that a message's own text spells out is encoded as text.

    Args:
        tokenizer: A Hugging Face tokenizer.
        chat_template: Jinja source of the chat template, where the tokenizer's own is missing or unwanted; it is
            saved with the tokenizer.
        generation_eos: Further ids that end generation, as the model's generation config lists them.
        template_kwargs: Variables for the template, such as ``enable_thinking``.

    Attributes:
        tokenizer: The tokenizer.
        template: Its chat template.
        stops: The stop set with the source of each token, the one that closes an ordinary turn first.
        stop_ids: Ids of the stop set.
        stop_id: The one that demonstrations end with where the template closes a turn with none.

    Raises:
        InputError: There is no chat template, or no token ends a turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: str | None = None,
        generation_eos: Sequence[int] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_kwargs or {})
        self._encoder = Encoder(tokenizer)
        self.stops = stop_tokens(tokenizer, self.template, generation_eos)
        self.stop_ids: frozenset[int] = frozenset(stop.id for stop in self.stops)
        self.stop_id: int = self.stops[0].id

    @property
    def pad_id(self) -> int:
        """The padding token, or the stop token where the tokenizer has none."""
        pad = self.tokenizer.pad_token_id
        return self.stop_id if pad is None else int(pad)

    @property
    def pad_collides(self) -> bool:
        """Whether the padding token is also a stop token, so that padding cannot be told from an ending."""
        return self.pad_id in self.stop_ids

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows, added tokens included."""
        return len(self.tokenizer)

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """What is wrong, or merely worth knowing, about stop, padding and first tokens."""
        return judge(self.tokenizer, self.stops, self.render([{"role": "user", "content": "Question"}]))

    def render(self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None) -> tuple[int, ...]:
        """Return the ids that the policy sees before it writes: the messages and the generation prompt.

        Raises:
            InputError: The template refuses the messages.
        """
        return tuple(self._encoder.encode(self.template.render(messages, generation_prompt=True, tools=tools)))

    def demonstration(
        self, messages: Sequence[Message], answer: str | Message, *, tools: Sequence[Tool] | None = None
    ) -> Demonstration:
        """Return the training pair of ``answer`` as the assistant's reply to ``messages``.

        The context is :meth:`render` of the messages.  The completion is the answer as the template puts it
        after the generation prompt, up to and with the first stop token.  Where the template would leave out
        part of the answer (its reasoning, say), the completion is the whole answer and the stop token.

        Args:
            messages: What the policy sees.
            answer: Its text, or an assistant message that may hold tool calls.
            tools: Tools that the template shows to the policy.

        Raises:
            InputError: The template refuses the messages, or cannot put the answer's tool calls after its own
                generation prompt.
        """
        message: Message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        prompt = self.template.render(messages, generation_prompt=True, tools=tools)
        context = self._encoder.encode(prompt)
        reply = self._reply(messages, message, prompt, tools)
        joint = self._encoder.encode(prompt.followed_by(reply))
        ids = joint[len(context) :] if joint[: len(context)] == context else self._encoder.encode(reply, continues=True)
        stop_index = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        completion = [*ids, self.stop_id] if stop_index is None else ids[: stop_index + 1]
        return Demonstration(tuple(context), tuple(completion))

    def demonstrations(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None
    ) -> tuple[Demonstration, ...]:
        """Return one training pair for each assistant message of a conversation.

        Each turn's context is rendered as it was when the turn was written.  A template that drops or rewrites
        earlier turns (reasoning models) therefore shows each turn what that turn really saw.

        Raises:
            InputError: The conversation begins with an assistant message, or the template refuses it.
        """
        return tuple(
            self.demonstration(messages[:index], message, tools=tools)
            for index, message in enumerate(messages)
            if message.get("role") == "assistant"
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a completion, without stop tokens and other special tokens."""
        text_ids = [int(token) for token in ids if token not in self.stop_ids]
        return str(self.tokenizer.decode(text_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer, chat template included, as ``AutoTokenizer.from_pretrained`` reads it.

        A fingerprint is written beside it (:mod:`levelhead.text.fingerprint`).
        """
        for name in _OF_THE_LOADING:
            self.tokenizer.init_kwargs.pop(name, None)
        self.tokenizer.save_pretrained(str(folder))
        fingerprint.write(self, Path(folder))

    def _reply(
        self, messages: Sequence[Message], answer: Message, prompt: Rendered, tools: Sequence[Tool] | None
    ) -> Rendered:
        """Return what the policy should write after ``prompt``, and what the template puts behind it."""
        whole = [*messages, answer]
        full = self.template.render(whole, generation_prompt=False, tools=tools)
        content = answer.get("content")
        content = content if isinstance(content, str) else ""
        if full.text.startswith(prompt.text):
            reply = full.after(len(prompt.text))
            if _squeezed(content) in _squeezed(reply.text) and all(name in reply.text for name in _called(answer)):
                return reply
        if _called(answer):
            raise InputError(
                "the chat template leaves an assistant's tool call out, or does not put it after its own generation "
                "prompt; give a template for tools with model.chat_template: FILE"
            )

        def text_of(chat: Sequence[Message]) -> str:
            return self.template.render(chat, generation_prompt=False, tools=tools).text

        place = locate(whole, full.text, text_of)
        if place is not None and _squeezed(full.text[slice(*place)]) == _squeezed(content):
            return full.after(place[0])
        return self.template.spelled_out(content)


def _called(message: Message) -> list[str]:
    """Return the names of the functions that an assistant message calls."""
    return [str(call.get("function", call).get("name")) for call in message.get("tool_calls") or ()]


def _squeezed(text: str) -> str:
    """Return a text without its white space."""
    return "".join(text.split())


_HALF = re.compile("[\ud800-\udfff]")


class Encoder:
    """Encodes rendered text with a tokenizer; adds no token of its own, and lets none reach across a cut.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, rendered: Rendered, *, continues: bool = False) -> list[int]:
        """Return the ids of a text; ``continues`` says that other text comes before it."""
        ids: list[int] = []
        for start, piece in rendered.pieces():
            lead, dropped = self._lead(piece) if start or continues else ("", 0)
            ids += self._ids(lead + piece)[dropped:]
        return ids

    def _ids(self, text: str) -> list[int]:
        _refuse_halves(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _lead(self, text: str) -> tuple[str, int]:
        """Return what to encode before a text that is not the first of its sequence, and its number of tokens.

        Tokenizers of the SentencePiece kind put a space before the first word that they are given; behind a
        line break they do not.  Where the two would grow together, the text is encoded as it is.
        """
        line_break = self._ids("\n")
        count = len(line_break)
        return ("\n", count) if self._ids("\n" + text)[:count] == line_break else ("", 0)


def _refuse_halves(text: str) -> None:
    """Refuse half of a surrogate pair: JSON can spell it, and no tokenizer can encode it."""
    half = None if text.isascii() else _HALF.search(text)
    if half is not None:
        before = text[max(0, half.start() - 40) : half.start()]
        raise InputError(
            f"a text holds half of a surrogate pair (\\u{ord(half.group()):04x}) behind {before!r}, which no tokenizer "
            "can encode; repair the data"
        )
