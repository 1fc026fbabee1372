"""Everything between a recipe and the first step: tasks, policy, and the checks that need both."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import platform
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from levelhead.errors import InputError
from levelhead.policy import four_bit
from levelhead.policy.load import Load, load_checkpoint, load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe import Recipe
from levelhead.recipe.model import Model
from levelhead.recipe.objective import make_task_weights
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import Event
from levelhead.tasks.base import Task
from levelhead.tasks.registry import make_task
from levelhead.training.advantages import AdvantageEstimator, balanced_tasks, declared_rewards, make_shapers
from levelhead.training.coefficients import check_task_weights, facts_of
from levelhead.training.demonstrations import Demonstrations
from levelhead.training.lengths import Overlong, fit_prompts
from levelhead.training.loop import EventLoop
from levelhead.training.objective import Objective
from levelhead.training.trackers import check_trackers

TOKENIZER_ITEMS = 4000
"""Training items of a task whose text the tiny preset's tokenizer learns from."""
TOKENIZER_EPISODES = 200
"""Episodes of a task that must be played, for the same."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run works on.

    Attributes:
        recipe: The resolved recipe.
        tasks: By name, in the recipe's order.
        weights: Share of each task, by name.
        policy: The policy.
        overlong: What became of prompts without room in the context, by task; tasks without any are not there.
    """

    recipe: Recipe
    tasks: Mapping[str, Task]
    weights: Mapping[str, float]
    policy: Policy
    overlong: Mapping[str, Overlong] = field(default_factory=dict)

    def events(self) -> list[Event]:
        """Return what is to be told of how the data were made to fit, as events of step 0."""
        return [counts.event(name) for name, counts in self.overlong.items()]


def make_tasks(recipe: Recipe, given: Mapping[str, Task] | None = None) -> dict[str, Task]:
    """Build the recipe's tasks, in order; ``given`` ones (from Python) are taken as they are."""
    return {s.title: (given or {}).get(s.title) or make_task(s) for s in recipe.tasks}


def check_attention(section: Model) -> None:
    """Check that the attention that a recipe asks for can be had here, before anything is loaded.

    Raises:
        InputError: It asks for flash attention, whose package is not installed or whose device is not there.
    """
    if section.attention != "flash_attention_2":
        return
    if importlib.util.find_spec("flash_attn") is None:
        raise InputError(
            "model.attention: flash_attention_2 needs the package flash_attn, which is not installed; "
            "pip install flash-attn, or set model.attention to sdpa"
        )
    if section.device == "cpu" or not torch.cuda.is_available():
        raise InputError(
            "model.attention: flash_attention_2 needs a CUDA device, and there is none; set model.attention to sdpa"
        )


def check_merging(recipe: Recipe) -> None:
    """Check that the solver that a recipe's merging needs is installed, before anything is loaded.

    Raises:
        InputError: Three tasks or more are merged by a rule whose solver is not installed.
    """
    if recipe.grpo is None or len(recipe.tasks) < 3:
        return
    merge = recipe.grpo.merge
    for aggregator in (merge.make(), *([merge.make_switch()] if merge.switch_after else [])):
        try:
            aggregator.require_solver()
        except ImportError as error:
            raise InputError(f"grpo.merge: {error}") from error


def check_optimizers(recipe: Recipe) -> None:
    """Check that what a stage's optimizer needs is installed, before anything is loaded.

    Raises:
        InputError: Its moments are held in 8 bits, and bitsandbytes is not installed.
    """
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None and section.optimizer.in_eight_bits:
            four_bit.require(f"{stage}.optimizer.kind: {section.optimizer.kind}")


def with_steps(recipe: Recipe, tasks: Mapping[str, Task]) -> Recipe:
    """Return a recipe whose stages have the steps that their ``data_epochs`` come to on the tasks' training prompts.

    A stage of E passes over N prompts, P of them a step, has ceil(E N / P) steps.
    """
    stages = {"sft": recipe.sft, "grpo": recipe.grpo}
    if not any(stage is not None and stage.data_epochs is not None for stage in stages.values()):
        return recipe
    prompts = sum(sum(1 for _ in task.prompts("train", recipe.seed)) for task in tasks.values())
    lasting: dict[str, Sft | Grpo] = {}
    for name, stage in stages.items():
        if stage is not None and stage.data_epochs is not None:
            each = stage.batch_size // stage.group_size if isinstance(stage, Grpo) else stage.batch_size
            lasting[name] = stage.lasting(max(1, math.ceil(stage.data_epochs * prompts / each)))
    return recipe.model_copy(update=lasting)


