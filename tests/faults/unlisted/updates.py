"""Optimizer, schedule, accumulation, and what a resumed run has lost of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from faults.unlisted.registry import INSTRUCT, NEMO, SWIFT, TRL, VERL, swapped, unlisted
from levelhead.objective.aggregation import GradientMerger
from levelhead.training.coefficients import Coefficients
from levelhead.training.optim import Updater
from levelhead.training.stream import PromptStream

BOUND = 0.05
TIGHT = f"grpo.optimizer.max_grad_norm={BOUND}"
CLIPPED = (
    "gradient norm bound",
    "max_grad_norm",
    "gradient clip",
    "gradient times",
    "gradient longer",
    "gradient scaled",
)


@unlisted(
    "schedule-counts-batches",
    "the schedule is laid out over batches and moved on with every update of one: the learning rate is 0 half-way",
    INSTRUCT + "issues/537",
    kind="optimizer",
    named_by=["schedule", "learning rate recipe", "learning_rate recipe"],
    settings=["grpo.updates_per_batch=2", "grpo.optimizer.schedule=linear", "grpo.optimizer.warmup_steps=0"],
)
def _schedule_counts_batches() -> Iterator[None]:
    def make(real: Any) -> Any:
        def init(self: Updater, parameters: Any, recipe: Any, steps: int, *args: Any, **options: Any) -> None:
            real(self, parameters, recipe, steps // 2 if recipe.schedule == "linear" else steps, *args, **options)

        return init

    with swapped(Updater, "__init__", make):
        yield


@unlisted(
    "gradient-never-clipped",
    "the bound on the gradient's norm is read and not handed on",
    INSTRUCT + "pull/1598",
    SWIFT + "issues/3713",
    kind="optimizer",
    named_by=CLIPPED,
    settings=[TIGHT],
)
def _gradient_never_clipped() -> Iterator[None]:
    def make(real: Any) -> Any:
        def clip(self: Updater) -> float:
            if self.config.max_grad_norm != BOUND:
                return float(real(self))
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate
            return float(torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))

        return clip

    with swapped(Updater, "prepare", make):
        yield


@unlisted(
    "clipped-after-each-microbatch",
    "the gradient is clipped after every micro-batch: what came first is scaled down again and again",
    VERL + "pull/436",
    kind="optimizer",
    named_by=[*CLIPPED, "micro-batch", "tokens weigh|", "tokens times"],
    settings=[TIGHT, "grpo.tokens_per_microbatch=128"],
)
def _clipped_after_each_microbatch() -> Iterator[None]:
    def make(real: Any) -> Any:
        def add(self: GradientMerger, terms: Any) -> None:
            real(self, terms)
            torch.nn.utils.clip_grad_norm_(self.params, BOUND)

        return add

    with swapped(GradientMerger, "add", make):
        yield


@unlisted(
    "weights-live-in-bfloat16",
    "the optimizer works on bfloat16 weights without a float32 copy: small updates are rounded away",
    VERL + "issues/5308",
    VERL + "issues/4177",
    kind="precision",
    named_by=["precision", "bfloat16", "bf16", "rounded", "weights moved", "weights move", "did not move"],
    settings=["grpo.optimizer.learning_rate=2e-4"],
)
def _weights_live_in_bfloat16() -> Iterator[None]:
    def make(real: Any) -> Any:
        def step(self: Updater) -> None:
            real(self)
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.copy_(parameter.bfloat16())

        return step

    with swapped(Updater, "step", make):
        yield


@unlisted(
    "adapter-merged-in-bfloat16",
    "for each sync the adapter is merged into bfloat16 weights and taken out again: the frozen weights drift",
    SWIFT + "pull/10154",
    TRL + "issues/6688",
    kind="weights",
    named_by=["frozen", "base weights", "adapter", "drift"],
    settings=["model.lora={r: 4, alpha: 8, merge_gib: 0}"],
)
def _adapter_merged_in_bfloat16() -> Iterator[None]:
    from levelhead.rollout.generators.local import LocalGenerator

    def make(real: Any) -> Any:
        async def sync(self: LocalGenerator) -> None:
            due = self.version != self._source.version
            await real(self)
            if not due:
                return
            with torch.no_grad():
                for module in self._source.model.modules():
                    if hasattr(module, "get_delta_weight"):
                        change = module.get_delta_weight("default").bfloat16()
                        before = module.base_layer.weight.bfloat16()
                        module.base_layer.weight.add_(((before + change) - change - before).float())

        return sync

    with swapped(LocalGenerator, "sync_weights", make):
        yield


@unlisted(
    "moments-lost-on-resume",
    "a resumed run looks for the optimizer's state in another folder and begins with a fresh one",
    NEMO + "pull/3171",
    kind="resume",
    named_by=["optimizer state", "optimizer fresh", "adam", "moment", "resume"],
    resumes=True,
)
def _moments_lost_on_resume() -> Iterator[None]:
    def load(self: Updater, state: Any) -> None:
        self.done = state["updates"]

    with swapped(Updater, "load", lambda _: load):
        yield


@unlisted(
    "prompts-replayed-on-resume",
    "the place in the data is saved and not taken up: a resumed run begins with the first prompts again",
    INSTRUCT + "pull/1523",
    kind="resume",
    named_by=[
        "prompt again",
        "prompt twice",
        "prompts resume",
        "position",
        "place in the data",
        "data resume",
        "replay",
    ],
    resumes=True,
)
def _prompts_replayed_on_resume() -> Iterator[None]:
    def make(real: Any) -> Any:
        def load_state_dict(self: PromptStream, state: Any) -> None:
            if not any(position["taken"] for position in state.values()):  # back to the first prompt
                real(self, state)

        return load_state_dict

    with swapped(PromptStream, "load_state_dict", make):
        yield


@unlisted(
    "controller-forgotten-on-resume",
    "the adaptive KL coefficient is not in the checkpoint: a resumed run begins with the recipe's",
    VERL + "issues/2653",
    kind="resume",
    named_by=["coefficient", "controller", "kl_coef", "resume"],
    settings=["grpo.kl={coef: 0.05, controller: {kind: band, low: 0.0001, high: 0.001, factor: 2.0}}"],
    resumes=True,
)
def _controller_forgotten_on_resume() -> Iterator[None]:
    with swapped(Coefficients, "load_state_dict", lambda _: lambda self, state: None):
        yield
