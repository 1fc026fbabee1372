"""The preflight says which wall programs run behind, before a single one does."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from levelhead.preflight.check import Outcome
from levelhead.preflight.checks.wall import Wall
from levelhead.recipe.tasks import Workflow
from levelhead.tasks.sandbox import run

ENDPOINT = {"kind": "endpoint", "base_url": "http://model.test/v1", "model": "m"}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    run._probe.cache_clear()
    yield
    run._probe.cache_clear()


def checks(**keys: object) -> list[Outcome]:
    context = SimpleNamespace(recipe=SimpleNamespace(tasks=[Workflow(kind="workflow", **keys)]))  # type: ignore[arg-type]
    return list(Wall().run(cast("Any", context)))


def test_a_simulated_workflow_runs_no_programs() -> None:
    assert checks() == []


@pytest.mark.parametrize("wall", ["bubblewrap", "namespaces", "landlock"])
def test_the_wall_is_named(monkeypatch: pytest.MonkeyPatch, wall: run.Wall) -> None:
    monkeypatch.setattr(run, "_run", lambda *_: run.ProgramResult("ok", network="filter", wall=wall))
    (check,) = checks(executor=ENDPOINT)
    assert (check.name, check.status, check.evidence["wall"]) == ("isolation/wall/workflow", "pass", wall)


def test_no_wall_fails_and_is_a_warning_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_available", lambda walls: ())
    (check,) = checks(executor=ENDPOINT)
    assert check.status == "fail"
    assert "isolation is 'required'" in check.message
    unwalled = run.ProgramResult("ok", network="filter", wall="none", note="no Landlock")
    monkeypatch.setattr(run, "_run", lambda *_: unwalled)
    (check,) = checks(executor=ENDPOINT, sandbox={"isolation": "none"})
    assert check.status == "warn"
    assert "no wall" in check.message
    assert "no Landlock" in check.message
