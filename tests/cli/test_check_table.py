"""What checks find reaches the terminal as it is found, in the reader's language."""

from __future__ import annotations

import pytest

from levelhead.preflight import Outcome, Report
from levelhead.preflight.checks.advice import GroupSize
from levelhead.preflight.checks.tokens import Vocabulary
from levelhead.preflight.progress import Printer
from levelhead.terminal import columns

PASSED = Vocabulary().ok(Vocabulary.fits, size=320, rows=320)
WARNED = GroupSize().warn(GroupSize.pair)
FAILED = Vocabulary().fail(
    Vocabulary.too_large, highest=900, rows=320, evidence={"stop_ids": [3, 4], "share": 0.123456}
)


def shown(capsys: pytest.CaptureFixture[str], *outcomes: Outcome, **options: object) -> str:
    printer = Printer(**options)  # type: ignore[arg-type]
    with printer:
        printer.begin("data")
        for outcome in outcomes:
            printer.tell(outcome)
    printer.finish(Report(outcomes, 1.25))
    return capsys.readouterr().out


def test_a_failure_has_its_message_and_its_way_out_and_what_passed_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, PASSED, WARNED, FAILED).splitlines()
    assert lines[0] == "check 1/4: data, template and recipe ..."
    assert not [line for line in lines if line.startswith("pass ")]
    assert lines[1].startswith("warning rewards/group-size: K = 2")
    text = " ".join(" ".join(lines).split())
    assert "failure tokens/vocabulary: the tokenizer has ids up to 900" in text
    assert "fix: use the model's own tokenizer" in text
    assert "stop_ids" not in text
    assert lines[-1] == "1 passed, 1 warning, 1 failed in 1.2 s"


def test_everything_and_the_evidence_are_shown_on_request_and_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, PASSED, FAILED, everything=True, evidence=True)
    assert "pass tokens/vocabulary: 320 ids fit 320 embedding rows" in text
    assert "stop_ids: 3, 4" in text
    assert "share: 0.1235" in text
    assert "{" not in text
    assert '"' not in text


def test_texts_are_chinese_for_a_reader_of_chinese_and_their_lines_are_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys, PASSED, WARNED, FAILED, language="zh").splitlines()
    assert any(line.startswith("\u8b66\u544a rewards/group-size") for line in lines)
    assert columns(next(line for line in lines if "K = 2" in line)) > 70
    assert "1 \u9879\u901a\u8fc7" in lines[-1]


def test_on_a_terminal_a_bar_takes_the_place_of_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(colour=True)
    with printer:
        printer.begin("data")
        printer.progress("tokens/vocabulary", 0.25)
        printer.tell(FAILED)
    captured = capsys.readouterr()
    assert "check 1/4" not in captured.out
    assert "failure tokens/vocabulary" in captured.err
