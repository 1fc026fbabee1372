"""Where sampler and trainer disagree, the one thing is named that explains it; where they agree, nothing is."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from faults.known import FAULTS, inject
from levelhead.policy.backends.cpu.backend import SharedDecoder
from levelhead.policy.policy import Policy
from levelhead.preflight.context import untouched
from levelhead.records import Prompt, Turn
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.prepare import Setup
from oracle import plain
from oracle.agreement import check_agreement
from oracle.causes import CAUSES
from oracle.context import PreflightContext
from oracle.result import Check
from oracle.run import preflight
from preflight.mutations.agreement import copied_sampler
from preflight.mutations.base import Context, patch
from preflight.mutations.sampler import asked, each, with_ids
from preflight_setup import setup_of

COOL = "grpo.sampling.temperature=0.6"
LORA = "model.lora={r: 4, alpha: 8}"


@functools.cache
def made(*settings: str) -> Setup:
    return setup_of(*settings)


def said(setup: Setup, *names: str) -> list[Check]:
    """Some checks of agreement that compare two sides, in the order in which they are made, if they fail."""
    checks, wanted = [], set(names or ("agreement/sampler", "agreement/packing", "agreement/trainer"))
    context = PreflightContext(setup)
    try:
        with untouched(setup.policy):
            for check in check_agreement(context):
                checks.append(check)
                if not (wanted := wanted - {check.name}):
                    break
    finally:
        context.close()
    return [check for check in checks if check.status == "fail" and "cause" in check.evidence]


def causes(checks: Sequence[Check]) -> set[str]:
    """What the messages name, after the evidence and the words have been held against each other."""
    assert checks
    for check in checks:
        named = check.evidence["cause"]
        assert (f"the cause is the {named}: " in check.message) or named is None
        assert sum(f"the cause is the {cause}:" in check.message for cause in CAUSES) == (named is not None)
    return {str(check.evidence["cause"]) for check in checks}


def read_as(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[[], Context]:
    """A sampler that reads other contexts than it says."""

    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Prompt], *rest: Any) -> list[list[Turn]]:
            others = [p.with_tokens(change(p.token_ids)) for p in prompts]
            turns = real(self, others, *rest)
            return [
                [replace(turn, context_ids=p.token_ids) for turn in row] for p, row in zip(prompts, turns, strict=True)
            ]

        return sample

    return patch(LocalGenerator, "sample", make)


def _neighbours() -> Context:
    """A sampler that hands each prompt's rows the context of the next one."""

    def make(real: Any) -> Any:
        def sample(self: LocalGenerator, prompts: Sequence[Prompt], *rest: Any) -> list[list[Turn]]:
            others = [p.with_tokens(q.token_ids) for p, q in zip(prompts, [*prompts[1:], prompts[0]], strict=True)]
            turns = real(self, others, *rest)
            return [
                [replace(turn, context_ids=p.token_ids) for turn in row] for p, row in zip(prompts, turns, strict=True)
            ]

        return sample

    return patch(LocalGenerator, "sample", make)()


def positions_from(shift: int) -> Callable[[], Context]:
    """A sampler whose completions stand at later positions than they should."""
    return patch(
        SharedDecoder,
        "step",
        lambda real: lambda self, tokens: _moved(self, shift, real, tokens),
    )


def _moved(decoder: Any, shift: int, real: Any, tokens: Any) -> Any:
    decoder._positions = decoder._positions + shift
    try:
        return real(decoder, tokens)
    finally:
        decoder._positions = decoder._positions - shift


def own_policy(change: Callable[[Policy], None], *, of_weights: bool = False) -> Callable[[], Context]:
    """A sampler with a copy of the policy, changed for good, that takes up every sync; changed weights anew."""

    def init(real: Any) -> Any:
        def make(self: Any, policy: Policy, *args: Any, **options: Any) -> None:
            real(self, policy, *args, **options)
            self._policy = copy.copy(policy)
            self._policy.base = copy.deepcopy(policy.base)
            change(self._policy)

        return make

    async def sync(self: Any) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self._policy.base.parameters(), self._source.base.parameters(), strict=True):
                mine.copy_(theirs)
        if of_weights:
            change(self._policy)
        self._version = self._source.version

    def enter() -> Context:
        stack = ExitStack()
        stack.enter_context(patch(LocalGenerator, "__init__", init)())
        stack.enter_context(patch(LocalGenerator, "sync_weights", lambda _: sync)())
        return stack

    return enter


def scaled(factor: float) -> Callable[[Policy], None]:
    def change(policy: Policy) -> None:
        for module in policy.base.modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling.update({name: value * factor for name, value in module.scaling.items()})

    return change


@torch.no_grad()
def _stale_part(policy: Policy) -> None:
    for name, weight in policy.base.named_parameters():
        if "layers.1.mlp" in name:
            weight.mul_(1.5)


def _in_bfloat16(real: Any) -> Any:
    """A sampler that computes in bfloat16 whatever is asked, as an engine that was started so does."""

    def sample(self: LocalGenerator, prompts: Any, *rest: Any) -> Any:
        turns = real(self, prompts, *rest)
        before, self._policy.compute_dtype = self._policy.compute_dtype, torch.bfloat16
        try:
            return [[_told_again(self._policy, turn) for turn in row] for row in turns]
        finally:
            self._policy.compute_dtype = before

    return sample


def _told_again(policy: Policy, turn: Turn) -> Turn:
    told = plain.logprobs(policy, turn.context_ids, turn.completion_ids)
    return replace(turn, logprobs=tuple(told.tolist()))


