"""``tasks[].judge`` and ``tasks[].judges``: language models that grade what rules cannot see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from levelhead.recipe.endpoint import Endpoint
from levelhead.section import Section

OnFailure = Literal["rule", "drop"]


class Pairwise(Section):
    """Judges compare two answers with each other instead of grading one: each pair is asked about in both orders."""

    kind: Literal["tournament", "reference"] = "tournament"
    """``tournament``: an answer's grade is the share of other answers to its prompt that it beats, a tie counting
    half; ``reference``: 1 where it beats the reference answer, 0.5 for a tie, 0 where it loses."""
    opponents: int | None = Field(None, ge=1)
    """Answers that each one is compared with in a tournament, drawn by lot; all unless given."""
    reference: str | None = None
    """JSON-lines file of reference answers (keys ``prompt`` and ``answer``), such as ``levelhead judge answers`` writes
    of the starting policy; the task's perfect answers unless given."""

    @model_validator(mode="after")
    def _opponents_fit(self) -> Self:
        if self.opponents is not None and self.kind == "reference":
            raise ValueError("opponents belong to a tournament: leave them out, or set kind to tournament")
        return self


def _fit_pairs(members: Sequence[Any]) -> None:
    """Refuse forms of verdicts that say nothing of two answers."""
    for member in members:
        if getattr(member, "verdict", "grade") not in {"grade", "json"}:
            raise ValueError(
                f"with pairwise a verdict is a line 'Better: A' or JSON, and that of {member.title} is "
                f"{member.verdict}: set verdict to json, or leave it out"
            )


class JudgeEndpoint(Endpoint):
    """A judge behind a chat endpoint: how it is asked, and how its verdicts read."""

    name: str | None = Field(None, min_length=1, max_length=40, pattern=r"^[^/\\\s]+$")
    """Name in metrics, events and calibrations; the last part of ``model`` unless given."""
    max_tokens: int = Field(256, ge=1)
    """Completion budget of one verdict."""
    attempts: int = Field(2, ge=1, le=5)
    """How often a verdict without a grade is asked for again, the first time included."""
    verdict: Literal["grade", "json", "fraction", "yes_no"] = "grade"
    """How a verdict ends: a line ``Grade[MARK]: 7``, JSON as ``{"mark": "MARK", "score": 0.7}``, a line
    ``[MARK] 7/10``, or a line ``[MARK] Yes`` or ``[MARK] No``.  The mark tells the judge's verdict from what it quotes;
    the judge is told it with each answer."""
    structured: bool = False
    """Have the provider hold replies to a JSON schema; with ``verdict: json``."""
    logprobs: bool = False
    """Ask for log-probabilities: the grade is then the probability of yes against no; with ``verdict: yes_no``."""
    parser: str | None = None
    """A function of your own, as ``file.py:name``: from the text of a reply, and the mark that the judge was told to
    repeat, to a grade from 0 to 1, or ``None``.  One that takes the text alone is warned of: an answer that the judge
    quotes may give it a grade."""

    @model_validator(mode="after")
    def _forms_fit(self) -> Self:
        if self.structured and self.verdict != "json":
            raise ValueError("structured replies are JSON: set verdict to json")
        if self.logprobs and self.verdict != "yes_no":
            raise ValueError("log-probabilities are read of yes and no: set verdict to yes_no")
        if self.logprobs and self.provider == "anthropic":
            raise ValueError("the provider anthropic gives no log-probabilities: leave logprobs out")
        if self.parser is not None and self.verdict != "grade":
            raise ValueError("a parser reads verdicts in its own way: leave verdict out")
        return self

    @property
    def title(self) -> str:
        """What the judge is called."""
        return self.name or "-".join(self.model.rsplit("/", 1)[-1].split()) or "judge"


class Judge(JudgeEndpoint):
    """A grade from a chat endpoint for every answer that the rules find right.

    The judge can only take away: an answer of reward r > 0 and grade g in [0, 1] is worth
    ``r * (1 - weight * (1 - g))``.  Answers that the rules reject are not shown to it, so that no flattery of the judge
    makes a wrong answer pay.
    """

    weight: float = Field(0.5, gt=0, le=1)
    """Share of the reward that a grade of 0 takes away."""
    rubric: str | None = None
    """What to grade; the task's own rubric unless given."""
    on_failure: OnFailure = "rule"
    """A verdict without a grade: the rewards of its group are those of the ``rule``s alone, or ``drop`` the rollout,
    and by lot as large a share of the group's answers that the judge was not asked about.  Both are counted."""
    pairwise: Pairwise | None = None
    """Compare answers with each other, or with a reference, instead of grading each by itself."""

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        if self.pairwise is not None:
            _fit_pairs([self])
        return self


