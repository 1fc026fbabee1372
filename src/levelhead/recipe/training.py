"""``sft``, ``grpo`` and ``distributed``: the two loops, their processes, and what keeps them on record."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from levelhead.message import Message, Phrase
from levelhead.recipe.objective import (
    FIXED_WEIGHTS,
    Advantage,
    AnyAdvantage,
    AnyLoss,
    AnyMerge,
    AnyTaskWeights,
    Audit,
    Entropy,
    Kl,
    Loss,
    Merge,
)
from levelhead.recipe.sampling import EvalSampling, TrainSampling
from levelhead.recipe.variants import CUSTOM
from levelhead.section import Section

_NO_MULTIPLE = Message(
    "batch_size ({batch}) must be a multiple of group_size ({group})",
    "batch_size（{batch}）应为 group_size（{group}）的倍数",
)


class ByWeight(Section):
    """Every task by its weight, every problem as often as the others."""

    kind: Literal["weights"]
    """``weights``."""


class Learnability(Section):
    """Problems in proportion to p(1 - p), p being the policy's recent success.

    What is solved or hopeless fades, and is tried again now and then.
    """

    kind: Literal["learnability"]
    """``learnability``."""
    floor: float = Field(0.1, gt=0, le=1)
    """Least weight of a task or problem, where one that succeeds half of the time has 1."""
    half_life: float = Field(20.0, gt=0)
    """Steps after which an outcome counts half as much."""


def _named(value: Any) -> Any:
    """Take a bare name for a section with nothing else in it."""
    return {"kind": value} if isinstance(value, str) else value


Curriculum = Annotated[
    Annotated[ByWeight | Learnability, Field(discriminator="kind")],
    BeforeValidator(_named, json_schema_input_type=Literal["weights", "learnability"] | ByWeight | Learnability),
]


Decay = Annotated[float, Field(ge=0, lt=1)]
"""How much of a moment is kept at every step."""


MAX_AHEAD = 16
"""Most steps that groups may be drawn ahead."""


class Optimizer(Section):
    """AdamW or Muon, and the schedule."""

    kind: Literal["adamw", "muon", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    """``muon`` (Jordan et al. 2024) steps weight matrices along their orthogonalised momentum, scaled to the size of an
    AdamW step, and all else by AdamW.  ``adamw_8bit`` is AdamW with moments of 8 bits (Dettmers et al. 2022), and
    ``paged_adamw_8bit`` moves them to the host's memory where the GPU's is short; both need bitsandbytes.  The audit
    gives slopes for ``adamw`` alone."""
    learning_rate: float = Field(1e-6, gt=0, le=1)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: float = Field(1e-8, gt=0, le=1)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """Decoupled weight decay."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises to its peak, the first at ``1 / warmup_steps`` of it."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up; linear and cosine end at ``final_fraction`` of the peak."""
    final_fraction: float = Field(0.0, ge=0, le=1)
    """Learning rate at the last step as a fraction of the peak."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this norm."""

    @property
    def in_eight_bits(self) -> bool:
        """Whether its moments are held in 8 bits."""
        return self.kind in ("adamw_8bit", "paged_adamw_8bit")


class Stage(Section):
    """How long a stage lasts: ``steps``, or passes over the data."""

    data_epochs: float | None = Field(None, gt=0, le=1e6)
    """Passes over the training prompts, in place of ``steps``; with several tasks, a pass is as many prompts as they
    have together.  Rounded up to whole steps."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.data_epochs is not None and "steps" in self.model_fields_set:
            raise ValueError(Phrase("give steps or data_epochs, not both", "steps 和 data_epochs 只能给出一个"))
        return self

    @model_serializer(mode="wrap")
    def _as_asked(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the steps that follow from ``data_epochs``, so that the recipe can be read again."""
        keys: dict[str, Any] = handler(self)
        if self.data_epochs is not None:
            keys.pop("steps", None)
        return keys

    def lasting(self, steps: int) -> Self:
        """Return this stage with the steps that its ``data_epochs`` come to."""
        lasting = self.model_copy(update={"steps": steps})
        lasting.__pydantic_fields_set__.discard("steps")
        return lasting


