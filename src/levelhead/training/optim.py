"""Optimizers, their schedule, and the one place where weights change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.objective.numerics import local
from levelhead.policy.rounding import some_entries, visible_change
from levelhead.policy.sharding import full
from levelhead.recipe.training import Optimizer
from levelhead.records import Event

NONFINITE = "nonfinite"
"""Code of the event of an update without a finite gradient."""

MUON_MOMENTUM = 0.95
"""Decay of Muon's momentum."""

NOT_FINITE = Message("the gradient is not finite; the update was skipped", "梯度不是有限值；已跳过这次更新")

_SETTINGS = ("betas", "eps", "weight_decay")
"""What a saved optimizer state carries along of the recipe that it was made with."""

_FUSED_ON = {"cpu", "cuda"}
"""Devices where the update is one pass over the weights; it takes a sixth of the time on a CPU."""


class Updater:
    """Clips the gradient, sets the learning rate of the step, and steps.

    Whether the gradient is finite is for the caller to look at before :meth:`step`.

    Args:
        parameters: What is trained.
        config: The stage's ``optimizer``.
        steps: Optimizer steps of the whole stage.
        matrices: Those of the parameters that ``kind: muon`` treats as matrices; the others are AdamW's.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        config: Optimizer,
        steps: int,
        matrices: Sequence[nn.Parameter] = (),
    ) -> None:
        self.parameters = list(parameters)
        self.config = config
        self.steps = steps
        self.done = 0
        self.factor = 1.0
        """Factor of the scheduled learning rate; a guard may lower it."""
        self.rounds_to = torch.float32
        """The coarsest type that products round the weights to."""
        self.visible: dict[str, float] = {}
        """Metrics of what that type shows of all updates since the stage began; of divided weights since the start."""
        self._first: list[Tensor] = []
        self.optimizer = _make_optimizer(self.parameters, config, matrices)

    @property
    def parts(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers that hold the state: one, or two where matrices have their own."""
        return self.optimizer.parts if isinstance(self.optimizer, MuonWithAdamW) else (self.optimizer,)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self.config.learning_rate * schedule(self.config, self.done, self.steps) * self.factor

    def prepare(self) -> float:
        """Scale the gradient down to the norm bound and set the update's learning rate; returns the norm before."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        return float(full(norm))

    def step(self) -> None:
        """Change the weights; of those that products round, :attr:`visible` says how much of the change they show."""
        if self.rounds_to != torch.float32 and not self._first:
            self._first = some_entries(self.parameters)
        self.optimizer.step()
        if self._first:
            sizes = [float(local(weight).numel()) for weight in self.parameters if local(weight).numel()]
            seen = visible_change(self._first, some_entries(self.parameters), sizes, self.rounds_to)
            self.visible = {metric.VISIBLE: seen.norm, metric.VISIBLE_COSINE: seen.cosine}
        increment_version(self.parameters)  # a fused step on divided weights does not count itself
        self.finish()

    def finish(self) -> None:
        """Count the update in the schedule and drop its gradient, whether or not it was applied."""
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state that :meth:`load` takes."""
        whole = all(local(weight) is weight for weight in self.parameters)
        first = {"first": self._first} if self._first and whole else {}
        return {"optimizer": self.optimizer.state_dict(), "updates": self.done, **first}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what :meth:`state_dict` returned; the settings stay those of the recipe."""
        before = [{name: group[name] for name in _SETTINGS if name in group} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        for group, settings in zip(self.optimizer.param_groups, before, strict=True):
            group.update(settings)
        self.done = int(state["updates"])
        self._first = list(state.get("first", ()))

    def forget(self) -> None:
        """Drop all moments: weights have gone back, and the way from there is not to be gone on with."""
        for part in self.parts:
            part.state.clear()

    def skip_updates(self, steps: int) -> None:
        """Count steps that are not taken: the schedule goes with the batches."""
        self.done += steps


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for weight matrices, AdamW for every other parameter, as one optimizer.

    A matrix of shape (n, m) steps along the orthogonalised momentum, scaled by ``0.2 sqrt(max(n, m))`` so that its
    entries move as far as AdamW's would at the same learning rate (Liu et al. 2025).

    Args:
        muon: Holds the matrices.
        adamw: Holds the rest; ``None`` where there is none, as of an adapter, which is all matrices.
    """

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer | None) -> None:
        self._parts = {"muon": muon} | ({} if adamw is None else {"adamw": adamw})
        groups = [group for part in self._parts.values() for group in part.param_groups]
        super().__init__([parameter for group in groups for parameter in group["params"]], {})
        self.param_groups = groups

    @property
    def parts(self) -> tuple[torch.optim.Optimizer, ...]:
        """Muon's and AdamW's, where it has something to step."""
        return tuple(self._parts.values())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Step Muon's matrices and AdamW's rest by the gradients that they hold."""
        for part in self._parts.values():
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both parts."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        for name, part in self._parts.items():
            part.load_state_dict(state_dict[name])
        self.param_groups = [group for part in self._parts.values() for group in part.param_groups]


def _make_optimizer(
    parameters: Sequence[nn.Parameter], config: Optimizer, matrices: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Build the optimizer of a stage.

    Raises:
        InputError: The installed torch has no Muon.
    """
    muon_ids = {id(matrix) for matrix in matrices} if config.kind == "muon" else set()
    rest = [parameter for parameter in parameters if id(parameter) not in muon_ids]
    if not muon_ids:
        return _adamw(rest, config)
    if not hasattr(torch.optim, "Muon"):
        raise InputError(f"optimizer.kind: muon needs torch 2.9 or newer, this is {torch.__version__}; use adamw")
    muon = torch.optim.Muon(
        [parameter for parameter in parameters if id(parameter) in muon_ids],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        momentum=MUON_MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonWithAdamW(muon, _adamw(rest, config) if rest else None)


def _adamw(parameters: Sequence[nn.Parameter], config: Optimizer) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": config.learning_rate, **{name: getattr(config, name) for name in _SETTINGS}}
    if config.in_eight_bits:
        from bitsandbytes.optim import AdamW8bit, PagedAdamW8bit

        optimizer: torch.optim.Optimizer = (PagedAdamW8bit if config.kind.startswith("paged") else AdamW8bit)(
            parameters, **settings
        )
        return optimizer
    fused = all(parameter.device.type in _FUSED_ON for parameter in parameters)
    return torch.optim.AdamW(parameters, **settings, fused=fused)


def lost_gradient(step: int, values: Mapping[str, float]) -> Event:
    """The event of an update that was skipped because its gradient is not finite."""
    evidence = {name: str(values[name]) for name in (metric.GRAD_NORM, metric.LOSS) if name in values}
    return Event(step, NONFINITE, "warning", NOT_FINITE(), "skip", evidence)


def schedule(config: Optimizer, done: int, steps: int) -> float:
    """Fraction of the peak learning rate after ``done`` of ``steps`` steps.

    Linear from ``1 / warmup_steps`` to 1 over the warm-up, then constant, linear, or half a cosine down to
    ``final_fraction`` at the last step.
    """
    if done < config.warmup_steps:
        return (done + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (done - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps))
    rest = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.final_fraction + (1 - config.final_fraction) * rest
