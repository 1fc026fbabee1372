"""Updates that the computing precision rounds away."""

from __future__ import annotations

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import diagnose


def codes(cosine: float, rows: int = 12, rise: float = 0.0) -> list[str]:
    """Findings about a run whose products show this much of what its weights have learnt."""
    history = History()
    for step in range(1, rows + 1):
        noise = 0.02 * (step % 3)
        row = {"reward": 0.3 + noise + rise * step / rows, "reward_std": 0.3, "entropy": 0.4, "grad_norm": 0.5}
        history.append(step, row | {"update/visible": 0.4, "update/visible_cosine": cosine})
    return [finding.code for finding in diagnose(history).findings if finding.severity != "info"]


@pytest.mark.parametrize("rise", [0.0, 0.4])
def test_updates_of_which_a_third_is_seen_are_reported_whether_or_not_the_reward_rises(rise: float) -> None:
    assert "update-hidden" in codes(0.33, rise=rise)


@pytest.mark.parametrize("cosine", [0.8, 1.0])
def test_updates_that_are_seen_are_not(cosine: float) -> None:
    assert "update-hidden" not in codes(cosine)


def test_a_few_updates_may_still_hide() -> None:
    assert "update-hidden" not in codes(0.1, rows=5)