class Sft(Stage):
    """Supervised fine-tuning on the tasks' oracles, loss on completions only."""

    steps: int = Field(200, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(32, ge=1, le=1_048_576)
    """Demonstrations a step."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, warmup_steps=10)
    """The optimizer of this stage."""
    tokens_per_microbatch: int = Field(16384, ge=64)
    """Gradient accumulation: tokens in one forward and backward."""


class Grpo(Stage):
    """Group-relative policy optimisation (Shao et al. 2024)."""

    steps: int = Field(100, ge=1)
    """Rollout batches."""
    batch_size: int = Field(64, ge=2, le=1_048_576)
    """Rollouts a batch; a multiple of ``group_size``."""
    group_size: int = Field(8, ge=2, le=65_536)
    """K, rollouts of one prompt."""
    updates_per_batch: int = Field(1, ge=1, le=65_536)
    """Optimizer steps a rollout batch: the groups of each task are dealt evenly into this many mini-batches."""
    epochs: int = Field(1, ge=1, le=1000)
    """Passes over a rollout batch (for passes over the data, see ``data_epochs``)."""
    curriculum: Curriculum = ByWeight(kind="weights")
    """Which problems are drawn: ``weights`` (tasks by ``tasks[].weight``) or ``learnability``."""
    dynamic_sampling: int = Field(0, ge=0, le=1000)
    """Most times in a step that groups without contrast are drawn again, from further prompts (DAPO); 0 never."""
    ahead: int = Field(0, ge=0, le=MAX_AHEAD, alias="async")
    """Steps that groups are drawn ahead: they are written by weights of at most so many steps before."""
    sampling: TrainSampling = TrainSampling()
    """How rollouts are drawn."""
    advantage: AnyAdvantage = Advantage()
    """Rewards to advantages."""
    loss: AnyLoss = Loss()
    """The surrogate."""
    kl: Kl = Kl()
    """The KL penalty against the reference."""
    entropy: Entropy = Entropy()
    """The bonus."""
    merge: AnyMerge = Merge()
    """Several tasks, one policy."""
    task_weights: AnyTaskWeights = FIXED_WEIGHTS
    """What each task's objective counts for: ``tasks[].weight``, or that as it follows the tasks' rewards."""
    audit: Audit = Audit()
    """Does every term do what it says."""
    optimizer: Optimizer = Optimizer()
    """The optimizer of this stage."""
    tokens_per_microbatch: int = Field(16384, ge=64)
    """Gradient accumulation: tokens in one forward and backward."""
    mask_truncated: bool = False
    """Leave completions that ran out of budget out of the policy loss (DAPO)."""

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(_NO_MULTIPLE(batch=self.batch_size, group=self.group_size))
        groups = self.batch_size // self.group_size
        if groups % self.updates_per_batch:
            raise ValueError(
                f"updates_per_batch ({self.updates_per_batch}) must divide the {groups} groups of a batch "
                f"(batch_size {self.batch_size} / group_size {self.group_size})"
            )
        return self

    @model_validator(mode="after")
    def _variants_fit(self) -> Self:
        if CUSTOM not in (self.loss.kind, self.advantage.kind, self.merge.kind):
            self.check_variants()
        return self

    def check_variants(self) -> None:
        """Check that loss, estimator and aggregator fit the rest of the section; those of the user's own are loaded.

        Raises:
            InputError: There is no such class, or a setting does not fit it.
            ValueError: They do not fit.
        """
        estimator, loss, kind = self.advantage.make(), self.loss.make(), self.advantage.kind
        self.merge.make()
        least = estimator.min_group_size
        if self.group_size < least:
            k = getattr(estimator, "k", None)
            lower = "" if k is None else "set advantage.k lower or group_size higher"
            raise ValueError(
                f"advantage.kind: {kind}{'' if k is None else f' with k={k}'} needs a group_size of at least {least}, "
                f"got {self.group_size}; {lower or 'set group_size higher'}"
            )
        if not estimator.reads_total and self.kl.where == "reward":
            raise ValueError(
                f"kl.where: reward charges the total reward, which advantage.kind: {kind} does not look at"
            )
        if loss.by_sequence and estimator.by_token:
            raise ValueError(
                f"loss.kind: {self.loss.kind} takes one advantage a sequence, and advantage.kind: {kind} gives one a "
                "token; set loss.kind to one that takes them (gspo_token, ppo_clip)"
            )
        if self.ahead and not loss.has_ratio and self.loss.importance is None:
            raise ValueError(
                f"async: {self.ahead} trains on rollouts of older weights, and loss.kind: {self.loss.kind} has no "
                "ratio to correct for it; set loss.importance (token_truncate), or another loss.kind"
            )


class Evaluation(Section):
    """Scoring of the policy on held-out items."""

    every: int = Field(0, ge=0)
    """GRPO steps between evaluations; 0 evaluates only between stages."""
    items: int = Field(128, ge=1)
    """Held-out items a task while training."""
    final_items: int = Field(256, ge=1)
    """Held-out items a task between stages, for the summary."""
    batch_size: int = Field(64, ge=1, le=1_048_576)
    """Prompts sampled at once."""
    reference: dict[str, float] = Field(default_factory=dict)
    """Reference point of the hypervolume, by task (by reward part, with one task); where none is named, the least
    reward that the task declares, or what the first evaluation scores."""
    constant: bool = True
    """Also say what the best constant answer scores; switch it off where a call of a reward costs money."""
    sampling: EvalSampling = EvalSampling()
    """How held-out completions are drawn."""


class Best(Section):
    """Which checkpoint is the best one."""

    by: Literal["balanced", "task", "weights", "knee"] = "balanced"
    """``balanced`` the mean over tasks of the balanced score, ``task`` one task's, ``weights`` a weighted mean of them,
    ``knee`` the checkpoint at the knee of the Pareto front, over the items that all evaluations share."""
    task: str | None = None
    """The task, with ``by: task``."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each task, with ``by: weights``; tasks that are not named weigh nothing."""

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if (self.by == "task") != (self.task is not None):
            raise ValueError("by: task needs task (the name of one), and task is for by: task alone")
        if (self.by == "weights") != bool(self.weights):
            raise ValueError("by: weights needs weights (of tasks by name), and weights are for by: weights alone")
        if self.weights and not (min(self.weights.values()) >= 0 < sum(self.weights.values())):
            raise ValueError("weights: none may be below 0, and one must be above it")
        return self


class Checkpoint(Section):
    """What is saved while training."""

    every: int = Field(50, ge=0)
    """Steps between checkpoints; the end of a stage always saves one.  0 saves only there."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept, besides the best one."""
    best: bool | Best = True
    """Keep the best checkpoint: with ``true`` that of the best balanced score, over the items that all evaluations
    share; ``{by: ...}`` compares otherwise."""
    front: int = Field(0, ge=0, le=1000)
    """Most checkpoints of the Pareto front whose weights are kept in ``checkpoints/front/``; 0 keeps none."""

    @model_validator(mode="after")
    def _a_knee_needs_a_front(self) -> Self:
        if isinstance(self.best, Best) and self.best.by == "knee" and self.front < 2:
            raise ValueError("best.by: knee takes the best checkpoint from the front; set front to 2 or more")
        return self


class Logging(Section):
    """What is written while training."""

    rollouts_every: int = Field(10, ge=0)
    """Steps between samples of rollouts; 0 writes none."""
    rollouts: int = Field(16, ge=1)
    """Rollouts in a sample."""
    tensorboard: bool = False
    """Also write TensorBoard event files to ``tensorboard/`` in the run."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""
    report_to: list[Literal["tensorboard", "wandb", "trackio", "mlflow"]] = Field(default_factory=list)
    """Experiment trackers that are sent every number, and samples of rollouts as tables (docs/trackers.md)."""
    project: str = Field("levelhead", min_length=1, max_length=128)
    """Project at Weights & Biases and Trackio, experiment at MLflow."""

    def trackers(self) -> list[str]:
        """Names of the trackers, each once: those of ``report_to`` and those with a key of their own."""
        own = [*(["tensorboard"] if self.tensorboard else []), *(["wandb"] if self.wandb else [])]
        return list(dict.fromkeys([*self.report_to, *own]))


class Distributed(Section):
    """What several processes (``torchrun``, ``accelerate launch``) do with one model; a run of one ignores it."""

    shard: Literal["none", "full"] = "none"
    """``none``: every process holds the whole model.  ``full``: weights, gradients and optimizer state are divided over
    the processes (FSDP2), and so are checkpoints."""
    timeout_s: float = Field(600.0, ge=1, le=604800)
    """How long a process waits for the others before the run ends; longer than the slowest process is behind at any
    time, be it by slow rewards."""
