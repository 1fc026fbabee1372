"""The simulator's model of how good operators are.  Every number stands here and in docs/experiments/workflow.md.

It is a model, not a measurement: the numbers were chosen so that different problems want different workflows, in the
direction that practice suggests (programs for arithmetic, tests for code, a clean final form for questions).  A draft
is in one of five states, which are the five correctness levels.  A hidden share of problems is *tricky*: drafts are
right less often there, and their wrong answers agree with each other, so that voting helps less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain


class Quality(IntEnum):
    """The state of a draft.

    ``NONE`` nothing usable, ``WRONG`` an answer but a wrong one, ``SLIP`` the right way with a slip in it (a sum, an
    edge case), ``FORM`` right but not in the form that was asked for, ``RIGHT``.
    """

    NONE = 0
    WRONG = 1
    SLIP = 2
    FORM = 3
    RIGHT = 4


@dataclass(frozen=True, slots=True)
class World:
    """What the simulator knows of a problem.

    Attributes:
        domain: Its domain.
        difficulty: Its difficulty.
        tricky: Whether it misleads.
    """

    domain: Domain
    difficulty: Difficulty
    tricky: bool = False

    @property
    def rank(self) -> int:
        """Return 0 for easy, 1 for medium, 2 for hard."""
        return DIFFICULTIES.index(self.difficulty)


Chances = tuple[tuple[float, Quality], ...]
"""A distribution over draft states: probabilities that sum to 1, and the states."""

TRICKY_SHARE = (0.05, 0.15, 0.25)
"""Share of tricky problems, by difficulty."""

TRICKY_FACTOR = 0.5
"""What the chance of a right draft is multiplied with on a tricky problem."""

DRAFT_RIGHT: dict[str, dict[Domain, tuple[float, float, float]]] = {
    "Custom": {"math": (0.80, 0.50, 0.22), "code": (0.50, 0.28, 0.12), "qa": (0.78, 0.52, 0.30)},
    "AnswerGenerate": {"math": (0.86, 0.62, 0.35), "code": (0.42, 0.25, 0.10), "qa": (0.86, 0.66, 0.42)},
    "Programmer": {"math": (0.94, 0.84, 0.66), "code": (0.55, 0.35, 0.18), "qa": (0.30, 0.18, 0.08)},
    "CustomCodeGenerate": {"math": (0.40, 0.25, 0.12), "code": (0.90, 0.66, 0.42), "qa": (0.08, 0.05, 0.02)},
}
"""Chance that a first draft is right on a problem that is not tricky, by difficulty."""

FAULTS: dict[Domain, tuple[float, float, float]] = {
    "math": (0.10, 0.45, 0.45),
    "code": (0.10, 0.45, 0.45),
    "qa": (0.50, 0.10, 0.40),
}
"""What a draft that is not right is, where there is one: shares of FORM, SLIP and WRONG."""

NO_DRAFT: dict[str, dict[Domain, float]] = {
    "Custom": {"math": 0.03, "code": 0.15, "qa": 0.03},
    "AnswerGenerate": {"math": 0.03, "code": 0.15, "qa": 0.03},
    "Programmer": {"math": 0.20, "code": 0.20, "qa": 0.40},
    "CustomCodeGenerate": {"math": 0.40, "code": 0.10, "qa": 0.60},
}
"""Share of the drafts that are not right which are nothing usable (a program that crashes, code where text is due)."""

HEAD_START: dict[str, float] = {"Custom": 0.10, "AnswerGenerate": 0.12, "Programmer": 0.25, "CustomCodeGenerate": 0.12}
"""Share of the chance to fail that a draft before this one takes away, if it was SLIP, FORM or RIGHT."""

NOTICES: dict[str, dict[Domain, tuple[float, float, float, float, float]]] = {
    "Review": {
        "math": (0.95, 0.45, 0.50, 0.40, 0.08),
        "code": (0.90, 0.50, 0.40, 0.30, 0.12),
        "qa": (0.95, 0.55, 0.50, 0.60, 0.06),
    },
    "Test": {
        "math": (0.95, 0.60, 0.60, 0.20, 0.08),
        "code": (1.00, 0.92, 0.85, 0.60, 0.03),
        "qa": (0.90, 0.25, 0.25, 0.20, 0.20),
    },
}
"""Chance that a fault is found, by the state of the draft from NONE to RIGHT (there it is a false alarm)."""

NOTICES_FACTOR = (1.0, 0.9, 0.75)
"""What the chance to find a real fault is multiplied with, by difficulty."""

REPAIRS: dict[Domain, tuple[float, float, float]] = {
    "math": (0.60, 0.50, 0.40),
    "code": (0.70, 0.60, 0.50),
    "qa": (0.60, 0.50, 0.40),
}
"""Chance that Revise makes a draft right whose fault was found by Review, by difficulty (SLIP and FORM)."""

REPAIRS_WRONG = 0.35
"""Factor on that chance for a draft that is WRONG or NONE."""

REPAIRS_AFTER_TEST: dict[Domain, float] = {"math": 1.1, "code": 1.3, "qa": 1.0}
"""Factor on that chance where a Test found the fault: a failing check says where to look."""

REPAIRS_UNTOLD = 0.2
"""Factor on that chance where the verdict found no fault, so that Revise does not know of it."""

SPOILS = {True: 0.25, False: 0.02}
"""Chance that Revise turns a right draft into a wrong one, after a false alarm and after a clear verdict."""

FORMATS = {"math": 0.90, "code": 0.30, "qa": 0.90}
"""Chance that Format turns FORM into RIGHT."""

FORMAT_SPOILS = {"math": 0.01, "code": 0.10, "qa": 0.01}
"""Chance that Format turns RIGHT into SLIP."""

AGREEMENT = {False: 0.45, True: 0.85}
"""Share of the drafts that are not right which agree on one answer, on plain and on tricky problems."""

JUDGEMENT = (3.0, 2.2, 1.6)
"""How many times likelier the model is to choose a right draft over another, by difficulty (MdEnsemble)."""

LENGTH = (0.8, 1.0, 1.3)
"""Factor on an operator's tokens, by difficulty."""


