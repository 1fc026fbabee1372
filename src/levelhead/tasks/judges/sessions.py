"""Calibrating all judges that a recipe names, and keeping what came of it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

import httpx2

from levelhead.errors import InputError
from levelhead.recipe.judge import Judge, JudgeEndpoint, Judges
from levelhead.recipe.recipe import Recipe
from levelhead.recipe.task import JudgedSection, TaskSection
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.endpoint import BudgetError
from levelhead.tasks.judges.calibrate import calibrate, trial_of_grades
from levelhead.tasks.judges.calibrate_pairs import trial_of_pairs
from levelhead.tasks.judges.calibration import Entry, fingerprint, write_calibrations
from levelhead.tasks.judges.grader import JudgeGrader
from levelhead.tasks.judges.labelled import ORDERS, ORDERS_OF_PAIRS, labelled_cases
from levelhead.tasks.registry import make_rules
from levelhead.waiting import all_of

LENDERS = 4
"""Prompts that lend wrong answers, for each prompt that is asked about; no fewer than 24."""
PATIENCE_S = 15.0
"""Longest wait for a silent judge: whoever calibrates sits in front of it."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the calibration of a task's judges came to.

    Attributes:
        task: Its name.
        path: Where that is kept.
        used: Whether the recipe uses that file.
        entries: By judge.
    """

    task: str
    path: Path
    used: bool
    entries: dict[str, Entry]


def calibrate_recipe(
    recipe: Recipe,
    items: int,
    default: Path,
    *,
    fresh: bool = False,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[Session]:
    """Calibrate the judges of every task that has some, and write the files.

    Args:
        recipe: Names them.
        items: Prompts whose answers are made and graded.
        default: Where calibrations go unless the recipe says.
        fresh: Whether to ask everything anew, whatever caches hold.
        transport: Another way to the endpoints than the network, for tests.

    Raises:
        InputError: A task's data, a judge's key, function or cache cannot be used, no perfect answer is known, or the
            file cannot be written.
    """
    sessions: list[Session] = []
    for section in recipe.tasks:
        judges = _judges(section)
        if judges is None:
            continue
        if fresh:
            members = [
                m.model_copy(update={"cache": None}) if isinstance(m, JudgeEndpoint) else m for m in judges.members
            ]
            judges = judges.model_copy(update={"members": members})
        path = Path(judges.calibration).expanduser() if judges.calibration else default
        entries = asyncio.run(_calibrate(section, judges, items, recipe.seed, transport))
        sessions.append(Session(section.title, path, judges.calibration is not None, entries))
    for path in dict.fromkeys(one.path for one in sessions):
        write_calibrations(path, {one.task: one.entries for one in sessions if one.path == path})
    return sessions


async def _calibrate(
    section: TaskSection, judges: Judges, items: int, seed: int, transport: httpx2.AsyncBaseTransport | None
) -> dict[str, Entry]:
    rules = make_rules(section)
    if not isinstance(rules, SingleTurnTask):
        raise InputError(f"tasks[].judges: {rules.name} is no task of single answers")
    grader = JudgeGrader(
        rules, section.kind, judges.model_copy(update={"calibration": None, "combine": "mean"}), transport
    )
    stream = rules.prompts("train", derive(seed, "judges", rules.name))
    orders = ORDERS if judges.pairwise is None else ORDERS_OF_PAIRS
    cases = labelled_cases(rules, list(itertools.islice(stream, max(24, LENDERS * items))), items, orders)
    if not cases:
        raise InputError(f"tasks[].judges: {rules.name} knows no perfect answers to calibrate its judges on")
    members = [slot.member for slot in grader.panel.slots]
    trial = trial_of_grades if judges.pairwise is None else trial_of_pairs
    trials = [trial(grader, one, cases) for one in members]
    prints = [fingerprint(one, grader.asked_by, pairs=judges.pairwise is not None) for one in judges.members]
    calls = (
        calibrate(trial, print_, judges.standards, PATIENCE_S) for trial, print_ in zip(trials, prints, strict=True)
    )
    entries = dict(zip((one.title for one in members), await all_of(calls, BudgetError), strict=True))
    await grader.close()
    return entries


def _judges(section: TaskSection) -> Judges | None:
    """The judges of a task; one alone is a list of one."""
    if not isinstance(section, JudgedSection):
        return None
    if section.judge is None:
        return section.judges
    one: Judge = section.judge
    keys = {name: getattr(one, name) for name in JudgeEndpoint.model_fields}
    alone = [JudgeEndpoint.model_construct(**keys)]
    return Judges(members=alone, weight=one.weight, rubric=one.rubric, pairwise=one.pairwise)
