"""What tasks of items share: a prompt of each item, whose score and perfect answer depend on that item alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.splits import in_seed_order


@dataclass(frozen=True, slots=True)
class Item:
    """A row of data; its fields are plain values, or tuples of these."""

    def to_facts(self) -> dict[str, Any]:
        """Return what the scorer needs, as plain values that JSON can hold."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Rebuild an item from :meth:`to_facts`, also after a trip through JSON."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()})


I = TypeVar("I", bound=Item)  # noqa: E741 - an item


@dataclass(frozen=True, slots=True)
class ItemFunctions(Generic[I]):
    """What a task does with an item.

    Attributes:
        from_facts: From a prompt's facts to its item.
        key: What identifies an item in the data; equal keys are numbered.
        render: Text of the prompt.
        score: From an answer and its item to a score in [minimum, 1].
        perfect_answer: An answer that scores 1, or as much as the item allows.
        longest_answer: Bytes of UTF-8 that it has at most, known without writing it.
        metrics: The task's own metrics over scored items.
        minimum: Score of an answer that cannot be parsed.
    """

    from_facts: Callable[[Mapping[str, Any]], I]
    key: Callable[[I], str]
    render: Callable[[I], str]
    score: Callable[[str, I], Score]
    perfect_answer: Callable[[I], str]
    longest_answer: Callable[[I], int]
    metrics: Callable[[Sequence[tuple[I, Score]]], Mapping[str, float]]
    minimum: float


class ItemTask(SingleTurnTask, Generic[I]):
    """A task whose prompts are items; subclasses set ``functions``, and ``_sides`` to the items of each split."""

    functions: ItemFunctions[I]
    _sides: Mapping[Split, Sequence[I]]

    def item(self, prompt: Prompt) -> I:
        """Return the item of a prompt."""
        return self.functions.from_facts(prompt.facts)

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""
        yield from in_seed_order(self._prompts[split], seed, self.name, split)

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer by its item."""
        return self.functions.score(text, self.item(prompt))

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return what an answer that cannot be parsed gets, and what a perfect one gets."""
        return self.functions.minimum, 1.0

    def oracle(self, prompt: Prompt) -> list[str]:
        """Return the one perfect answer to the item."""
        return [self.functions.perfect_answer(self.item(prompt))]

    def oracle_bytes(self, prompt: Prompt) -> int:
        """Return a bound on the length of the perfect answer."""
        return self.functions.longest_answer(self.item(prompt))

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the task's own metrics, and those of its judges."""
        scored = [(self.item(prompt), rollout.score) for prompt, rollout in results if rollout.score is not None]
        return {**super().summarize(results), **self.functions.metrics(scored)}

    @cached_property
    def _prompts(self) -> Mapping[Split, Sequence[Prompt]]:
        seen: Counter[str] = Counter()
        return {side: [self._prompt(item, seen) for item in items] for side, items in self._sides.items()}

    def _prompt(self, item: I, seen: Counter[str]) -> Prompt:
        key = self.functions.key(item)
        seen[key] += 1
        number = f"~{seen[key]}" if seen[key] > 1 else ""
        message = {"role": "user", "content": self.functions.render(item)}
        return Prompt(f"{self.name}/{key}{number}", self.name, (message,), facts=item.to_facts())


def best_of(candidates: Iterable[str], quality: Callable[[str], float]) -> str:
    """Return the first candidate of the highest quality; none is tried after one of quality 1."""
    best, most = "", -1.0
    for candidate in candidates:
        worth = quality(candidate)
        if worth > most:
            best, most = candidate, worth
        if most >= 1.0:
            break
    return best
