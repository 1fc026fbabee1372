"""The fault matrix: every known bug, who caught it, how fast, and what it was called."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.known import FAULTS, KINDS, Fault, inject
from faults.probe import setup_of
from levelhead.doctor.report import examine
from levelhead.errors import InputError, PolicyError, RewardError
from levelhead.guard import LiveGuard
from levelhead.preflight import CHECKS, preflight
from levelhead.preflight.explain import key_of
from levelhead.recipe.guard import Guard
from levelhead.records import Decision, StepRecord
from levelhead.training.prepare import Setup, seed_everything
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

CLEAN = Fault("none", "nothing is wrong", contextlib.nullcontext, (), "configuration")
"""The run that nobody may complain about."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a check before the first step has to say against a run.

    Attributes:
        name: Of the check.
        severity: ``critical`` where it would have kept the run from starting.
    """

    name: str
    severity: str


Check = Callable[[Setup], Sequence[Complaint]]
"""What is asked before the first step: :func:`preflight_complaints`, or nothing."""


def preflight_complaints(setup: Setup) -> list[Complaint]:
    """Run the preflight and return what it has against a run: without cost, speed, and the few items of the probe."""
    families = {check.name.split("/")[0] for check in CHECKS} - {"memory", "throughput"}
    severities = {"fail": "critical", "warn": "warning"}
    checks = [one for one in preflight(setup, families=families).checks if "enough-held-out" not in one.name]
    return [Complaint(check.name, severities[check.status]) for check in checks if check.status in severities]


@dataclass(frozen=True, slots=True)
class Row:
    """Who caught a fault.

    Attributes:
        fault: Its name.
        kind: Its kind.
        preflight: Names of the checks that failed, the warnings behind them in brackets.
        blocked: Whether the run would not have started.
        guard: First finding of the watching guard that is no mere information.
        guard_step: Step at which it came.
        trained: Whether the run was made; one that the preflight blocks would not start.
        stopped: Exception that ended the run, if one did.
        doctor: Leading finding over the finished log, if it is unhealthy.
        doctor_step: Its first bad step.
    """

    fault: str
    kind: str
    preflight: tuple[str, ...]
    blocked: bool
    trained: bool
    guard: str | None = None
    guard_step: int | None = None
    stopped: str | None = None
    doctor: str | None = None
    doctor_step: float | None = None

    @property
    def caught(self) -> bool:
        """Whether anybody noticed."""
        return bool(self.preflight or self.guard or self.stopped or self.doctor)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return asdict(self) | {"preflight": list(self.preflight)}


class Onlooker(LiveGuard):
    """A guard that acts on nothing and remembers what it said."""

    def __init__(self) -> None:
        super().__init__(Guard(policy="observe"))
        self.said: list[Decision] = []

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        """Look, and remember."""
        decisions = super().before_update(record)
        self.said += decisions
        return decisions

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        """Look, and remember."""
        decisions = super().after_update(record)
        self.said += decisions
        return decisions


def run_fault(fault: Fault, check: Check, settings: Sequence[str] = (), *, anyway: bool = True) -> Row:
    """Check and train the probe with a fault in it, the guard looking on, and have the doctor read what is left.

    Args:
        fault: Put in before anything is made.
        check: What is asked before the first step.
        settings: Further changes of the probe.
        anyway: Train also what the preflight blocks.
    """
    with fault.change() if fault is CLEAN else inject(fault.name):
        complaints = _complaints(fault, check, settings)
        failed = [c.name for c in complaints if c.severity == "critical"]
        heard = (*failed, *(f"({c.name})" for c in complaints if c.severity != "critical"))
        if failed and not anyway:
            return Row(fault.name, KINDS[fault.kind], heard, blocked=True, trained=False)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            guard, stopped = _train(fault, Path(folder) / "run", settings)
            doctor, doctor_step = _diagnosed(Path(folder) / "run")
    said = next((d.event for d in guard.said if d.event.severity != "info"), None)
    return Row(
        fault.name,
        KINDS[fault.kind],
        heard,
        bool(failed),
        True,
        said.code if said else None,
        said.step if said else None,
        stopped,
        doctor,
        doctor_step,
    )


def matrix(
    names: Iterable[str] | None, check: Check, settings: Sequence[str] = (), *, anyway: bool = True
) -> Iterator[Row]:
    """Run faults, all of them and the clean run unless named, one after another.

    Raises:
        InputError: There is no fault of a name.
    """
    names = [*FAULTS, CLEAN.name] if names is None else list(names)
    for name in names:
        if name not in FAULTS and name != CLEAN.name:
            raise InputError(f"{name!r} is no known fault; --list names them all")
    for name in names:
        yield run_fault(FAULTS.get(name, CLEAN), check, settings, anyway=anyway)


def _complaints(fault: Fault, check: Check, settings: Sequence[str]) -> list[Complaint]:
    try:
        return list(check(setup_of(*fault.settings, *settings)))
    except InputError as error:
        return [Complaint(f"recipe: {str(error).splitlines()[0]}", "critical")]


def _train(fault: Fault, folder: Path, settings: Sequence[str]) -> tuple[Onlooker, str | None]:
    """Train with the guard looking on; returns it, and what ended the run before its time."""
    guard = Onlooker()
    run = RunDir(folder)
    try:
        seed_everything(0)
        setup = setup_of(*fault.settings, *settings)
        run.claim(resume=False)
        if Run(setup, run, observers=[guard]).execute() == "stopped":
            return guard, "nonfinite"
    except (InputError, PolicyError, RewardError, RuntimeError, ValueError, IndexError, TypeError) as error:
        return guard, type(error).__name__
    return guard, None


def _diagnosed(folder: Path) -> tuple[str | None, float | None]:
    """The doctor's leading finding, if it calls the run unhealthy."""
    try:
        report = examine(folder)
    except InputError:
        return None, None
    finding = report.diagnosis.findings[0]
    if not report.diagnosis.faulty:
        return None, None
    return finding.code, finding.first_step


