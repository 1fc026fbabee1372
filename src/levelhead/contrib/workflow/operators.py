"""The catalogue of operators: what each takes, what it leaves behind, and what it is expected to cost."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Role(Enum):
    """What an operator does to the drafts and the verdict at hand.

    ``DRAFT``: problem (and the draft so far, if any) in, a new draft out.  ``JUDGE``: a draft in, a verdict on it out.
    ``REVISE``: a draft and the verdict on it in, a draft out.  ``FORMAT``: a draft in, the same answer in its final
    form out.  ``VOTE``: several drafts in, one out.
    """

    DRAFT = "draft"
    JUDGE = "judge"
    REVISE = "revise"
    FORMAT = "format"
    VOTE = "vote"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the language.

    Attributes:
        name: As it is written in a workflow.
        role: Its inputs and outputs.
        does: One line for a person, and for the prompt of a large policy.
        calls: Model calls one run makes at most.
        tokens: Prompt and completion tokens one run is expected to use on a problem of medium difficulty.
    """

    name: str
    role: Role
    does: str
    calls: int
    tokens: int


_CATALOGUE = (
    Operator("Custom", Role.DRAFT, "answers directly", calls=1, tokens=300),
    Operator("AnswerGenerate", Role.DRAFT, "thinks step by step, then answers", calls=1, tokens=450),
    Operator(
        "Programmer", Role.DRAFT, "writes a Python program, runs it, answers with its output", calls=2, tokens=700
    ),
    Operator("CustomCodeGenerate", Role.DRAFT, "writes the Python function that was asked for", calls=1, tokens=500),
    Operator("Test", Role.JUDGE, "writes checks for the draft and runs them", calls=1, tokens=400),
    Operator("Review", Role.JUDGE, "reads the draft and says whether it is right", calls=1, tokens=350),
    Operator("Revise", Role.REVISE, "repairs the draft after a Review or Test found a fault", calls=1, tokens=450),
    Operator("Format", Role.FORMAT, "reduces the draft to the bare answer", calls=1, tokens=150),
    Operator("ScEnsemble", Role.VOTE, "takes the answer that most drafts agree on", calls=0, tokens=0),
    Operator("MdEnsemble", Role.VOTE, "lets the model choose among the drafts", calls=3, tokens=600),
)
OPERATORS: Mapping[str, Operator] = MappingProxyType({operator.name: operator for operator in _CATALOGUE})
"""Every operator, by name, in the order in which it is documented."""


def nearest_operator(name: str) -> str | None:
    """Return the operator whose name looks most like a wrong one, or ``None`` where none does."""
    lowered = {operator.lower(): operator for operator in OPERATORS}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return lowered[matches[0]] if matches else None
