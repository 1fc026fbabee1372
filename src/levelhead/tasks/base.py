"""The task protocol: prompts to answer, an oracle, and an episode that scores what the policy writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from levelhead.records import Event, Message, Prompt, Rollout, Score

Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers to one action.

    Attributes:
        done: Whether the episode is over.
        score: The score of the whole episode, when done.
    """

    done: bool
    score: Score | None = None


@runtime_checkable
class Episode(Protocol):
    """One attempt at a prompt, turn by turn."""

    async def observe(self) -> list[Message]:
        """Return the messages of the next turn: all that the policy will see."""
        ...

    async def act(self, text: str) -> Step:
        """Take the policy's text of this turn."""
        ...

    async def close(self) -> None:
        """Let go of whatever the episode holds; called once, finished or not."""
        ...


class EpisodeLostError(Exception):
    """The environment broke under an episode: through no fault of the policy, and without a score.

    Raised by ``observe`` and ``act``.  Close the episode and draw it again, a bounded number of times; nothing else is
    affected.  The task keeps the event that says what happened (:meth:`Environment.drain_events`).
    """


@runtime_checkable
class Task(Protocol):
    """Something to learn.

    The oracle scores the maximum, an empty answer scores the minimum, scores are finite, and the same seed
    gives the same prompts in the same order.
    """

    @property
    def name(self) -> str:
        """Name in metrics and reports."""
        ...

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""
        ...

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return a perfect answer per turn, or ``None`` where nobody knows one."""
        ...

    def episode(self, prompt: Prompt) -> Episode:
        """Start an attempt at a prompt."""
        ...

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the task's own metrics over scored rollouts (accuracy by condition, bias scores, ...)."""
        ...

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return what a prompt's scores are told apart by (``{"condition": "ambig"}``); ``{}`` where nothing is."""
        ...

    def form(self, prompt: Prompt) -> str:
        """Return which form a prompt has, where a glance tells prompts apart (a verdict or a question); else ``""``.

        An answer to each form needs no reading either: constant answers are compared form by form.
        """
        ...

    def constants(self) -> Sequence[str]:
        """Return answers that need no reading of the prompt: abstaining, "A", "no"."""
        ...

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return what an answer says, so that two answers that mean the same to this task are equal texts."""
        ...


class TaskDefaults:
    """What a task need not write: no strata, one form, no constants; answers are compared without case and blanks."""

    def strata(self, prompt: Prompt) -> Mapping[str, str]:  # noqa: ARG002
        """Return no strata."""
        return {}

    def form(self, prompt: Prompt) -> str:  # noqa: ARG002
        """Return the one form that all prompts have."""
        return ""

    def constants(self) -> Sequence[str]:
        """Return no answers."""
        return ()

    def canonical(self, prompt: Prompt, text: str) -> str:  # noqa: ARG002
        """Return the answer in lower case with its white space made single blanks."""
        return " ".join(text.casefold().split())


@runtime_checkable
class Demonstrator(Protocol):
    """A task whose perfect answers depend on what the environment shows: it makes demonstrations by acting in it."""

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[Message], str]]:
        """Return the (messages, answer) pair of every turn of a perfect episode; empty where it did not succeed."""
        ...


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way of acting that reads nothing.

    Attributes:
        answer: Its name, to be shown to people: the text that it always writes, or words for what it does
            (``"always click the first button"``, ``"random valid actions"``).
        play: Acts that way on prompts; returns the total score of each episode, in the order of the prompts.  Scores
            depend on the prompt alone (random actions are drawn from a generator seeded by its id), so that each is
            played once and remembered.  Raises :class:`EpisodeLostError` where they cannot be had.
    """

    answer: str
    play: Callable[[Sequence[Prompt]], Awaitable[Sequence[float]]]


@runtime_checkable
class Baselined(Protocol):
    """A task whose constant policies are not one answer each: an environment that plays fixed scripts itself."""

    async def baselines(self, prompts: int) -> Sequence[Baseline]:
        """Return the fixed scripts, and a random policy, to be played on so many prompts; none where that is too much.

        The caller chooses the best one, on other prompts than it is scored on.
        """
        ...


@runtime_checkable
class Bounded(Protocol):
    """A task that can say how long its perfect answers are at most without writing them."""

    def oracle_bytes(self, prompt: Prompt) -> int:
        """Return how many bytes of UTF-8 the perfect answer to a prompt has at most."""
        ...


@runtime_checkable
class Wordy(Protocol):
    """A task that knows text beyond its prompts for a tokenizer to learn words from."""

    def lexicon(self) -> Iterator[str]:
        """Yield that text."""
        ...


