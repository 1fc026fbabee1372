"""Events in words: one line each, safe to print, with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.notice import gather, notice, printable
from levelhead.diagnosis.remedies import remedies, settings_text


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
    line = notice(event(action="rollback"), settings_text(remedies("entropy-collapse")[0].settings))
    assert line.startswith("step 7: critical: entropy-collapse [rollback]: Entropy is 0.01. To change: ")
    assert "\n" not in line
    for key in CATALOGUE["entropy-collapse"].remedies[0].recipe:
        assert key in line


def test_a_code_that_the_catalogue_does_not_hold_is_told_by_its_message_alone() -> None:
    assert notice(event("endpoint", "warning")) == "step 7: warning: endpoint: Entropy is 0.01."


def test_the_block_holds_every_loud_code_once_the_gravest_first() -> None:
    told, passed = gather(
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
    assert told[0].lines(to_do="key=1")[2] == "  to change: key=1"
    assert passed == []


def test_what_a_look_had_seen_and_the_closing_diagnosis_does_not_hold_is_passed() -> None:
    look = event("deadlock", step=60, action="warn", evidence={"first_step": 55})
    deed = event("deadlock", step=62, action="rollback", evidence={"to_step": 50})
    assert [one.code for one in gather([look, deed])[0]] == ["deadlock"]
    told, passed = gather([look, deed], standing=())
    assert [(one.code, one.count, one.first) for one in told] == [("deadlock", 1, 62)]
    assert passed == ["deadlock (step 60)"]
    assert gather([look], standing={"deadlock"}) == ([], [])
