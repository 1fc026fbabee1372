"""What is maximised: advantage estimator, policy loss, KL penalty, entropy bonus, and how tasks are merged."""

from __future__ import annotations

from copy import copy
from operator import getitem
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from levelhead.errors import InputError
from levelhead.objective import losses
from levelhead.objective.advantages import ADVANTAGES, Estimator
from levelhead.objective.aggregation import AGGREGATORS, Aggregator
from levelhead.objective.controllers import CONTROLLERS, Controller, Fixed
from levelhead.objective.registry import owners
from levelhead.objective.shaping import SHAPERS, RewardShaping, Shaper, ZScore
from levelhead.objective.task_weights import TASK_WEIGHTS, TaskWeights
from levelhead.recipe.variants import CustomVariant, Kinded, as_sections, one_of
from levelhead.section import Section


class CustomController(CustomVariant):
    """A controller of your own: a class that derives from ``levelhead.objective.controllers.Controller``."""


_CONTROLLERS = as_sections(CONTROLLERS, default="fixed")
FIXED: Any = _CONTROLLERS["fixed"](kind="fixed")
"""The section of a coefficient that never moves."""


def _of(term: str) -> Any:
    names = [name for name, variant in CONTROLLERS.items() if term in variant.controls]
    return one_of([_CONTROLLERS[name] for name in names], CustomController)


if TYPE_CHECKING:
    KlController = Controller | CustomController
    EntropyController = Controller | CustomController
else:
    KlController = _of("kl")
    EntropyController = _of("entropy")


def make_controller(section: Controller | CustomController, term: str, key: str) -> Controller:
    """Return the controller that a section asks for; a class of the user's own is loaded.

    Args:
        section: As a recipe holds it.
        term: ``kl`` or ``entropy``.
        key: Of the section.

    Raises:
        InputError: There is no such class, a setting does not fit it, or it moves the coefficient of another term.
    """
    if not isinstance(section, CustomController):
        return section
    controller = section.load(Controller, key)
    if term not in controller.controls:
        terms = " and ".join(sorted(controller.controls)) or "nothing"
        raise InputError(f"{section.path}: moves the coefficient of {terms}, not of {term} ({key}.path)")
    return controller


class CustomShaper(CustomVariant):
    """A shaper of your own: a class that derives from ``levelhead.objective.shaping.Shaper``."""


if TYPE_CHECKING:
    AnyShaper = Shaper | CustomShaper
else:
    AnyShaper = one_of(as_sections(SHAPERS).values(), CustomShaper)


class Shaping(Section):
    """What is done to a task's rewards before they become advantages, in this order; by default nothing."""

    length: AnyShaper | None = None
    """Added to the reward: a length penalty.  ``custom`` may change rewards in any other way."""
    zscore: ZScore | None = None
    """Running normalisation."""
    scale: float = Field(1.0, gt=0, le=1e6)
    """Factor."""
    clip: tuple[float, float] | None = None
    """Lowest and highest reward."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be a lower and a higher bound, got {list(self.clip)}")
        return self

    def make(self, budget: int, key: str) -> RewardShaping:
        """Return the shaping that is asked for; a class of the user's own is loaded.

        Args:
            budget: Most tokens of a completion.
            key: Of this section.

        Raises:
            InputError: There is no such class, or a setting does not fit it.
            ValueError: Settings do not fit the budget.
        """
        length = self.length.load(Shaper, f"{key}.length") if isinstance(self.length, CustomShaper) else self.length
        return RewardShaping(length and length.with_budget(budget), self.zscore, self.scale, self.clip)


class AdvantageSection(Kinded):
    """What every advantage estimator shares in a recipe."""

    FIRST = (
        *("kind", "path", "settings", "ddof", "eps", "clip"),
        *("statistics", "weights", "batch_norm", "k", "mix", "feature_weights"),
    )

    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""
    clip: float | None = Field(None, gt=0, le=1e6)
    """Bound on the absolute advantage."""

    def make(self) -> Estimator:
        """Return the estimator that is asked for, with its settings: the section itself."""
        return cast("Estimator", self)


class CustomAdvantage(CustomVariant, AdvantageSection):
    """An estimator of your own: a class that derives from ``levelhead.objective.advantages.Estimator``."""

    kind: Literal["custom"]
    """``custom``."""

    def make(self) -> Estimator:
        """Return the user's estimator; raises ``InputError`` where there is none, or its settings do not fit."""
        return self.load(Estimator, "grpo.advantage", {"ddof": self.ddof, "eps": self.eps})


_ESTIMATORS = as_sections(ADVANTAGES, "grpo", AdvantageSection)
Advantage: Any = _ESTIMATORS["grpo"]
"""The section of ``kind: grpo``, which is the default."""

if TYPE_CHECKING:
    AnyAdvantage = AdvantageSection | CustomAdvantage