@runtime_checkable
class Eventful(Protocol):
    """A task that has something to tell besides scores."""

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call (a lost page, a silent endpoint), dated ``step``."""
        ...


@runtime_checkable
class StepAware(Protocol):
    """A task whose scores may depend on how far training has come."""

    def at_step(self, step: int, max_steps: int) -> None:
        """Take note that ``step`` of the stage's ``max_steps`` steps are done."""
        ...


@runtime_checkable
class Mixture(Protocol):
    """A task that is made of several kinds of problem, which a curriculum may draw at different rates."""

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of each kind of problem (a web page, a domain) in the prompts; shares sum to one."""
        ...

    def kind_of(self, prompt: Prompt) -> str:
        """Return the kind of problem that a prompt is."""
        ...


@runtime_checkable
class Ranged(Protocol):
    """A task that declares what its answers can get."""

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Least and most total reward of an answer: perfect answers get the most, the worst ones the least."""
        ...


@runtime_checkable
class Weighted(Protocol):
    """A task whose total reward is the weighted sum of its named parts."""

    @property
    def part_weights(self) -> Mapping[str, float] | None:
        """Weight of each part in the total of a valid answer; ``None`` where the total is no such sum."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A task whose episodes live in something outside: a browser, a server.

    All coroutines of the task and its episodes are awaited on one event loop, on which whatever they need is started
    at first use.
    """

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once; ``observe`` of one more waits until another is closed or done."""
        ...

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call (a lost page, a restarted browser), dated ``step``."""
        ...

    async def close(self) -> None:
        """Let go of everything, from the same event loop; the task starts afresh if it is used again."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion to be scored.

    Attributes:
        prompt: What was asked.
        text: The completion, decoded, without its stop token.
        token_ids: The completion as it was drawn.
    """

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...] = ()


class SingleTurnTask(TaskDefaults, ABC):
    """A task whose rollouts are one answer each: subclasses write :meth:`prompts` and :meth:`score`."""

    name: str

    @abstractmethod
    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""

    @abstractmethod
    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer."""

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many answers; ``None`` marks a rollout that must be dropped.

        A caller hands over all rollouts of a prompt in one call: they may be scored by comparison with each other.
        """
        return [self.score(answer.prompt, answer.text) for answer in answers]

    def oracle(self, prompt: Prompt) -> list[str] | None:  # noqa: ARG002
        """Return a perfect answer, or ``None`` where nobody knows one."""
        return None

    @property
    def guesses(self) -> bool:
        """Whether the oracle's answers are guesses, which others may beat, and not known to be perfect."""
        return False

    @property
    def rules(self) -> SingleTurnTask | None:
        """This task scored by its own rules alone, without side effects; ``None`` where a score costs calls elsewhere.

        Constant answers are scored by it, many at a time.
        """
        return self

    def episode(self, prompt: Prompt) -> Episode:
        """Start the trivial one-turn episode."""
        return _SingleTurnEpisode(self, prompt)

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:  # noqa: ARG002
        """Return the task's own metrics over scored rollouts; none unless a subclass adds some."""
        return {}


GRADE = "judge"
"""Name of the reward that a judge gives; only answers that it was shown have it."""


class Judged(SingleTurnTask):
    """A task whose right answers a judge grades as well.

    Attributes:
        asks: Whether the judge is asked; where a preflight finds that its endpoint is of no use, the rules go on alone.
    """

    asks: bool = True

    @property
    def said(self) -> str:
        """The last reply without a grade."""
        return ""

    @property
    def titles(self) -> Sequence[str]:
        """Names of the judges, where there are several to be told apart."""
        return ()

    @property
    def refusals(self) -> Mapping[str, Sequence[str]]:
        """Why calibrations say that judges are not worth asking, by judge."""
        return {}

    async def grade_by(self, title: str, answers: Sequence[Answer], patience_s: float) -> list[float | None]:
        """Return one judge's own grades; see :meth:`grade`."""
        raise NotImplementedError(title)

    @abstractmethod
    async def grade(self, answers: Sequence[Answer], patience_s: float | None = None) -> list[float | None]:
        """Return the judge's grade in [0, 1] of each answer, right or wrong; ``None`` where it gives none.

        Args:
            answers: What to grade.
            patience_s: How long to wait for a silent judge, if less than the recipe says.

        Raises:
            RewardError: The judge refuses or stays silent, or the budget is used up.
        """


class _SingleTurnEpisode:
    def __init__(self, task: SingleTurnTask, prompt: Prompt) -> None:
        self._task = task
        self._prompt = prompt

    async def observe(self) -> list[Message]:
        return list(self._prompt.messages)

    async def act(self, text: str) -> Step:
        (score,) = await self._task.score_batch([Answer(self._prompt, text)])
        return Step(done=True, score=score)

    async def close(self) -> None:
        return None
