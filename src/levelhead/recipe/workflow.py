"""Parts of a ``workflow`` task: who runs workflows, how they are rewarded, and what they may ask for."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from levelhead.recipe.endpoint import Endpoint
from levelhead.section import Section


class SimulatedExecutor(Section):
    """The simulator: a documented stochastic model of how good operators are.  No model is called."""

    kind: Literal["simulated"]
    """``simulated``."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Every simulated outcome is drawn from it, the problem, the workflow and the sample."""


class EndpointExecutor(Endpoint):
    """Real calls to an OpenAI-compatible chat endpoint."""

    kind: Literal["endpoint"]
    """``endpoint``."""
    temperature: float = Field(0.7, ge=0, le=100)
    """Sampling temperature of the operators; MdEnsemble and Review ask at 0."""


ExecutorRecipe = Annotated[SimulatedExecutor | EndpointExecutor, Field(discriminator="kind")]


class RewardWeights(Section):
    """What the parts of the reward count.  They must sum to 1."""

    correctness: float = Field(0.65, ge=0)
    """How right the answer is: 0, 0.2, 0.4, 0.7 or 1."""
    efficiency: float = Field(0.15, ge=0)
    """1 less the tokens used over ``token_budget``, at least 0."""
    simplicity: float = Field(0.10, ge=0)
    """1 for a single operator, less a tenth for every further one and every nesting, at least 0."""
    format: float = Field(0.05, ge=0)
    """1 for a workflow that stands alone, a half where other text surrounds it, 0 where it had to be normalised."""
    repetition: float = Field(0.05, ge=0)
    """1 less the share of steps that repeat the step before them."""

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.correctness + self.efficiency + self.simplicity + self.format + self.repetition
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"the reward weights sum to {total:g}; they must sum to 1")
        return self


class WeightedReward(Section):
    """A weighted sum of named parts in [0, 1]; no workflow at all is worth less than any valid one."""

    kind: Literal["weighted"]
    """``weighted``."""
    weights: RewardWeights = RewardWeights()
    """What the parts count."""
    token_budget: int = Field(6000, ge=1)
    """Tokens at which nothing is left of ``efficiency``."""
    invalid: float = Field(-0.1, lt=0)
    """Reward of an answer that is no valid workflow; valid ones get 0 to 1."""


class ThreeLevelReward(Section):
    """Right, wrong or no workflow, and nothing between."""

    kind: Literal["three_level"]
    """``three_level``."""
    right: float = 1.0
    """A valid workflow whose answer is right."""
    wrong: float = 0.2
    """A valid workflow whose answer is not."""
    invalid: float = 0.0
    """An answer that is no valid workflow."""
    token_budget: int = Field(6000, ge=1)
    """Tokens at which nothing is left of the reported ``efficiency``, which counts for nothing here."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.invalid < self.wrong < self.right:
            raise ValueError(f"invalid ({self.invalid}) < wrong ({self.wrong}) < right ({self.right}) must hold")
        return self


RewardConfig = Annotated[WeightedReward | ThreeLevelReward, Field(discriminator="kind")]


class WorkflowLimits(Section):
    """Bounds on what a workflow may ask for; beyond them it is not valid."""

    depth: int = Field(4, ge=1, le=10)
    """Conditionals, loops and parallel blocks within each other."""
    loop: int = Field(5, ge=1, le=20)
    """Passes of one loop."""
    calls: int = Field(24, ge=1, le=200)
    """Operators run on the most expensive path."""


class SandboxLimits(Section):
    """Bounds on programs that a model wrote.  They run in a child process, never in ours."""

    cpu_s: int = Field(5, ge=1)
    """Processor seconds of a process."""
    wall_s: float = Field(10.0, gt=0)
    """Seconds until everything the program started is killed."""
    memory_mb: int = Field(512, ge=64)
    """Address space of a process, in MiB."""
    output_kb: int = Field(64, ge=1)
    """Output that is read, in KiB; a program that writes more is killed."""
    file_mb: int = Field(8, ge=1)
    """Size of all files of a program together, in MiB."""
    processes: int = Field(8, ge=1)
    """Processes and threads at once."""
    isolation: Literal["required", "none"] = "required"
    """Whether programs need a wall between them and your files, processes and network.

    ``required`` runs them behind bubblewrap, namespaces of their own, or Landlock with a system-call filter, and
    refuses where none of these can be had.  ``none`` runs them there all the same, with limits alone: such a program
    can read and write whatever your user can.
    """
