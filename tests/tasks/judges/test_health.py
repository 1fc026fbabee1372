"""What is known of each judge while training: its numbers, and whether it is still the same one."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import httpx2
import pytest

from judge_hosts import Hosts, even_answers, grades
from judged_run import judged_by
from levelhead.contrib.fairness import FairnessTask
from levelhead.metrics.catalogue import find
from levelhead.recipe.judge import Judges
from levelhead.recipe.tasks import Fairness
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.metering import use_metrics

DOWN = httpx2.Response(503, text="down")


def test_each_judge_has_its_own_numbers_and_a_panel_its_disagreement() -> None:
    task = Hosts({"low": "Grade: 2", "dead": DOWN, "high": "Grade: 8"}).task(
        use="panel", member={"prompt_price": 1.0, "completion_price": 10.0}
    )
    grades(task, even_answers(task, 2))
    values, timings = use_metrics({"even": task.drain_use()})
    assert values == {"judge/verdicts": 4, "judge/failures": 0, "judge/failure_rate": 0}
    assert timings["judge/disagreement"] == pytest.approx(0.3)
    assert timings["judge/calls"] == 8
    assert timings["judges/even.low/calls"] == 4
    assert timings["judges/even.low/cost"] == pytest.approx(4 * (100 + 100) / 1e6)
    assert timings["judges/even.low/grade"] == pytest.approx(0.2)
    assert timings["judges/even.low/latency_p95"] >= timings["judges/even.low/latency_median"] > 0
    assert (timings["judges/even.low/down"], timings["judges/even.dead/down"]) == (0, 1)
    assert timings["judges/even.dead/verdicts"] == 0
    assert all(find(name) is not None for name in timings)
    assert use_metrics({"even": task.drain_use()})[1]["judges/even.low/calls"] == 0


def fairness() -> FairnessTask:
    return FairnessTask(Fairness(kind="fairness", items=60))


def anchored(says: Hosts, cache: str | None = None, **keys: object) -> SingleTurnTask:
    member = {"name": "one", "base_url": "http://one.test/v1", "model": "m", "backoff_s": 0.001, "cache": cache}
    section = Judges.model_validate({"members": [member], "anchors": {"items": 6, "every": 2, **keys}})
    return judged_by(fairness(), "fairness", section, httpx2.MockTransport(says))


def step(task: SingleTurnTask, number: int) -> list[str]:
    """Score a right answer at a step; returns the events' codes."""
    task.at_step(number, 10)
    prompt = next(task.prompts("train", 0))
    asyncio.run(task.rewarded([Answer(prompt, (task.oracle(prompt) or [""])[0])]))
    return [event.code for event in task.drain_events(number)]


def test_a_provider_that_changes_its_model_shows_on_the_anchors(tmp_path: Path) -> None:
    calls = itertools.count()
    hosts = Hosts({"one": lambda _: f"Grade: {3 if next(calls) < 13 else 9}"})
    task = anchored(hosts, str(tmp_path / "cache.sqlite"))
    codes = [step(task, n) for n in range(5)]
    assert codes == [[], [], [], [], ["judge-drift"]], "asked anew at 2, the same, and at 4, another"
    assert hosts.asked["one"] == 6 + 1 + 6 + 6
    assert use_metrics({"t": task.drain_use()})[1]["judges/t.one/drift"] == pytest.approx(0.6)


def test_a_provider_of_pairs_that_changes_its_model_shows_on_the_anchors_too() -> None:
    """By hand, of a perfect and an empty answer: one is the reference and ties, the other loses, and ties as well once
    only places count."""
    calls = itertools.count()

    def judge(shown: str) -> str:
        empty_last = "]\n\n[end of answer B" in shown
        return f"Better: {'A' if next(calls) >= 2 or empty_last else 'B'}"

    hosts = Hosts({"one": judge})
    section = hosts.judges(anchors={"items": 2, "every": 2}, rubric=None, pairwise={"kind": "reference"})
    task = judged_by(
        FairnessTask(Fairness(kind="fairness", items=60)), "fairness", section, httpx2.MockTransport(hosts)
    )
    assert [step(task, n) for n in (0, 2)] == [[], []]
    assert hosts.asked["one"] == 2 + 2
    assert task.drain_use().judges["one"].drift == pytest.approx((0 + 0.5) / 2)


def test_a_resumed_run_compares_with_the_first_grades(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache.sqlite")
    step(anchored(Hosts({"one": "Grade: 3"}), cache), 0)
    assert step(anchored(Hosts({"one": "Grade: 9"}), cache), 4) == ["judge-drift"]


def test_an_evaluation_is_no_occasion_and_none_is_the_default() -> None:
    hosts = Hosts({"one": "Grade: 3"})
    task = anchored(hosts)
    step(task, 10)
    assert hosts.asked["one"] == 1
    task = anchored(hosts, every=0)
    assert [step(task, n) for n in (0, 2)] == [[], []]
    assert hosts.asked["one"] == 1 + 2, "right answers alone"


def test_a_small_change_is_a_number_and_no_event() -> None:
    calls = itertools.count()
    task = anchored(Hosts({"one": lambda _: f"Grade: {5 + (next(calls) >= 7) * 0.5}"}), drift=0.1)
    assert [step(task, n) for n in (0, 2)] == [[], []]
    assert task.drain_use().judges["one"].drift == pytest.approx(0.05)


def test_a_judge_that_is_dead_when_the_anchors_are_due_is_left_alone_and_said_so_once() -> None:
    hosts = Hosts({"dead": DOWN, "alive": "Grade: 5"})
    section = hosts.judges(anchors={"every": 1, "items": 4})
    task = judged_by(
        FairnessTask(Fairness(kind="fairness", items=60)), "fairness", section, httpx2.MockTransport(hosts)
    )
    codes = [code for n in range(3) for code in step(task, n) if code != "endpoint"]
    assert codes == ["judge-fallback"]
    assert hosts.asked["dead"] < 200
