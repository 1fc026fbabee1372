"""The task protocol: prompts to answer, an oracle, and an episode that scores what the policy writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from levelhead.records import LARGEST_REWARD, ChatMessage, Event, Prompt, Rollout, Score
from levelhead.tasks import threads
from levelhead.tasks.grader import Answer as Answer
from levelhead.tasks.grader import Criterion, Grader, LabelledAnswer, grade_metrics
from levelhead.tasks.metering import JudgeUse, RewardTally

Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers to one action.

    Attributes:
        done: Whether the episode is over.
        score: The score of the whole episode, when done.  Its total holds the rewards of all turns; what they leave of
            it is earned by the last turn.
        reward: What this turn earned, of the total; ``None`` where the environment does not say.  Finite.
    """

    done: bool
    score: Score | None = None
    reward: float | None = None

    def __post_init__(self) -> None:
        if self.reward is not None and not abs(self.reward) <= LARGEST_REWARD:
            raise ValueError(f"the reward of a turn is {self.reward}; it is finite, at most {LARGEST_REWARD:g} in size")


@runtime_checkable
class Episode(Protocol):
    """One attempt at a prompt, turn by turn."""

    async def observe(self) -> list[ChatMessage]:
        """Return the messages of the next turn: all that the policy will see."""
        ...

    async def act(self, text: str) -> Step:
        """Take the policy's text of this turn."""
        ...

    async def close(self) -> None:
        """Let go of whatever the episode holds; called once, finished or not."""
        ...


@runtime_checkable
class SeesTokens(Protocol):
    """An episode that is shown the tokens of each turn before it acts on their text.

    Attributes:
        completion_ids: Of the turn that is acted on next.
    """

    completion_ids: tuple[int, ...]


class EpisodeLostError(Exception):
    """The environment broke under an episode: through no fault of the policy, and without a score.

    Raised by ``observe`` and ``act``.  Close the episode and draw it again, a bounded number of times; nothing else is
    affected.  The task keeps the event that says what happened (:meth:`Task.drain_events`).
    """


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


ShownTurn = tuple[list[ChatMessage], str | ChatMessage]
"""What a turn of a demonstration sees, and its answer: a text, or an assistant's message that calls tools."""


class Task(ABC):
    """Something to learn: its prompts, perfect answers, and episodes that are scored.

    The oracle scores the maximum, an empty answer scores the minimum, scores are finite, and the same seed
    gives the same prompts in the same order.  Subclasses write the four abstract methods; all others have a default,
    and whoever uses a task asks them and never what class it is of.
    """

    name: str = ""
    """Name in metrics and reports."""
    tools: CallableTools | None = None
    """What may be called before an answer, which has several turns then."""

    @abstractmethod
    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, in an order that depends on the seed alone."""

    @abstractmethod
    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return a perfect answer per turn, or ``None`` where nobody knows one."""

    @abstractmethod
    def episode(self, prompt: Prompt) -> Episode:
        """Start an attempt at a prompt."""

    @abstractmethod
    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the task's own metrics over scored rollouts (accuracy by condition, bias scores, ...)."""

    # What scores are told apart by, and what a constant answer is.

    def strata(self, prompt: Prompt) -> Mapping[str, str]:  # noqa: ARG002
        """Return what a prompt's scores are told apart by (``{"condition": "ambig"}``); ``{}`` where nothing is."""
        return {}

    def form(self, prompt: Prompt) -> str:  # noqa: ARG002
        """Return which form a prompt has, where a glance tells prompts apart (a verdict or a question); else ``""``.

        An answer to each form needs no reading either: constant answers are compared form by form.
        """
        return ""

    def constants(self) -> Sequence[str]:
        """Return answers that need no reading of the prompt: abstaining, "A", "no"."""
        return ()

    def canonical(self, prompt: Prompt, text: str) -> str:  # noqa: ARG002
        """Return what an answer says, so that two answers that mean the same to this task are equal texts.

        By default the answer in lower case with its white space made single blanks.
        """
        return " ".join(text.casefold().split())

    @property
    def has_baselines(self) -> bool:
        """Whether constant policies are scripts that the task plays itself, and not one answer each."""
        return type(self).baselines is not Task.baselines

    async def baselines(self, prompts: int) -> Sequence[Baseline]:  # noqa: ARG002
        """Return the fixed scripts, and a random policy, to be played on so many prompts; none where that is too much.

        The caller chooses the best one, on other prompts than it is scored on.
        """
        return ()

    # Demonstrations.

    @property
    def demonstrates(self) -> bool:
        """Whether perfect answers depend on what the environment shows, so that the task acts to demonstrate them."""
        return type(self).demonstrate is not Task.demonstrate

    async def demonstrate(self, prompt: Prompt) -> Sequence[ShownTurn]:  # noqa: ARG002
        """Return the (messages, answer) pair of every turn of a perfect episode; empty where it did not succeed."""
        return []

    def oracle_bytes(self, prompt: Prompt) -> int | None:  # noqa: ARG002
        """Return how many bytes of UTF-8 the perfect answer has at most, where that is known without writing it."""
        return None

    def lexicon(self) -> Iterator[str]:
        """Yield text beyond the prompts for a tokenizer to learn words from."""
        return iter(())

    # Rewards and prompts that are made of several things.

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Least and most total reward of an answer, where declared: the worst answers and perfect ones get them."""
        return None

    @property
    def part_weights(self) -> Mapping[str, float] | None:
        """Weight of each part in the total of a valid answer; ``None`` where the total is no such sum."""
        return None

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of each kind of problem (a web page, a domain) in the prompts, in sum one; empty with one kind."""
        return {}

    def kind_of(self, prompt: Prompt) -> str:  # noqa: ARG002
        """Return the kind of problem that a prompt is, of those in :attr:`shares`."""
        return ""

    # What goes on while training.

    def at_step(self, step: int, max_steps: int) -> None:  # noqa: B027 - a default, and no oversight
        """Take note that ``step`` of the stage's ``max_steps`` steps are done, where scores depend on it."""

    def drain_events(self, step: int) -> list[Event]:  # noqa: ARG002
        """Return what happened since the last call (a lost page, a silent endpoint), dated ``step``."""
        return []

    def drain_use(self) -> JudgeUse | None:
        """Return what judges did and cost since the last call; ``None`` where none are asked."""
        return None

    def drain_tally(self) -> RewardTally | None:
        """Return what the user's reward functions did since the last call; ``None`` where there are none."""
        return None

    # Something outside that episodes live in: a browser, a server.

    @property
    def concurrency(self) -> int | None:
        """Most episodes that can be live at once; ``None`` where episodes need nothing outside.

        ``observe`` of one more waits until another is closed or done.  All coroutines of the task and its episodes are
        awaited on one event loop, on which whatever they need is started at first use.
        """
        return None

    async def close(self) -> None:  # noqa: B027 - a default, and no oversight
        """Let go of everything outside, from the same event loop; the task starts afresh if it is used again."""


