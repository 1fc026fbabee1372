"""Batches of few groups, of easy and hard prompts: three hard ones in a row are no reward that stands still."""

from __future__ import annotations

import pytest

from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import diagnose

RUN = """
0.188 0.574 0.500|0.109 0.819 0.500|0.141 0.654 0.625|0.172 0.774 0.500|0.266 0.467 0.500|0.234 0.451 0.500
0.344 0.436 0.375|0.531 0.378 0.125|0.281 0.632 0.500|0.234 0.250 0.625|0.406 0.315 0.625|0.500 0.144 0.750
0.328 0.110 0.625|0.422 0.170 0.625|0.422 0.129 0.625|0.844 0.113 0.875|0.609 0.132 0.625|0.297 0.076 0.750
0.000 nan   1.000|0.188 0.139 0.875|0.609 0.086 0.875|0.422 0.105 0.625|0.375 0.151 0.625
"""
"""Reward, entropy and share of groups without contrast, step by step, of recipes/real/sums.yaml with seed 1."""
Row = dict[str, float]


def rows() -> list[Row]:
    cells = [[float(x) for x in row.split()] for line in RUN.split("\n") if line for row in line.split("|")]
    return [
        {"reward": reward, "frac_reward_zero_std": dead, "reward_std": 0.15}
        | ({"entropy": entropy} if entropy == entropy else {})
        for reward, entropy, dead in cells
    ]


def severities(run: list[Row]) -> list[str]:
    """How grave an entropy collapse is said to be, step after step."""
    history, said = History(), []
    for step, row in enumerate(run, start=1):
        history.append(step, row)
        said += [f.severity for f in diagnose(history).findings if f.code == "entropy-collapse"]
    return said


def test_hard_prompts_at_the_end_do_not_make_a_collapse_of_a_run_that_learns() -> None:
    assert "critical" not in severities(rows())


def test_the_same_entropy_is_critical_where_the_reward_goes_the_other_way() -> None:
    run = rows()
    rewards = [row["reward"] for row in run][::-1]
    assert severities([row | {"reward": reward} for row, reward in zip(run, rewards, strict=True)])[-1] == "critical"


@pytest.mark.parametrize(("error", "severity"), [(0.02, "none"), (0.3, "critical")])
def test_two_evaluations_far_apart_by_their_standard_errors_are_proof(error: float, severity: str) -> None:
    run = [row | {"reward": 0.2 + 0.05 * (i % 2)} for i, row in enumerate(rows())]
    run[0] |= {"eval/sums/score": 0.11, "eval/sums/se": error}
    run[-1] |= {"eval/sums/score": 0.48, "eval/sums/se": error}
    history = History()
    for step, row in enumerate(run, start=1):
        history.append(step, row)
    by_code = {finding.code: finding.severity for finding in diagnose(history).findings}
    assert by_code.get("entropy-collapse", "none") == severity
