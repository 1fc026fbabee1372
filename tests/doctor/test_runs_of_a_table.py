"""A table with a run a row, or a run a column, is no course of one run: each has a verdict of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from levelhead.doctor.page import page
from levelhead.doctor.render import text
from levelhead.doctor.report import Report, examine

ROWS = """\
| run | reward | accuracy | frac_reward_zero_std | clipped_ratio |
|---|---|---|---|---|
| base prompt | 0.0 | 0% | 100% | 0% |
| with SFT first | 0.62 | 61% | 20% | 3% |
| longer answers | 0.70 | 68% | 15% | 1% |
"""
COLUMNS = """\
| Metric | single turn, 100 steps | many turns, 80 steps |
|---|---|---|
| score/mean | -0.02 | **0.046** |
| response_length/mean | 512 (all cut) | 1489 |
| completions/clipped_ratio | 1.00 | 0.02 |
"""
SWEEP = """\
| learning rate | best val accuracy | final val accuracy | format reward (final) |
|---|---|---|---|
| 2e-6 | **0.51** @ step 80 | 0.50 | 0.9 |
| 5e-5 | 0.48 @ step 20 * | 0.02 @ step 90 | 0.1 |
"""
ARROWS = """\
| run | reward | grad_norm |
|---|---|---|
| small | 0 → 0 → 0 → 0 → 0 | 0 |
| large | 0.1 → 0.2 → 0.2 → 0.3 → 0.4 | 0.3 |
"""
RANGES = """\
| Metric | first try | second try |
|---|---|---|
| completions/clipped_ratio | 0.93-0.99 | 0.00-0.04 |
| reward_std | 0.05\u20130.12 | 0.12\u20130.25 |
"""
ONE_BROKEN = """\
| version | completions/clipped_ratio | reward |
|---|---|---|
| one | 1.0 | 0.21 |
| two | 1.0 | 0.20 |
| three | 1.0 | NaN |
"""
HELD_OUT = """\
| Metric (held-out) | baseline → with a penalty | second baseline → with a penalty |
|---|---|---|
| Exact match | 0.31 → 0.05 | 0.30 → 0.29 |
| F1 | 0.42 → 0.11 | 0.40 → 0.40 |
| Mean completion length | 410 → 9 | 250 → 240 |
"""
BEST = """\
| metric | with a baseline | without one |
|---|---|---|
| best val accuracy | 0.61 @ step 150 | 0.58 |
| final val accuracy | 0.61 | 0.11 |
"""


def written(tmp_path: Path, words: str) -> Report:
    path = tmp_path / "report.md"
    path.write_text(words, encoding="utf-8")
    return examine(path)


@pytest.mark.parametrize(
    ("words", "worst", "code", "names"),
    [
        (ROWS, "base prompt", "no-learning-signal-all-zero-reward", 3),
        (COLUMNS, "single turn, 100 steps", "length-truncation", 2),
        (SWEEP, "5e-5", "no-improvement", 2),
        (ARROWS, "small", "no-learning-signal-all-zero-reward", 2),
        (RANGES, "first try", "length-truncation", 2),
        (BEST, "without one", "no-improvement", 2),
        (HELD_OUT, "baseline → with a penalty", "no-improvement", 2),
    ],
)
def test_every_run_has_a_verdict_and_the_gravest_leads(
    tmp_path: Path, words: str, worst: str, code: str, names: int
) -> None:
    report = written(tmp_path, words)
    assert report.diagnosis.findings[0].code == code
    assert worst in report.source
    runs = {run["run"]: run for run in report.to_json()["runs"]}
    assert len(runs) == names
    assert runs[worst]["code"] == code
    others = [run for name, run in runs.items() if name != worst]
    assert {run["verdict"] for run in others} == {"undecided"}
    for shown in (text(report), text(report, "zh"), page(report)):
        assert all(name in shown for name in runs)


def test_what_all_runs_share_leads_before_what_one_has(tmp_path: Path) -> None:
    report = written(tmp_path, ONE_BROKEN)
    assert report.diagnosis.findings[0].code == "length-truncation"
    assert {run["run"]: run["code"] for run in report.to_json()["runs"]}["three"] == "nonfinite"


def test_a_column_of_the_base_model_stands_before_the_steps(tmp_path: Path) -> None:
    report = written(
        tmp_path,
        "| Metric | Base | Step 10 | Step 20 |\n|---|---|---|---|\n"
        "| eval accuracy | 41% | 36% | 30% |\n| kl | - | 0.1 | 0.2 |\n",
    )
    assert report.history.series("eval/accuracy").steps == [0.0, 10.0, 20.0]


def test_rows_of_runs_are_not_taken_for_a_course(tmp_path: Path) -> None:
    sorted_by_reward = "| model | reward | KL |\n|---|---|---|\n" + "".join(
        f"| variant {i} | {0.1 * i:.1f} | 0.0{i} |\n" for i in range(1, 10)
    )
    report = written(tmp_path, sorted_by_reward)
    assert report.diagnosis.verdict == "undecided"
    assert report.history.rows == 1


def test_a_course_beside_a_table_of_runs_is_what_counts(tmp_path: Path) -> None:
    course = "| step | reward | entropy |\n|---|---|---|\n" + "".join(
        f"| {i} | 0.{i} | 0.{9 - i} |\n" for i in range(1, 9)
    )
    report = written(tmp_path, f"# Course\n\n{course}\n# Others\n\n{ROWS}")
    assert report.history.rows == 8
    assert "runs" not in report.to_json()


def test_before_and_after_are_no_runs(tmp_path: Path) -> None:
    report = written(
        tmp_path, "| metric | before | after |\n|---|---|---|\n| reward | 0.2 | 0.6 |\n| kl | 0.01 | 0.2 |\n"
    )
    assert "runs" not in report.to_json()