def prepare(
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    tasks: Mapping[str, Task] | None = None,
    policy: Policy | None = None,
    load: Load = "whole",
    share: Recipe | None = None,
) -> Setup:
    """Build tasks and policy and check that they fit each other; writes nothing.

    Args:
        recipe: What to build.
        checkpoint: Take the weights from here.
        tasks: Ready tasks by name, instead of building them from their sections.
        policy: A ready policy, instead of the recipe's model.
        load: Where the policy's weights go; ``shape`` is a dry run, or the part of a process that is handed its pieces.
        share: The recipe as this process of several carries it out; its tasks are built.

    Raises:
        InputError: Data, model, checkpoint or a package are missing or do not fit.
    """
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    check_trackers(recipe)
    check_attention(recipe.model)
    check_merging(recipe)
    check_optimizers(recipe)
    check_objective(recipe)
    ready = make_tasks(share or recipe, tasks)
    balanced_tasks(recipe.tasks, ready)
    if recipe.grpo is not None:
        shares = {section.title: section.weight for section in recipe.tasks}
        check_task_weights(make_task_weights(recipe.grpo.task_weights), facts_of(shares, ready))
    if policy is None and checkpoint is not None:
        policy = load_checkpoint(recipe.model, checkpoint, seed=recipe.seed, load=load)
    elif policy is None:
        policy = _new_policy(recipe, ready, load)
    if recipe.grpo is not None:
        policy.disable_dropout()
    overlong = fit_prompts(recipe, ready, policy)
    recipe = with_steps(recipe, ready)
    shares = {section.title: section.weight for section in recipe.tasks}
    return Setup(recipe, ready, shares, policy, overlong)


def reloaded(setup: Setup, load: Load) -> Setup:
    """Return a new run's setup with its policy as it is before any use; the weights of the one there are let go of.

    How a model runs is settled by its first passes, which processes that divide its weights make together: one that has
    made passes by itself, in the preflight, cannot be divided.

    Args:
        setup: Not to be used any more.
        load: Where the weights go.
    """
    setup.policy.model.to("meta")
    policy = _new_policy(setup.recipe, setup.tasks, load)
    if setup.recipe.grpo is not None:
        policy.disable_dropout()
    return replace(setup, policy=policy)


def _new_policy(recipe: Recipe, tasks: Mapping[str, Task], load: Load) -> Policy:
    """The policy that a run of a recipe begins with."""
    texts = _texts(tasks) if recipe.model.preset == "tiny" else ()
    return load_policy(recipe.model, texts=texts, seed=recipe.seed, load=load)


def make_objective(
    recipe: Recipe, section: Grpo, tasks: Mapping[str, Task] | None = None
) -> tuple[Objective, AdvantageEstimator]:
    """What the reinforcement stage maximises: terms with their coefficients, and rewards with their shaping.

    Args:
        recipe: The whole recipe.
        section: Its ``grpo`` section, or what stands in for it.
        tasks: By name, in the recipe's order; without them nothing is balanced.

    Raises:
        InputError: A task that is to be balanced names no strata, or shaping does not fit the estimator.
        ValueError: Settings of a controller do not fit each other.
    """
    weights = {task.title: task.weight for task in recipe.tasks}
    kl = {task.title: task.kl for task in recipe.tasks}
    controllers = {task.title: task.kl_controller for task in recipe.tasks}
    objective = Objective(section, weights, kl, controllers, tasks)
    shapers = make_shapers({task.title: task.shaping for task in recipe.tasks}, section)
    ready = tasks or {}
    balanced, declared = balanced_tasks(recipe.tasks, ready) if ready else {}, declared_rewards(ready.values())
    return objective, AdvantageEstimator(section, shapers, balanced=balanced, declared=declared)


def describe(setup: Setup) -> dict[str, Any]:
    """Sizes of policy and tasks."""
    policy = setup.policy
    return {
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "trained_parameters": sum(p.numel() for p in policy.parameters),
        "context": policy.context,
        "vocabulary": policy.codec.vocab_size,
        "compute_dtype": str(policy.compute_dtype).removeprefix("torch."),
        "tasks": list(setup.tasks),
        **({"overlong": {name: str(counts) for name, counts in setup.overlong.items()}} if setup.overlong else {}),
    }


def check_objective(recipe: Recipe) -> None:
    """Check that settings of the objective fit each other.

    Raises:
        InputError: They do not.
    """
    if recipe.grpo is not None:
        try:
            recipe.grpo.check_variants()
            make_objective(recipe, recipe.grpo)
        except ValueError as error:
            raise InputError(f"grpo: {error}") from None


def environment() -> dict[str, object]:
    """What a run's numbers depend on, for ``environment.json``."""
    names = ("levelhead", "torch", "transformers", "tokenizers", "peft", "accelerate", "numpy", "pydantic")
    versions: dict[str, object] = {name: _version(name) for name in names}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return versions | {
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


def _texts(tasks: Mapping[str, Task]) -> Iterator[str]:
    """The text of training prompts and their perfect answers; of tasks that must be played, of some episodes."""
    loop = EventLoop()
    try:
        for task in tasks.values():
            prompts = task.prompts("train", 0)
            if task.demonstrates and task.concurrency is not None and task.tools is None:
                for turns in Demonstrations(tasks, loop).show(list(itertools.islice(prompts, TOKENIZER_EPISODES))):
                    for messages, answer in turns:
                        yield from (str(message.get("content", "")) for message in messages)
                        yield str(answer)
                continue
            for prompt in itertools.islice(prompts, TOKENIZER_ITEMS):
                yield from prompt.texts
                yield from task.oracle(prompt) or ()
            yield from task.lexicon()
    finally:
        for task in tasks.values():
            loop.run(task.close())
        loop.close()


def seed_everything(seed: int) -> None:
    """Seed the global generators that libraries may draw from; our own draws never use them."""
    random.seed(seed)
    torch.manual_seed(seed)
