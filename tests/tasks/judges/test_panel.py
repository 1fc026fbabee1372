"""Several judges: one stands in for another, or all grade together; a dead one ends no run that has another."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import httpx2
import pytest

from judge_hosts import Hosts, even_answers, grades
from judged_run import Even, judged_by
from levelhead.errors import InputError
from levelhead.recipe.judge import Judges
from levelhead.tasks.endpoint import EndpointError
from levelhead.tasks.judges.calibration import Entry, fingerprint, write_calibrations

DOWN = httpx2.Response(503, text="down")
REVOKED = httpx2.Response(401, text="key revoked")


def test_the_first_judge_that_answers_grades_alone() -> None:
    hosts = Hosts({"first": "Grade: 7", "second": "Grade: 2"})
    task = hosts.task()
    assert grades(task, even_answers(task, 2)) == [0.7] * 4
    assert hosts.asked == {"first": 4}
    assert task.drain_events(1) == []


@pytest.mark.parametrize(("fault", "cause"), [(DOWN, "outage"), (REVOKED, "authentication")])
def test_a_dead_judge_gives_way_to_the_next_and_no_rollout_is_lost(fault: httpx2.Response, cause: str) -> None:
    hosts = Hosts({"first": fault, "second": "Grade: 2"})
    task = hosts.task()
    answers = even_answers(task, 3)
    assert grades(task, answers) == [0.2] * 6
    switched = [event for event in task.drain_events(4) if event.code == "judge-fallback"]
    (event,) = switched
    assert event.severity == "warning"
    assert event.evidence == {"judge": "first", "cause": cause, "left": ["second"]}
    before = hosts.asked["first"]
    assert grades(task, answers) == [0.2] * 6
    assert hosts.asked["first"] == before, "it is left alone for a while"


def test_a_judge_that_returns_is_asked_again_and_both_are_events() -> None:
    ill = iter([True] * 2)
    hosts = Hosts({"first": lambda _: DOWN if next(ill, False) else "Grade: 7", "second": "Grade: 2"})
    task = hosts.task(retry_after_s=1e-9, member={"concurrency": 1, "patience_s": 0})
    answers = even_answers(task, 1)
    assert [grades(task, answers) for _ in range(3)] == [[0.2] * 2, [0.2] * 2, [0.7] * 2]
    codes = [event.code for event in task.drain_events(1) if event.code.startswith("judge-")]
    assert codes == ["judge-fallback", "judge-return"]


def test_answers_to_one_prompt_are_graded_by_one_judge_even_where_it_dies_between_them() -> None:
    calls = itertools.count()
    hosts = Hosts({"first": lambda _: "Grade: 7" if next(calls) < 3 else DOWN, "second": "Grade: 2"})
    task = hosts.task(member={"concurrency": 1})
    assert grades(task, even_answers(task, 3)) == [0.7, 0.7, 0.2, 0.2, 0.2, 0.2]


def test_a_group_with_a_verdict_without_a_grade_goes_to_the_next_judge_whole() -> None:
    hosts = Hosts({"first": lambda shown: "hm" if "abab\n" in shown else "Grade: 7", "second": "Grade: 2"})
    task = hosts.task()
    assert grades(task, even_answers(task, 1)) == [0.2, 0.2]


def test_where_no_judge_grades_the_group_the_best_one_counts_and_failures_are_counted() -> None:
    hosts = Hosts({"first": "hm", "second": lambda shown: "hm" if "abab\n" in shown else "Grade: 2"})
    task = hosts.task()
    assert grades(task, even_answers(task, 1)) == [0.2, None]
    assert task.grader.failed == 1


def test_without_another_judge_the_run_waits_for_one_to_return() -> None:
    ill = iter([True] * 3)
    hosts = Hosts({"first": lambda _: DOWN if next(ill, False) else "Grade: 7", "second": REVOKED})
    task = hosts.task(member={"patience_s": 30, "concurrency": 1})
    assert grades(task, even_answers(task, 1)) == [0.7, 0.7]


@pytest.mark.parametrize("use", ["fallback", "panel"])
def test_where_all_are_dead_the_run_stops_with_the_fault_that_waiting_may_mend(use: str) -> None:
    task = Hosts({"first": REVOKED, "second": DOWN}).task(use=use)
    with pytest.raises(EndpointError, match=r"http://second\.test/v1 has given no reply") as raised:
        grades(task, even_answers(task, 1))
    assert raised.value.cause == "outage"


def test_where_all_refuse_nobody_waits() -> None:
    task = Hosts({"first": REVOKED, "second": REVOKED}).task(member={"patience_s": 600})
    with pytest.raises(EndpointError) as raised:
        grades(task, even_answers(task, 1))
    assert raised.value.cause == "authentication"


def test_a_budget_that_is_used_up_hands_over_to_the_next() -> None:
    hosts = Hosts({"first": "Grade: 7", "second": "Grade: 2"})
    section = hosts.judges(member={"concurrency": 1, "completion_price": 1e5})
    rich = section.members[0].model_copy(update={"max_cost": 2.5})  # a reply costs 1: 10 tokens at 100000 a million
    section = section.model_copy(update={"members": [rich, section.members[1]]})
    task = judged_by(Even(), "even", section, httpx2.MockTransport(hosts))
    assert grades(task, even_answers(task, 3)) == [0.7, 0.7, 0.2, 0.2, 0.2, 0.2]
    assert hosts.asked["first"] == 3
    assert task.drain_use().cost == pytest.approx(3 + 4)
    (event,) = [event for event in task.drain_events(1) if event.code == "judge-fallback"]
    assert event.evidence["cause"] == "budget"


@pytest.mark.parametrize(("combine", "grade"), [("mean", 0.5), ("median", 0.4)])
def test_a_panel_combines_the_grades_of_all(combine: str, grade: float) -> None:
    task = Hosts({"low": "Grade: 2", "mid": "Grade: 4", "high": "Grade: 9"}).task(use="panel", combine=combine)
    assert grades(task, even_answers(task, 1, 1)) == [pytest.approx(grade)]
    assert task.grader.panel.spread == [pytest.approx(0.2944, abs=1e-4)]


def test_a_panel_weighs_its_judges_by_their_calibrations(tmp_path: Path) -> None:
    """By hand: weights 3 and 1 make (3 x 0.2 + 0.8) / 4; where none has a weight, all count alike."""
    hosts = Hosts({"low": "Grade: 2", "high": "Grade: 8"})
    path = tmp_path / "c.json"
    for weights, grade in (((3, 1), 0.35), ((0, 0), 0.5)):
        section = hosts.judges(use="panel", combine="calibrated", calibration=str(path))
        entries = {
            one.title: Entry(
                fingerprint=fingerprint(one, "Is it even?"), refused=[], weight=weight, knots=[], grades={}, figures={}
            )
            for one, weight in zip(section.members, weights, strict=True)
        }
        write_calibrations(path, {"even": entries})
        task = judged_by(Even(), "even", section, httpx2.MockTransport(hosts))
        assert grades(task, even_answers(task, 1, 1)) == [pytest.approx(grade)]


def test_a_verdict_is_read_by_a_parser_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def stars(text):\n    return text.count('*') / 5 if '*' in text else None\n")
    says = {"one": lambda shown: "***" if "abab\n" in shown else "*****"}
    task = Hosts(says).task(member={"parser": f"{path}:stars"})
    assert grades(task, even_answers(task, 1)) == [1.0, 0.6]
    task = Hosts({"one": "Grade: 7"}).task(member={"parser": f"{path}:stars"})
    assert grades(task, even_answers(task, 1)) == [None, None]


def test_a_panel_goes_on_without_a_dead_judge_until_it_is_below_its_quorum() -> None:
    says = {"low": "Grade: 2", "dead": DOWN, "high": "Grade: 9"}
    task = Hosts(says).task(use="panel", quorum=2)
    assert grades(task, even_answers(task, 1)) == [pytest.approx(0.55)] * 2
    assert [e.evidence["judge"] for e in task.drain_events(1) if e.code == "judge-fallback"] == ["dead"]
    short = Hosts(says).task(use="panel", quorum=3)
    with pytest.raises(EndpointError):
        grades(short, even_answers(short, 1))


def test_all_answers_to_a_prompt_have_the_same_judges() -> None:
    """Else an answer that silences a strict judge would be worth more than its equals."""
    says = {"strict": lambda shown: "hm" if "abab\n" in shown else "Grade: 0", "kind": "Grade: 10"}
    task = Hosts(says).task(use="panel")
    assert grades(task, even_answers(task, 1)) == [1.0, 1.0]


def test_judges_with_one_cache_do_not_read_each_others_replies(tmp_path: Path) -> None:
    hosts = Hosts({"one": "Grade: 2", "two": "Grade: 4"})
    task = hosts.task(use="panel", member={"cache": str(tmp_path / "replies.sqlite")})
    answers = even_answers(task, 2)
    assert grades(task, answers) == [pytest.approx(0.3)] * 4
    again = Hosts({"one": DOWN, "two": DOWN})
    task = again.task(use="panel", member={"cache": str(tmp_path / "replies.sqlite")})
    assert grades(task, answers) == [pytest.approx(0.3)] * 4
    assert not again.asked


def test_a_judge_can_be_a_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "async def long(question, answer, reference):\n    return min(len(answer) / 10, 1.0)\n"
        "def broken(question, answer, reference):\n    raise RuntimeError('no')\n"
    )
    hosts = Hosts({})
    members = [{"provider": "function", "path": f"{path}:{name}"} for name in ("broken", "long")]
    task = judged_by(Even(), "even", Judges.model_validate({"members": members}))
    assert grades(task, even_answers(task, 1)) == [0.2, 0.4]
    assert task.grader.last_failure == "RuntimeError: no"
    assert not hosts.asked


def test_a_function_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    section = Judges.model_validate({"members": [{"provider": "function", "path": f"{tmp_path}/mine.py:grade"}]})
    with pytest.raises(InputError, match="there is no function 'grade'"):
        judged_by(Even(), "even", section)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"combine": "median"}, "combine and quorum belong to a panel"),
        ({"use": "panel", "quorum": 3}, "quorum is 3, and there are 2 judges"),
        ({"use": "panel", "combine": "calibrated"}, "combine: calibrated needs calibration"),
        ({"members": [{"base_url": "http://a/v1", "model": m} for m in ("m", "x/m")]}, "called m"),
        ({"members": [{"base_url": "http://a/v1", "model": "m", "structured": True}]}, "set verdict to json"),
        ({"members": [{"base_url": "http://a/v1", "model": "m", "max_cost": 1}]}, "max_cost needs prompt_price"),
        ({"members": [{"base_url": "http://a/v1", "model": "m", "extra_body": {"messages": []}}]}, "messages cannot"),
    ],
)  # fmt: skip
def test_judges_that_do_not_fit_are_bad_input(keys: dict[str, object], says: str) -> None:
    two = [{"base_url": f"http://{n}/v1", "model": n} for n in "ab"]
    with pytest.raises(ValueError, match=says):
        Judges.model_validate({"members": two, **keys})


def test_a_preflight_does_not_wait_for_dead_judges() -> None:
    task = Hosts({"first": DOWN, "second": DOWN}).task(member={"patience_s": 600})
    with pytest.raises(EndpointError):
        asyncio.run(task.grader.grade(even_answers(task, 1), 0.05))
