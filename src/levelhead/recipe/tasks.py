"""``tasks``: what is learnt.  One variant a kind, each with only the keys it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from levelhead import extensions
from levelhead.recipe.environments import Browser, BrowserGym, OpenEnv, Verifiers
from levelhead.recipe.judge import FunctionJudge, JudgeEndpoint, Judges
from levelhead.recipe.task import JudgedSection, TaskSection
from levelhead.recipe.tools import ToolUse
from levelhead.recipe.workflow import (
    ExecutorRecipe,
    RewardConfig,
    SandboxLimits,
    SimulatedExecutor,
    WeightedReward,
    WorkflowLimits,
)


class Fairness(JudgedSection):
    """Multiple-choice questions about people with a one-sentence justification (BBQ, Parrish et al. 2022)."""

    task = "levelhead.contrib.fairness:FairnessTask"
    kind: Literal["fairness"]
    """``fairness``."""
    path: str | list[str] | None = None
    """BBQ JSONL file, files, or folder of ``*.jsonl``, or ``hf:NAME`` of a copy; a built-in generator in the same
    schema unless given."""
    items: int = Field(2000, ge=10, le=13200)
    """Items that the built-in generator makes."""
    hold_out: list[str] = Field(default_factory=list)
    """Categories that are never trained on; their held-out items are scored with the others, as a stratum."""
    unseen: Literal["template", "people"] = "template"
    """What is new about held-out items: their wording, as whole templates are held out, or only the people in it."""


class Faithfulness(JudgedSection):
    """Answers with quoted evidence (HaluEval, Li et al. 2023)."""

    task = "levelhead.contrib.faithfulness:FaithfulnessTask"
    kind: Literal["faithfulness"]
    """``faithfulness``."""
    path: str | list[str] | None = None
    """HaluEval JSON-lines file, files, or folder of ``*.json``, or ``hf:NAME`` of a copy; a built-in generator unless
    given."""
    items: int = Field(2000, ge=10, le=10_000_000)
    """Items that the built-in generator makes."""
    unanswerable: float = Field(0.2, ge=0, le=0.9)
    """Share of the questions whose supporting sentences are withheld, so that abstaining is right; 0 withholds none."""
    max_prompt_chars: int | None = Field(None, ge=100)
    """Leave out rows whose prompt is longer than this many characters; nothing is left out unless given."""


if TYPE_CHECKING:
    DatasetName = str
else:
    DatasetName = Literal[tuple(extensions.OURS["datasets"])]
"""Public data sets that can be read from their own files (docs/data.md)."""


class Math(JudgedSection):
    """Problems with an exact answer: a number (GSM8K, Cobbe et al. 2021), or mathematics (MATH, AIME)."""

    task = "levelhead.tasks.math:MathTask"
    kind: Literal["math"]
    """``math``."""
    dataset: Literal["gsm8k", "math", "aime"] = "gsm8k"
    """Whose files ``path`` names (docs/data.md); ``gsm8k`` asks for a number, the others for any mathematics."""
    path: str | list[str] | None = None
    """The data set's file, files, folder, or ``hf:NAME``; a built-in generator of word problems unless given."""
    items: int = Field(2000, ge=10, le=10_000_000)
    """Items that the built-in generator makes."""

    @model_validator(mode="after")
    def _dataset_has_files(self) -> Self:
        if self.path is None and self.dataset != "gsm8k":
            raise ValueError(f"dataset {self.dataset} needs path: its file, files, folder or hf:NAME (docs/data.md)")
        return self


class Direct(JudgedSection):
    """What tasks have whose questions are those of a public data set, answered directly."""

    task = "levelhead.tasks.datasets.task:DatasetTask"
    path: str | list[str]
    """The data set's file, files, folder, or ``hf:NAME``; your own rows in its format."""
    credit: Literal["partial", "exact"] = "partial"
    """What an answer is worth: the share of tests that hold or token F1, or right or wrong."""


class Code(Direct):
    """Python functions to be written, run against tests in the sandbox (HumanEval, MBPP)."""

    kind: Literal["code"]
    """``code``."""
    dataset: Literal["humaneval", "mbpp"] = "humaneval"
    """Whose files ``path`` names (docs/data.md)."""
    sandbox: SandboxLimits = SandboxLimits()
    """Bounds on the programs."""