@runtime_checkable
class TrimsPrompts(Protocol):
    """A task whose prompts can be left out or replaced."""

    def trim(self, fitted: Mapping[str, Prompt | None]) -> None:
        """Put another prompt in the place of each, by id, or leave it out where it is ``None``."""
        ...


@runtime_checkable
class CallableTools(Protocol):
    """Tools that are executed when an answer calls them.

    Attributes:
        names: What they are called.
        format: How the template writes calls; empty before :meth:`learn_format`.
        room: Tokens that a conversation may have before a turn.
    """

    room: int

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102 - above
    @property
    def format(self) -> str: ...  # noqa: D102 - above

    def learn_format(self, codec: Any, task: str, room: int) -> None:
        """Find out how the codec's template writes calls, for the task of that name and prompts of ``room`` tokens.

        Raises:
            InputError: It writes none, or none that can be read.
        """
        ...


class SingleTurnTask(Task):
    """A task whose rollouts are one answer each: subclasses write :meth:`prompts` and :meth:`score`."""

    grader: Grader | None = None
    """Grades right answers as well; rules alone score where there is none.

    Subclasses that override ``summarize``, ``at_step`` or ``drain_events`` call these of this class too.
    """

    @abstractmethod
    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer to a prompt."""

    async def rewarded(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many answers by the rules, and let judges grade what these find right; as :meth:`score_batch`.

        Raises:
            RewardError: A reward function misbehaves; or a judge refuses or stays silent, or its budget is used up.
        """
        scores = await self.score_batch(answers)
        return scores if self.grader is None else await self.grader.weigh(answers, scores)

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many answers by the rules; ``None`` marks a rollout that must be dropped.

        A caller hands over all rollouts of a prompt in one call: they may be scored by comparison with each other.
        """

        def score_all() -> list[Score | None]:
            return [self.score(answer.prompt, answer.text) for answer in answers]

        if type(self).score.__module__.startswith("levelhead."):
            return score_all()
        # Code of the user's own, which may rely on the main thread.
        outcome = await threads.run(score_all, None)
        if outcome.error is not None:
            raise outcome.error
        scores: list[Score | None] = outcome.value
        return scores

    def oracle(self, prompt: Prompt) -> list[str] | None:  # noqa: ARG002
        """Return a perfect answer, or ``None`` where nobody knows one."""
        return None

    def criteria(self, prompt: Prompt) -> Sequence[Criterion]:  # noqa: ARG002
        """Return what judges grade an answer to a prompt by, each for itself; their own rubric where there are none."""
        return ()

    tells_apart = True
    """Whether its rules tell right answers from wrong ones."""
    criteria_together = False
    """Whether judges are asked about all criteria of an answer in one call."""

    def labelled(self, prompt: Prompt) -> Sequence[LabelledAnswer]:  # noqa: ARG002
        """Return answers to a prompt that people have graded, which judges are calibrated on."""
        return ()

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

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the task's own metrics over scored rollouts: what judges gave, and what subclasses add."""
        return grade_metrics(results)

    def at_step(self, step: int, max_steps: int) -> None:
        """Note that ``step`` of the stage's ``max_steps`` steps are done: judges' anchors may be due."""
        if self.grader is not None:
            self.grader.at_step(step, max_steps)

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened to judges since the last call, dated ``step``."""
        return self.grader.drain_events(step) if self.grader is not None else []

    def drain_use(self) -> JudgeUse | None:
        """Return what judges did and cost since the last call; ``None`` where none are asked."""
        return self.grader.drain_use() if self.grader is not None else None

    @property
    def concurrency(self) -> int | None:
        """Calls to judges under way at once; ``None`` where none are asked."""
        return self.grader.concurrency if self.grader is not None else None

    async def close(self) -> None:
        """Close what judges hold open."""
        if self.grader is not None:
            await self.grader.close()


def has_one_turn(task: Task) -> bool:
    """Whether each rollout of a task is one completion: an answer, and no tools to call before it."""
    return isinstance(task, SingleTurnTask) and task.tools is None


class _SingleTurnEpisode:
    def __init__(self, task: SingleTurnTask, prompt: Prompt) -> None:
        self._task = task
        self._prompt = prompt

    async def observe(self) -> list[ChatMessage]:
        return list(self._prompt.messages)

    async def act(self, text: str) -> Step:
        (score,) = await self._task.rewarded([Answer(self._prompt, text)])
        return Step(done=True, score=score)

    async def close(self) -> None:
        return None
