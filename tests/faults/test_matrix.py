"""Some of the fault matrix, and what the page about it promises."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from faults.known import FAULTS, KINDS, Fault
from faults.matrix import CLEAN, Row, matrix, preflight_complaints, run_fault, table
from faults.probe import recipe_of
from levelhead.errors import InputError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments" / "faults.md"


def test_there_are_enough_faults_of_every_kind() -> None:
    assert len(FAULTS) >= 40
    assert {fault.kind for fault in FAULTS.values()} == set(KINDS)
    assert all(sum(fault.kind == kind for fault in FAULTS.values()) >= 8 for kind in KINDS)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_a_row_on_the_page_and_was_caught(name: str) -> None:
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert any(cell not in ("-", "not started") for cell in cells[2:])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_the_recipe_of_every_fault_can_be_read(fault: Fault) -> None:
    """A recipe that is refused shows nothing of its fault."""
    assert recipe_of(*fault.settings).grpo is not None


@pytest.mark.slow
def test_a_clean_run_is_left_alone_by_everybody() -> None:
    row = run_fault(CLEAN, preflight_complaints)
    assert not row.caught, row
    assert row.trained


def test_a_learning_rate_that_is_too_high_is_caught_by_the_guard_at_once() -> None:
    row = run_fault(FAULTS["learning-rate-too-high"], lambda _setup: ())
    assert row.guard == "large-update"
    assert row.guard_step is not None
    assert row.guard_step <= 4
    assert row.doctor is not None


@pytest.mark.parametrize(
    ("name", "said", "step"),
    [
        ("dropout-left-on", "logprob-mismatch", 1),
        ("temperature-in-sampling-only", "logprob-mismatch", 1),
        ("reference-not-frozen", "reference-not-frozen", 2),
        ("advantages-negated", "update-against-reward", 8),
    ],
)
def test_what_cannot_be_in_a_sound_trainer_is_told_of_at_once(name: str, said: str, step: int) -> None:
    row = run_fault(FAULTS[name], lambda _: [], (f"grpo.steps={step + 1}", f"sft.steps={5 * step}"))
    assert (row.guard, row.guard_step) == (said, step)


@pytest.mark.parametrize("name", ["entropy-penalised", "kl-rewarded"])
def test_a_term_with_the_wrong_sense_stops_the_run_before_its_first_update(name: str) -> None:
    row = run_fault(FAULTS[name], lambda _: [], ("grpo.steps=1", "sft.steps=5"))
    assert row.stopped == "SignError"


def test_a_reward_without_contrast_is_called_so_by_guard_and_doctor() -> None:
    row = run_fault(FAULTS["format-nobody-meets"], lambda _setup: ())
    assert row.guard == row.doctor == "no-learning-signal-all-zero-reward"


@pytest.mark.parametrize(
    ("name", "settings"), [("abstaining-is-paid", ()), ("base-rate-of-four-fifths", ("grpo.steps=36",))]
)
def test_a_reward_that_one_answer_satisfies_is_named_by_guard_and_doctor(name: str, settings: tuple[str, ...]) -> None:
    row = run_fault(FAULTS[name], lambda _: [], settings)
    assert row.guard == row.doctor == "constant-answer"


def test_a_judge_that_likes_one_phrase_makes_a_policy_forget_to_read() -> None:
    row = run_fault(FAULTS["judge-likes-one-phrase"], lambda _: [])
    assert row.guard == row.doctor == "constant-answer"
    assert row.guard_step is not None
    assert row.guard_step > 30  # it has to find the phrase first


def test_what_the_preflight_blocks_is_not_started() -> None:
    row = run_fault(FAULTS["advantages-negated"], preflight_complaints, anyway=False)
    assert row.blocked
    assert not row.trained
    assert "signs/audit" in row.preflight


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(InputError, match="no known fault"):
        list(matrix(["no-such"], lambda _setup: ()))


@pytest.fixture
def bench() -> Any:
    """``bench/fault_matrix.py`` as a module."""
    spec = importlib.util.spec_from_file_location("bench_fault_matrix", ROOT / "bench" / "fault_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_are_taken_up_where_they_were_left(tmp_path: Path, bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = "advantages-negated"
    row = Row(name, KINDS["signs"], ("signs/reward",), blocked=True, trained=True, guard="large-update", guard_step=3)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row.to_json()) + "\n", encoding="utf-8")
    assert bench.main([name, "--out", str(path)]) == 0
    output = capsys.readouterr().out
    assert f"| `{name}` |" in output
    assert "`large-update`, 3" in output


def test_a_fault_that_nobody_caught_is_an_error(tmp_path: Path, bench: Any) -> None:
    path = tmp_path / "rows.jsonl"
    row = Row("advantages-negated", KINDS["signs"], (), blocked=False, trained=True)
    path.write_text(json.dumps(row.to_json()) + "\n", encoding="utf-8")
    assert bench.main([row.fault, "--out", str(path)]) == 1


def test_an_argument_that_cannot_be_used_is_told_in_one_line(
    tmp_path: Path, bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("no row\n", encoding="utf-8")
    assert bench.main(["--out", str(path)]) == 2
    assert bench.main(["no-such"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert str(path) in lines[0]
    assert "--list" in lines[1]


def test_rows_become_a_section_a_kind() -> None:
    rows = [Row(name, KINDS[fault.kind], ("check",), blocked=True, trained=False) for name, fault in FAULTS.items()]
    text = table(rows)
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        f"### {kind[0].upper()}{kind[1:]}" for kind in KINDS.values()
    ]
    assert text.count("not started | not started") == len(FAULTS)


def test_faults_are_listed_with_what_goes_wrong(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["fault"] for row in listed] == list(FAULTS)
    assert all(row["story"] for row in listed)
