"""Two tables of one task at two learning rates, entered as logs in the forms in which people have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from levelhead.doctor.report import Report, examine

Row = dict[str, float]
ENTROPIES = (2.31, 2.74, 2.52, 2.80, 2.43, 2.66, 2.30, 2.59, 2.71, 2.38, 2.77, 2.48)


def as_csv(rows: list[Row]) -> str:
    lines = [",".join(rows[0]), *(",".join(f"{v:g}" for v in row.values()) for row in rows)]
    return "\n".join(lines) + "\n"


def as_markdown(rows: list[Row]) -> str:
    lines = [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
    return "\n".join(lines + [f"| {' | '.join(f'{v:g}' for v in row.values())} |" for row in rows]) + "\n"


def as_json_lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_trainer_state(rows: list[Row]) -> str:
    return json.dumps({"global_step": 100, "log_history": rows})


FORMS = {"csv": as_csv, "md": as_markdown, "jsonl": as_json_lines, "json": as_trainer_state}


def fast() -> list[Row]:
    """Zeros for twelve steps, eight steps of learning, and nothing more."""
    names = ("step", "reward", "reward_std", "entropy", "loss", "grad_norm", "step_time")
    rows = [(step, 0.0, 0.0, ENTROPIES[step - 1], 0.0, 0.0, 140.0) for step in range(1, 13)]
    rows += [
        (13, 0.75, 0.5, 1.53, -0.008, 0.53, 140.0),
        (17, 0.5, 0.5, 0.58, -0.121, 6.4, 140.0),
        (20, 0.5, 0.5, 0.56, -0.246, 10.7, 140.0),
    ]
    rows += [(step, 1.0, 0.0, 0.04 if step < 40 else 0.006, 0.0, 0.0, 0.08) for step in (21, 22, 23, 24, 40, 60, 100)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def slow(last: tuple[float, ...]) -> list[Row]:
    """The same at a fifth of the rate; the entropies at the end are given."""
    rows = [(20, 2.50, -0.021), (36, 2.16, 0.034)]
    rows += [(101 - len(last) + i, entropy, 0.05 * (-1) ** i) for i, entropy in enumerate(last)]
    return [dict(zip(("step", "entropy", "loss"), row, strict=True)) for row in rows]


def examined(folder: Path, rows: list[Row], form: str) -> Report:
    path = folder / f"log.{form}"
    path.write_text(FORMS[form](rows), encoding="utf-8")
    return examine(path)


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize(
    "drop", [(), ("step_time",), ("reward_std",), ("reward_std", "step_time"), ("grad_norm",), ("loss", "entropy")]
)
def test_the_deadlock_is_named_with_its_step(tmp_path: Path, form: str, drop: tuple[str, ...]) -> None:
    rows = [{k: v for k, v in row.items() if k not in drop} for row in fast()]
    diagnosis = examined(tmp_path, rows, form).diagnosis
    first = diagnosis.findings[0]
    assert (diagnosis.verdict, first.code, first.first_step) == ("critical", "deadlock", 21)
    steps = {f.code: f.first_step for f in diagnosis.findings if f.severity != "info"}
    if "entropy" not in drop:
        assert steps["entropy-collapse"] in (17, 20, 21)
    if "step_time" not in drop:
        assert steps["step-time-collapse"] == 21


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("last", [(0.13,), (0.46,), (0.13, 0.46), (0.46, 0.13), (0.3, 0.13, 0.46, 0.2)])
def test_at_a_fifth_of_the_rate_it_is_a_late_fall_of_entropy_and_no_deadlock(
    tmp_path: Path, form: str, last: tuple[float, ...]
) -> None:
    diagnosis = examined(tmp_path, slow(last), form).diagnosis
    first = diagnosis.findings[0]
    assert (diagnosis.verdict, first.code, first.severity) == ("warning", "entropy-collapse", "warning")
    assert first.first_step is not None
    assert first.first_step > 36
    assert all(f.code != "deadlock" for f in diagnosis.findings)


def test_the_deadlock_is_surer_than_the_late_fall(tmp_path: Path) -> None:
    deadlock, fall = (examined(tmp_path, rows, "csv").diagnosis.findings[0] for rows in (fast(), slow((0.13, 0.46))))
    assert deadlock.confidence > fall.confidence