def _rounded(real: Any) -> Any:
    def score(self: Policy, *args: Any) -> Any:
        stats = real(self, *args)
        return replace(stats, logp=stats.logp + (stats.logp.bfloat16().float() - stats.logp).detach())

    return score


def _late(turn: Turn, _: LocalGenerator) -> Turn:
    return replace(turn, logprobs=turn.logprobs[1:] + turn.logprobs[:1])


def _prompt_in_front(turn: Turn, _: LocalGenerator) -> Turn:
    front = turn.context_ids[-4:]
    changed = with_ids(turn, front + turn.completion_ids)
    return replace(changed, logprobs=(0.0,) * 4 + turn.logprobs, behaviour_logprobs=(0.0,) * 4 + turn.logprobs)


def _halved(real: Any) -> Any:
    """Log-probabilities that nothing explains."""
    return lambda self, *args: replace(
        stats := real(self, *args), logp=stats.logp - 0.01 * torch.arange(len(stats.logp))
    )


SAMPLER: dict[str, tuple[str, Callable[[], Context], str]] = {
    "numbers one token late": ("tokens", each(_late), "one token"),
    "the end of the prompt in front": ("tokens", each(_prompt_in_front), "the first 4 tokens"),
    "prompts cut on the left": ("context", read_as(lambda ids: ids[5:]), "without their first 5 tokens"),
    "prompts cut to a length": ("context", read_as(lambda ids: ids[-16:]), "the last 16 tokens"),
    "prompts without their end": ("context", read_as(lambda ids: ids[:-2]), "without their last 2 tokens"),
    "another prompt": ("context", _neighbours, "another prompt"),
    "padding that is seen": ("context", lambda: inject("attention-to-padding"), "padding"),
    "numbers after top-p": ("controls", lambda: inject("logprobs-after-controls"), "sampling controls"),
    "a part of its weights is others": (
        "weights",
        own_policy(_stale_part, of_weights=True),
        "copy of `layers.1.mlp` is not",
    ),
    "positions three on": ("position", positions_from(3), "completions are shifted by 3"),
    "positions count padding": ("position", lambda: inject("positions-count-padding"), "count the padding"),
    "computes in bfloat16": ("precision", patch(LocalGenerator, "sample", _in_bfloat16), "bfloat16"),
}


@pytest.mark.parametrize("name", SAMPLER)
def test_what_is_wrong_with_the_sampler_is_named(name: str) -> None:
    cause, change, words = SAMPLER[name]
    settings = FAULTS["logprobs-after-controls"].settings if cause == "controls" else ()
    with change():
        checks = said(made(*settings), "agreement/sampler")
    assert causes(checks) == {cause}
    assert words in checks[0].message


TRAINER: dict[str, tuple[str, Callable[[], Context], tuple[str, ...], str]] = {
    "retokenized": ("tokens", lambda: inject("retokenized-from-text"), (), "was drawn"),
    "a stop token that nobody drew": ("tokens", lambda: inject("appended-end-of-turn"), (), "was drawn"),
    "raw prompt": ("context", lambda: inject("logprobs-of-the-raw-prompt"), (), "they part at token 0"),
    "no temperature": ("temperature", lambda: inject("temperature-in-sampling-only"), (COOL,), "not applied"),
    "temperature twice": ("temperature", lambda: inject("temperature-applied-twice"), (COOL,), "0.36"),
    "log-probabilities in bfloat16": ("precision", patch(Policy, "score", _rounded), (), "rounds"),
    "drift along the batch": ("None", patch(Policy, "score", _halved), (), "alone explains it"),
}


@pytest.mark.parametrize("name", TRAINER)
def test_what_is_wrong_with_the_trainer_is_named(name: str) -> None:
    cause, change, settings, words = TRAINER[name]
    with change():
        checks = said(made(*settings))
    assert causes(checks) == {cause}
    assert any(words in check.message for check in checks if check.name == "agreement/trainer")


def test_temperature_of_a_sampler_is_found_by_looking_for_it() -> None:
    with asked(temperature=1.3)():
        checks = said(made(COOL), "agreement/sampler")
    assert causes(checks) == {"temperature"}
    assert "at temperature 1.3, and the recipe's is 0.6" in checks[0].message


@pytest.mark.parametrize(
    ("factor", "words"), [(0.0, "it is left out"), (2.0, "applied twice"), (0.25, "at 0.25 times")]
)
def test_scale_of_a_samplers_adapter_is_named(factor: float, words: str) -> None:
    with own_policy(scaled(factor))():
        checks = said(made(LORA), "agreement/synced")
    assert causes(checks) == {"adapter"}
    assert words in checks[0].message


def test_left_out_weights_are_named_by_their_part_whether_the_samplers_copy_is_in_sight_or_not() -> None:
    def hidden(real: Any) -> Any:
        return property(lambda self: None)

    for stack in (ExitStack(), ExitStack()):
        with stack, copied_sampler(lambda name: "layers.0.self_attn" in name)():
            before = said(made(), "agreement/synced")
            stack.enter_context(patch(LocalGenerator, "policy", hidden)())
            after = said(made(), "agreement/synced")
    assert "copy of `layers.0.self_attn` is not" in before[0].message
    assert "old weights of `layers.0.self_attn`" in after[0].message
    assert causes(before) == causes(after) == {"weights"}


@pytest.mark.parametrize("settings", [(), (COOL,), (LORA,), ("model.dtype=bfloat16",)])
def test_no_cause_is_named_where_both_sides_agree(settings: tuple[str, ...]) -> None:
    checks = preflight(made(*settings), families=["agreement"]).checks
    assert not [check.message for check in checks if "cause" in check.message or "cause" in check.evidence]