else:
    AnyAdvantage = one_of(_ESTIMATORS.values(), CustomAdvantage, "grpo")


class CustomTaskWeights(CustomVariant):
    """A rule of your own: a class that derives from ``levelhead.objective.task_weights.TaskWeights``."""


_RULES = as_sections(TASK_WEIGHTS, default="fixed")
FIXED_WEIGHTS: Any = _RULES["fixed"](kind="fixed")
"""The section of weights that never move."""

if TYPE_CHECKING:
    AnyTaskWeights = TaskWeights | CustomTaskWeights
else:
    AnyTaskWeights = one_of(list(_RULES.values()), CustomTaskWeights)


def make_task_weights(section: TaskWeights | CustomTaskWeights) -> TaskWeights:
    """Return the rule that a section asks for; a class of the user's own is loaded.

    Raises:
        InputError: There is no such class, or a setting does not fit it.
    """
    return section.load(TaskWeights, "grpo.task_weights") if isinstance(section, CustomTaskWeights) else section


class LossSection(Kinded):
    """What every policy loss shares in a recipe: how tokens are weighed and summed."""

    FIRST = ("kind", "path", "settings", "clip_low", "clip_high", "dual_clip", "aggregation", "fixed_length")
    WROTE_DEFAULTS = True
    LAST = ("turns", "top_entropy", "importance", "importance_low", "importance_high")

    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """Mean over all tokens (DAPO), over sequences of token means (GRPO), or over a fixed length (Dr. GRPO)."""
    fixed_length: int | None = Field(None, ge=1)
    """Length of ``aggregation: fixed_length``; ``sampling.max_new_tokens`` unless given."""
    turns: Literal["mean", "sum"] = "mean"
    """Of an episode's turns: their mean, so that long episodes weigh what short ones do, or their sum, as in the policy
    gradient theorem."""
    top_entropy: float | None = Field(None, gt=0, le=1)
    """Learn only from this share of the tokens, those of highest entropy (Wang et al. 2025, "80/20": 0.2)."""
    importance: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"] | None
    ) = None
    """Correct for a sampler that is not quite the policy: truncate or mask their ratio, of a token or a sequence."""
    importance_low: float = Field(0.0, ge=0)
    """Lower bound of the importance weight."""
    importance_high: float = Field(2.0, gt=0)
    """Upper bound of the importance weight."""

    @model_validator(mode="after")
    def _options_apply(self) -> Self:
        if self.fixed_length is not None and self.aggregation != "fixed_length":
            raise ValueError("loss.fixed_length needs loss.aggregation: fixed_length")
        if not self.importance_low < self.importance_high:
            raise ValueError(
                f"loss.importance_low ({self.importance_low}) must be below loss.importance_high "
                f"({self.importance_high})"
            )
        return self

    def make(self) -> losses.Loss:
        """Return the loss that is asked for, with its knobs: the section itself."""
        return cast("losses.Loss", self)


class CustomLoss(CustomVariant, LossSection):
    """A policy loss of your own: a class that derives from ``levelhead.objective.losses.Loss``."""

    kind: Literal["custom"]
    """``custom``."""

    def make(self) -> losses.Loss:
        """Return the user's loss with its settings; raises ``InputError`` where it is missing or they do not fit."""
        return self.load(losses.Loss, "grpo.loss")


_LOSSES = as_sections(losses.LOSSES, "ppo_clip", LossSection)
Loss: Any = _LOSSES["ppo_clip"]
"""The section of ``kind: ppo_clip``, which is the default."""

if TYPE_CHECKING:
    AnyLoss = LossSection | CustomLoss
else:
    AnyLoss = one_of(_LOSSES.values(), CustomLoss, "ppo_clip")


class Kl(Section):
    """The KL penalty against the reference policy."""

    coef: float = Field(0.0, ge=0, le=1e3)
    """Coefficient for tasks that set none of their own; 0 everywhere means that no reference is kept."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL (Schulman 2020)."""
    where: Literal["loss", "reward"] = "loss"
    """A term of the loss, or a charge on the reward before advantages are computed."""
    gradient: Literal["plain", "k2", "importance"] = "plain"
    """In the loss: the estimate's own gradient, k2's (unbiased on policy), or times the ratio (unbiased off policy)."""
    controller: KlController = FIXED
    """How the coefficient moves while training, for each task on its own; ``tasks[].kl_controller`` of a task wins."""

    @model_validator(mode="after")
    def _gradient_belongs_to_the_loss(self) -> Self:
        if self.where == "reward" and (self.gradient != "plain" or self.estimator != "k1"):
            raise ValueError("kl.where: reward takes kl.estimator: k1 and kl.gradient: plain; others bias the gradient")
        return self

    @model_validator(mode="after")
    def _a_factor_starts_above_zero(self) -> Self:
        if isinstance(self.controller, Controller) and self.controller.starts_above_zero and not self.coef:
            kind = self.controller.name
            raise ValueError(f"a {kind} multiplies the coefficient, so kl.coef must be above 0 to start from")
        return self

    def of_task(self, coef: float | None = None, controller: KlController | None = None) -> tuple[float, KlController]:
        """Return the coefficient that a task starts with, and the section of what moves it.

        A task that sets its coefficient to 0 has no KL penalty, and no band of ``grpo.kl`` to move one.

        Args:
            coef: The task's own coefficient.
            controller: The task's own controller.
        """
        start, shared = self.coef if coef is None else coef, self.controller
        if controller is None and start == 0 and isinstance(shared, Controller) and shared.starts_above_zero:
            return 0.0, Fixed()
        return start, controller or shared


