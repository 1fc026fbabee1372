"""What tasks share whose episodes are played in an environment: named tasks by weight, a seed an episode."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Generic, TypeVar

from levelhead.metrics import held_out
from levelhead.recipe.environments import EnvironmentSection
from levelhead.records import ChatMessage, Event, Prompt, Rollout, Score, Severity
from levelhead.tasks.base import Episode, EpisodeLostError, Split, Step, Task
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group, stratum_value

Place = TypeVar("Place")
"""What an episode is played in: a page, a connection, an environment."""
T = TypeVar("T")


class EnvironmentTask(Task):
    """Prompts over (task, seed) pairs, their split, a summary by task, and a log of what happened.

    A score's ``parts`` hold ``success`` (0 or 1) and its ``info`` the number of ``steps``.

    Args:
        section: The recipe's section.
        system: System message that every turn begins with.
    """

    severity: ClassVar[Mapping[str, Severity]] = {}
    """Severity of an event by its code; a warning unless named."""
    stratum: ClassVar[str] = "task"
    """What the environment's own tasks are called as strata."""

    def __init__(self, section: EnvironmentSection, system: str) -> None:
        self.name = section.title
        self._system = system
        self._weights = section.weights
        self._happened: list[tuple[str, str]] = []
        keys = [(name, seed) for name in self._weights for seed in range(section.items)]
        sides = split_by_group(keys, _key, section.eval_fraction, stratum=lambda key: key[0])
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, _key)

    @abstractmethod
    def episode(self, prompt: Prompt) -> Episode:
        """Start an attempt at a prompt."""

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield every (task, seed) of the split once; at any point the tasks seen so far follow their weights."""
        waiting = {
            name: in_seed_order([key for key in self._sides[split] if key[0] == name], seed, self.name, split, name)
            for name in self._weights
        }
        draw = random.Random(f"{seed}/{self.name}/{split}/tasks")
        while any(waiting.values()):
            names = [name for name, keys in waiting.items() if keys]
            (name,) = draw.choices(names, [self._weights[name] for name in names])
            yield self.prompt(*waiting[name].pop())

    def prompt(self, name: str, seed: int) -> Prompt:
        """Return the prompt of one task and seed; what the policy reads each turn comes from the episode."""
        messages: tuple[ChatMessage, ...] = (
            {"role": "system", "content": self._system},
            {"role": "user", "content": "The goal and the page follow when the episode starts."},
        )
        return Prompt(_key((name, seed)), self.name, messages, facts={"task": name, "seed": seed})

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of each of the environment's own tasks."""
        return self._weights

    def kind_of(self, prompt: Prompt) -> str:
        """Return the environment's own task that a prompt is about."""
        return str(prompt.facts["task"])

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the environment's own task that a prompt is about, where it has a name."""
        name = self.kind_of(prompt)
        return {self.stratum: stratum_value(name)} if name else {}

    def oracle(self, prompt: Prompt) -> list[str] | None:  # noqa: ARG002
        """Return ``None``: what to do depends on what the environment shows."""
        return None

    def canonical(self, prompt: Prompt, text: str) -> str:  # noqa: ARG002
        """Return the sequence of actions, one a turn; ``text`` holds the turns with blank lines between them."""
        return "; ".join(self.canonical_action(turn) for turn in text.split("\n\n") if turn.strip())

    def canonical_action(self, text: str) -> str:
        """Return one turn's action: its first line that is not blank, in lower case and with single blanks."""
        line = next((line for line in text.splitlines() if line.strip()), "")
        return " ".join(line.casefold().split())

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return score parts and steps by task, the overall success, and the share without a misread action."""
        scores: dict[str, list[Score]] = defaultdict(list)
        for prompt, rollout in results:
            if rollout.score is not None:
                scores[str(prompt.facts["task"])].append(rollout.score)
        summary: dict[str, float] = {}
        for name, of_task in sorted(scores.items()):
            for part in of_task[0].parts:
                summary[held_out.PAGE_PART.of(name, part) if name else part] = fmean(s.parts[part] for s in of_task)
            steps = held_out.PAGE_STEPS.of(name) if name else held_out.STEPS
            summary[steps] = fmean(float(score.info["steps"]) for score in of_task)
        everything = [score for of_task in scores.values() for score in of_task]
        if everything:
            summary[held_out.SUCCESS] = fmean(score.parts["success"] for score in everything)
            summary[held_out.VALID] = fmean(float(score.valid) for score in everything)
        return summary

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call, dated ``step``."""
        happened, self._happened = self._happened, []
        return [Event(step, code, self.severity.get(code, "warning"), message) for code, message in happened]

    def report(self, code: str, message: str) -> None:
        """Keep something that happened for :meth:`drain_events`."""
        self._happened.append((code, message))


