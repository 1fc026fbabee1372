"""A group on its way, and how a queue of them is written down and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from levelhead.recipe.sampling import Sampling
from levelhead.records import Group, Prompt
from levelhead.training.collected import Collected
from levelhead.training.stream import Stream
from levelhead.training.weight_copies import WeightCopy

PATIENCE_S = 5.0
"""Seconds that what was called off has to come to an end."""


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Prompts that were taken together.

    Attributes:
        stream: Position in the prompts before them.
        count: How many.
    """

    stream: Mapping[str, Any]
    count: int


@dataclass(slots=True, eq=False)
class PendingGroup:
    """A group that is to be sampled, is being sampled, or waits for a step that trains on it.

    Attributes:
        number: Of the group in the run, from 0.
        take: What its prompt was taken with.
        place: Of its prompt there.
        prompt: Of the group.
        seed: Of its draws.
        batch: The step that it was planned for.
        controls: With which it is sampled.
        version: Updates that the weights had seen when it was begun.
        weights: Those that sample it; ``None`` before it has been begun.
        drawing: The collection that holds the group, once it is there; ``None`` where this process does not sample it.
        index: Of the group in that collection.
        task: What samples it.
    """

    number: int
    take: Take
    place: int
    prompt: Prompt
    seed: int
    batch: int
    controls: Sampling
    version: int = 0
    weights: WeightCopy | None = None
    drawing: Future[Collected] | None = None
    index: int = 0
    task: asyncio.Task[Any] | None = None

    def result(self) -> Group:
        """Return a group that is there; one that could not be sampled can be begun again."""
        assert self.drawing is not None  # noqa: S101 - it has been begun
        try:
            return self.drawing.result().groups[self.index]
        except BaseException:
            self.drawing = None
            raise


async def called_off(groups: Sequence[PendingGroup]) -> None:
    """End the sampling of groups, and wait until it has ended."""
    for group in groups:
        if group.drawing is not None:
            group.drawing.cancel()
    tasks = {group.task for group in groups if group.task is not None}
    if tasks:
        await asyncio.wait(tasks, timeout=PATIENCE_S)
    for group in groups:
        group.drawing = group.task = None


def write_line(groups: Iterable[PendingGroup], weights: Callable[[WeightCopy], list[Tensor]] | None) -> dict[str, Any]:
    """Write groups as one line of JSON.

    Args:
        groups: In order.
        weights: Returns the weights of a copy; ``None`` where they are not to be sampled by the same ones again.
    """
    takes: list[Take] = []
    copies: list[WeightCopy] = []
    rows: list[dict[str, Any]] = []
    for group in groups:
        if group.take not in takes:
            takes.append(group.take)
        if group.weights is not None and weights is not None and group.weights not in copies:
            copies.append(group.weights)
        copy = copies.index(group.weights) if group.weights in copies else None
        own = {"number": group.number, "place": group.place, "seed": group.seed, "batch": group.batch}
        rows.append({**own, "take": takes.index(group.take), "copy": copy, "version": group.version})
        rows[-1]["temperature"] = group.controls.temperature
    return {
        "groups": rows,
        "takes": [{"stream": dict(take.stream), "count": take.count} for take in takes],
        "copies": [{"version": c.version, "weights": weights(c)} for c in copies] if weights is not None else [],
    }


def read_line(
    state: Mapping[str, Any],
    stream: Stream,
    controls: Callable[[int], Sampling],
    restore: Callable[[Iterable[Tensor], int], WeightCopy] | None,
) -> list[PendingGroup]:
    """Return the groups that :func:`write_line` wrote down, none of them begun; the stream is left anywhere.

    Args:
        state: What was written.
        stream: Gives the same prompts again.
        controls: Returns the sampling controls of a step.
        restore: Makes a copy that holds saved weights of a version; ``None`` where none were saved.
    """
    takes: list[tuple[Take, list[Prompt]]] = []
    for row in state["takes"]:
        stream.load_state_dict(row["stream"])
        takes.append((Take(row["stream"], int(row["count"])), stream.take(int(row["count"]))))
    copies: list[WeightCopy] = []
    for row in state["copies"]:
        if restore is None:
            break
        copies.append(restore(row["weights"], int(row["version"])))
        copies[-1].pending = sum(other["copy"] == len(copies) - 1 for other in state["groups"])
    groups: list[PendingGroup] = []
    shared: dict[tuple[int, float], Sampling] = {}  # groups of the same controls are sampled together
    for row in state["groups"]:
        take, prompts = takes[row["take"]]
        place, batch = int(row["place"]), int(row["batch"])
        key = batch, float(row["temperature"])
        sampling = shared.setdefault(key, controls(batch).model_copy(update={"temperature": key[1]}))
        copy = copies[row["copy"]] if copies and row["copy"] is not None else None
        number, seed, version = int(row["number"]), int(row["seed"]), int(row["version"])
        groups.append(PendingGroup(number, take, place, prompts[place], seed, batch, sampling, version, copy))
    return groups
