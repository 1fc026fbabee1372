"""A run whose judge fails says so in every place where somebody looks, and goes on."""

from __future__ import annotations

import gzip
import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile_server import Connection, completion, serving
from judged_run import judged_run, run_with
from levelhead.doctor.report import examine
from levelhead.errors import RewardError
from levelhead.recipe.judge import Judge
from small_run import events, steps


def test_a_judge_without_grades_is_in_metrics_events_and_diagnosis(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "I would rather not say.", prompt_price=1.0)
    rows = steps(run, "grpo")
    assert all(row["judge/failures"] == row["judge/verdicts"] > 0 for row in rows)
    assert all(row["judge/failure_rate"] == 1 for row in rows)
    named = {"judge/calls", "judge/cached", "judge/retries", "judge/prompt_tokens", "judge/cost", "judge/latency_p95"}
    assert named <= set(rows[0])
    told = {(event["step"], event["code"], event["severity"]) for event in events(run)}
    assert {(step, "judge-failure", "critical") for step in (1, 2, 3)} <= told
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "judge-failure")


@pytest.mark.parametrize("dynamic_sampling", [0, 1])
def test_a_run_goes_on_where_every_rollout_is_dropped(tmp_path: Path, dynamic_sampling: int) -> None:
    run = run_with(tmp_path / "run", "no", f"grpo.dynamic_sampling={dynamic_sampling}", on_failure="drop")
    assert [row["num_rollouts"] for row in steps(run, "grpo")] == [0, 0, 0]
    assert all(row["dropped_rollouts"] >= 8 for row in steps(run, "grpo"))


PAID = ("calls", "cached", "retries", "estimated", "prompt_tokens", "completion_tokens", "cost")


def fixed(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without what depends on the clock, the network and the cache."""
    return [
        json.dumps(
            {
                name: value
                for name, value in row.items()
                if name.rpartition("/")[2] not in PAID and "latency" not in name and "time" not in name
            },
            sort_keys=True,
        )
        for row in rows
    ]


def test_what_a_seed_fixes_is_told_from_what_it_does_not(tmp_path: Path) -> None:
    """With a cache, a second run pays for nothing: all else is the same."""
    cache = str(tmp_path / "judge.sqlite")
    one, two = (steps(run_with(tmp_path / name, "Grade: 5", cache=cache), "grpo") for name in ("one", "two"))
    assert [row["judge/calls"] for row in two] == [0, 0, 0]
    assert [row["judge/calls"] + row["judge/cached"] for row in one] == [row["judge/cached"] for row in two]

    assert fixed(one) == fixed(two)


def test_what_a_judge_is_asked_in_evaluations_is_in_their_rows(tmp_path: Path) -> None:
    """Each reply is counted once: in the step that asked for it, or in the evaluation that did."""
    cache = str(tmp_path / "judge.sqlite")
    run = run_with(tmp_path / "run", "Grade: 7", cache=cache, prompt_price=1.0)
    rows = steps(run, "eval")
    assert [row["eval/even/judge/verdicts"] > 0 for row in rows] == [True, True]
    assert all(row["eval/even/judge/failures"] == 0 for row in rows)
    assert all(row["eval/even/judge/cost"] == row["eval/even/judge/prompt_tokens"] / 1e6 for row in rows)
    calls = sum(row["eval/even/judge/calls"] for row in rows) + sum(row["judge/calls"] for row in steps(run, "grpo"))
    with sqlite3.connect(cache) as db:
        assert calls == db.execute("SELECT COUNT(*) FROM replies").fetchone()[0]


def drip(one: Connection) -> None:
    one.drip(itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" ")), 0.01)


FAILURES: dict[str, tuple[Callable[[Connection], object], str]] = {
    "drip": (drip, "outage"),
    "hammer": (lambda one: one.reply(b"", "429 No", "Retry-After: 0"), "outage"),
    "bomb": (lambda one: one.reply(gzip.compress(bytes(10**7)), "200 OK", "Content-Encoding: gzip"), "outage"),
    "deep": (lambda one: one.reply(b"[" * 10**6), "outage"),
    "refusal": (lambda one: one.reply(b"\x1b[2Jno entry", "403 Forbidden"), "authentication"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nothing happens to, and how often it asks."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with serving(lambda one: one.reply(completion("Grade: 7"))) as server:
        assert judged_run(run, section(server.url, run)).execute() == "done"
    return run, server.requests


def section(url: str, run: Path, timeout_s: float = 60) -> Judge:
    cache = str(run.with_name("judge.sqlite"))
    bounds = {"timeout_s": timeout_s, "patience_s": 0.2, "backoff_s": 0.05, "concurrency": 1}
    return Judge.model_validate({"base_url": url, "model": "m", "rubric": "Is it even?", "cache": cache, **bounds})


@pytest.mark.parametrize("failure", FAILURES)
def test_an_endpoint_that_turns_hostile_costs_no_step_no_rollout_and_no_checkpoint(
    failure: str, whole: tuple[Path, int], tmp_path: Path
) -> None:
    """It ends the run in its second half with what is documented; resumed, the run ends as if nothing had been."""
    (unharmed, requests), run = whole, tmp_path / "run"
    behave, cause = FAILURES[failure]
    hostile = True

    def turn(one: Connection) -> None:
        if one.number < requests // 2 or not hostile:
            one.reply(completion("Grade: 7"))
        else:
            behave(one)

    with serving(turn) as server:
        with pytest.raises(RewardError) as raised:
            judged_run(run, section(server.url, run, 3 if failure == "drip" else 60)).execute()
        asked = server.requests
        assert asked <= requests // 2 + 8
        assert "continue with --resume" in raised.value.__notes__[0]
        last = events(run)[-1]
        assert (last["code"], last["evidence"]["cause"]) == ("rewards", cause)
        assert "\x1b" not in last["message"]
        before = steps(run, "grpo")
        assert 0 < len(before) < 3
        assert fixed(before) == fixed(steps(unharmed, "grpo"))[: len(before)]

        hostile = False
        assert judged_run(run, section(server.url, run), resume=True).execute() == "done"
        # What was read is asked for no second time: the endpoint, and so the name of a reply, is the same.
        assert server.requests - asked == requests - requests // 2
    for stage in ("grpo", "eval"):
        assert fixed(steps(run, stage)) == fixed(steps(unharmed, stage))
