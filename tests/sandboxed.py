"""What the tests of the sandbox share: its limits, its walls, and a call that runs a program behind one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import ProgramResult, run, run_program
from levelhead.tasks.sandbox.run import Wall

LIMITS = SandboxLimits(cpu_s=2, wall_s=60, memory_mb=256, output_kb=16, file_mb=4, processes=6)
UNBOUND = LIMITS.model_copy(update={"isolation": "none"})
PROBES = {wall: run_program("print('hello')", UNBOUND, walls=(wall,)) for wall in run.WALLS}

can_run = pytest.mark.skipif(
    all(probe.status == "refused" for probe in PROBES.values()), reason=f"programs cannot run here: {PROBES}"
)


def needs(*walls: Wall) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test behind each of these walls, and skip those that cannot be had here."""
    marks = [
        pytest.param(
            wall,
            marks=pytest.mark.skipif(PROBES[wall].wall != wall, reason=f"no {wall} here: {PROBES[wall].note}"),
        )
        for wall in walls
    ]
    return pytest.mark.parametrize("wall", marks)


walled = needs("bubblewrap", "namespaces")
every = needs(*run.WALLS)


def program(source: str, walls: Sequence[Wall] = run.WALLS, **limits: object) -> ProgramResult:
    return run_program(source, UNBOUND.model_copy(update=limits), walls=walls)


def behind(wall: Wall) -> Callable[..., ProgramResult]:
    return lambda source, **limits: program(source, (wall,), **limits)


def descendants() -> set[int]:
    """Processes whose chain of parents leads here."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    processes = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in processes} - processes
        if not more:
            return processes - {os.getpid()}
        processes |= more
