"""What every task's section has, and what every task has whose answers judges may grade."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from levelhead.recipe.judge import Judge, Judges
from levelhead.recipe.objective import KlController, Shaping
from levelhead.section import Section


class TaskSection(Section):
    """Keys that every kind of task has."""

    task: ClassVar[str] = ""
    """``module:Class`` of the task that a section describes; it is imported when the task is built."""
    if TYPE_CHECKING:
        kind: str

    name: str | None = Field(None, min_length=1, max_length=80)
    """Name in metrics and reports, without slashes; the kind unless given.  Two tasks of one kind need two names."""
    weight: float = Field(1.0, ge=1e-6, le=1e6)
    """Share of the prompts of a batch, relative to the other tasks."""
    kl: float | None = Field(None, ge=0, le=1e3)
    """KL coefficient of this task; ``grpo.kl.coef`` unless given."""
    kl_controller: KlController | None = None
    """How this task's KL coefficient moves, with its own band or target; ``grpo.kl.controller`` unless given."""
    balance: bool = False
    """Weigh groups so that strata of the prompts count alike in the policy gradient, however often each is drawn."""
    shaping: Shaping = Shaping()
    """What is done to the rewards before they become advantages."""
    eval_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the items kept for evaluation; split by item, so that variants of one item stay together."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many items."""

    @property
    def title(self) -> str:
        """Name in metrics and reports: its own, else the kind."""
        return self.name or self.kind

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, value: str | None) -> str | None:
        """Names are parts of metric names, which slashes divide, and stand in headings."""
        if value is not None and ("/" in value or "\\" in value or not value.isprintable() or not value.strip(" .")):
            raise ValueError("a name is printable text without slashes, and not dots alone")
        return value


class JudgedSection(TaskSection):
    """What every task has whose right answers judges may grade."""

    judge: Judge | None = None
    """A language model that grades answers that the rules find right; rules alone unless given."""
    judges: Judges | None = None
    """Several of them, in place of ``judge``: one after the other as they fail, or all together as a panel."""

    @model_validator(mode="after")
    def _judge_or_judges(self) -> Self:
        if self.judge is not None and self.judges is not None:
            raise ValueError("judge and judges are both set: move the one judge into judges.members")
        return self
