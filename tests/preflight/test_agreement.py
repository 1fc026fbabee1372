"""A weight sync that leaves a part of the model behind is named by that part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from levelhead.preflight import preflight
from preflight.mutations.agreement import copied_sampler
from preflight_setup import setup_of


@pytest.mark.parametrize(
    ("leaves_out", "part"),
    [
        (lambda name: "layers.0." in name, "old weights of layer 0"),
        (lambda name: "embed" in name, "old weights of embed_tokens"),
        (lambda name: True, "old weights of the whole model"),
        (lambda name: "q_proj" in name or "embed" in name, "old ones, or others"),
    ],
)
def test_the_part_that_a_sync_leaves_out_is_named(leaves_out: Callable[[str], bool], part: str) -> None:
    with copied_sampler(leaves_out)():
        report = preflight(setup_of(), families=["agreement"])
    (check,) = [check for check in report.failures if check.name == "agreement/synced"]
    assert check.message.endswith(part)
