"""What a recipe must know of a model, and what it must say so that the run fits the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError, first_line
from levelhead.recipe import Recipe
from levelhead.records import PLAIN_CHAT
from levelhead.tasks.function.examples import Example

if TYPE_CHECKING:
    from levelhead.text.codec import Codec

PRESETS = ("base-tiny",)
"""Models that ship with the package."""
TEMPLATE = """\
{%- for message in messages -%}
{{- message['role'] | capitalize + ': ' + message['content'] + (eos_token if message['role'] == 'assistant' else '')
    + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}
"""
"""A chat template for a base model, which has none: roles in words, an answer ends with the tokenizer's end token."""
_ROOM, _SHORTEST, _STEP, _LEAST = 256, 64, 32, 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model and the texts in its tokens.

    Attributes:
        template: Whether its tokenizer has a chat template.
        context: Longest sequence, in tokens; ``None`` where the model does not say.
        longest_prompt: Tokens of the longest prompt that has room, rendered.
        room: Tokens that an answer is given.
        overlong: Prompts that have no room in the context.
        tools: Whether the template shows tools.
        note: Why nothing is known, where that is so.
    """

    template: bool = True
    context: int | None = None
    longest_prompt: int | None = None
    room: int = _ROOM
    overlong: int = 0
    tools: bool = True
    note: str = ""


def look_at(model: str, examples: Sequence[Example], answers: Sequence[str]) -> ModelFacts:
    """Load a model's tokenizer and config, not its weights, and measure prompts and answers.

    Args:
        model: Preset, folder, or name on the hub.
        examples: The rows.
        answers: Some right answers; none where there are none.

    Raises:
        InputError: A folder holds no model, its chat template refuses a prompt, or most prompts do not fit its context.
    """
    if model.startswith(("/", "./", "../", "~")) and not Path(model).expanduser().is_dir():
        raise InputError(f"--model {model}: no such folder (seen from {Path.cwd()})")
    try:
        from transformers import AutoConfig, AutoTokenizer

        from levelhead.policy import hub
        from levelhead.text.codec import Codec
    except ImportError:
        return ModelFacts(note="transformers is not installed, so the model was not looked at")
    source = preset_folder(model)
    try:
        tokenizer: Any = hub.load("--model", source, lambda: AutoTokenizer.from_pretrained(source))
        config: Any = hub.load("--model", source, lambda: AutoConfig.from_pretrained(source))
    except InputError as error:
        if Path(source).expanduser().is_dir():
            raise
        return ModelFacts(note=first_line(error).removeprefix("--model: "))
    has_template = bool(tokenizer.chat_template)
    codec = Codec(tokenizer, chat_template=None if has_template else TEMPLATE)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    room = _room(sorted(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in answers))
    tools = _shows_tools(codec, examples)
    lengths = [len(codec.render(example.messages, example.chat if tools else PLAIN_CHAT)) for example in examples]
    longest = max(lengths)
    if context is None or longest + room <= context:
        return ModelFacts(has_template, context, longest, room, tools=tools)
    if longest + _LEAST <= context:
        return ModelFacts(has_template, context, longest, context - longest, tools=tools)
    fitting = [length for length in lengths if length + room <= context]
    if 2 * len(fitting) < len(lengths):
        raise InputError(
            f"--model {model}: its context is {context:,} tokens, and the longest prompt takes {longest:,}; "
            "leave out long rows, or take a model with a longer context"
        )
    return ModelFacts(has_template, context, max(fitting), room, len(lengths) - len(fitting), tools)


def preset_folder(model: str) -> str:
    """Return where a model is loaded from: the package's own folder for a preset."""
    if model not in PRESETS:
        return model
    from levelhead.recipe.model import Model

    return str(Model.model_validate({"preset": model}).source)


def _shows_tools(codec: Codec, examples: Sequence[Example]) -> bool:
    """Whether the template shows the tools of the rows, as far as they have any."""
    example = next((example for example in examples if example.chat.tools), None)
    if example is None:
        return True
    try:
        codec.render(example.messages, example.chat)
    except InputError:
        codec.render(example.messages)  # what is wrong with the messages themselves is said
        return False
    return True


def _room(lengths: Sequence[int]) -> int:
    """Twice what 19 of 20 right answers need, in steps of 32: an answer that is cut gets no reward."""
    if not lengths:
        return _ROOM
    usual = statistics.quantiles(lengths, n=20)[-1] if len(lengths) > 1 else lengths[0]
    return max(_SHORTEST, -(-2 * round(usual) // _STEP) * _STEP)


LARGE = 1_000_000_000
"""Weights above which an adapter is trained even where all weights would fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings that make a run fit.

    Attributes:
        settings: Dotted keys of the recipe and their values.
        note: What was planned, in a line; empty where nothing was.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def under(self, prefix: str) -> dict[str, Any]:
        """Return the settings of one section, by their last name."""
        keys = {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}
        return {key: value for key, value in keys.items() if "." not in key}


def fit(recipe: Recipe, gpu: str | None, longest_prompt: int | None) -> Fit:
    """Plan a recipe's memory from the config of its model, without weights, and look for settings with which it fits.

    Args:
        recipe: As it would be written.
        gpu: Memory of the GPU that will train, as ``24GB``; this machine's device unless given.
        longest_prompt: Of the data, in tokens.

    Raises:
        InputError: ``gpu`` is no size.
    """
    try:
        import torch

        from levelhead.policy.load import load_shape
        from levelhead.preflight.memory_plan import read_size
        from levelhead.preflight.plan_change import ADAPTER, changed, make_plan
    except ImportError:
        return Fit(note="not planned: torch is not installed")
    if gpu is not None:
        read_size(gpu)
    try:
        weights = sum(p.numel() for p in load_shape(recipe.model, "cpu", torch.float32).parameters())
        settings: dict[str, Any] = {"model.lora": ADAPTER} if weights > LARGE else {}
        plan, change = make_plan(changed(recipe, settings), gpu, longest_prompt)
    except InputError as error:
        return Fit(note=f"not planned: {first_line(error)}")
    total, fits = plan.total, plan.fits
    if change is not None:
        settings, total, fits = {**settings, **change.settings}, change.total, change.fits
    room = "an unknown amount" if plan.target.room is None else f"{plan.target.room / 2**30:.1f} GiB"
    word = "does not fit: " if fits is False else ""
    return Fit(settings, f"{word}{total / 2**30:.1f} GiB of {room} ({plan.target.name})")