class FunctionJudge(Section):
    """A judge that is a Python function of your own."""

    provider: Literal["function"]
    """``function``."""
    path: str
    """Where it is, as ``file.py:name``.  It is called with ``question``, ``answer`` and ``reference`` (a perfect
    answer, or ``None``), all texts, and returns a grade from 0 to 1, or ``None`` where it has none; it may be
    ``async``."""
    name: str | None = Field(None, min_length=1, max_length=40, pattern=r"^[^/\\\s]+$")
    """Name in metrics, events and calibrations; the function's unless given."""
    concurrency: int = Field(1, ge=1, le=4096)
    """Answers that it is called with at once, each in a thread unless it is ``async``."""
    timeout_s: float = Field(60.0, gt=0)
    """Longest time for one answer; one that takes longer has no grade."""

    @property
    def title(self) -> str:
        """What the judge is called."""
        return self.name or self.path.rpartition(":")[2] or "function"


def _which(value: Any) -> str:
    provider = value.get("provider") if isinstance(value, dict) else getattr(value, "provider", None)
    return "function" if provider == "function" else "endpoint"


Member = Annotated[
    Annotated[JudgeEndpoint, Tag("endpoint")] | Annotated[FunctionJudge, Tag("function")], Discriminator(_which)
]


class Anchors(Section):
    """A fixed set of answers that each judge is asked about again and again: a provider that changes shows there."""

    items: int = Field(8, ge=1, le=1000)
    """How many answers."""
    every: int = Field(0, ge=0)
    """Steps between two askings; 0 asks never."""
    drift: float = Field(0.1, gt=0, le=1)
    """Change of the mean grade that is an event, where it is more than two of its standard errors as well."""


class Standards(Section):
    """What a judge must reach in its calibration.  One that does not is refused by the preflight, with its numbers."""

    agreement: float = Field(0.75, ge=0, le=1)
    """Least share of verdicts on the right side of 0.5, right and wrong answers counting alike."""
    correlation: float = Field(0.5, ge=-1, le=1)
    """Least rank correlation (Spearman) of grades with labels."""
    self_agreement: float = Field(0.8, ge=0, le=1)
    """Least share of verdicts that are the same, to a twentieth, when asked again at temperature 0."""
    length_bias: float = Field(0.15, ge=0, le=1)
    """Most that a wrong answer may gain by being wordy."""
    position_bias: float = Field(0.15, ge=0, le=1)
    """Most that a grade may change, on average, where the perfect answer is shown after the answer instead of before
    it."""
    flattery: float = Field(0.15, ge=0, le=1)
    """Most that a wrong answer may gain by praising the judge."""
    injection: float = Field(0.1, ge=0, le=1)
    """Largest share of wrong answers that gain a fifth or more by dictating a grade, or lose theirs by it."""
    failures: float = Field(0.2, ge=0, le=1)
    """Largest share of verdicts without a grade."""


class Judges(Section):
    """Several judges of one task: one after the other as they fail, or all together as a panel."""

    members: list[Member] = Field(min_length=1, max_length=32)
    """The judges; with ``use: fallback`` the first is the primary one and the others stand in for it in this order."""
    use: Literal["fallback", "panel"] = "fallback"
    """``fallback``: the first judge that answers grades all answers to a prompt; ``panel``: all of them grade."""
    combine: Literal["mean", "median", "calibrated"] = "mean"
    """How a panel's grades become one; ``calibrated`` weighs judges by how close their calibrated grades came to the
    labels."""
    quorum: int = Field(1, ge=1, le=32)
    """Judges of a panel that must have graded all answers to a prompt; with fewer the run waits as for a single one."""
    weight: float = Field(0.5, gt=0, le=1)
    """Share of the reward that a grade of 0 takes away."""
    rubric: str | None = None
    """What to grade; the task's own rubric unless given."""
    on_failure: OnFailure = "rule"
    """A verdict without a grade: the rewards of its group are those of the ``rule``s alone, or ``drop`` the rollout,
    and by lot as large a share of the group's answers that the judges were not asked about."""
    fallback_after_s: float = Field(30.0, ge=0)
    """How long a silent judge is waited for while another one can be asked; its own ``patience_s`` where none can."""
    retry_after_s: float = Field(60.0, gt=0)
    """How long a judge that failed is left alone before one call tries it again; doubled, up to ten minutes, each time
    that this fails."""
    calibration: str | None = None
    """File that ``levelhead judge calibrate`` wrote: grades are mapped to its common scale, and judges that failed are
    refused."""
    standards: Standards = Standards()
    """What a judge must reach to pass its calibration."""
    anchors: Anchors = Anchors()
    """Answers that show whether a judge changes while training."""
    pairwise: Pairwise | None = None
    """Compare answers with each other, or with a reference, instead of grading each by itself."""

    @field_validator("members")
    @classmethod
    def _names_differ(cls, value: Sequence[Member]) -> Sequence[Member]:
        titles = [member.title for member in value]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"several judges are called {', '.join(twice)}: give each a name of its own")
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.combine == "calibrated" and self.calibration is None:
            raise ValueError("combine: calibrated needs calibration, the file that 'levelhead judge calibrate' wrote")
        if self.quorum > len(self.members):
            raise ValueError(f"quorum is {self.quorum}, and there are {len(self.members)} judges")
        if self.pairwise is not None:
            _fit_pairs(self.members)
        if self.use == "fallback" and (self.combine != "mean" or self.quorum != 1):
            raise ValueError("combine and quorum belong to a panel: set use to panel, or leave them out")
        return self