def tokens(operator: str, world: World) -> int:
    """Return the tokens one run of an operator uses."""
    return round(OPERATORS[operator].tokens * LENGTH[world.rank])


def draft(operator: str, world: World, before: Quality | None) -> Chances:
    """Return what a drafting operator writes, given the draft before it."""
    right = DRAFT_RIGHT[operator][world.domain][world.rank] * (TRICKY_FACTOR if world.tricky else 1.0)
    if before is not None and before >= Quality.SLIP:
        right = 1.0 - (1.0 - right) * (1.0 - HEAD_START[operator])
    wrong = 1.0 - right
    nothing = wrong * NO_DRAFT[operator][world.domain]
    rest = wrong - nothing
    form, slip, miss = FAULTS[world.domain]
    return (
        (nothing, Quality.NONE),
        (rest * miss, Quality.WRONG),
        (rest * slip, Quality.SLIP),
        (rest * form, Quality.FORM),
        (right, Quality.RIGHT),
    )


def notices(operator: str, world: World, quality: Quality) -> float:
    """Return the chance that a judging operator finds fault with a draft."""
    chance = NOTICES[operator][world.domain][quality]
    if quality is Quality.RIGHT:
        return chance
    return chance * NOTICES_FACTOR[world.rank] * (0.5 if world.tricky and operator == "Review" else 1.0)


def revise(world: World, quality: Quality, judge: str, fault: bool) -> Chances:
    """Return what Revise makes of a draft, given who judged it and whether a fault was found."""
    if quality is Quality.RIGHT:
        spoilt = SPOILS[fault]
        return ((spoilt, Quality.WRONG), (1.0 - spoilt, Quality.RIGHT))
    right = REPAIRS[world.domain][world.rank] * (1.0 if fault else REPAIRS_UNTOLD)
    if judge == "Test":
        right = min(1.0, right * REPAIRS_AFTER_TEST[world.domain])
    if quality <= Quality.WRONG:
        right *= REPAIRS_WRONG
        stays = (1.0 - right) / 2
        return ((stays, quality), (stays, Quality.SLIP), (right, Quality.RIGHT))
    return ((1.0 - right, quality), (right, Quality.RIGHT))


def reduce(world: World, quality: Quality) -> Chances:
    """Return what Format makes of a draft."""
    if quality is Quality.FORM:
        chance = FORMATS[world.domain]
        return ((1.0 - chance, quality), (chance, Quality.RIGHT))
    if quality is Quality.RIGHT:
        chance = FORMAT_SPOILS[world.domain]
        return ((chance, Quality.SLIP), (1.0 - chance, quality))
    return ((1.0, quality),)


def vote(operator: str, world: World, drafts: Sequence[Quality]) -> Chances:
    """Return which of several drafts an ensemble takes.

    ScEnsemble (self-consistency, Wang et al. 2023) takes the answer that most agree on: right ones (RIGHT and FORM)
    agree, of the others a share does.  Programs rarely agree to the letter, so on code it takes one by chance.
    MdEnsemble weighs each draft by how often the model would choose it.
    """
    good = [quality for quality in drafts if quality >= Quality.FORM]
    bad = [quality for quality in drafts if quality < Quality.FORM]
    if not good or not bad:
        chance = float(bool(good))
    elif operator == "MdEnsemble":
        weight = JUDGEMENT[world.rank] * len(good)
        chance = weight / (weight + len(bad))
    elif world.domain == "code":
        chance = len(good) / len(drafts)
    else:
        rivals = max(1.0, AGREEMENT[world.tricky] * len(bad))
        chance = 0.5 if len(good) == rivals else float(len(good) > rivals)
    return (*_share(good, chance), *_share(bad, 1.0 - chance))


def _share(drafts: Sequence[Quality], chance: float) -> Chances:
    return tuple((chance / len(drafts), quality) for quality in drafts) if chance > 0 else ()
