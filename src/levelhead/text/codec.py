"""The one place where text and token ids meet: messages to ids, ids to text, and which ids end a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import Message
from levelhead.text.stops import end_of_turn_ids
from levelhead.text.template import ChatTemplate


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

    Args:
        tokenizer: A Hugging Face tokenizer.
        chat_template: Jinja source of the chat template, where the tokenizer's own is missing or unwanted; it is
            saved with the tokenizer.
        generation_eos: Further ids that end generation, as the model's generation config lists them.
        template_kwargs: Variables for the template, such as ``enable_thinking``.

    Raises:
        InputError: There is no chat template, it cannot be rendered, or no token ends a turn.
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
        self.end_of_turn_ids = end_of_turn_ids(tokenizer, self.template)
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.stop_ids: frozenset[int] = frozenset([*self.end_of_turn_ids, *eos, *generation_eos])
        if not self.stop_ids:
            raise InputError(
                "no token ends a turn: the tokenizer has no eos_token and the chat template closes no assistant turn "
                "with a special token; set eos_token in the tokenizer's config, or give model.chat_template"
            )
        self.stop_id: int = (*self.end_of_turn_ids, *eos, *generation_eos)[0]

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

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids that the policy sees before it writes: the messages and the generation prompt."""
        return tuple(self._encode(self.template.render(messages, generation_prompt=True)))

    def demonstration(self, messages: Sequence[Message], answer: str) -> Demonstration:
        """Return the training pair of ``answer`` as the assistant's reply to ``messages``.

        The context is :meth:`render` of the messages.  The completion is the answer as the template puts it
        after the generation prompt, up to and with the first stop token.

        Raises:
            ValueError: The answer itself contains a stop token.
        """
        prompt = self.template.render(messages, generation_prompt=True)
        context = self._encode(prompt)
        reply = self._reply_text(messages, answer, prompt)
        joint = self._encode(prompt + reply)
        ids = joint[len(context) :] if joint[: len(context)] == context else self._encode(reply)
        found = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        completion = [*ids, self.stop_id] if found is None else ids[: found + 1]
        return Demonstration(tuple(context), tuple(completion))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a completion, without stop tokens and other special tokens."""
        kept = [int(token) for token in ids if token not in self.stop_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer, chat template included, as ``AutoTokenizer.from_pretrained`` reads it."""
        self.tokenizer.save_pretrained(str(folder))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _reply_text(self, messages: Sequence[Message], answer: str, prompt: str) -> str:
        full = self.template.render([*messages, {"role": "assistant", "content": answer}], generation_prompt=False)
        reply = full.removeprefix(prompt)
        if len(reply) < len(full) and "".join(answer.split()) in "".join(reply.split()):
            return reply
        return answer