def table(rows: Sequence[Row], stories: Mapping[str, str] | None = None) -> str:
    """Write rows as Markdown, a section a kind; checks beyond the second are counted."""
    story_by_name = stories or {name: fault.story for name, fault in FAULTS.items()} | {CLEAN.name: CLEAN.story}
    lines: list[str] = []
    for kind in [*KINDS.values(), None]:
        kind_rows = [r for r in rows if (r.fault == CLEAN.name) == (kind is None) and kind in (r.kind, None)]
        if not kind_rows:
            continue
        lines += [f"### {kind[0].upper()}{kind[1:]}" if kind else "### None", ""]
        lines += ["| fault | what goes wrong | preflight, before step 1 | guard, at step | doctor, first bad step |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_line(row, story_by_name[row.fault]) for row in kind_rows] + [""]
    return "\n".join(lines)


def _line(row: Row, story: str) -> str:
    more = [f"{len(row.preflight) - 2} more"] if len(row.preflight) > 2 else []
    checks = [*map(_marked, row.preflight[:2]), *more]
    if not row.trained:
        return f"| `{row.fault}` | {story} | {', '.join(checks)} | not started | not started |"
    live = f"`{row.guard}`, {row.guard_step}" if row.guard else ""
    live += ("; " if live and row.stopped else "") + (f"run ended: {row.stopped}" if row.stopped else "")
    late = f"`{row.doctor}`" + (f", {row.doctor_step:g}" if row.doctor_step is not None else "") if row.doctor else ""
    return f"| `{row.fault}` | {story} | {', '.join(checks) or '-'} | {live or '-'} | {late or '-'} |"


def _marked(check: str) -> str:
    """The name of a check, with a dagger where the preflight has none of that name any more."""
    return check if check.startswith("recipe:") or key_of(check.strip("()")) else f"{check}†"
