"""Known numbers written down in every form are read back whole; ``bench/log_reading.py`` measures thousands."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from doctor.rendered import FORMS, Reading, draw, halves
from levelhead.doctor.readers.sources import Log, read

DEVELOPED, HELD_BACK = halves()


def readings(log: Log) -> list[Reading]:
    course: list[Reading] = [
        (name, step, value)
        for name, column in log.history.columns.items()
        if name not in log.summary
        for step, value in zip(column.steps, column.values, strict=True)
    ]
    return course + [(name, place, value) for name, row in log.summary.items() for place, value in row.items()]


def keys(found: list[Reading], stepless: bool) -> Counter[tuple[str, str, str]]:
    return Counter((name, "" if stepless else str(place), f"{value:.5g}") for name, place, value in found)


@pytest.mark.parametrize("form", DEVELOPED)
def test_what_a_person_sees_is_read_and_nothing_else(form: str, tmp_path: Path) -> None:
    for seed in range(8):
        rng = random.Random(f"suite-{form}-{seed}")
        rendered = FORMS[form](draw(rng), rng)
        path = tmp_path / "log.txt"
        path.write_text(rendered.text, encoding="utf-8")
        stepless = any(place is None for _, place, _ in rendered.readings)
        assert keys(readings(read(path)), stepless) == keys(rendered.readings, stepless), rendered.text
