"""Mutations of what the checks of agreement guard."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from levelhead.policy.policy import Policy
from levelhead.records import Turn
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.prepare import Setup
from preflight.mutations.base import Context, Mutation, fault, patch
from preflight.mutations.sampler import asked, each

LEASH = ("grpo.kl.coef=0.05",)
COOL = ("grpo.sampling.temperature=0.6",)


def _shifted(turn: Turn, _: LocalGenerator) -> Turn:
    return replace(turn, logprobs=turn.logprobs[1:] + turn.logprobs[:1])


def _packed(change: Callable[[Any], Any]) -> Callable[[], Context]:
    def make(real: Any) -> Any:
        return lambda *args, **options: [change(micro) for micro in real(*args, **options)]

    return patch(Policy, "pack", make)


def _counted_on(micro: Any) -> Any:
    """Positions count the tokens of the row, not those of the sequence."""
    return replace(micro, position_ids=torch.arange(micro.input_ids.shape[1]).expand_as(micro.input_ids))


def copied_sampler(leave_out: Callable[[str], bool], *, count: bool = True) -> Callable[[], Context]:
    """A sampler with weights of its own, whose sync leaves some of them out."""

    def change(real: Any) -> Any:
        def init(self: Any, policy: Policy, *args: Any, **options: Any) -> None:
            real(self, policy, *args, **options)
            self._policy = copy.copy(policy)
            self._policy.base = copy.deepcopy(policy.base)

        return init

    async def sync(self: Any) -> None:
        with torch.no_grad():
            for (name, mine), theirs in zip(
                self._policy.base.named_parameters(), self._source.base.parameters(), strict=True
            ):
                if not leave_out(name):
                    mine.copy_(theirs)
        self._version = self._source.version if count else self._version

    def enter() -> Context:
        from contextlib import ExitStack

        stack = ExitStack()
        stack.enter_context(patch(LocalGenerator, "__init__", change)())
        stack.enter_context(patch(LocalGenerator, "sync_weights", lambda _: sync)())
        return stack

    return enter


def _reference(change: Callable[[Policy], None]) -> Callable[[], Context]:
    def make(real: Any) -> Any:
        def keep(self: Policy, *, trained: bool) -> None:
            real(self, trained=trained)
            change(self)

        return keep

    return patch(Policy, "keep_reference", make)


@torch.no_grad()
def _other_weights(policy: Policy) -> None:
    assert isinstance(policy._reference, nn.Module)
    for weight in policy._reference.parameters():
        weight.add_(torch.randn_like(weight) * 0.05)


def _half_shared(policy: Policy) -> None:
    reference: Any = policy._reference
    base: Any = policy.base
    reference.model.layers[0] = base.model.layers[0]


def _at_temperature_1(real: Any) -> Any:
    return lambda self, batch, temperature=1.0: real(self, batch, 1.0)


def _dropout_module(setup: Setup) -> None:
    layer = setup.policy.base.get_decoder().layers[0]
    layer.mlp = nn.Sequential(layer.mlp, nn.Dropout(0.1))


def _noise(setup: Setup) -> None:
    def add(module: nn.Module, args: Any, output: Any) -> Any:
        return output + torch.randn_like(output) * 0.1 if module.training else output

    setup.policy.base.get_decoder().layers[0].mlp.register_forward_hook(add)


MUTATIONS = (
    fault("agreement/sampler", "logprobs-after-controls"),
    fault("agreement/sampler", "positions-count-padding"),
    Mutation("agreement/sampler", "log-probabilities are one token late", each(_shifted)),
    Mutation(
        "agreement/sampler", "the sampler draws at temperature 1 whatever it is asked", asked(temperature=1.0), COOL
    ),
    fault("agreement/packing", "labels-off-by-one"),
    fault("agreement/packing", "temperature-applied-twice"),
    Mutation("agreement/packing", "positions count the tokens of a whole row", _packed(_counted_on)),
    fault("agreement/synced", "stale-sampler-weights"),
    Mutation("agreement/synced", "one layer is left out", copied_sampler(lambda name: "layers.0." in name)),
    Mutation("agreement/synced", "embeddings are left out", copied_sampler(lambda name: "embed" in name)),
    Mutation("agreement/synced", "the version stays", copied_sampler(lambda _: False, count=False)),
    fault("agreement/reference", "reference-not-frozen"),
    Mutation("agreement/reference", "it has other weights", _reference(_other_weights), LEASH),
    Mutation("agreement/reference", "it shares a layer with the policy", _reference(_half_shared), LEASH),
    Mutation(
        "agreement/reference",
        "it is scored at temperature 1",
        patch(Policy, "reference_logp", _at_temperature_1),
        (*LEASH, *COOL),
    ),
    fault("agreement/trainer", "logprobs-of-the-raw-prompt"),
    fault("agreement/trainer", "temperature-in-sampling-only"),
    fault("agreement/trainer", "appended-end-of-turn", proof=True),
    fault("agreement/dropout", "dropout-left-on"),
    Mutation("agreement/dropout", "a dropout module after a layer", touch=_dropout_module),
    Mutation("agreement/trainer", "noise in training mode that no module announces", touch=_noise),
)
