"""What is said of a fault: by the preflight, and by a short run where it lies in what a run does."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults.brought.cases import Brought
from faults.probe import setup_of
from levelhead.guard import LiveGuard
from levelhead.preflight import preflight
from levelhead.recipe.guard import Guard
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

SHORT = ("sft.steps=20", "grpo.steps=4", "eval.final_items=4", "checkpoint.every=2", "checkpoint.best=true")


class Word(NamedTuple):
    """One thing that is said.

    Attributes:
        name: Of the check, without the task, or the code of the event.
        status: ``warn``, ``fail``, or the severity of the event.
        text: What it says.
    """

    name: str
    status: str
    text: str


def seen(case: Brought, folder: Path, families: tuple[str, ...] = ()) -> list[Word]:
    """Return what is said of a case, what is merely informed of left out.

    Args:
        case: The fault.
        folder: Where its run is written, for faults of runs.
        families: Checks to make; all unless given.
    """
    if case.change is not None:
        with case.change():
            return _run(case, folder)
    with contextlib.redirect_stderr(io.StringIO()):
        report = preflight(setup_of(*case.settings, reward=case.reward, rows=case.rows), families=families)
    return [Word(c.name.removesuffix("/echo"), c.status, c.message) for c in report.checks if c.status != "pass"]


def _run(case: Brought, folder: Path) -> list[Word]:
    run_of([*SHORT, *case.settings], case.reward, case.rows, folder)
    path = folder / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    events = [json.loads(line) for line in lines]
    return [Word(e["code"], e["severity"], e["message"]) for e in events if e["severity"] != "info"]


def run_of(settings: Sequence[str], reward: Any, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Train a short run of the probe on some rows and a reward."""
    setup = setup_of(*settings, reward=reward, rows=rows)
    run = RunDir(folder)
    run.claim(resume=False)
    with contextlib.redirect_stderr(io.StringIO()):
        Run(setup, run, observers=[LiveGuard(Guard(policy="observe"))]).execute()


def names(case: Brought, words: list[Word]) -> Word | None:
    """Return what names the cause of a case, if anything does."""
    fits = [word for word in words if word.name in case.named_by and case.word in word.text]
    return fits[0] if fits else None
