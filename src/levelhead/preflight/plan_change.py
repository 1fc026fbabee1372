"""Which setting to change first where a plan does not fit, with a value that would."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from levelhead.errors import InputError, first_line
from levelhead.preflight.memory_plan import PREFLIGHT, MemoryPlan, longest_prompt, target_of
from levelhead.preflight.planner import Planner
from levelhead.recipe import Recipe
from levelhead.recipe.training import Grpo

LEAST_TOKENS = 64
"""Smallest ``tokens_per_microbatch`` that a recipe may have."""

WORTHWHILE = 0.99
"""A change that leaves more than this share of the memory is not proposed."""

ADAPTER = {"r": 16, "alpha": 32}
"""The adapter that is proposed instead of training all weights."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a recipe.

    Attributes:
        settings: Dotted keys and their values, in the order in which to change them.
        total: Bytes that the run would need then.
        fits: Whether that fits.
    """

    settings: dict[str, Any]
    total: int
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """The change as a dict for JSON."""
        return {"settings": self.settings, "total": self.total, "fits": self.fits}


def first_change(planner: Planner, recipe: Recipe, plan: MemoryPlan) -> Change | None:
    """Return the first setting to change so that a run fits, or the fewest that do it together.

    Settings that cost nothing but time are tried before those that change what is trained.  Each is tried by itself
    first; where none is enough, they are changed one after the other.

    Args:
        planner: That made the plan.
        recipe: The plan's.
        plan: Of the recipe.

    Returns:
        ``None`` where it fits already, or nobody knows whether it does, or no setting of the recipe would help.
    """
    if plan.fits is not False:
        return None
    for settings in _candidates(planner, recipe, plan):
        tried = planner.plan(changed(recipe, settings))
        if tried.fits:
            return Change(settings, tried.total, True)
    together: dict[str, Any] = {}
    current = plan
    while not current.fits:
        within = changed(recipe, together)
        tried_next = ((more, planner.plan(changed(within, more))) for more in _candidates(planner, within, current))
        better = next((candidate for candidate in tried_next if candidate[1].total < WORTHWHILE * current.total), None)
        if better is None:
            break
        together, current = {**together, **better[0]}, better[1]
    return Change(together, current.total, bool(current.fits)) if together else None


def changed(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """Return a recipe with some of its dotted keys changed."""
    tree = recipe.model_dump(by_alias=True)
    for key, value in settings.items():
        *path, last = key.split(".")
        section: Any = tree
        for name in path:
            section = section[name]
        section[last] = value
    return Recipe.model_validate(tree)


def _candidates(planner: Planner, recipe: Recipe, plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Changes that make the largest phase smaller, the cheapest first."""
    updates = plan.peak in ("update", "sft")
    passes = sum(part.size for part in plan.parts if part.name.startswith(("activations", "logits")))
    bound = plan.total - passes > (plan.target.room or 0)  # by what no smaller pass would change
    if plan.peak == PREFLIGHT:
        yield {"check": False}
    if updates and not bound:
        stage = "sft" if plan.peak == "sft" else "grpo"
        tokens = getattr(recipe, stage).tokens_per_microbatch
        yield from _largest(planner, recipe, f"{stage}.tokens_per_microbatch", tokens, LEAST_TOKENS)
        if not recipe.model.gradient_checkpointing:
            yield {"model.gradient_checkpointing": True}
    if plan.peak == "sampling" or (recipe.grpo is not None and recipe.grpo.ahead):
        yield from _fewer_rows(planner, recipe)
    if recipe.grpo is not None and recipe.grpo.ahead:
        yield {"grpo.async": 0}
    if updates and recipe.grpo is not None and recipe.grpo.merge.kind != "sum" and recipe.grpo.merge.memory == "full":
        yield {"grpo.merge.memory": "low"}
    if recipe.model.lora is None:
        yield {"model.lora": ADAPTER}
    elif recipe.model.dtype == "float32" and planner.target.device == "cuda":
        yield {"model.dtype": "bfloat16"}
    if recipe.grpo is not None and plan.peak == "sampling":
        yield from _smaller_group(recipe.grpo)


def _fewer_rows(planner: Planner, recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The most rows at once with which sampling fits; of evaluation first, where that is the larger draw."""
    if recipe.grpo is not None:
        rows = min(recipe.grpo.sampling.rows_at_once, recipe.grpo.batch_size)
        yield from _largest(planner, recipe, "grpo.sampling.rows_at_once", rows, recipe.grpo.group_size)
    yield from _largest(planner, recipe, "eval.batch_size", recipe.eval.batch_size, 1)


def _smaller_group(grpo: Grpo) -> Iterator[dict[str, Any]]:
    """Half as many rollouts to a prompt: those of one group are sampled at once."""
    half, rest = divmod(grpo.group_size, 2)
    if not rest and half >= grpo.advantage.make().min_group_size:
        yield {"grpo.group_size": half, "grpo.sampling.rows_at_once": half}


def _largest(planner: Planner, recipe: Recipe, key: str, value: int, least: int) -> Iterator[dict[str, Any]]:
    """The largest power of two below a value that fits; where none does, the largest that gains as much as any."""
    powers = [1 << bits for bits in reversed(range(value.bit_length())) if least <= 1 << bits < value]
    if not powers:
        return

    def total(power: int) -> int:
        return planner.plan(changed(recipe, {key: power})).total

    lowest = total(powers[-1])
    room = planner.target.room or 0
    bound = room if lowest <= room else int(lowest / WORTHWHILE)
    yield {key: powers[bisect.bisect_left(powers, True, key=lambda power: total(power) <= bound)]}


def make_plan(
    recipe: Recipe,
    gpu: str | None = None,
    prompt_tokens: int | None = None,
    processes: int = 1,
    *,
    compare: bool = False,
) -> tuple[MemoryPlan, Change | None]:
    """Plan a recipe's memory from its model's config, and look for the first setting to change where it does not fit.

    Args:
        recipe: What is planned.
        gpu: Memory of the GPU, as ``80GB``; this machine's device unless given.
        prompt_tokens: Length of the longest prompt, where the caller knows better than the tasks.
        processes: That will train; the plan is that of one of them, with a device of its own.
        compare: Also note what activations take with and without gradient checkpointing.

    Raises:
        InputError: The size cannot be read, or the model's config cannot be had.
    """
    target = target_of(recipe.model, gpu)
    planner = Planner(target, longest_prompt(recipe, prompt_tokens), processes)
    try:
        plan = planner.plan(recipe, compare=compare)
    except InputError as error:
        reason = first_line(error)
        raise InputError(f"{reason}; a plan needs a folder with its config.json alone") from None
    return plan, first_change(planner, recipe, plan)
