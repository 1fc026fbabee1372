"""What travels between the rooms: frozen, slotted records without torch.

A prompt becomes a group of rollouts; a rollout holds turns; a turn is a (context, completion) pair of
token ids.  Tokens are made once, in :mod:`levelhead.text`; nothing downstream tokenizes again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from levelhead.message import Phrase

ChatMessage = Mapping[str, Any]
"""One chat message, ``{"role": ..., "content": ...}``, tool fields as in the chat-template convention."""

LARGEST_REWARD = 1e12
"""Size beyond which a reward is an error: advantages and their statistics are computed in single precision."""

FinishReason = Literal["stop", "length", "env"]
Severity = Literal["info", "warning", "critical"]
ActionKind = Literal["warn", "skip", "shrink", "rollback", "resample", "adapt", "stop"]


Tool = Mapping[str, Any]
"""A tool's JSON schema, ``{"type": "function", "function": {"name": ..., "parameters": ...}}``."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What the rendering of a chat depends on besides its messages.

    Attributes:
        tools: Tools that the template shows to the policy; none where it is empty.
        template_kwargs: Variables for the chat template, over those of the recipe's ``model.chat_template_kwargs``.
        special_tokens: Special tokens of the tokenizer that count as text here: a message that spells one writes the
            token, and the text of a completion shows it.
    """

    tools: tuple[Tool, ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: tuple[str, ...] = ()


PLAIN_CHAT = ChatOptions()
"""A chat without tools, variables or tags of its own."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem that the policy answers.

    Attributes:
        id: Unique within its task and stable across runs; the seed of a rollout is derived from it.
        task: Name of the task that made it.
        messages: Chat messages up to, and without, the assistant's turn.
        token_ids: ``messages`` as the codec rendered them, generation prompt included; empty until rendered.
        facts: What the scorer may see and the policy may not.
        chat: What the rendering depends on besides the messages.
    """

    id: str
    task: str
    messages: tuple[ChatMessage, ...]
    token_ids: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    chat: ChatOptions = PLAIN_CHAT

    @property
    def texts(self) -> list[str]:
        """The text of each message; the last one is what the policy answers."""
        return [str(message.get("content", "")) for message in self.messages]

    @property
    def where(self) -> str:
        """Place of its row in the data, as file and line; its id where the task names none."""
        return str(self.facts.get("where", self.id))

    def with_tokens(self, token_ids: Sequence[int]) -> Prompt:
        """Return this prompt with its rendered token ids."""
        return replace(self, token_ids=tuple(token_ids))


@dataclass(frozen=True, slots=True)
class Turn:
    """Exactly the tokens that the policy read and sampled in one turn.

    Attributes:
        context_ids: Token ids the policy saw, generation prompt included.
        completion_ids: Token ids that were sampled, the stop token included.
        logprobs: Log-probability of each sampled token under the policy at the sampling temperature, before
            penalties and truncation (top-k, top-p, min-p): what the trainer recomputes.
        behaviour_logprobs: Log-probability of each sampled token under the distribution it was really sampled
            from, after every sampling control; equals ``logprobs`` where no control acted.
        finish: ``stop`` a stop token was sampled, ``length`` the budget ran out, ``env`` the environment ended it.
        versions: Where the weights changed while it was sampled: updates that they had seen, and the index behind the
            last token that they sampled, stretch by stretch; empty where one version sampled all of it.
    """

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    behaviour_logprobs: tuple[float, ...]
    finish: FinishReason
    versions: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.completion_ids)
        if len(self.logprobs) != n or len(self.behaviour_logprobs) != n:
            raise ValueError(
                f"a turn of {n} completion tokens needs {n} log-probabilities, "
                f"got {len(self.logprobs)} and {len(self.behaviour_logprobs)}"
            )


@dataclass(frozen=True, slots=True)
class Score:
    """What a task thinks of a rollout.

    Attributes:
        total: The reward.  Finite, and at most :data:`LARGEST_REWARD` in size.
        parts: Named rewards; several objectives stay apart until the objective merges them.
        valid: Whether the answer parsed.
        info: Anything worth keeping with a sample; never used for training.
    """

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)
    valid: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("total", self.total), *self.parts.items()):
            if not math.isfinite(value):
                raise ValueError(f"score part {name!r} is {value}; a score must be finite")
            if abs(value) > LARGEST_REWARD:
                raise ValueError(f"score part {name!r} is {value:g}; a score is at most {LARGEST_REWARD:g} in size")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at a prompt: a single-turn answer has one turn, an episode one per action.

    Attributes:
        prompt_id: The prompt it answers.
        turns: In order.
        score: ``None`` until the task has scored it.
        policy_version: Number of optimizer updates the policy that sampled it had seen.
        text: The completion of each turn, decoded once for the task.
        info: Free notes, kept with the sample.
        turn_rewards: What the environment paid for each turn, as parts of the total score; empty where it pays once.
    """

    prompt_id: str
    turns: tuple[Turn, ...]
    score: Score | None = None
    policy_version: int = 0
    text: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.turn_rewards and len(self.turn_rewards) != len(self.turns):
            raise ValueError(f"{len(self.turns)} turns have {len(self.turn_rewards)} rewards")

    @property
    def reward(self) -> float:
        """The total score; raises if the rollout has not been scored."""
        if self.score is None:
            raise ValueError(f"rollout of prompt {self.prompt_id!r} has not been scored")
        return self.score.total

    @property
    def parts(self) -> Mapping[str, float]:
        """The named parts of its score; none before it has been scored."""
        return self.score.parts if self.score is not None else {}

    @property
    def length(self) -> int:
        """Completion tokens over all turns."""
        return sum(len(turn.completion_ids) for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """Whether the last turn ran out of its token budget."""
        return bool(self.turns) and self.turns[-1].finish == "length"

    def scored(self, score: Score) -> Rollout:
        """Return this rollout with its score."""
        return replace(self, score=score)


@dataclass(frozen=True, slots=True)
class Group:
    """The K rollouts of one prompt."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Total score of each rollout, shape (K,)."""
        return tuple(rollout.reward for rollout in self.rollouts)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Every number of one step (or one evaluation), under TRL's names where TRL has one.

    A step of GRPO is a batch of rollouts with all the updates (optimizer steps) made from it, one of SFT is one update.

    Attributes:
        step: Steps done in this stage, counted from 1; an evaluation carries the step it follows.
        stage: Which loop wrote it.
        values: Flat metric name to number; a number that does not exist for this step is absent, never 0 (a step whose
            groups all lack contrast has loss and gradient norm 0: there was nothing to climb).
        timings: Metrics that differ between two runs of one seed (seconds, rates, memory), kept apart.
    """

    step: int
    stage: Literal["sft", "grpo", "eval"]
    values: Mapping[str, float]
    timings: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Flat dict for one line of ``metrics.jsonl``."""
        return {"step": self.step, "stage": self.stage, **self.values, **self.timings}


@dataclass(frozen=True, slots=True)
class Event:
    """Something the guard, the trainer or an environment saw or did.

    Attributes:
        step: Step at which it was seen.
        code: A finding's code (``entropy-collapse``) or the trainer's own (``interrupted``).
        severity: How bad it is.
        message: One line for a person, in English; a :class:`~levelhead.message.Phrase` has the Chinese with it.
        action: What was done about it; ``None`` for a mere observation.
        evidence: The numbers that led to it.
    """

    step: int
    code: str
    severity: Severity
    message: str
    action: ActionKind | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Dict for one line of ``events.jsonl``."""
        row = {
            "step": self.step,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "action": self.action,
            "evidence": dict(self.evidence),
        }
        return {**row, "message_zh": self.message.zh} if isinstance(self.message, Phrase) else row


@dataclass(frozen=True, slots=True)
class Decision:
    """An action the guard asks training to take, as data, with the event that explains it.

    Attributes:
        kind: What to do.
        event: Why, with the numbers.
        params: ``scale`` and ``spent`` for ``shrink``.  For ``adapt`` and ``resample`` the new values by name, to be
            read: training takes them from :attr:`Guard.overrides`.
    """

    kind: ActionKind
    event: Event
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """How far one optimizer step moved the policy, on a probe of the batch it was made from.

    Attributes:
        scale: Share of the step that stands: 1 the whole step, 0 none of it.
        kl: KL of the policy before to the policy after, in nats a token; infinite where it cannot be told.
        most: Largest change of a sampled token's log-probability, in nats.
        entropy: Mean entropy a token before and after, in nats.
        later: Whether it is not the first update of its batch.
        drift: KL of the policy that the batch's updates began with to that before the step and to that after it.
    """

    scale: float
    kl: float
    most: float
    entropy: tuple[float, float]
    later: bool = False
    drift: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CoefficientOverrides:
    """Coefficients that a guard may override, relative to the recipe: the defaults leave the arithmetic as it is.

    Attributes:
        learning_rate: Factor of the learning rate.
        entropy: Factor of the entropy coefficient.
        entropy_bonus: Added to the entropy coefficient.
        kl: Factor of the KL coefficients.
        clip: Factor of the clip range.
        temperature: Factor of the sampling temperature.
        redraws: Times that groups without contrast give way to others, if more than the recipe's.
    """

    learning_rate: float = 1.0
    entropy: float = 1.0
    entropy_bonus: float = 0.0
    kl: float = 1.0
    clip: float = 1.0
    temperature: float = 1.0
    redraws: int = 0

    def to_json(self) -> dict[str, float]:
        """Return a dict of plain numbers."""
        return asdict(self)


@runtime_checkable
class Observer(Protocol):
    """What training knows of the guard: it is shown records and returns decisions, and touches nothing.

    The event of every decision is written.  Training itself carries out ``skip`` and ``stop`` before an update, and
    ``stop`` and, where a guard keeps weights, ``rollback`` after a step.
    """

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        """Called before each update (optimizer step), with the gradient's numbers known."""
        ...

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        """Called once after each step, all updates of its batch made, with its complete record."""
        ...


@runtime_checkable
class Spectator(Observer, Protocol):
    """An observer that wants to know of which run."""

    def began(self, policy: Any, folder: Path, steps: int) -> None:
        """Called once the model is loaded and before anything is sampled, with the steps of the stage."""
        ...


@runtime_checkable
class Guard(Observer, Protocol):
    """An observer that also measures and corrects updates, and whose state is kept in checkpoints."""

    @property
    def overrides(self) -> CoefficientOverrides:
        """Where the overrides are to stand from the next batch on."""
        ...

    @property
    def corrects(self) -> bool:
        """Whether it ever asks for weights to be changed; one that only looks on needs no copy of them."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the weights that sampled the batch just seen are worth coming back to."""
        ...

    def probe_size(self, samples: int) -> int:
        """Sequences to measure an update on, of so many; 0 for none."""
        ...

    def judge(self, step: int, trials: Sequence[Change]) -> Decision | None:
        """Look at a step that has been taken; ``shrink`` asks for another scale of it, ``None`` lets it stand."""
        ...

    def recall(self, record: StepRecord) -> None:
        """Take in a record of before a resumption, without judging it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`recall` does not restore, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        ...
