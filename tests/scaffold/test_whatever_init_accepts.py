"""Whatever ``init`` accepts trains: the recipe is sound, right answers get the most, and the written test passes."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levelhead.api import check, train
from levelhead.errors import InputError
from levelhead.preflight.run import dry_run
from levelhead.recipe import load, plain, validate
from levelhead.recipe.tasks import Function
from levelhead.scaffold.write import InitOptions, plan
from levelhead.tasks.function.task import FunctionTask
from night import cases

WORDS = st.sampled_from(
    ["Paris", "New York", "no", "*", "...", "\u662f", "x y", "'quoted'", "a\nb", "1,000", "half 1/2", "+"]
)
LONG = st.lists(WORDS, min_size=7, max_size=9).map(" and ".join)
ANSWERS = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.booleans(),
    WORDS,
    LONG,
    st.integers(0, 99).map(lambda n: f"so it is\n#### {n}"),
    st.lists(st.one_of(st.integers(0, 99), WORDS), max_size=3),
    st.none(),
    st.just({"value": 2}),
    st.just('{"a": 1}'),
)
KINDS = st.sampled_from([None, "number", "exact", "contains", "json"])


@st.composite
def data(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows with prompts of one form, answers of one kind or of several, and a name for their column."""
    n = draw(st.integers(4, 12))
    form = draw(st.sampled_from(["text", "chat", "system", "history", "assistant last", "JSON text"]))
    column = draw(st.sampled_from(["answer", "solution", "label", "completion", "prompts"]))
    kind = draw(st.sampled_from([ANSWERS, st.integers(0, 9), st.booleans(), st.lists(WORDS, min_size=1, max_size=2)]))
    long = draw(st.sampled_from([0, 0, 1])) * 1500
    return [{"prompt": prompt_of(form, i, long * (i == 2)), column: draw(kind), "extra": None} for i in range(n)]


def prompt_of(form: str, i: int, long: int) -> Any:
    chat = [{"role": "user", "content": f"What is {i} plus {i}?" + " again" * long}]
    before = {"system": [{"role": "system", "content": "Be brief."}]}
    before["history"] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    if form == "text":
        return chat[0]["content"]
    chat = before.get(form, []) + chat + ([{"role": "assistant", "content": "4"}] if form == "assistant last" else [])
    return json.dumps(chat) if form == "JSON text" else chat


@contextmanager
def in_a_folder() -> Iterator[None]:
    before, path = Path.cwd(), list(sys.path)
    with TemporaryDirectory() as name:
        os.chdir(name)
        sys.path.insert(0, name)
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            for module in [m for m in sys.modules if m in ("made_rewards", "test_made_rewards")]:
                del sys.modules[module]
            importlib.invalidate_caches()


def accepted(rows: list[dict[str, Any]], kind: str | None) -> dict[str, Any] | None:
    """Write what ``init`` writes and return the recipe; ``None`` where it says what is wrong instead."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    try:
        plan(InitOptions("made", "base-tiny", "rows.jsonl", kind)).write()
    except InputError:
        return None
    recipe: dict[str, Any] = plain(load("made.yaml"))
    return recipe


@pytest.mark.night
@settings(deadline=None, max_examples=cases(6, 200), derandomize=True, suppress_health_check=list(HealthCheck))
@given(data(), KINDS)
def test_its_recipe_is_sound_and_its_reward_gives_the_right_answer_the_most(
    rows: list[dict[str, Any]], kind: str | None
) -> None:
    with in_a_folder():
        recipe = accepted(rows, kind)
        if recipe is None:
            return
        dry_run(validate({**recipe, "grpo": {**recipe["grpo"], "batch_size": 4, "group_size": 2}}))
        runpy.run_path("test_made_rewards.py")["test_right_answers_get_more_than_wrong_and_empty_ones"]()
        section = Function.model_validate(recipe["tasks"][0])
        task = FunctionTask(section)
        for prompt in task.prompts("train", 0):
            for right in task.oracle(prompt) or ():
                assert task.score(prompt, right).total == 1
                assert task.score(prompt, "").total < 1


@pytest.mark.night
@pytest.mark.slow
@settings(deadline=None, max_examples=cases(3, 40), derandomize=True, suppress_health_check=list(HealthCheck))
@given(data(), KINDS)
def test_it_passes_the_check_and_trains_for_two_steps(rows: list[dict[str, Any]], kind: str | None) -> None:
    with in_a_folder():
        recipe = accepted(rows, kind)
        if recipe is None:
            return
        limits = {"sampling": {"max_new_tokens": 8}}
        tiny = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate_size": 48, "vocab_size": 400}
        recipe["model"] = {"preset": "tiny", "dtype": "float32", "tiny": tiny}
        recipe |= {
            "grpo": {"steps": 2, "batch_size": 4, "group_size": 2, **limits},
            "eval": {"final_items": 2, **limits},
        }
        report = check(validate(recipe))
        assert not [one for one in report.checks if one.status == "fail"]
        assert train(validate(recipe), check=False).outcome == "done"
