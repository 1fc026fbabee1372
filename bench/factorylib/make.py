"""Making the factory's cases: pairs of a sound run and the same run with a fault, pasted, read back and heard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from factorylib.evidence import Features, features_of
from factorylib.faults import FAULTS, Fault
from factorylib.journal import Run, simulate
from factorylib.labels import hurt, shows, sound
from factorylib.paste import paste
from factorylib.plans import Plan, sound_plan
from factorylib.worlds import WORLDS
from levelhead.errors import InputError

FAULTS_OF_A_TWIN = 2
INDEX = "index.jsonl"


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled log.

    Attributes:
        name: Of its file.
        family: Task family of the run.
        pair: Number of the sound run that it is a twin of.
        fault: What was put into it; empty for a sound run.
        strength: How much of it.
        root: The finding that names the fault; ``healthy``, ``harmless`` (a fault that cost nothing) or ``hidden`` (one
            that what was pasted does not show).
        form: How it was written.
        rows: Rows that are shown.
    """

    name: str
    family: str
    pair: int
    fault: str
    strength: float
    root: str
    form: str
    rows: int

    @property
    def healthy(self) -> bool:
        return self.root == "healthy"

    @property
    def judged(self) -> bool:
        """Whether it counts in any figure."""
        return self.root not in ("harmless", "hidden")

    @property
    def right(self) -> frozenset[str]:
        return FAULTS[self.fault].expected if self.fault else frozenset()

    @property
    def acceptable(self) -> frozenset[str]:
        if self.fault:
            return FAULTS[self.fault].acceptable
        # A sound run may have answers that fill their room, groups without contrast, or all of them solved.
        fine = {"reward-dead-groups", "saturated-all-one-reward", "group-size-too-small"}
        return frozenset(fine | ({"length-truncation"} if WORLDS[self.family].ends else set()))


def with_fault(plan: Plan, fault: Fault, strength: float, rng: np.random.Generator) -> Plan:
    """Return the plan with the fault in it."""
    changed = replace(plan, **fault.change(plan, strength))  # type: ignore[arg-type]
    if fault.late and rng.random() < 0.5:
        changed.begin = float(rng.uniform(0.2, 0.6))
    changed.harmless_spike = 0.0
    return changed


def pair_of(number: int, seed: int) -> Iterator[tuple[Plan, Run, str, float, str]]:
    """The sound run of a number and its twins with a fault: ``(plan, run, fault, strength, root)``.

    Nothing where the run is not sound; a twin whose fault did no harm has the root ``harmless``.
    """
    rng = np.random.default_rng([seed, number])
    world = list(WORLDS)[number % len(WORLDS)]
    plan = sound_plan(world, int(rng.integers(1 << 30)), rng)
    run = simulate(plan)
    if not sound(run, plan):
        return
    yield plan, run, "", 0.0, "healthy"
    fitting = [fault for fault in FAULTS.values() if fault.fits(plan.family)]
    for index in rng.choice(len(fitting), FAULTS_OF_A_TWIN, replace=False):
        fault, strength = fitting[index], float(rng.uniform(0, 1))
        changed = with_fault(plan, fault, strength, rng)
        with np.errstate(all="ignore"):
            broken = simulate(changed)
        harmed = fault.shows or hurt(broken, run, changed)
        yield changed, broken, fault.name, strength, fault.root if harmed else "harmless"


def make(numbers: range, seed: int, folder: Path) -> Iterator[Case]:
    """Simulate the pairs of these numbers and write their logs, as somebody would paste them, into ``folder``."""
    for number in numbers:
        for turn, (plan, run, fault, strength, root) in enumerate(pair_of(number, seed)):
            pasted = paste(run.rows, np.random.default_rng([seed, number, turn, 7]))
            seen = not fault or shows(pasted, FAULTS[fault], plan)
            if root == "nonfinite":
                seen &= "nan" in pasted.text.lower()
            if root != "harmless" and not seen:
                root = "hidden"
            name = f"{number:05d}-{turn}-{fault or 'sound'}.{pasted.suffix}"
            (folder / name).write_text(pasted.text, encoding="utf-8")
            yield Case(name, plan.world, number, fault, round(strength, 3), root, pasted.form, len(pasted.rows))


def hear(cases: Iterable[Case], folder: Path) -> Iterator[tuple[Case, Features]]:
    """Read the logs back and ask every detector; one in which the readers see no number is left out."""
    for case in cases:
        try:
            yield case, features_of(folder / case.name)
        except InputError:
            continue


def index_of(folder: Path) -> list[Case]:
    """The cases that ``make`` wrote into a folder."""
    lines = (folder / INDEX).read_text(encoding="utf-8").splitlines()
    return [Case(**json.loads(line)) for line in lines]
