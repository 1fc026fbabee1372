"""Faults in what users bring are named by a check, by their cause; sound data and rewards are not."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults.brought import BROUGHT, Brought, data, names, rewards, seen
from faults.probe import ROWS, closeness, setup_of
from levelhead.preflight import preflight
from night import cases

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments" / "faults.md"
FAMILIES = ("data", "pairs", "rewards/cheap", "rewards/steady", "tokens/spelled-tags")
IN_CHECKS = {name: case for name, case in BROUGHT.items() if case.change is None}


@pytest.mark.parametrize("case", IN_CHECKS.values(), ids=IN_CHECKS)
def test_a_fault_is_named_by_its_cause_before_the_first_step(case: Brought, tmp_path: Path) -> None:
    words = seen(case, tmp_path, FAMILIES)
    assert names(case, words), words


IN_RUNS = {name: case for name, case in BROUGHT.items() if case.change is not None}


@pytest.mark.parametrize("case", IN_RUNS.values(), ids=IN_RUNS)
def test_a_fault_of_evaluating_or_saving_is_named_while_training(case: Brought, tmp_path: Path) -> None:
    words = seen(case, tmp_path / "run")
    assert names(case, words), words


@pytest.mark.parametrize("settings", [(), ("model.lora={r: 4, alpha: 8}",), ("eval.sampling.temperature=1",)], ids=str)
def test_a_sound_run_is_told_of_none(settings: tuple[str, ...], tmp_path: Path) -> None:
    case = replace(BROUGHT["saved-otherwise"], change=contextlib.nullcontext, settings=settings)
    events = {word.name for word in seen(case, tmp_path / "run")}
    assert not events & {name for case in IN_RUNS.values() for name in case.named_by}


SOUND: dict[str, tuple[Any, Any]] = {
    "sums": (data.SUMS, rewards.equal),
    "sums, nearly right": (data.SUMS, rewards.near),
    "sums, last number": (data.SUMS, rewards.number_or_zero),
    "stories": (data.STORIES, rewards.equal),
    "labels": (data.REVIEWS, rewards.equal),
    "options": (data.CHOICES, rewards.equal),
    "listed options": (data.BULLETS[:64], rewards.equal),
    "tags": (data.BOXED, rewards.equal),
    "long texts": (data.tales(80), rewards.equal),
    "listed labels": (data.LISTED, rewards.equal),
    "even or odd": (data.PARITY, rewards.equal),
    "letters of options": (data.LETTERS, rewards.equal),
    "claims": (data.CLAIMS, rewards.equal),
    "numbers": (ROWS, closeness),
}


@pytest.mark.night
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("seed", range(cases(1, 10)))
def test_nothing_is_said_of_sound_data_and_rewards(name: str, seed: int) -> None:
    rows, reward = SOUND[name]
    report = preflight(setup_of(f"seed={seed}", "eval.final_items=64", reward=reward, rows=rows), families=FAMILIES)
    said = [c for c in report.checks if c.status != "pass" and not c.name.startswith("data/enough-held-out")]
    assert not said, [c.message for c in said]


@pytest.mark.parametrize("case", BROUGHT.values(), ids=BROUGHT)
def test_each_fault_cites_a_public_thread_and_stands_on_the_page(case: Brought) -> None:
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", case.thread)
    assert f"| `{case.name}` |" in PAGE.read_text(encoding="utf-8")


def test_every_case_is_named_by_something() -> None:
    assert all(case.named_by and case.word for case in BROUGHT.values())


def test_twelve_were_written_before_the_checks() -> None:
    assert sum(case.first for case in BROUGHT.values()) == 12
