"""A draw that rounding tips is no fault, and a draw that depends on its neighbours is one in every type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import pytest

from levelhead.training.prepare import Setup
from oracle.run import preflight
from preflight.mutations.sampler import _by_row
from preflight_setup import setup_of


@cache
def setup(dtype: str) -> Setup:
    """A policy over a frozen base in a type, as recipes for a GPU have it, that is unsure about every token."""
    return setup_of("model.preset=base-tiny", f"model.dtype={dtype}", "model.lora.r=4")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("broken", "status"), [(nullcontext, "pass"), (_by_row, "fail")], ids=["sound", "by-row"])
def test_seeded_draws(dtype: str, broken: Callable[[], AbstractContextManager[object]], status: str) -> None:
    with broken():
        report = preflight(setup(dtype), families=["batching"])
    (check,) = [check for check in report.checks if check.name == "batching/seeded"]
    assert check.status == status, check.message