class Questions(Direct):
    """Questions with answers in words, by exact match and F1 (HotpotQA, DROP), or a choice (TruthfulQA)."""

    kind: Literal["qa"]
    """``qa``."""
    dataset: Literal["hotpotqa", "drop", "truthfulqa"] = "hotpotqa"
    """Whose files ``path`` names (docs/data.md)."""


class OwnPrompts(JudgedSection):
    """What tasks have whose prompts are rows of your own data."""

    path: str | None = None
    """JSONL, CSV or Parquet file, or the name of a Hugging Face data set; an in-memory data set from Python."""
    dataset_config: str | None = None
    """Configuration of a hub data set."""
    dataset_split: str = "train"
    """Split of a hub data set."""
    prompt: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (as such or as JSON text)."""
    system: str | None = None
    """System message put before every prompt."""
    tools: str | ToolUse | None = "tools"
    """Column with the tools that the chat template shows with a row's prompt, a list of JSON schemas (as such or as
    JSON text); null: the column is the rewards' alone.  Or tools that are executed: functions, or settings."""
    chat_template_kwargs: str | None = "chat_template_kwargs"
    """Column with variables of the chat template for a row, over those of the model; null: as for ``tools``."""
    keep_special_tokens: list[str] = Field(default_factory=list)
    """Special tokens of the tokenizer that are text in this task, such as ``<think>``: prompts and perfect answers that
    spell one hold the token, and rewards see it.  Others are spelt in characters and hidden from rewards."""
    oracle: str | None = None
    """Column with a perfect answer, for SFT and for judges to compare with: a text, a number, true or false, a list of
    one assistant message (with ``tools`` that are executed, behind those that call them), or a list of right answers,
    of which the first one is shown."""
    overlong: Literal["error", "drop", "truncate_left"] = "error"
    """A row whose prompt (or demonstration) is longer than the model's context has room for: ``error`` refuses the run,
    ``drop`` leaves the row out, ``truncate_left`` drops the oldest turns, then the beginning of the longest text."""
    strata: list[str] = Field(default_factory=list)
    """Columns whose values evaluations tell scores apart by; the balanced score is the mean over the first one's."""

    @field_validator("tools", mode="before")
    @classmethod
    def _functions_alone(cls, value: Any) -> Any:
        return {"functions": value} if isinstance(value, list) else value

    @property
    def tools_column(self) -> str | None:
        """Column with the tools of a row."""
        return self.tools.column if isinstance(self.tools, ToolUse) else self.tools