class Entropy(Section):
    """The bonus on the policy's entropy."""

    coef: float = Field(0.0, ge=0, le=1e3)
    """Coefficient of the mean token entropy, which is maximised."""
    controller: EntropyController = FIXED
    """How the coefficient moves while training."""


if TYPE_CHECKING:
    SwitchTo = str
else:
    SwitchTo = getitem(Literal, tuple(name for name, variant in AGGREGATORS.items() if not variant.linear))


class MergeSection(Kinded):
    """What every aggregator shares in a recipe: its scale, what is merged, and the conflict monitor."""

    FIRST = ("kind", "path", "settings", "c")
    WROTE_DEFAULTS = True

    scale: Literal["sum", "own"] = "sum"
    """``sum``: as long as ``sum`` where the tasks agree; ``own``: as the paper has it, mostly a mean of the tasks."""
    memory: Literal["full", "low"] = "full"
    """``full`` merges reward gradients and adds KL and entropy as they are; ``low`` merges the tasks' whole losses."""
    monitor_every: int = Field(0, ge=0)
    """With ``sum``: log the cosines between tasks every so many steps; 0 never."""
    conflict_below: float = Field(0.0, ge=-1, le=1)
    """Two tasks are in conflict where their cosine is below this."""
    switch_after: int = Field(0, ge=0)
    """With ``sum``: switch merging on after so many conflicting looks in a row; 0 never."""
    switch_to: SwitchTo = "cagrad"
    """Aggregator that the monitor switches to."""

    @model_validator(mode="after")
    def _switch_needs_a_monitor(self) -> Self:
        if self.switch_after and not self.monitor_every:
            raise ValueError("merge.switch_after needs merge.monitor_every of 1 or more")
        for key, (_, field) in _OF_SWITCHES.items() if self.kind == "sum" and not self.switch_after else ():
            if getattr(self, key) != field.default:
                having = ", ".join(owners(AGGREGATORS, key))
                raise ValueError(f"merge.{key} is a key of kind {having}, and none of sum without switch_after")
        return self

    def make(self) -> Aggregator:
        """Return the aggregator that is asked for, with its settings."""
        return AGGREGATORS[self.kind](**self.settings_of(AGGREGATORS[self.kind]))

    def make_switch(self) -> Aggregator:
        """Return the aggregator that the monitor switches to."""
        return AGGREGATORS[self.switch_to](**self.settings_of(AGGREGATORS[self.switch_to]))


class CustomMerge(CustomVariant, MergeSection):
    """An aggregator of your own: a class that derives from ``levelhead.objective.aggregation.Aggregator``."""

    kind: Literal["custom"]
    """``custom``."""

    def make(self) -> Aggregator:
        """Return the user's aggregator; raises ``InputError`` where there is none, or its settings do not fit."""
        return self.load(Aggregator, "grpo.merge")


_OF_SWITCHES: dict[str, tuple[Any, FieldInfo]] = {
    key: (field.annotation, copy(field))
    for variant in AGGREGATORS.values()
    if not variant.linear
    for key, field in variant.model_fields.items()
}
"""Settings of the aggregators that the monitor may switch to: keys of ``sum`` too."""
_MERGES = as_sections(AGGREGATORS, "sum", MergeSection, {"sum": _OF_SWITCHES})
Merge: Any = _MERGES["sum"]
"""The section of ``kind: sum``, which is the default."""

if TYPE_CHECKING:
    AnyMerge = MergeSection | CustomMerge
else:
    AnyMerge = one_of(_MERGES.values(), CustomMerge, "sum")


class Audit(Section):
    """The slope of every term along the update, and who contributes what to it."""

    first: int = Field(3, ge=0)
    """Audit this many first optimizer steps; each costs one more backward a term, and a few samples in float32."""
    every: int = Field(0, ge=0)
    """Then audit every so many steps; 0 never."""
    on_error: Literal["stop", "warn"] = "stop"
    """What to do where a term's own contribution runs against its sense."""
