"""A whole run on a server is the run of the local generator, and one whose server goes wrong can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_engine import FakeEngine
from levelhead import train
from levelhead.errors import EngineError, InputError
from levelhead.recipe import validate
from levelhead.records import Decision, StepRecord
from levelhead.rollout.draws import derive, uniforms
from levelhead.rollout.generators.vllm import generator
from levelhead.training.prepare import prepare
from small_run import events, recipe, steps

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """A server that draws with the random numbers of the local generator."""
    seeds: dict[int, tuple[int, str, int]] = {}

    def noted(seed: int, *names: Any) -> int:
        derived = derive(seed, *names)
        seeds[derived % (1 << 31)] = (seed, names[1], names[2])
        return derived

    def numbers(seed: int, n: int) -> Any:
        return uniforms(*seeds[seed], n) if seed in seeds else np.random.default_rng(seed).random(n)

    monkeypatch.setattr(generator, "derive", noted)
    prepare(validate(recipe(tmp_path))).policy.save(tmp_path / "model")
    with FakeEngine(tmp_path / "model") as one:
        one.uniforms = numbers
        yield one


def on(engine: FakeEngine, folder: Path, **changes: Any) -> dict[str, Any]:
    keys = {"kind": "vllm", "urls": [engine.url], "shared": str(folder / "shared")}
    return recipe(folder, **{"generator": keys, "grpo__loss": {"importance": "token_truncate"}, **changes})


def scores(run: Path) -> list[dict[str, float]]:
    rows = steps(run, "eval")
    return [{key: value for key, value in row.items() if key.startswith("eval/")} for row in rows]


# Ahead, a server samples a group with the weights that it has when the group's turn comes, which no seed decides.
@pytest.mark.parametrize("top_k", [20, 0])
def test_a_run_on_a_server_is_the_run_of_the_local_generator(engine: FakeEngine, tmp_path: Path, top_k: int) -> None:
    changes: dict[str, Any] = {"grpo__steps": 2, "grpo__sampling__top_k": top_k}
    train(on(engine, tmp_path, **changes), out=tmp_path / "engine")
    train(on(engine, tmp_path, generator={"kind": "local"}, **changes), out=tmp_path / "local")
    assert scores(tmp_path / "engine") == scores(tmp_path / "local")
    rows = [*steps(tmp_path / "engine", "grpo"), *steps(tmp_path / "engine", "eval")]
    gaps = [row["engine/mismatch/mean"] for row in rows if "engine/mismatch/mean" in row]
    assert gaps
    assert max(gaps) <= 1e-5
    for one, other in zip(steps(tmp_path / "engine", "grpo"), steps(tmp_path / "local", "grpo"), strict=True):
        for name in ("reward", "loss", "grad_norm", "sampling/importance_sampling_ratio/mean", "sampling/entropy"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


def test_groups_are_drawn_on_a_server_while_the_policy_trains_and_none_is_too_old(
    engine: FakeEngine, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"grpo__steps": 5, "grpo__async": 2, "sft": None, "eval__final_items": 1}
    result = train(on(engine, tmp_path, **changes), out=tmp_path / "run")
    rows = steps(result.folder, "grpo")
    assert max(row["staleness/max"] for row in rows) <= 2
    assert max(row["staleness/mean"] for row in rows) > 0
    assert sum(row["num_rollouts"] for row in rows) == 5 * 12
    assert max(row["engine/mismatch/mean"] for row in rows if "engine/mismatch/mean" in row) <= 1e-5


@pytest.mark.slow
def test_a_run_whose_server_is_killed_is_saved_and_resumed(engine: FakeEngine, tmp_path: Path) -> None:
    changed = on(engine, tmp_path, grpo__steps=3)
    train(changed, out=tmp_path / "whole")
    engine.restart()
    engine.dies_after = engine.served + _requests_until_the_second_step(tmp_path / "whole", engine)
    with pytest.raises(EngineError, match="start it again and resume"):
        train(changed, out=tmp_path / "broken")
    last = events(tmp_path / "broken")[-1]
    assert (last["code"], last["severity"], last["evidence"]["cause"]) == ("engine", "critical", "lost")
    engine.come_back()
    train(changed, out=tmp_path / "broken", resume=True)
    assert scores(tmp_path / "broken")[-1] == scores(tmp_path / "whole")[-1]


class Kills:
    """An observer that kills a server after the second step."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step == 2:
            self._engine.kill()
        return []


def test_a_run_ahead_whose_server_is_killed_goes_on_where_its_last_whole_step_ended(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """The step that broke off had dropped and begun groups, and none of that is in the checkpoint."""
    shared = {"sft": None, "eval__final_items": 1, "guard__max_kl": 0.02}
    content = on(engine, tmp_path, grpo__steps=6, grpo__async=2, **shared)
    with pytest.raises(EngineError, match=r"start (it again|one)") as error:
        train(content, out=tmp_path / "run", observers=[Kills(engine)])
    assert error.value.cause == "lost"
    engine.come_back()
    assert train(content, out=tmp_path / "run", resume=True).outcome == "done"
    assert [row["step"] for row in steps(tmp_path / "run", "grpo")] == [1, 2, 3, 4, 5, 6]
    assert "resume-differs" not in {event["code"] for event in events(tmp_path / "run")}


def _requests_until_the_second_step(run: Path, engine: FakeEngine) -> int:
    """Fewer than a whole run takes, and more than it takes to the end of the first step."""
    return engine.served - 30


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grpo__loss": {}}, "grpo.loss.importance"),
        ({"grpo__sampling__repetition_penalty": 1.2}, "counts the prompt"),
        ({"grpo__sampling__no_repeat_ngram": 3}, "no_repeat_ngram"),
        ({"generator__sync": "adapter"}, "model.lora"),
        ({"generator__shared": None}, "generator.shared"),
        ({"generator__sleep": True, "grpo__async": 1}, "grpo.async"),
        ({"generator__urls": ["http://a:1", "http://a:1/"]}, "twice"),
    ],
)
def test_a_recipe_that_does_not_fit_a_server_is_refused_with_the_key(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    keys = {"kind": "vllm", "urls": ["http://127.0.0.1:9"], "shared": str(tmp_path)}
    base = {"generator": keys, "grpo__loss": {"importance": "token_truncate"}}
    with pytest.raises((InputError, ValueError), match=says):
        validate(recipe(tmp_path, **(base | changes)))
