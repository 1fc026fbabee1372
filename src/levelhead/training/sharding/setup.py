"""From what a recipe prepared to what the processes of a run share: the policy is divided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from levelhead.errors import InputError
from levelhead.policy.device import resolve_device
from levelhead.policy.load import Load
from levelhead.policy.sharding import Reference, shard_policy
from levelhead.recipe import Recipe
from levelhead.recipe.generator import Local, Vllm
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.prepare import Setup, make_objective
from levelhead.training.ranks import Ranks
from levelhead.training.rundir import RunDir


def shared_setup(setup: Setup, ranks: Ranks) -> Setup:
    """Divide the policy over the processes where the recipe says so; otherwise everything stays as it is.

    Raises:
        InputError: The recipe asks for what several processes cannot do.
    """
    if not divides(setup.recipe, ranks):
        return setup
    check_divisible(setup.recipe)
    samples = samples_here(setup.recipe)
    device = resolve_device(setup.recipe.model.device)
    policy = shard_policy(setup.policy, reference=_reference(setup), samples=samples, device=device)
    return replace(setup, policy=policy)


def loading(recipe: Recipe, ranks: Ranks, *, checks: bool) -> Load:
    """How this process loads the policy: where nobody needs it whole, the first process alone, and hands it out.

    Args:
        recipe: Of the run.
        ranks: The processes.
        checks: Whether it is for the preflight, which the first process then makes alone, on its device.
    """
    if not divides(recipe, ranks) or samples_here(recipe):
        return "whole"
    return "shape" if ranks.rank else "whole" if checks else "host"


def servers(recipe: Recipe, ranks: Ranks) -> Local | Vllm:
    """A recipe's generator as one process of several uses it: with its share of the requests under way."""
    section = recipe.generator
    if isinstance(section, Local) or ranks.alone:
        return section
    return section.model_copy(update={"concurrency": max(section.concurrency // ranks.count, 1)})


def samples_here(recipe: Recipe) -> bool:
    """Whether the processes of a run sample completions themselves."""
    return recipe.generator.kind == "local"


def divides(recipe: Recipe, ranks: Ranks) -> bool:
    """Whether the weights of a run are divided over its processes."""
    return recipe.distributed.shard == "full" and not ranks.alone


def check_divisible(recipe: Recipe) -> None:
    """Check that nothing of a recipe needs whole weights in every process.

    Raises:
        InputError: Something does.
    """
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None and section.optimizer.kind != "adamw":
            raise InputError(
                f"{stage}.optimizer.kind: {section.optimizer.kind} needs whole weights, which distributed.shard: full "
                "divides; use adamw, or distributed.shard: none"
            )


def _reference(setup: Setup) -> Reference:
    recipe = setup.recipe
    if recipe.grpo is None or not make_objective(recipe, recipe.grpo)[0].coefficients.needs_reference:
        return "none"
    if not setup.policy.lora:
        return "copy"
    return "adapter" if recipe.sft is not None or setup.policy.starts_trained else "base"


def make_checkpoints(folder: RunDir, recipe: Recipe, offset: Mapping[str, int], ranks: Ranks) -> Checkpoints:
    """Return the checkpoints of a run: of each process, or one folder for all where weights are divided.

    Raises:
        InputError: They are divided, and a process does not see the folder that all write to.
    """
    keep_last = recipe.checkpoint.keep_last
    if not divides(recipe, ranks):
        return Checkpoints(folder, keep_last, offset)
    shared = Checkpoints(RunDir(ranks.first_folder(folder.path)), keep_last, offset, ranks, folder.path)
    shared.check_place()
    return shared
