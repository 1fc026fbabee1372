"""Everything between a recipe and the first step: tasks, policy, and the checks that need both."""

from __future__ import annotations

import itertools
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from levelhead.errors import InputError
from levelhead.policy.load import load_checkpoint, load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe import Recipe
from levelhead.recipe.tasks import TaskSection
from levelhead.tasks.base import Task
from levelhead.tasks.registry import make_task

TOKENIZER_ITEMS = 4000
"""Training items of a task whose text the tiny preset's tokenizer learns from."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run works on.

    Attributes:
        recipe: The resolved recipe.
        tasks: By name, in the recipe's order.
        weights: Share of each task, by name.
        policy: The policy.
    """

    recipe: Recipe
    tasks: Mapping[str, Task]
    weights: Mapping[str, float]
    policy: Policy


def make_tasks(recipe: Recipe, given: Mapping[str, Task] | None = None) -> dict[str, Task]:
    """Build the recipe's tasks, in order; ``given`` ones (from Python) are taken as they are."""
    return {name_of(s): (given or {}).get(name_of(s)) or make_task(s) for s in recipe.tasks}


def name_of(section: TaskSection) -> str:
    """Name of a task in metrics and reports."""
    return section.name or str(getattr(section, "kind", "task"))


def prepare(
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    tasks: Mapping[str, Task] | None = None,
    policy: Policy | None = None,
    weights: bool = True,
) -> Setup:
    """Build tasks and policy and check that they fit each other; writes nothing.

    Args:
        recipe: What to build.
        checkpoint: Take the weights from here.
        tasks: Ready tasks by name, instead of building them from their sections.
        policy: A ready policy, instead of the recipe's model.
        weights: Without, the model is built without weights: a dry run.

    Raises:
        InputError: Data, model or checkpoint are missing or do not fit.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    made = make_tasks(recipe, tasks)
    if policy is None:
        if checkpoint is not None:
            policy = load_checkpoint(recipe.model, checkpoint, seed=recipe.seed)
        else:
            texts = _texts(made.values()) if recipe.model.preset else ()
            policy = load_policy(recipe.model, texts=texts, seed=recipe.seed, weights=weights)
    if recipe.grpo is not None:
        policy.disable_dropout()
    _check_lengths(recipe, made, policy)
    shares = {name_of(section): section.weight for section in recipe.tasks}
    return Setup(recipe, made, shares, policy)


def environment() -> dict[str, object]:
    """What a run's numbers depend on, for ``environment.json``."""
    names = ("levelhead", "torch", "transformers", "tokenizers", "peft", "accelerate", "numpy", "pydantic")
    found: dict[str, object] = {name: _version(name) for name in names}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return found | {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _texts(tasks: Iterable[Task]) -> Iterator[str]:
    """The text of training prompts and their perfect answers."""
    for task in tasks:
        for prompt in itertools.islice(task.prompts("train", 0), TOKENIZER_ITEMS):
            yield from (str(message.get("content", "")) for message in prompt.messages)
            yield from task.oracle(prompt) or ()


def _check_lengths(recipe: Recipe, tasks: Mapping[str, Task], policy: Policy) -> None:
    """Refuse prompts that leave no room for a completion, before anything is written."""
    budgets = [recipe.eval.sampling.max_new_tokens]
    if recipe.grpo is not None:
        budgets.append(recipe.grpo.sampling.max_new_tokens)
    room = policy.context - max(budgets)
    for name, task in tasks.items():
        for split in ("train", "eval"):
            prompts = list(task.prompts(split, 0))
            for prompt, length in zip(prompts, _lengths(policy, [p.messages for p in prompts]), strict=True):
                if length > room:
                    raise InputError(
                        f"tasks: {name}: prompt {prompt.id!r} has {length} tokens; with max_new_tokens "
                        f"{max(budgets)} the model's context of {policy.context} leaves room for {room}: shorten the "
                        "item, leave it out, or choose a model with a longer context"
                    )


def _lengths(policy: Policy, chats: Sequence[Sequence[Mapping[str, object]]]) -> list[int]:
    return [len(policy.codec.render(messages)) for messages in chats]
