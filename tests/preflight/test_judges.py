"""Before the first step a judge is tried on answers of known worth."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from judged_preflight import RECIPE, Verdict, setup_with, sound
from judged_run import judged_by
from levelhead.contrib.fairness import FairnessTask
from levelhead.preflight import Outcome, preflight
from levelhead.preflight.checks.judges import ASKED
from levelhead.recipe.judge import Judge, Judges, Pairwise
from levelhead.recipe.load import parse
from levelhead.recipe.tasks import Fairness
from levelhead.tasks.judges.calibration import Entry, fingerprint, write_calibrations
from levelhead.tasks.judges.questions import RUBRICS, text_of
from levelhead.training.prepare import prepare


def checks_of(verdict: Verdict, status: int = 200) -> dict[str, Outcome]:
    return {check.name: check for check in preflight(setup_with(verdict, status)[0], families=("judges",)).checks}


def test_a_judge_that_grades_and_ranks_passes_at_the_cost_of_nine_calls() -> None:
    setup, shown = setup_with(sound)
    report = preflight(setup, families=("judges",))
    assert [(check.name, check.status) for check in report.checks] == [
        ("judges/grades/fairness", "pass"),
        ("judges/order/fairness", "pass"),
    ]
    assert len(shown) == 3 * ASKED


@pytest.mark.parametrize(
    "verdict",
    [lambda perfect, answer: "I like it.", lambda perfect, answer: "Grade: 11" if answer else "Grade: 0"],
)
def test_a_judge_without_grades_fails(verdict: Verdict) -> None:
    check = checks_of(verdict)["judges/grades/fairness"]
    assert check.status == "fail"
    assert "hold no grade" in check.message
    assert check.evidence["last_without_grade"]


@pytest.mark.parametrize(("says", "status"), [("Grade: 5", "pass"), ("I like it.", "fail")])
def test_its_replies_are_read_where_no_perfect_answer_is_known_as_well(
    says: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairnessTask, "oracle", lambda *_: ())
    checks = checks_of(lambda perfect, answer: says)
    assert checks["judges/grades/fairness"].status == status
    if status == "pass":
        assert checks["judges/order/fairness"].status == "warn"
        assert "no perfect answers are known" in checks["judges/order/fairness"].message


@pytest.mark.parametrize(
    ("verdict", "named"),
    [
        (lambda perfect, answer: "Grade: 10", "empty and wrong"),
        (lambda perfect, answer: f"Grade: {6 if answer else 2}", "wrong"),
        (lambda perfect, answer: f"Grade: {1 if answer == perfect else 8}", "empty and wrong"),
    ],
)
def test_a_judge_that_does_not_rank_fails(verdict: Verdict, named: str) -> None:
    check = checks_of(verdict)["judges/order/fairness"]
    assert check.status == "fail"
    assert named.split()[0] in check.message


def test_a_grade_missing_now_and_then_is_a_warning() -> None:
    replies = iter([True] + [False] * 99)
    results = checks_of(lambda perfect, answer: "hm" if next(replies) else sound(perfect, answer))
    assert results["judges/grades/fairness"].status == "warn"
    assert results["judges/order/fairness"].status == "pass"


def test_a_refused_key_fails_with_advice_on_the_key_and_is_asked_no_more() -> None:
    setup, shown = setup_with(sound, status=401)
    report = preflight(setup, families=("judges", "rewards"))
    (failure,) = report.failures
    assert (failure.name, failure.evidence) == ("judges/answers/fairness", {"cause": "authentication"})
    assert "api_key_env" in failure.fix
    assert len(shown) <= 3 * ASKED
    assert setup.tasks["fairness"].grader.asks  # type: ignore[attr-defined]


def test_an_endpoint_that_is_down_fails_with_advice_on_the_endpoint() -> None:
    check = checks_of(sound, status=503)["judges/answers/fairness"]
    assert (check.status, check.evidence) == ("fail", {"cause": "outage"})
    assert "start the endpoint at http://judge.test/v1" in check.fix


def several(folder: Path, refused: list[str] | None = None) -> dict[str, Outcome]:
    """Checks of a task with a sound judge and a dead one."""

    async def reply(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "dead.test":
            return httpx2.Response(503)
        text = json.loads(request.content)["messages"][-1]["content"]
        perfect = text.split("for comparison:\n")[1].split("\n\n[answer")[0]
        right = f"{perfect}\n[end of answer" in text
        return httpx2.Response(200, json={"choices": [{"message": {"content": f"Grade: {9 if right else 1}"}}]})

    members = [
        {"name": name, "base_url": f"http://{name}.test/v1", "model": "m", "patience_s": 0, "backoff_s": 0.001}
        for name in ("dead", "sound")
    ]
    section = Judges.model_validate({"members": members})
    if refused is not None:
        entries = {
            one.title: Entry(
                fingerprint=fingerprint(one, RUBRICS["fairness"]),
                refused=refused if one.title == "sound" else [],
                weight=1,
                knots=[],
                grades={},
                figures={},
            )
            for one in section.members
        }
        write_calibrations(folder / "c.json", {"fairness": entries})
        section = section.model_copy(update={"calibration": str(folder / "c.json")})
    task = FairnessTask(Fairness(kind="fairness", items=40))
    judged = judged_by(task, "fairness", section, httpx2.MockTransport(reply))
    setup = prepare(parse(RECIPE, (), source="judged"), tasks={"fairness": judged})
    return {check.name: check for check in preflight(setup, families=["judges"]).checks}


def test_a_dead_judge_among_others_is_a_warning_and_each_is_checked_by_itself(tmp_path: Path) -> None:
    checks = several(tmp_path)
    assert {name: check.status for name, check in checks.items()} == {
        "judges/grades/fairness/sound": "pass",
        "judges/order/fairness/sound": "pass",
        "judges/answers/fairness/dead": "warn",
    }


def test_a_judge_that_failed_its_calibration_is_refused_with_its_numbers(tmp_path: Path) -> None:
    check = several(tmp_path, ["follows 100% of orders to give full marks, above 10%"])[
        "judges/calibration/fairness/sound"
    ]
    assert check.status == "fail"
    assert "the judge sound failed its calibration: follows 100% of orders" in check.message


@pytest.mark.parametrize(("says", "status"), [("better", "pass"), ("first", "fail")])
def test_a_judge_of_pairs_must_rank_perfect_answers_first_in_both_orders(says: str, status: str) -> None:
    """The perfect answer is the reference and ties with it; a judge that goes by place lets the others tie as well."""
    task = FairnessTask(Fairness(kind="fairness", items=40))
    perfect = {(task.oracle(prompt) or [""])[0] for prompt in task.prompts("train", 0)}

    async def reply(request: httpx2.Request) -> httpx2.Response:
        text = json.loads(request.content)["messages"][-1]["content"]
        asked = text.split("]\n", 1)[1].split("\n[end of task")[0]
        first = text.split("[answer A ")[1].split("]\n", 1)[1].split("\n[end of answer")[0]
        (mine,) = {(task.oracle(p) or [""])[0] for p in task.prompts("train", 0) if text_of(p) == asked}
        said = "A" if says == "first" or first == mine else "B"
        return httpx2.Response(200, json={"choices": [{"message": {"content": f"Better: {said}"}}]})

    assert len(perfect) > 1
    section = Judge(base_url="http://judge.test/v1", model="m", pairwise=Pairwise(kind="tournament"))
    judged = judged_by(task, "fairness", section, httpx2.MockTransport(reply))
    setup = prepare(parse(RECIPE, (), source="judged"), tasks={"fairness": judged})
    checks = {check.name: check for check in preflight(setup, families=["judges"]).checks}
    assert checks["judges/grades/fairness"].status == "pass"
    assert checks["judges/order/fairness"].status == status
