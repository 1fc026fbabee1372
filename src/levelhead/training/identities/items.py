"""Identities of the data: no item twice in an epoch, none that is held out, and the best checkpoint is the best."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from levelhead.records import Prompt
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.training.identities.base import Violation, content

TIE = 1e-9
"""Difference of two scores that rounding explains."""
COMPARED = 12
"""Items at the beginning of two epochs that are compared; in equal order by chance once in 12!, some 5e8."""
MOST = 1 << 20
"""Items of an epoch that are followed."""


class Epochs:
    """Items of each task that were sampled in its epoch, which ends when every item has been.

    How many items a task has is counted when one comes again, and not before.

    Args:
        tasks: By name.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self._sizes: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._epochs: dict[str, int] = {}
        self._orders: dict[str, list[int]] = {}
        self._before: dict[str, list[int]] = {}

    def drawn(self, prompts: Sequence[Prompt]) -> Iterator[Violation]:
        """Take in the prompts of a step in the order in which they were sampled."""
        for prompt in prompts:
            name, key = prompt.task, _number(prompt.id)
            seen = self._seen.setdefault(name, set())
            if key in seen:
                size, epoch = self._size(name), self._epochs.get(name, 0) + 1
                if len(seen) < size:
                    text = (
                        f"item {prompt.id!r} of task {name} is drawn for the second time in epoch {epoch}, after "
                        f"{len(seen)} of its {size} items"
                    )
                    evidence = {"task": name, "item": prompt.id, "epoch": epoch, "items": size}
                    yield Violation("item-repeated", text, evidence)
                seen.clear()
                self._epochs[name] = epoch
                self._before[name] = self._orders.pop(name, [])
            if len(seen) < MOST:
                seen.add(key)
            yield from self._in_a_new_order(name, key)

    def _in_a_new_order(self, name: str, key: int) -> Iterator[Violation]:
        """An epoch does not begin with the items of the one before in the same order, unless the task has but one."""
        order, before = self._orders.setdefault(name, []), self._before.get(name, [])
        if len(order) >= COMPARED:
            return
        order.append(key)
        if len(order) == COMPARED and order == before and self._shuffles(name):
            epoch = self._epochs[name] + 1
            text = (
                f"epoch {epoch} of task {name} begins with the same {COMPARED} items in the same order as the epoch "
                "before: the shuffle does not know the epoch"
            )
            yield Violation("order-repeated", text, {"task": name, "epoch": epoch, "items": COMPARED})

    def _shuffles(self, name: str) -> bool:
        """Whether a task's order depends on the seed."""
        orders = [
            [prompt.id for prompt in itertools.islice(self._tasks[name].prompts("train", seed), COMPARED)]
            for seed in (0, 1)
        ]
        return orders[0] != orders[1]

    def _size(self, name: str) -> int:
        if name not in self._sizes:
            self._sizes[name] = min(sum(1 for _ in self._tasks[name].prompts("train", 0)), MOST)
        return self._sizes[name]

    def tensors(self) -> dict[str, Tensor]:
        """What was sampled, for a checkpoint: of each task the epochs that have ended, and the items of its epoch."""
        return {
            name: torch.tensor([self._epochs.get(name, 0), *sorted(seen)], dtype=torch.int64)
            for name, seen in self._seen.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore :meth:`tensors`."""
        for name, row in tensors.items():
            self._epochs[name], *seen = row.tolist()
            self._seen[name] = set(seen)


class HeldOut:
    """What held-out items ask, so that none of it is trained on."""

    def __init__(self) -> None:
        self._content: set[int] = set()

    def hold(self, contents: Iterable[str]) -> None:
        """Take in what items ask (:func:`content`)."""
        self._content.update(map(_number, contents))

    def drawn(self, prompts: Sequence[Prompt]) -> Iterator[Violation]:
        """Held-out items are never trained on, whatever they are called."""
        for prompt in prompts:
            if _number(content(prompt)) in self._content:
                text = f"item {prompt.id!r} of task {prompt.task} is trained on, and a held-out item asks the same"
                yield Violation("held-out-trained", text, {"task": prompt.task, "item": prompt.id})


def tells_apart(task: Task, prompt: Prompt) -> bool:
    """Whether what a prompt asks says which item it is: episodes may begin alike, unless they name their seed."""
    return isinstance(task, SingleTurnTask) or "seed" in prompt.facts


def overlap(task: Task) -> tuple[list[str], int, int, int]:
    """Hold the items of both splits against each other, by content.

    Returns:
        Ids of held-out items that ask what a training item asks, how many are held out, how many are trained on, and
        how many of these have the id of another.
    """
    trained: set[int] = set()
    ids: set[int] = set()
    items = 0
    for prompt in task.prompts("train", 0):
        trained.add(_number(content(prompt)))
        ids.add(_number(prompt.id))
        items += 1
    held = [(prompt.id, _number(content(prompt))) for prompt in task.prompts("eval", 0) if tells_apart(task, prompt)]
    return [name for name, key in held if key in trained], len(held), items, items - len(ids)


def _number(text: str) -> int:
    """A 63-bit number that stands for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()) >> 1
