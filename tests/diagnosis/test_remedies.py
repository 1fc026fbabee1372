"""What to change is one list for whoever tells it: in the run's own numbers, and nothing that it has already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.notice import notice
from levelhead.diagnosis.remedies import remedies, settings_text
from levelhead.message import Phrase


def first(code: str, seen: float | None = None, **known: Any) -> str:
    changes = remedies(code, lambda _: seen, **known)
    return settings_text(changes[0].settings) if changes else ""


def test_multiples_are_worked_out_where_the_reading_is_known() -> None:
    assert "learning_rate=x0." in first("lr-too-high")
    assert "learning_rate=0.0002" in first("lr-too-high", 1e-3)


def test_a_code_that_the_catalogue_does_not_hold_has_no_remedy() -> None:
    assert remedies("endpoint") == []


def test_what_the_recipe_has_already_is_not_advised() -> None:
    code, key = "no-learning-signal-all-zero-reward", "tasks[].oracle=answer"
    assert first(code) == key
    assert first(code, recipe={"tasks": [{"kind": "function", "oracle": None}]}) == key
    for task in (
        {"kind": "function", "oracle": "answer"},
        {"kind": "function", "oracle": "solution"},
        {"kind": "math"},
    ):
        told = first(code, recipe={"tasks": [task]})
        assert told
        assert "oracle" not in told
    mixed = [{"kind": "function", "oracle": "answer"}, {"kind": "function", "oracle": None}]
    assert first(code, recipe={"tasks": mixed}) == key


def test_a_setting_that_stands_at_the_advised_value_is_left_out_and_the_rest_of_the_remedy_stays() -> None:
    keys = CATALOGUE["entropy-collapse"].remedies[0].recipe
    key, value = next((key, value) for key, value in keys.items() if not isinstance(value, dict))
    recipe: dict[str, Any] = {}
    inner = recipe
    for part in key.split(".")[:-1]:
        inner = inner.setdefault(part, {})
    inner[key.split(".")[-1]] = value
    assert key in first("entropy-collapse")
    assert f"{key}=" not in first("entropy-collapse", recipe=recipe)


def test_a_remedy_that_would_do_harm_beside_another_finding_is_left_out() -> None:
    large = {"grpo": {"group_size": 16, "batch_size": 256}}
    assert first("no-improvement", recipe=large).startswith("grpo.optimizer.learning_rate")
    assert "learning_rate" not in first("no-improvement", beside=["kl-blowup"], recipe=large)


def test_a_run_that_training_made_worse_is_not_advised_to_take_larger_steps() -> None:
    def raises(arguments: Collection[str]) -> bool:
        return any("x3" in settings_text(change.settings) for change in remedies("no-improvement", arguments=arguments))

    assert raises([])
    assert not raises(["reward-falls"])


def test_a_change_in_words_is_told_in_the_language_of_the_reader() -> None:
    event = {"step": 3, "severity": "critical", "code": "stratum-falls", "message": "it falls", "message_zh": "下降"}
    (change, *_) = [c for c in remedies("stratum-falls") if any(isinstance(v, Phrase) for v in c.settings.values())]
    to_do = settings_text(change.settings)
    told = next(value for value in change.settings.values() if isinstance(value, Phrase))
    assert told in notice(event, to_do)
    assert told.zh in notice(event, to_do, language="zh")