class Function(OwnPrompts):
    """Your own data and reward functions, with TRL's signature."""

    task = "levelhead.tasks.function:FunctionTask"
    kind: Literal["function"]
    """``function``."""
    rewards: list[str] = Field(default_factory=list)
    """Reward functions as ``file.py:name``; Python callables through the API."""
    reward_weights: list[float] | None = None
    """One weight a reward; 1 each unless given."""
    reward_range: tuple[float, float] | None = None
    """Least and most total reward, where you know them: the preflight sees that the worst answers get the one and
    perfect ones the other, and that nothing lies outside."""
    on_reward_error: Literal["stop", "drop"] = "stop"
    """An answer whose reward raises, takes too long or is no finite number: ``stop`` the run or ``drop`` it."""
    reward_timeout_s: float | None = Field(600.0, gt=0, le=604_800)
    """Longest that one call of a reward function, on all answers of a batch, may take, in seconds; null: no bound."""

    @field_validator("reward_range")
    @classmethod
    def _range_in_order(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not value[0] < value[1]:
            raise ValueError(f"reward_range must be the least and a larger most reward, got {list(value)}")
        return value


class JudgedPrompts(OwnPrompts):
    """Prompts without rules: judges alone say what an answer is worth, by the rubric that you give them.

    An answer without a word is worth 0 and shown to nobody; any other is worth ``1 - weight * (1 - grade)``.
    """

    task = "levelhead.tasks.judges.prompts:PromptsTask"
    kind: Literal["judge"]
    """``judge``."""
    rubric: str | None = None
    """Column with what judges grade a row's answers by, in place of their own rubric: a text, or a list of criteria,
    each a text or an object of ``criterion``, ``name`` and ``weight``.  Each criterion is a part of the reward,
    ``judge/NAME``; the grade is their weighted mean."""
    criteria: Literal["each", "together"] = "each"
    """``each``: a call for each criterion; ``together``: one call for all criteria of an answer, with a verdict on
    each."""
    labelled: str | None = None
    """Column with answers that people have graded, a list of objects of ``answer`` and ``meets``, the names of the
    criteria that it meets: ``levelhead judge calibrate`` holds judges to them, criterion by criterion."""

    @model_validator(mode="after")
    def _criteria_fit(self) -> Self:
        if self.rubric is None and (self.labelled is not None or self.criteria == "together"):
            raise ValueError("criteria and labelled belong to a column of rubrics: name it in rubric")
        members = self.judges.members if self.judges is not None else [self.judge]
        odd = [m for m in members if isinstance(m, JudgeEndpoint) and (m.logprobs or m.parser is not None)]
        if self.criteria == "together" and odd:
            raise ValueError(
                f"criteria: together asks for several verdicts in a reply, and logprobs or parser of {odd[0].title} "
                "read one: leave these out, or set criteria to each"
            )
        return self

    @model_validator(mode="after")
    def _somebody_judges(self) -> Self:
        if self.judge is None and self.judges is None:
            raise ValueError("a task of kind judge has no rules: give it a judge or judges")
        judges = self.judge or self.judges
        pairwise = judges.pairwise if judges is not None else None
        mine = isinstance(judges, Judges) and any(isinstance(one, FunctionJudge) for one in judges.members)
        if self.rubric is not None and (pairwise is not None or mine):
            what = "pairwise" if pairwise is not None else "a judge that is a function"
            raise ValueError(f"rubric is a column of rubrics to grade single answers by, and {what} has none")
        wanted = pairwise is not None and pairwise.kind == "reference" and pairwise.reference is None
        if wanted and self.oracle is None:
            raise ValueError(
                "pairwise.kind reference needs reference answers: name a column of them in oracle, or a file in "
                "pairwise.reference"
            )
        return self


class Workflow(JudgedSection):
    """Workflows written in a small language, run by operators, and rewarded for the answer they lead to."""

    task = "levelhead.contrib.workflow.task:WorkflowTask"
    kind: Literal["workflow"]
    """``workflow``."""
    dataset: DatasetName | None = None
    """Whose files ``path`` names (docs/data.md); answers are then checked as that data set's own metric counts them."""
    path: str | list[str] | None = None
    """GSM8K files, or JSONL with ``question``, ``answer``, ``domain`` (``math|code|qa``) and ``entry_point``; a
    built-in generator in all three domains unless given.  With ``dataset``, that data set's files or ``hf:NAME``."""
    items: int = Field(3000, ge=30, le=10_000_000)
    """Problems that the built-in generator makes."""
    domains: dict[Literal["math", "code", "qa"], float] | None = None
    """Ratios in which an epoch draws from the domains; every problem once unless given."""
    executor: ExecutorRecipe = SimulatedExecutor(kind="simulated")
    """Who runs the workflows."""
    reward: RewardConfig = WeightedReward(kind="weighted")
    """What an answer is worth."""
    limits: WorkflowLimits = WorkflowLimits()
    """Bounds on what a workflow may ask for."""
    sandbox: SandboxLimits = SandboxLimits()
    """Bounds on programs that Programmer and Test run, and on tests of an answer."""
    near_misses: bool = False
    """Rewrite known misspellings of a workflow before giving it up; what was rewritten is counted."""
    demonstrations: Literal["best", "varied"] = "best"
    """What supervised fine-tuning shows: the workflow of the highest expected reward, or a mix of valid ones."""
    prompt: Literal["short", "full"] = "short"
    """The question and one line, for a policy that is taught the language; or the language reference before it."""

    @field_validator("domains")
    @classmethod
    def _ratios_are_positive(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value is not None and (not value or min(value.values()) <= 0):
            raise ValueError("give every domain listed a ratio above 0, and leave out those that are not wanted")
        return value

    @model_validator(mode="after")
    def _dataset_has_files(self) -> Self:
        if self.path is None and self.dataset is not None:
            raise ValueError(f"dataset {self.dataset} needs path: its file, files, folder or hf:NAME (docs/data.md)")
        return self


class CustomTask(TaskSection):
    """A task of your own: a class with the methods of ``levelhead.tasks.base.Task``."""

    kind: Literal["custom"]
    """``custom``."""
    path: str | None = None
    """Where the class is, as ``file.py:Name``, seen from the current folder; none for a task given in Python."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""


TaskRecipe = Annotated[
    Fairness
    | Faithfulness
    | Math
    | Code
    | Questions
    | Function
    | JudgedPrompts
    | Browser
    | OpenEnv
    | BrowserGym
    | Verifiers
    | Workflow
    | CustomTask,
    Field(discriminator="kind"),
]
