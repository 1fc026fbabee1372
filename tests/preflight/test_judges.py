"""Before the first step a judge is tried on answers of known worth."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest

from levelhead.preflight import Check, preflight
from levelhead.preflight.judges import ASKED
from levelhead.recipe.judge import Judge
from levelhead.recipe.load import parse
from levelhead.recipe.tasks import Fairness
from levelhead.tasks.fairness import FairnessTask
from levelhead.tasks.judge import JudgedTask
from levelhead.training.prepare import Setup, prepare

RECIPE = """
name: judged
model:
  preset: tiny
  dtype: float32
  tiny: {hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, intermediate_size: 48, vocab_size: 320, context: 512}
tasks:
  - kind: fairness
    items: 40
    judge: {base_url: "http://judge.test/v1", model: m}
grpo: {steps: 1, batch_size: 4, group_size: 2, sampling: {max_new_tokens: 8}}
"""
Verdict = Callable[[str, str], str]


def setup_with(verdict: Verdict, status: int = 200) -> tuple[Setup, list[str]]:
    """A set-up whose judge is a function of the perfect answer and the answer, and all that it was shown."""
    shown: list[str] = []

    async def reply(request: httpx2.Request) -> httpx2.Response:
        text = json.loads(request.content)["messages"][-1]["content"]
        shown.append(text)
        if status != 200:
            return httpx2.Response(status, text="no entry")
        perfect = text.split("for comparison:\n")[1].split("\n\n[answer")[0]
        answer = text.split("[answer ")[1].split("]\n", 1)[1].rsplit("\n[end of answer", 1)[0]
        return httpx2.Response(200, json={"choices": [{"message": {"content": verdict(perfect, answer)}}]})

    task = FairnessTask(Fairness(kind="fairness", items=40))
    section = Judge(base_url="http://judge.test/v1", model="m", attempts=1, backoff_s=0.001, patience_s=0)
    judged = JudgedTask(task, "fairness", section, httpx2.MockTransport(reply))
    return prepare(parse(RECIPE, (), source="judged"), tasks={"fairness": judged}), shown


def checks_of(verdict: Verdict, status: int = 200) -> dict[str, Check]:
    return {check.name: check for check in preflight(setup_with(verdict, status)[0], families=("judges",)).checks}


def sound(perfect: str, answer: str) -> str:
    return f"Grade: {9 if answer == perfect else 2 if answer else 0}"


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
    assert f"above {named} ones" in check.message


def test_a_grade_missing_now_and_then_is_a_warning() -> None:
    replies = iter([True] + [False] * 99)
    found = checks_of(lambda perfect, answer: "hm" if next(replies) else sound(perfect, answer))
    assert found["judges/grades/fairness"].status == "warn"
    assert found["judges/order/fairness"].status == "pass"


def test_a_refused_key_fails_with_advice_on_the_key_and_is_asked_no_more() -> None:
    setup, shown = setup_with(sound, status=401)
    report = preflight(setup, families=("judges", "rewards"))
    (failure,) = report.failures
    assert (failure.name, failure.evidence) == ("judges/answers/fairness", {"cause": "authentication"})
    assert "api_key_env" in failure.fix
    assert len(shown) <= 3 * ASKED
    assert isinstance(setup.tasks["fairness"], JudgedTask)
    assert setup.tasks["fairness"].asks


def test_an_endpoint_that_is_down_fails_with_advice_on_the_endpoint() -> None:
    check = checks_of(sound, status=503)["judges/answers/fairness"]
    assert (check.status, check.evidence) == ("fail", {"cause": "outage"})
    assert "start the endpoint at http://judge.test/v1" in check.fix
