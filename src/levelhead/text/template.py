"""Chat templates: messages to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import Message


def read_chat_template(path: str | Path) -> str:
    """Return the Jinja source in a file.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"model.chat_template: cannot read {path}: {error}") from error


class ChatTemplate:
    """A tokenizer's chat template with the variables it is rendered with.

    Args:
        tokenizer: Holds the template and the special tokens that it names.
        variables: Further variables, such as ``enable_thinking``.

    Raises:
        InputError: The tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> None:
        if not tokenizer.chat_template:
            raise InputError(
                f"the tokenizer {tokenizer.name_or_path or 'given'} has no chat template; "
                "put one into a Jinja file and set model.chat_template: FILE"
            )
        self._tokenizer = tokenizer
        self._variables = dict(variables)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """Return the messages as one text, with or without the header of the assistant's next turn.

        Raises:
            InputError: The template refuses these messages.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except TemplateError as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise InputError(f"the chat template refuses messages with the roles {roles}: {error}") from error
        return str(text)
