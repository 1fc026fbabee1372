"""The one place where text and token ids meet: messages to ids, ids to text, and which ids end a turn."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import PLAIN_CHAT, ChatMessage, ChatOptions
from levelhead.text import fingerprint, thoughts
from levelhead.text.rendered import Rendered
from levelhead.text.spans import locate
from levelhead.text.stops import judge, stop_tokens
from levelhead.text.template import ChatTemplate
from levelhead.text.thoughts import Thought

_QUESTION: ChatMessage = {"role": "user", "content": "Question"}
_HELD = 512
"""Prompts whose rendering is held."""
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
        self._prompts: dict[str, tuple[Rendered, tuple[int, ...]]] = {}
        self.stops = stop_tokens(tokenizer, self.template, generation_eos)
        self.stop_ids: frozenset[int] = frozenset(stop.id for stop in self.stops)
        self.stop_id: int = self.stops[0].id
        self._refuse_deaf()

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

    def _refuse_deaf(self) -> None:
        """Refuse a template that leaves the text of a message out: those of vision models may want a list of parts."""
        try:
            text = self.template.render([_QUESTION], generation_prompt=True).text
        except InputError:
            return  # said of the messages that it refuses
        if _QUESTION["content"] not in text:
            raise InputError(
                "the chat template leaves the text of a message out (it may want a list of parts, as those of vision "
                "models do); give one for text with model.chat_template: FILE"
            )

    @cached_property
    def judgements(self) -> frozenset[str]:
        """Codes of what is odd about stop, padding and first tokens, as docs/tokens.md explains them."""
        return judge(self.tokenizer, self.stops, self.render([_QUESTION]))

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        """Return the ids that the policy sees before it writes: the messages and the generation prompt.

        Raises:
            InputError: The template refuses the messages.
        """
        return self._prompt(messages, options)[1]

    def _prompt(self, messages: Sequence[ChatMessage], options: ChatOptions) -> tuple[Rendered, tuple[int, ...]]:
        """Return a prompt's text and ids; the latest are held, for checks put many answers to the same prompts."""
        key = repr((messages, options))
        prompt = self._prompts.get(key)
        if prompt is None:
            rendered = self.template.render(messages, generation_prompt=True, options=options)
            prompt = rendered, tuple(self._encoder.encode(rendered))
            if len(self._prompts) >= _HELD:
                self._prompts.clear()
            self._prompts[key] = prompt
        return prompt

    def demonstration(
        self, messages: Sequence[ChatMessage], answer: str | ChatMessage, options: ChatOptions = PLAIN_CHAT
    ) -> Demonstration:
        """Return the training pair of ``answer`` as the assistant's reply to ``messages``.

        The context is :meth:`render` of the messages.  The completion is what follows the generation prompt in the
        rendered conversation, up to and with the first stop token.  A thought that the prompt opens is not opened
        again, whether the answer spells its tag or goes on behind it.  Where the template leaves part of the answer
        out (its thought, say), the completion is the answer in full, in the place where the template puts the rest;
        an answer without a thought closes one that the prompt opens.  An empty answer is the stop token alone.

        Args:
            messages: What the policy sees.
            answer: Its text, or an assistant message that may hold tool calls.
            options: What the rendering depends on besides the messages.

        Raises:
            InputError: The template refuses the messages, or cannot put the answer's tool calls or reasoning after
                its own generation prompt.
        """
        message: ChatMessage = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        prompt, context = self._prompt(messages, options)
        reply = self._reply(messages, message, prompt, options)
        joint = self._encoder.encode(prompt.followed_by(reply))
        ids = (
            joint[len(context) :]
            if tuple(joint[: len(context)]) == context
            else self._encoder.encode(reply, continues=True)
        )
        stop_index = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        completion = [*ids, self.stop_id] if stop_index is None else ids[: stop_index + 1]
        text = thoughts.plain_answer(message, thoughts.opened_by(prompt.text))
        if text not in thoughts.squeezed(self.decode(completion)) and text in thoughts.squeezed(self.decode(ids)):
            stop = self.tokenizer.convert_ids_to_tokens(completion[-1])
            raise InputError(
                f"the chat template writes {stop} between its generation prompt and an answer, and {stop} ends "
                "completions: no answer could be sampled; give another template with model.chat_template: FILE"
            )
        if answer == "" and self.decode(completion).strip():  # a thought that a template closes is no empty answer
            completion = [self.stop_id]
        return Demonstration(context, tuple(completion))

    def demonstrations(
        self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN_CHAT
    ) -> tuple[Demonstration, ...]:
        """Return one training pair for each assistant message of a conversation.

        Each turn's context is rendered as it was when the turn was written.  A template that drops or rewrites
        earlier turns (reasoning models) therefore shows each turn what that turn really saw.

        Raises:
            InputError: The conversation begins with an assistant message, or the template refuses it.
        """
        return tuple(
            self.demonstration(messages[:index], message, options)
            for index, message in enumerate(messages)
            if message.get("role") == "assistant"
        )

    def decode(self, ids: Sequence[int], options: ChatOptions = PLAIN_CHAT) -> str:
        """Return the text of a completion, without stop tokens and special tokens but those that count as text."""
        dropped = self.stop_ids
        if options.special_tokens:
            vocabulary = self.tokenizer.get_vocab()
            dropped |= self._special_ids - {vocabulary[token] for token in options.special_tokens}
        text_ids = [int(token) for token in ids if token not in dropped]
        skip = not options.special_tokens
        return str(self.tokenizer.decode(text_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """Ids of all tokens that decoding leaves out."""
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset(self.tokenizer.all_special_ids) | {index for index, token in added if token.special}

    def refuse_special(self, tokens: Sequence[str], where: str) -> None:
        """Refuse tokens that cannot count as text.

        Args:
            tokens: As :attr:`~levelhead.records.ChatOptions.special_tokens` lists them.
            where: Begins the error: the recipe's key.

        Raises:
            InputError: One is no special token of the tokenizer, or ends a turn.
        """
        spellings = self.template.special_tokens
        for token in tokens:
            if token not in spellings:
                near = ", ".join(difflib.get_close_matches(token, spellings, cutoff=0.3)) or "none is near"
                raise InputError(f"{where}: {token!r} is no special token of the tokenizer ({near})")
            if self.tokenizer.convert_tokens_to_ids(token) in self.stop_ids:
                raise InputError(f"{where}: {token!r} ends a completion and cannot count as text")

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer, chat template included, as ``AutoTokenizer.from_pretrained`` reads it.

        A fingerprint is written beside it (:mod:`levelhead.text.fingerprint`).
        """
        for name in _OF_THE_LOADING:
            self.tokenizer.init_kwargs.pop(name, None)
        self.tokenizer.save_pretrained(str(folder))
        fingerprint.write(self, Path(folder))

    def _reply(
        self, messages: Sequence[ChatMessage], answer: ChatMessage, prompt: Rendered, options: ChatOptions
    ) -> Rendered:
        """Return what the policy should write after ``prompt``, and what the template puts behind it."""
        mark = thoughts.opened_by(prompt.text)
        for message in thoughts.spellings(answer, mark):
            full = self.template.render([*messages, message], generation_prompt=False, options=options)
            reply = _behind(prompt, full, mark)
            if reply is not None and thoughts.goes_on(reply.text, answer, mark):
                return reply
        held = [name for name in ("tool_calls", *thoughts.REASONING_FIELDS) if answer.get(name)]
        if held:
            what = "tool call" if held[0] == "tool_calls" else held[0]
            raise InputError(
                f"the chat template leaves an assistant's {what} out, or does not put it after its own generation "
                "prompt; give another template with model.chat_template: FILE"
            )
        return self._pieced_together(messages, answer, prompt, options)

    def _pieced_together(
        self, messages: Sequence[ChatMessage], answer: ChatMessage, prompt: Rendered, options: ChatOptions
    ) -> Rendered:
        """Return an answer that no rendering holds whole: its thought, then the rest as the template writes that."""
        mark = thoughts.opened_by(prompt.text)
        content = answer.get("content")
        parts = thoughts.take_apart(content if isinstance(content, str) else "", mark)
        opened, rest = mark.start is not None, parts.rest
        if opened and parts.opens and parts.thought is None:
            return self.template.spelled_out(parts.body, options)
        lead = Rendered(mark.empty if opened else "")
        if parts.thought is not None:
            spoken = parts.body if opened else str(content)
            lead = self.template.spelled_out(spoken[: len(spoken) - len(rest)], options)
        whole = [*messages, {**answer, "content": rest}]

        def text_of(chat: Sequence[ChatMessage]) -> str:
            return self.template.render(chat, generation_prompt=False, options=options).text

        full = self.template.render(whole, generation_prompt=False, options=options)
        bare = prompt.text[: mark.start]
        if opened and full.text.startswith(bare):
            tail = full.after(len(bare))
            if thoughts.squeezed(rest) in thoughts.squeezed(tail.text):
                return lead.followed_by(tail)
        place = locate(whole, full.text, text_of)
        if place is not None and thoughts.squeezed(full.text[slice(*place)]) == thoughts.squeezed(rest):
            return lead.followed_by(full.after(place[0]))
        return lead.followed_by(self.template.spelled_out(rest, options))


def _behind(prompt: Rendered, full: Rendered, mark: Thought) -> Rendered | None:
    """Return what follows the prompt in a rendered conversation; ``None`` where it does not begin with the prompt.

    White space behind the tag of a thought that the prompt opens does not count, nor whether a thought that holds
    nothing is opened before it is closed.
    """
    if full.text.startswith(prompt.text):
        return full.after(len(prompt.text))
    if mark.start is None or not full.text.startswith(prompt.text[: mark.start]):
        return None
    tag, closer = re.escape(mark.tag), re.escape(mark.closer)
    match = re.compile(rf"{tag}\s*|(?={closer})").match(full.text, mark.start)
    return None if match is None else full.after(match.end())


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
