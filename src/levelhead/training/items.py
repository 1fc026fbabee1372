"""Watchers of the items that are trained on: none is held out, and none comes again before its epoch is over."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from levelhead.message import Message
from levelhead.records import Event, Prompt
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.training.collected import Collected
from levelhead.training.watcher import Watcher

COMPARED = 12
"""Items at the beginning of two epochs that are compared; in equal order by chance once in 12!, some 5e8."""
MOST = 1 << 20
"""Items of an epoch that are followed."""


class HeldOutItems(Watcher):
    """Reports an item that is trained on and asks what a held-out item asks, whatever its id.

    Args:
        tasks: By name.
    """

    TRAINED = Message(
        "item {item!r} of task {task} is trained on, and a held-out item asks the same",
        "题目 {item!r}（任务 {task}）用于训练，而留出集中有一道题与它相同",
    )

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self._content: set[int] = set()
        self._read = False

    def hold(self, prompts: Iterable[Prompt]) -> None:
        """Take in items that are held out."""
        self._content.update(_number(content(p)) for p in prompts if tells_apart(self._tasks[p.task], p))

    def sampled(self, step: int, rollouts: Collected) -> Iterator[Event]:
        """Look at the prompts of a step."""
        if not self._read:
            self._read = True
            for task in self._tasks.values():
                self.hold(task.prompts("eval", 0))
        for prompt in rollouts.prompts:
            if _number(content(prompt)) in self._content:
                evidence = {"task": prompt.task, "item": prompt.id}
                yield Event(step, "held-out-trained", "critical", self.TRAINED(**evidence), "warn", evidence)


class RepeatedItems(Watcher):
    """Reports an item that is sampled again before every item of its task has been, and epochs of equal order.

    How many items a task has is counted when one comes again, and not before.

    Args:
        tasks: By name.
    """

    AGAIN = Message(
        "item {item!r} of task {task} is sampled for the second time in epoch {epoch}, after {seen} of its {items} "
        "items",
        "题目 {item!r}（任务 {task}）在第 {epoch} 个 epoch 里被重复抽取，此时只用了 {seen} 道题（共 {items} 道）",
    )
    SAME_ORDER = Message(
        "epoch {epoch} of task {task} begins with the same {items} items in the same order as the epoch before: the "
        "shuffle does not know the epoch",
        "第 {epoch} 个 epoch（任务 {task}）开头的 {items} 道题与上一个 epoch 顺序相同：打乱顺序时没有用到 epoch",
    )

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self._sizes: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._epochs: dict[str, int] = {}
        self._orders: dict[str, list[int]] = {}
        self._before: dict[str, list[int]] = {}

    def sampled(self, step: int, rollouts: Collected) -> Iterator[Event]:
        """Take in the prompts of a step in the order in which they were sampled."""
        for prompt in rollouts.prompts:
            name, key = prompt.task, _number(prompt.id)
            seen = self._seen.setdefault(name, set())
            if key in seen:
                size, epoch = self._size(name), self._epochs.get(name, 0) + 1
                if len(seen) < size:
                    evidence = {"task": name, "item": prompt.id, "epoch": epoch, "items": size}
                    text = self.AGAIN(**evidence, seen=len(seen))
                    yield Event(step, "item-repeated", "critical", text, "warn", evidence)
                seen.clear()
                self._epochs[name] = epoch
                self._before[name] = self._orders.pop(name, [])
            if len(seen) < MOST:
                seen.add(key)
            yield from self._in_a_new_order(step, name, key)

    def _in_a_new_order(self, step: int, name: str, key: int) -> Iterator[Event]:
        """An epoch does not begin with the items of the one before in the same order, unless the task has but one."""
        order, before = self._orders.setdefault(name, []), self._before.get(name, [])
        if len(order) >= COMPARED:
            return
        order.append(key)
        if len(order) == COMPARED and order == before and self._shuffles(name):
            evidence = {"task": name, "epoch": self._epochs[name] + 1, "items": COMPARED}
            yield Event(step, "order-repeated", "critical", self.SAME_ORDER(**evidence), "warn", evidence)

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

    def state_dict(self) -> dict[str, Any]:
        """What was sampled, as tensors: of each task the epochs that have ended, and the items of its epoch."""
        return {
            name: torch.tensor([self._epochs.get(name, 0), *sorted(seen)], dtype=torch.int64)
            for name, seen in self._seen.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        for name, row in state.items():
            self._epochs[name], *seen = row.tolist()
            self._seen[name] = set(seen)


def content(prompt: Prompt) -> str:
    """What a prompt asks, whatever its id: its messages, and the facts too where messages leave the item open.

    Prompts of environments carry a ``seed`` among their facts; what the policy reads comes from there.
    """
    seeded = prompt.facts if "seed" in prompt.facts else {}
    return json.dumps([prompt.task, prompt.messages, seeded], sort_keys=True, default=str)


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
