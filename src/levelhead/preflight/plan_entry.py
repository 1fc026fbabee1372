"""From a recipe and a GPU's size to a plan, and the first setting to change where it does not fit."""

from __future__ import annotations

import itertools
import math
import re

import torch

from levelhead.errors import InputError
from levelhead.policy.device import resolve_device, resolve_dtype
from levelhead.policy.load import load_codec
from levelhead.preflight.memory import capacity
from levelhead.preflight.plan import Plan, Prompts, Target
from levelhead.preflight.plan_change import Change, first_change
from levelhead.preflight.planner import Planner
from levelhead.recipe import Recipe
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec
from levelhead.training.prepare import make_tasks

ASSUMED_PROMPT = 1024
"""Tokens of the longest prompt where the tasks cannot say."""

LOOKED_AT = 256
"""Prompts of a task whose length is looked at."""

BYTES_A_TOKEN = 3
"""Of text, where there is no tokenizer to count with: few enough to err on the side of more tokens."""

_UNITS = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30, "t": 10**12, "ti": 2**40}


def read_size(text: str) -> int:
    """Return the bytes that a size such as ``80GB`` or ``79.6GiB`` names.

    Raises:
        InputError: It names none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)b", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not size:
        raise InputError(f"--gpu: {text!r} is no size of memory; write 80GB or 79.6GiB")
    return size


def make_plan(
    recipe: Recipe, gpu: str | None = None, prompt_tokens: int | None = None, processes: int = 1
) -> tuple[Plan, Change | None]:
    """Plan a recipe's memory from its model's config, and look for the first setting to change where it does not fit.

    Args:
        recipe: What is planned.
        gpu: Memory of the GPU, as ``80GB``; this machine's device unless given.
        prompt_tokens: Length of the longest prompt, where the caller knows better than the tasks.
        processes: That will train; the plan is that of one of them, with a device of its own.

    Raises:
        InputError: The size cannot be read, or the model's config cannot be had.
    """
    target = target_of(recipe.model, gpu)
    planner = Planner(target, longest_prompt(recipe, prompt_tokens), processes)
    try:
        plan = planner.plan(recipe, compare=True)
    except InputError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{reason}; a plan needs a folder with its config.json alone") from None
    return plan, first_change(planner, recipe, plan)


def target_of(section: Model, gpu: str | None = None) -> Target:
    """Return what a recipe is planned for: a GPU of some size, or the device of this machine.

    Raises:
        InputError: The size cannot be read, or ``model.device`` is not there.
    """
    if gpu is not None:
        compute = torch.bfloat16 if section.dtype == "auto" else resolve_dtype(section.dtype, torch.device("cpu"))
        return Target("cuda", compute, read_size(gpu), f"a GPU of {gpu}")
    device = resolve_device(section.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine"
    return Target(device.type, resolve_dtype(section.dtype, device, whole=section.lora is None), capacity(device), name)


def longest_prompt(recipe: Recipe, given: int | None = None) -> Prompts:
    """Return how long the longest prompt is taken to be, and how that is known.

    Tasks that must be played, and those whose data are not there, are taken to fill :data:`ASSUMED_PROMPT` tokens.

    Args:
        recipe: With tasks and tokenizer.
        given: What the caller says.
    """
    if given is not None:
        return Prompts(given, "as given")
    try:
        tasks = list(make_tasks(recipe).values())
    except (InputError, ImportError) as error:
        return Prompts(ASSUMED_PROMPT, f"assumed, for {str(error).splitlines()[0]}")
    if any(task.concurrency is not None for task in tasks):
        return Prompts(ASSUMED_PROMPT, "assumed, for episodes of several turns; --prompt-tokens says it better")
    codec = _codec(recipe.model)
    shown = [prompt for task in tasks for prompt in itertools.islice(task.prompts("train", recipe.seed), LOOKED_AT)]
    if codec is not None:
        return Prompts(
            max(len(codec.render(p.messages, p.chat)) for p in shown), f"the longest of {len(shown)} prompts"
        )
    text = max(sum(len(str(m.get("content", "")).encode()) for m in prompt.messages) for prompt in shown)
    source = f"the longest of {len(shown)} prompts, at {BYTES_A_TOKEN} bytes a token for want of a tokenizer"
    return Prompts(math.ceil(text / BYTES_A_TOKEN), source)


def _codec(section: Model) -> Codec | None:
    """The recipe's codec; ``None`` where its tokenizer is not there, or not trained yet."""
    if section.preset == "tiny":
        return None
    try:
        return load_codec(section)
    except InputError:
        return None
