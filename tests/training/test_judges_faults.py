"""Providers that fail in the middle of a run: it goes on, nothing is lost, and it ends as if nothing had been."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile_server import Connection, completion, serving
from judged_run import judged_run
from levelhead.recipe.judge import Judges
from night import by_night
from small_run import events, steps

FAULTS: dict[str, Callable[[Connection], object]] = {
    "too many calls": lambda one: one.reply(b"slow down", "429 Too Many Requests", "Retry-After: 0"),
    "500": lambda one: one.reply(b"oops", "500 Internal Server Error"),
    "hung up": lambda one: None,
    "wrong JSON": lambda one: one.reply(b'{"choices": [{"message": '),
    "drip": lambda one: one.drip(itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" ")), 0.01),
    "100 MB": lambda one: one.drip(itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * 10**6)), 0),
    "key revoked": lambda one: one.reply(b"revoked", "401 Unauthorized"),
}  # fmt: skip
OTHERWISE = (
    "time",
    "latency",
    "judge/order_disagreement",
    "judge/ties",
    "calls",
    "cached",
    "retries",
    "throttled",
    "tokens",
    "cost",
    "judges/",
)


def grade(one: Connection) -> None:
    """Grade as any provider of this model would: by what was asked."""
    shown = json.loads(one.body)["messages"][-1]["content"].split("[answer ")[1].split("]", 1)[1]
    number = int(hashlib.sha256(shown.split("\n[end of")[0].encode(errors="replace")).hexdigest()[:4], 16) % 11
    one.reply(completion(f"Grade: {number}"))


def judges(first: str, second: str, **keys: Any) -> Judges:
    shared = {"model": "m", "timeout_s": 5, "backoff_s": 0.01, "concurrency": 2, "prompt_price": 1e6}
    members = [{"name": "first", "base_url": first, **shared}, {"name": "second", "base_url": second, **shared}]
    keys = {"rubric": "Is it even?", "fallback_after_s": 0.3, "retry_after_s": 0.05, **keys}
    return Judges.model_validate({"members": members, **keys})


def data(run: Path) -> list[str]:
    """What a run came to, without what the network and the clock decide."""
    rows = [*steps(run, "grpo"), *steps(run, "eval")]
    return [
        json.dumps({k: v for k, v in row.items() if not any(o in k for o in OTHERWISE)}, sort_keys=True) for row in rows
    ]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nothing happens to, and how often it asks."""
    run = tmp_path_factory.mktemp("unharmed") / "run"
    with serving(grade) as server:
        assert judged_run(run, judges(server.url, "http://127.0.0.1:9/v1")).execute() == "done"
    return run, server.requests


@pytest.mark.parametrize(
    ("fault", "lasting"),
    [
        pytest.param(fault, lasting, id=f"{fault}-{'stays away' if lasting else 'returns'}", marks=marks)
        for fault in FAULTS
        for lasting, marks in ((False, ()), (True, () if fault in ("500", "key revoked") else by_night))
    ],
)
def test_a_provider_that_fails_costs_no_rollout(
    fault: str, lasting: bool, unharmed: tuple[Path, int], tmp_path: Path
) -> None:
    whole, requests = unharmed
    bad = range(requests // 3, requests * 10 if lasting else requests // 3 + 4)

    def first(one: Connection) -> None:
        (FAULTS[fault] if one.number in bad else grade)(one)

    run = tmp_path / "run"
    with serving(first) as one, serving(grade) as other:
        assert judged_run(run, judges(one.url, other.url)).execute() == "done"
    assert data(run) == data(whole)
    told = [event["code"] for event in events(run)]
    assert ("judge-fallback" in told) or (not lasting and "endpoint" in told)
    assert "rewards" not in told
    assert all(row["num_rollouts"] == 8 for row in steps(run, "grpo"))
    rows = [
        {k.removeprefix("eval/even/"): v for k, v in row.items()} for row in [*steps(run, "grpo"), *steps(run, "eval")]
    ]
    answered = sum(row["judge/calls"] for row in rows)
    good = one.requests - sum(connection.number in bad for connection in one.connections) + other.requests
    assert answered == good, "every reply that was paid for is counted once"
    assert sum(row["judge/cost"] for row in rows) == pytest.approx(7 * answered)
    if lasting:
        assert other.requests > 0
        assert steps(run, "grpo")[-1]["judges/even.first/down"] == 1
    if fault == "100 MB":
        assert max(connection.sent for connection in one.connections) < 2 * 10**7


def test_a_run_whose_judges_all_die_stops_and_goes_on_to_the_same_end(
    unharmed: tuple[Path, int], tmp_path: Path
) -> None:
    from levelhead.errors import RewardError

    whole, requests = unharmed
    run, cache = tmp_path / "run", str(tmp_path / "cache.sqlite")

    def section(first: str, second: str) -> Judges:
        plain = judges(first, second, fallback_after_s=0)
        keys = {"cache": cache, "patience_s": 0.3, "timeout_s": 10.0}
        return plain.model_copy(update={"members": [member.model_copy(update=keys) for member in plain.members]})

    def first(one: Connection) -> None:
        (grade if one.number < requests // 2 else FAULTS["500"])(one)

    with serving(first) as one, serving(FAULTS["500"]) as other, pytest.raises(RewardError):
        judged_run(run, section(one.url, other.url)).execute()
    last = events(run)[-1]
    assert (last["code"], last["evidence"]["cause"]) == ("rewards", "outage")
    with serving(grade) as one, serving(FAULTS["500"]) as other:
        assert judged_run(run, section(one.url, other.url), resume=True).execute() == "done"
    assert data(run) == data(whole)
    assert one.requests > 0


def prefer(one: Connection) -> None:
    """Prefer the answer of the larger hash, wherever it stands."""
    shown = json.loads(one.body)["messages"][-1]["content"]
    texts = [text.split("]\n", 1)[1].split("\n[end of")[0] for text in shown.split("\n[answer ")[1:]]
    first, second = (hashlib.sha256(text.encode(errors="replace")).hexdigest() for text in texts)
    one.reply(completion(f"Better: {'A' if first > second else 'B'}"))


BY_PAIRS = {"kind": "tournament", "opponents": 2}


@pytest.fixture(scope="module")
def unharmed_pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run by tournaments that nothing happens to, and how often it asks."""
    run = tmp_path_factory.mktemp("unharmed-pairs") / "run"
    with serving(prefer) as server:
        section = judges(server.url, "http://127.0.0.1:9/v1", pairwise=BY_PAIRS)
        assert judged_run(run, section).execute() == "done"
    return run, server.requests


@pytest.mark.parametrize("fault", ["500", "key revoked"])
def test_a_provider_that_dies_between_the_pairs_of_a_tournament_costs_no_rollout(
    fault: str, unharmed_pairs: tuple[Path, int], tmp_path: Path
) -> None:
    (whole, requests), run = unharmed_pairs, tmp_path / "run"
    with serving(lambda c: (prefer if c.number < requests // 2 else FAULTS[fault])(c)) as one, serving(prefer) as other:
        assert judged_run(run, judges(one.url, other.url, pairwise=BY_PAIRS)).execute() == "done"
    assert other.requests > 0
    assert data(run) == data(whole)
    assert "judge-fallback" in [event["code"] for event in events(run)]
    assert all(row["num_rollouts"] == 8 for row in steps(run, "grpo"))
    assert any(row["judge/verdicts"] > 0 for row in steps(whole, "grpo"))