class SeededEpisode(ABC, Generic[Place]):
    """An attempt at one task and seed of an environment, until that ends it or the steps are used up.

    It is played in a place that it holds from the first look until it is done, lost or closed.

    Args:
        name: The environment's own task.
        seed: Fixes what the episode is about.
        step_limit: Most actions.
        report: Takes the code and message of what goes wrong.
    """

    faults: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """Errors of an environment that breaks under the episode."""

    def __init__(self, name: str, seed: int, step_limit: int, report: Callable[[str, str], None]) -> None:
        self.name, self.seed, self.step_limit = name, seed, step_limit
        self.step = 1
        self.reward = 0.0
        self.place: Place | None = None
        self._report = report
        self._ended = ""
        self._over = False
        self._fit = True

    @property
    def where(self) -> str:
        """Task, seed and step, for messages."""
        return f"{self.name or 'episode'}, seed {self.seed}, step {self.step}"

    @abstractmethod
    async def _open(self) -> None:
        """Set ``place``, waiting for one where all are out, and have the environment start there."""

    @abstractmethod
    async def _give_back(self, place: Place, *, fit: bool) -> None:
        """Return the place, fit for another episode or not."""

    @abstractmethod
    async def _perform(self, place: Place, text: str) -> float | None:
        """Do what the policy wrote, note what ended the episode, and return what this turn earned where that is known.

        An answer that is no action does nothing: the next turn says why.
        """

    @abstractmethod
    def _messages(self) -> list[ChatMessage]:
        """Return what the policy sees at this step."""

    @abstractmethod
    def _fault(self, error: Any) -> tuple[str, str]:
        """Return the event's code for one of the ``faults``, and what it says; raise where it is the user's."""

    @abstractmethod
    def _score(self, facts: Mapping[str, Any]) -> Score:
        """Score the episode that is over, with these facts about it in the score's ``info``."""

    async def observe(self) -> list[ChatMessage]:
        """Return the messages of this turn.

        Raises:
            EpisodeLostError: The environment broke.
        """
        if self._over:
            raise RuntimeError("the episode is over")
        if self.place is None:
            await self._unbroken(self._open())
        return self._messages()

    async def act(self, text: str) -> Step:
        """Do what the policy wrote; an answer that is no action costs a step as well.

        Raises:
            EpisodeLostError: The environment broke.
        """
        if self.place is None:
            raise RuntimeError("observe comes before act")
        earned = await self._unbroken(self._perform(self.place, text))
        self.reward += earned or 0.0
        taken, self.step = self.step, self.step + 1
        if not (self._ended or taken >= self.step_limit):
            return Step(done=False, reward=earned)
        await self.close()
        facts = {"seed": self.seed, "steps": taken, "ended": self._ended or "step_limit"}
        return Step(done=True, score=self._score(facts), reward=earned)

    async def close(self) -> None:
        """Return the place, which the task may use again."""
        self._over = True
        place, self.place = self.place, None
        if place is not None:
            await self._give_back(place, fit=self._fit)

    async def _unbroken(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except asyncio.CancelledError:
            self._fit = False  # what was asked of it may still be under way
            raise
        except self.faults as error:
            self._fit = False
            try:
                code, text = self._fault(error)
                message = f"{self.where}: {text}"
                self._report(code, message)
            finally:
                await self.close()
            raise EpisodeLostError(message) from error


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"
