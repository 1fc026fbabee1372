"""Events in words: one line each, safe to print, with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.notice import advice, gather, notice, printable


def event(code: str = "entropy-collapse", severity: str = "critical", step: int = 7, **more: Any) -> dict[str, Any]:
    return {"step": step, "code": code, "severity": severity, "message": "Entropy is 0.01.", "action": None, **more}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand  blanks", "two lines and blanks"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a new title\x07seen", "seen"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b", ""),
        ("a\x08\x08b\x00c\x7fd\r", "abcd"),
        ("\u202eltr", "ltr"),
        ("\ud800lone", "lone"),
        ("中文 ± é", "中文 ± é"),
    ],
)
def test_what_a_terminal_would_obey_is_stripped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut() -> None:
    assert printable("x" * 1000, 10) == "xxxxxxx..."


def test_a_line_names_step_severity_code_what_was_seen_done_and_to_change() -> None:
    line = notice(event(action="rollback"), advice("entropy-collapse"))
    assert line.startswith("step 7: critical: entropy-collapse [rollback]: Entropy is 0.01. To change: ")
    assert "\n" not in line
    for key in CATALOGUE["entropy-collapse"].remedies[0].recipe:
        assert key in line


def test_a_code_that_the_catalogue_does_not_hold_is_told_by_its_message_alone() -> None:
    assert advice("endpoint") == ""
    assert notice(event("endpoint", "warning")) == "step 7: warning: endpoint: Entropy is 0.01."


def test_multiples_are_worked_out_where_the_reading_is_known() -> None:
    assert "learning_rate x0." in advice("lr-too-high")
    assert "learning_rate=" in advice("lr-too-high", {"learning_rate": 1e-3})


def test_the_block_at_the_end_gives_the_number_that_the_line_gave_when_it_happened() -> None:
    rows = [{"step": 1, "learning_rate": 1e-3}, {"step": 2, "learning_rate": 2e-3}, {"step": 9, "learning_rate": 5e-3}]
    (told,) = gather([event("lr-too-high", step=3), event("lr-too-high", step=9)], rows)
    assert told.to_do == advice("lr-too-high", {"learning_rate": 2e-3})
    assert " x0." not in told.to_do


def test_what_the_recipe_has_already_is_not_advised() -> None:
    code, key = "no-learning-signal-all-zero-reward", "tasks[].oracle=answer"
    assert advice(code) == key
    assert advice(code, recipe={"tasks": [{"kind": "function", "oracle": None}]}) == key
    for task in (
        {"kind": "function", "oracle": "answer"},
        {"kind": "function", "oracle": "solution"},
        {"kind": "math"},
    ):
        told = advice(code, recipe={"tasks": [task]})
        assert told
        assert "oracle" not in told
    mixed = [{"kind": "function", "oracle": "answer"}, {"kind": "function", "oracle": None}]
    assert advice(code, recipe={"tasks": mixed}) == key


def test_a_setting_that_stands_at_the_advised_value_is_left_out_and_the_rest_of_the_remedy_stays() -> None:
    keys = CATALOGUE["entropy-collapse"].remedies[0].recipe
    key, value = next((key, value) for key, value in keys.items() if not isinstance(value, dict))
    recipe: dict[str, Any] = {}
    inner = recipe
    for part in key.split(".")[:-1]:
        inner = inner.setdefault(part, {})
    inner[key.split(".")[-1]] = value
    assert key in advice("entropy-collapse")
    assert f"{key}=" not in advice("entropy-collapse", recipe=recipe)


def test_a_remedy_that_would_do_harm_beside_another_finding_is_left_out() -> None:
    large = {"grpo": {"group_size": 16, "batch_size": 256}}
    assert advice("no-improvement", recipe=large).startswith("grpo.optimizer.learning_rate")
    assert "learning_rate" not in advice("no-improvement", beside=["kl-blowup"], recipe=large)


def test_the_block_holds_every_loud_code_once_the_gravest_first() -> None:
    told = gather(
        [
            event("endpoint", "warning", 2),
            event("calm", "info", 3),
            event("entropy-collapse", "critical", 4),
            event("endpoint", "warning", 9, message="It answers again."),
            {"severity": "warning"},
        ]
    )
    assert [(one.severity, one.code, one.count) for one in told] == [
        ("critical", "entropy-collapse", 1),
        ("warning", "None", 1),
        ("warning", "endpoint", 2),
    ]
    head, message = told[2].lines()
    assert head == "warning: endpoint, 2 times, steps 2 to 9"
    assert message == "  It answers again."
    assert told[0].lines()[2].startswith("  to change: ")
