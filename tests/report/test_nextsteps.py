"""What to do next follows from the run's own figures: one case for each thing that can be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import strata_summary
from levelhead import metrics as metric
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, Finding
from levelhead.doctor.readers.base import Unread
from levelhead.doctor.readers.sources import Log
from levelhead.doctor.report import Report
from levelhead.records import Severity
from levelhead.report.outlook import MOST, next_steps, outlook
from levelhead.report.reading import Run, read_run
from synthetic_run import write_run

RECIPE: dict[str, Any] = {
    "seed": 7,
    "tasks": [{"kind": "t"}],
    "sft": {"steps": 6},
    "grpo": {"steps": 40, "group_size": 4},
    "eval": {"every": 0},
}
Stratum = tuple[float, float, float]
"""Score after GRPO, above the constant answer, and after SFT; each with an error of 0.02."""


def estimate(value: float, se: float = 0.02) -> dict[str, float]:
    return {"score": value, "se": se}


def run_of(
    groups: dict[str, list[list[float]]] | None = None,
    lines: list[dict[str, Any]] | None = None,
    recipe: dict[str, Any] | None = None,
    **strata: Stratum,
) -> Run:
    """A run of one task with strata ``k=NAME``, and the rewards of its late groups by stratum."""
    stages: dict[str, Any] = {}
    for stage, at in (("sft", 2), ("grpo", 0)):
        mean = sum(row[at] for row in strata.values()) / len(strata)
        stages[stage] = {
            **estimate(mean),
            "n": 256,
            "metrics": {},
            "balanced": estimate(mean),
            "constant": {"answer": "A", **estimate(0.2)},
            "over_constant": {**estimate(mean - 0.2), "balanced": estimate(mean - 0.2)},
            "strata": {
                f"k={name}": {
                    **estimate(row[at]),
                    "n": 128,
                    "metrics": {},
                    "constant": estimate(row[0] - row[1]),
                    "over_constant": estimate(row[1]),
                }
                for name, row in strata.items()
            },
        }
    rollouts = [
        {"task": "t", "prompt_id": f"{name}-{i}", "reward": reward, "strata": {"k": name}}
        for name, own in (groups or {}).items()
        for i, group in enumerate(own)
        for reward in group
    ]
    metrics = lines if lines is not None else [{"step": 40, "stage": "grpo"}]
    run = Run("x", recipe=recipe or RECIPE, summary={"tasks": {"t": stages}}, metrics=metrics)
    run.rollouts = {"grpo-000040": rollouts} if rollouts else {}
    return run


GOOD: Stratum = (0.8, 0.6, 0.3)
AT_CHANCE: Stratum = (0.2, 0.01, 0.2)
MIXED, FAILED, SOLVED = [0.0, 1.0, 0.0, 0.0], [0.0] * 4, [1.0] * 4


@pytest.mark.parametrize(
    ("own", "says", "settings"),
    [
        ([MIXED, MIXED, FAILED], "2 of its last 3 groups have contrast", {"grpo.steps": 80}),
        ([FAILED, FAILED, FAILED, SOLVED], "3 of its last 4 groups failed in every rollout", {"sft.steps": 12}),
        (
            [SOLVED, SOLVED, SOLVED, FAILED],
            "In 4 of its last 4 groups all rollouts score alike",
            {"grpo.group_size": 8},
        ),
        ([], "Of the last 2 groups saved while training none was of this kind", {"tasks[].balance": True}),
    ],
)
def test_a_stratum_at_chance_is_told_what_its_own_groups_show(
    own: list[list[float]], says: str, settings: dict[str, Any]
) -> None:
    step = next_steps(run_of({"a": [MIXED, SOLVED], "b": own}, a=GOOD, b=AT_CHANCE))[0]
    assert step.text.startswith("t, prompts with k 'b': +0.200, where the constant answer gets +0.190.")
    assert says in step.text
    assert step.settings == settings


def test_the_last_third_of_the_saved_steps_speaks_and_never_fewer_than_eight_groups() -> None:
    run = run_of({"b": [MIXED]}, a=GOOD, b=AT_CHANCE)
    late = run.rollouts["grpo-000040"]
    early = [{**row, "reward": 0.0} for row in late]
    run.rollouts = {f"grpo-{step:06d}": late if step >= 20 else early for step in range(30)}
    assert "10 of its last 10 groups have contrast" in next_steps(run)[0].text
    run.rollouts = {f"grpo-{step:06d}": late if step >= 6 else early for step in range(9)}
    assert "3 of its last 8 groups have contrast" in next_steps(run)[0].text


def test_what_fell_comes_first_and_strata_are_weighed_alike_unless_they_are() -> None:
    run = run_of(a=GOOD, b=(0.3, 0.25, 0.6))
    assert next_steps(run)[0].text == "t, prompts with k 'b' fell from +0.600 to +0.300. Weigh the strata alike."
    assert next_steps(run)[0].settings == {"tasks[].balance": True}
    balanced = run_of(recipe={**RECIPE, "tasks": [{"kind": "t", "balance": True}]}, a=GOOD, b=(0.3, 0.25, 0.6))
    assert "The best checkpoint may be an earlier one" in next_steps(balanced)[0].text
    assert next_steps(balanced)[0].settings == {"eval.every": 25}


def test_a_reward_that_still_rises_asks_for_more_steps() -> None:
    # The last ten of 40 have a mean of 0.95 and the ten before 0.75, each with a deviation near 0.06.
    rising = [{"step": i, "stage": "grpo", "reward/t": 0.02 * i + 0.6 - 0.4} for i in range(1, 41)]
    (step,) = [s for s in next_steps(run_of(lines=rising, a=GOOD, b=GOOD)) if "rising" in s.text]
    assert "(+0.710 to +0.910 over the last 20 steps)" in step.text
    assert step.settings == {"grpo.steps": 80}
    flat = [{**row, "reward/t": 0.9 + 0.01 * (-1) ** row["step"]} for row in rising]
    assert not [s for s in next_steps(run_of(lines=flat, a=GOOD, b=GOOD)) if "rising" in s.text]


def test_a_change_within_chance_names_the_items_that_would_settle_it() -> None:
    # A change of 0.02 with an error of hypot(0.02, 0.02) = 0.028: twice that is 2.83 times the change, squared 8.
    (step,) = [s for s in next_steps(run_of(a=(0.62, 0.4, 0.6), b=(0.62, 0.4, 0.6))) if "chance" in s.text]
    assert step.text.startswith("t changed by +0.020 ± 0.028 on 256 items")
    assert step.settings == {"eval.final_items": 2050}


def test_groups_that_are_all_solved_ask_for_harder_prompts() -> None:
    lines = [{"step": i, "stage": "grpo", metric.ALL_SOLVED: 0.02 * i} for i in range(1, 41)]
    run = run_of(lines=lines, a=GOOD, b=GOOD)
    run.summary["tasks"]["t"]["grpo"]["strata"]["k=b"]["metrics"] = {"accuracy": 0.9}
    first, second = next_steps(run)
    assert "In the last 10 steps 71% of the groups were solved" in first.text
    assert first.settings == {"grpo.dynamic_sampling": 2}
    assert second.text.startswith("The weakest is t, prompts with k 'b'")


def test_a_run_with_which_nothing_is_wrong_is_to_be_repeated_and_used() -> None:
    run = run_of(a=GOOD, b=(0.7, 0.1, 0.3))
    steps = next_steps(run)
    assert steps[0].text.startswith("The narrowest lead over the constant answer is 5.0 standard errors")
    assert steps[0].settings == {"seed": 8}
    weak = run_of({"b": [MIXED]}, a=GOOD, b=GOOD)
    weak.summary["tasks"]["t"]["grpo"]["strata"]["k=b"]["metrics"] = {"accuracy": 0.9}
    assert next_steps(weak)[0].text.startswith(
        "The weakest is t, prompts with k 'b': 90% right. 1 of its last 1 groups"
    )


def test_an_unfinished_run_is_to_be_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("name: x\ntasks: [{kind: t}]\ngrpo: {steps: 40}\n")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 12, "stage": "grpo", "reward": 0.5}) + "\n")
    step = next_steps(read_run(folder))[0]
    assert step.text == "The run stands at step 12 of 40: go on with it."
    assert step.command == f"levelhead train {folder}/recipe.yaml --resume --out {folder}"


def test_what_the_doctor_finds_comes_with_its_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("name: x\ntasks: [{kind: t}]\ngrpo: {steps: 60}\n")
    lines = [
        {"step": i, "stage": "grpo", "reward": 0.0, "frac_reward_zero_std": 1.0, "loss": 0.0, "grad_norm": 0.0}
        for i in range(1, 61)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"tasks": {"t": {"grpo": {"score": 0.0, "se": 0.0}}}}))
    english, chinese = (next_steps(read_run(folder), language)[0] for language in ("en", "zh"))
    assert english.text.startswith("No signal: every reward at the floor (confidence ")
    assert chinese.text.startswith("没有学习信号")
    assert english.settings
    assert english.settings.keys() == chinese.settings.keys()


def test_a_note_of_the_doctor_hides_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def finding(code: str, severity: Severity, *explains: str) -> Finding:
        return Finding(code, severity, 0.7, 3.0, (), (), explains)

    def examined(*findings: Finding) -> list[str]:
        report = Report(Log("levelhead", History(), Unread()), Diagnosis("warning", findings, 9))
        monkeypatch.setattr("levelhead.doctor.report.examine", lambda _folder: report)
        run = run_of(a=GOOD)
        run.folder = Path("runs/x")
        return [step.text.split(" (")[0] for step in next_steps(run) if "confidence" in step.text]

    note, cause = finding("lr-too-high", "info", "kl-blowup"), finding("lr-too-high", "warning", "kl-blowup")
    assert examined(note, finding("kl-blowup", "warning")) == ["KL blow-up"]
    assert examined(cause, finding("kl-blowup", "warning")) == ["Learning rate too high"]


def test_never_more_than_three_things_and_never_none_after_a_held_out_score(tmp_path: Path) -> None:
    rising = [{"step": i, "stage": "grpo", "reward/t": 0.02 * i} for i in range(1, 41)]
    crowded = run_of({"a": [FAILED], "b": [FAILED], "c": [MIXED]}, rising, a=AT_CHANCE, b=AT_CHANCE, c=(0.3, 0.25, 0.6))
    assert len(next_steps(crowded)) == MOST
    for summary in (strata_summary.summary(), strata_summary.older(), strata_summary.many_strata(5)):
        assert 1 <= len(next_steps(Run("x", summary=summary))) <= MOST
    assert next_steps(Run("x")) == []
    assert next_steps(read_run(write_run(tmp_path / "run", steps=20)))


def test_the_first_screen_lists_what_was_learnt_and_what_was_not_in_both_languages() -> None:
    run = run_of(a=GOOD, b=AT_CHANCE, c=(0.3, 0.25, 0.6))
    english = outlook(run)
    learnt, rest = english.split('class="not-learnt"')
    assert "prompts with k &#x27;a&#x27;" in learnt
    assert "+0.800" in learnt
    assert "constant answer +0.200" in learnt
    assert "prompts with k &#x27;b&#x27;" in rest
    assert "constant answer +0.050, was +0.600" in rest
    chinese = outlook(run, "zh")
    for words in ("学到的", "没学到或看不出", "下一步", "k 为\u201ca\u201d的题", "固定回答 +0.200", "此前 +0.600"):
        assert words in chinese
    assert outlook(Run("x")) == ""


def test_a_name_of_a_run_is_no_markup_on_the_first_screen() -> None:
    run = run_of(a=GOOD, **{"<img src=x>": AT_CHANCE})
    assert "<img" not in outlook(run)
    assert "&lt;img" in outlook(run)


def test_long_lists_end_in_a_count() -> None:
    run = run_of(**{f"s{i}": GOOD for i in range(9)})
    assert "4 more in the tables below" in outlook(run)
