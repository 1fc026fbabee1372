"""What would settle an uncertain diagnosis is asked for, and answers, settings and rollouts move it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from levelhead.cli.doctor import doctor
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.doctor.informed import QUESTIONS, read_answers
from levelhead.doctor.report import Beside, Report, examine
from levelhead.doctor.rollouts import Answer, examine_answers
from levelhead.doctor.runconfig import RunSettings
from levelhead.errors import InputError

app = typer.Typer()
app.command("doctor")(doctor)


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Ten rows that tell next to nothing."""
    path = tmp_path / "flat.txt"
    rows = [0.31, 0.29, 0.3, 0.32, 0.3, 0.29, 0.31, 0.3, 0.28, 0.31]
    path.write_text(
        "".join(
            f"step={i} reward={r} entropy={0.6 + r / 9:.3f} resp_len={190 + 30 * r:.0f}\n" for i, r in enumerate(rows)
        ),
        "utf-8",
    )
    return path


def confidence(report: Report, code: str) -> float:
    return next((f.confidence for f in report.diagnosis.findings if f.code == code), 0.0)


def test_an_uncertain_diagnosis_asks_at_most_two_things(flat: Path) -> None:
    report = examine(flat)
    assert 1 <= len(report.questions) <= 2
    assert [q["key"] for q in report.to_json()["questions"]] == [q.key for q in report.questions]


def test_what_is_answered_is_not_asked_again(flat: Path) -> None:
    first = examine(flat).questions[0]
    value = first.choices[0] if first.choices else "1"
    again = examine(flat, beside=Beside(answers=read_answers([f"{first.key}={value}"])))
    assert first.key not in [question.key for question in again.questions]


def test_a_falling_held_out_score_beside_a_reward_is_hacking(flat: Path) -> None:
    falls = examine(flat, beside=Beside(answers=read_answers(["held_out=falls"])))
    assert confidence(falls, "reward-hacking") > 0.5
    assert falls.diagnosis.faulty


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"learning_rate": 1e-3}, "lr-too-high"),
        ({"temperature": 0.0}, "reward-dead-groups"),
        ({"group_size": 2.0}, "group-size-too-small"),
        ({"max_completion_length": 200.0}, "length-truncation"),
    ],
)
def test_settings_beside_a_log_are_arguments(flat: Path, settings: dict[str, float], code: str) -> None:
    beside = Beside(RunSettings(settings, {key: key for key in settings}))
    assert confidence(examine(flat, beside=beside), code) > confidence(examine(flat), code) + 0.3


def test_adapters_may_have_ten_times_the_learning_rate(flat: Path) -> None:
    values = {"learning_rate": 1e-4, "lora": 16.0}
    full, adapter = (RunSettings(v, {k: k for k in v}) for v in ({"learning_rate": 1e-4}, values))
    high = confidence(examine(flat, beside=Beside(full)), "lr-too-high")
    assert high > confidence(examine(flat, beside=Beside(adapter)), "lr-too-high")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{i} so we go on " * 8, "length-runaway"),
        ("{i}<|im_end|>\n<|im_start|>user\nnext", "template-mismatch"),
        ("4.", "constant-answer"),
    ],
)
def test_answers_as_text_are_arguments(flat: Path, text: str, code: str) -> None:
    facts = examine_answers([Answer(f"p{i}", text.replace("{i}", str(i))) for i in range(24)])
    assert confidence(examine(flat, beside=Beside(rollouts=facts)), code) > 0.5


@pytest.mark.parametrize("pair", ["group_size", "group_size=many", "held_out=perhaps", "nonsense_key=1", "=1"])
def test_answers_that_are_none_are_refused(pair: str) -> None:
    with pytest.raises(InputError, match="--answer"):
        read_answers([pair])


def test_every_question_and_answer_leads_somewhere() -> None:
    from levelhead.doctor import informed

    asked = {key for keys in informed._ASKED_FOR.values() for key in keys}
    assert asked == set(QUESTIONS)
    assert set(informed._ASKED_FOR) | {c for row in informed._WORTH.values() for c in row} <= set(CATALOGUE)


def test_the_command_asks_and_takes_answers(flat: Path) -> None:
    runner = CliRunner()
    asked = runner.invoke(app, [str(flat), "--ask"], input="maybe\nfalls\n\n")
    assert asked.exit_code == 0, asked.output
    assert "reward-hacking" in asked.output
    assert "give one of rises, flat, falls" in asked.output
    silent = runner.invoke(app, [str(flat), "--ask"], input="")
    assert silent.exit_code == 0


def test_doubtful_names_are_said_and_lower_the_confidence(tmp_path: Path) -> None:
    rows = [(i, 10 ** (i / 8)) for i in range(40)]
    for name, key in (("sure", "kl"), ("doubtful", "kl_wibble")):
        (tmp_path / name).write_text("step,reward," + key + "\n" + "".join(f"{i},0.3,{v}\n" for i, v in rows), "utf-8")
    sure, doubtful = examine(tmp_path / "sure"), examine(tmp_path / "doubtful")
    assert 0 < confidence(doubtful, "kl-blowup") < confidence(sure, "kl-blowup")
    assert doubtful.to_json()["guesses"] == [{"signal": "kl", "key": "kl_wibble", "confidence": 0.65}]


def test_the_peak_of_a_summary_is_evidence_and_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text(
        "| metric | mean | max | last |\n|--|--|--|--|\n| kl | 900.0 | 30000 | 800 |\n| reward | 0.1 | 0.3 | 0.1 |\n"
    )
    document = examine(path).to_json()
    first = document["findings"][0]
    assert (document["verdict"], first["code"], first["first_step"]) == ("critical", "kl-blowup", None)
    assert {"metric": "kl", "step": None, "statistic": "max", "value": 30000} in first["evidence"]


def test_two_rows_of_zero_reward_are_not_healthy(tmp_path: Path) -> None:
    path = tmp_path / "zero.txt"
    path.write_text("step 1: reward 0.0 loss 0.01 kl 0.001\nstep 2: reward 0.0 loss 0.02 kl 0.001\n")
    report = examine(path)
    assert report.diagnosis.faulty
    assert report.diagnosis.findings[0].code == "no-learning-signal-all-zero-reward"


@pytest.mark.parametrize("column", ["em", "acc", "eval", "val", "pass@1", "dev_em"])
def test_a_held_out_column_wins_over_the_training_reward(tmp_path: Path, column: str) -> None:
    path = tmp_path / "log.csv"
    rows = [(10 * i, 0.2 + 0.05 * i, 0.5 - 0.04 * i) for i in range(12)]
    path.write_text(f"step,reward,{column}\n" + "".join(f"{s},{r:.3f},{e:.3f}\n" for s, r, e in rows))
    assert examine(path).diagnosis.findings[0].code == "reward-hacking"
