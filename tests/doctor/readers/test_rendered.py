"""Known numbers written down in every form are read back whole; ``bench/log_reading.py`` measures thousands."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from doctor.rendered import FORMS, Reading, draw, halves
from levelhead.doctor.readers.sources import Log, read

AMBIGUOUS = "two_logs_in_one"
"""A second log that begins at the step of the first one's only row cannot be told from its continuation."""


def readings(log: Log) -> list[Reading]:
    course: list[Reading] = [
        (name, step, value)
        for name, column in log.history.columns.items()
        if name not in log.summary
        for step, value in zip(column.steps, column.values, strict=True)
    ]
    return course + [(name, place, value) for name, row in log.summary.items() for place, value in row.items()]


def keys(readings: list[Reading], stepless: bool) -> Counter[tuple[str, str, str]]:
    return Counter((name, "" if stepless else str(place), f"{value:.5g}") for name, place, value in readings)


@pytest.mark.parametrize("form", sorted(set(FORMS) - {AMBIGUOUS}))
def test_what_a_person_sees_is_read_and_nothing_else(form: str, tmp_path: Path) -> None:
    for seed in range(5):
        rng = random.Random(f"suite-{form}-{seed}")
        rendered = FORMS[form](draw(rng), rng)
        path = tmp_path / "log.txt"
        path.write_text(rendered.text, encoding="utf-8")
        stepless = any(place is None for _, place, _ in rendered.readings)
        assert keys(readings(read(path)), stepless) == keys(rendered.readings, stepless), rendered.text


def test_the_halves_of_the_forms_are_drawn_once_and_for_all() -> None:
    developed, held_back = halves()
    assert set(developed) | set(held_back) == set(FORMS)
    assert not set(developed) & set(held_back)
    assert abs(len(developed) - len(held_back)) <= 1


def test_prose_beside_a_log_is_no_second_log(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("KL jumped to 3e4 at step 40.\n" + "".join(f"step={i} kl=0.1 reward=0.5\n" for i in range(4)))
    assert max(read(path).history.series("kl").values) == 0.1


@pytest.mark.parametrize(
    "name", ["target_kl", "kl_coef_loss", "max_reward_allowed", "prompt_len", "lr_scheduler", "clip_grad"]
)
def test_words_that_change_a_meaning_are_no_guess(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"step,reward,{name}\n" + "".join(f"{i},0.5,{i}.5\n" for i in range(4)))
    log = read(path)
    assert not log.guesses
    assert name in log.strangers or name in ("kl_coef_loss",)


PREFIXES = [
    "2026-03-01T12:00:00.123456789Z stdout F ",
    "[rank0]: ",
    "> ",
    "train.log:311:",
    "trainer-1  | ",
    "   311\t",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("form", ["markdown", "csv", "columns_without_rules", "transposed_markdown", "long_csv"])
def test_tables_are_read_behind_a_prefix(form: str, prefix: str, tmp_path: Path) -> None:
    rng = random.Random(f"{form}-{prefix}")
    rendered = FORMS[form](draw(rng, 6), rng)
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{prefix}{line}\n" for line in rendered.text.splitlines()), encoding="utf-8")
    assert keys(readings(read(path)), stepless=False) == keys(rendered.readings, stepless=False), path.read_text()
