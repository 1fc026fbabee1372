"""Chat templates: messages to text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.records import PLAIN_CHAT, ChatMessage, ChatOptions
from levelhead.text.rendered import ControlTokens, Rendered, plain

# Templates that print today's date print this one (the default of Llama 3's): a run has the same tokens tomorrow.
FIXED_DATE = date(2024, 7, 26)

_CLOCK = re.compile(r"strftime_now\(\s*(?P<quote>['\"])(?P<format>.*?)(?P=quote)\s*\)")


def read_chat_template(path: str | Path) -> str:
    """Return the Jinja source in a file.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"model.chat_template: cannot read {path}: {reason}") from error


class ChatTemplate:
    """A tokenizer's chat template with the variables it is rendered with.

    Control tokens that stand in a message's own text are marked, so that they are encoded as text; only the
    template writes control tokens.  The clock is stopped at :data:`FIXED_DATE`.

    Args:
        tokenizer: Holds the template and the special tokens that it names.
        variables: Further variables, such as ``enable_thinking`` or ``date_string``.

    Attributes:
        variables: Likewise.

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
        self.variables = dict(variables)
        self._controls = ControlTokens.of(tokenizer)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokens that only the template may write, as the tokenizer spells them."""
        return self._controls.spellings

    @property
    def reads_the_clock(self) -> bool:
        """Whether the template asks for today's date, and is given :data:`FIXED_DATE`."""
        templates = self._tokenizer.chat_template
        return "strftime_now" in "".join(templates.values() if isinstance(templates, dict) else [str(templates)])

    def control_tokens_in(
        self, messages: Sequence[ChatMessage | str], options: ChatOptions = PLAIN_CHAT
    ) -> tuple[str, ...]:
        """Return the control tokens that the messages' own text spells out as characters, each once, in order."""
        return self._controls.but(options.special_tokens).found_in([plain(message) for message in messages])

    def spelled_out(self, text: str, options: ChatOptions = PLAIN_CHAT) -> Rendered:
        """Return a text as it is, its control tokens marked like those in messages."""
        return self._controls.but(options.special_tokens).render(lambda chat, _: str(chat[0]), [text], None)

    def render(
        self, messages: Sequence[ChatMessage], *, generation_prompt: bool, options: ChatOptions = PLAIN_CHAT
    ) -> Rendered:
        """Return the messages as one text, with or without the header of the assistant's next turn.

        Raises:
            InputError: There are no messages, the template refuses these, or it leaves the tools out.
        """
        if not messages:
            raise InputError("a chat needs at least one message before the assistant writes")
        tools = [plain(tool) for tool in options.tools] or None
        source = self._source(tools is not None)

        def apply(marked_chat: Any, marked_tools: Any) -> str:
            text = self._tokenizer.apply_chat_template(
                marked_chat,
                tools=marked_tools,
                chat_template=source,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **{**self.variables, **options.template_kwargs},
            )
            return str(text)

        controls = self._controls.but(options.special_tokens)
        try:
            rendered = controls.render(apply, [_normalised(message) for message in messages], tools)
        except TemplateSyntaxError as error:
            raise InputError(f"model.chat_template: not valid Jinja, line {error.lineno}: {error.message}") from error
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise InputError(f"the chat template refuses messages with the roles {roles}: {error}") from error
        without = self._without_tools(messages, options) if options.tools else ""
        for tool in options.tools:
            name = str(tool.get("function", tool).get("name"))
            if rendered.text.count(name) <= without.count(name):
                raise InputError(
                    f"the chat template does not show the tool {name!r} to the policy; "
                    "give a template for tools with model.chat_template: FILE"
                )
        return rendered

    def _without_tools(self, messages: Sequence[ChatMessage], options: ChatOptions) -> str:
        """Return the same messages rendered without tools; nothing where they cannot be."""
        try:
            bare = replace(options, tools=())
            return self.render(messages, generation_prompt=False, options=bare).text
        except InputError:
            return ""

    def _source(self, tools: bool) -> str:
        """Return the Jinja source for a chat with or without tools, its clock stopped."""
        templates = self._tokenizer.chat_template
        if isinstance(templates, dict):
            wanted = "tool_use" if tools and "tool_use" in templates else "default"
            if wanted not in templates:
                raise InputError(
                    f"the tokenizer has chat templates {sorted(templates)} and none called default; "
                    "put the wanted one into a Jinja file and set model.chat_template: FILE"
                )
            templates = templates[wanted]
        return _CLOCK.sub(lambda call: json.dumps(FIXED_DATE.strftime(call["format"])), str(templates))


def _normalised(message: ChatMessage) -> dict[str, Any]:
    """Return the message as plain dicts and lists, absent fields left out, tool arguments as an object."""
    chat_message: dict[str, Any] = {key: value for key, value in plain(message).items() if value is not None}
    for call in chat_message.get("tool_calls", ()):
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            # The OpenAI API gives arguments as a string; templates dump an object, and would quote a string twice.
            try:
                parsed = json.loads(arguments)
            except json.JSONDecodeError:
                continue
            if isinstance(parsed, dict):
                function["arguments"] = parsed
    return chat_message
