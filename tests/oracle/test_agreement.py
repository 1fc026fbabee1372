"""A weight sync that leaves a part of the model behind is caught whatever the part, and named by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest

import levelhead.policy.rounding
from levelhead.preflight.context import untouched
from levelhead.training.prepare import Setup
from oracle.agreement import _synced
from oracle.context import PreflightContext
from oracle.result import Check
from preflight.mutations.agreement import copied_sampler
from preflight_setup import setup_of

LORA = "model.lora={r: 4, alpha: 8}"


@cache
def made(*settings: str) -> Setup:
    return setup_of(*settings)


def synced(setup: Setup, ways: Sequence[Callable[[str], bool]]) -> list[Check]:
    """The checks of syncs that leave out some parameters each."""
    left_out = [ways[0]]
    with copied_sampler(lambda name: left_out[0](name))(), untouched(setup.policy):
        context = PreflightContext(setup)
        try:
            checks = []
            for left_out[0] in ways:
                checks.append(_synced(context))
        finally:
            context.close()
    return checks


@pytest.mark.parametrize(
    ("leaves_out", "part"),
    [
        (lambda name: "layers.0." in name, "copy of `layers.0` is not"),
        (lambda name: "embed" in name, "copy of `embed_tokens` is not"),
        (lambda name: True, "copy of the whole model is not"),
        (lambda name: "layers.1.mlp" in name, "copy of `layers.1.mlp` is not"),
        (
            lambda name: "q_proj" in name or "embed" in name,
            "copy of `embed_tokens`, `layers.*.self_attn.q_proj` is not",
        ),
        (lambda name: "embed" not in name, "copy of all but `embed_tokens` is not"),
    ],
)
def test_the_part_that_a_sync_leaves_out_is_named(leaves_out: Callable[[str], bool], part: str) -> None:
    (check,) = synced(made(), [leaves_out])
    assert check.status == "fail"
    assert part in check.message


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), (LORA,)], ids=["full", "lora"])
def test_no_trained_parameter_can_be_left_out_unseen(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 1 << 12  # as in a model that is larger than this bound
    monkeypatch.setattr(levelhead.policy.rounding, "MOST_NUDGED", bound)
    setup = made(*settings)
    trained = [name for name, weight in setup.policy.base.named_parameters() if weight.requires_grad]
    assert len(trained) > 10
    checks = synced(setup, [lambda name, left=left: name == left for left in trained])  # type: ignore[misc]
    for left, check in zip(trained, checks, strict=True):
        assert (left, check.status) == (left, "fail")
        stem = left.removeprefix("model.").removesuffix(".weight").removesuffix(".default")
        assert f"copy of `{stem}" in check.message, (left, check.message)


def test_a_sync_that_leaves_out_nothing_passes() -> None:
    for setup in (made(), made(LORA)):
        assert [check.status for check in synced(setup, [lambda name: False])] == ["pass"]
