"""What a reader of a public data set is made of: examples, verdicts on answers, and the data set itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.files import Row

Domain = Literal["math", "code", "qa"]
Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Example:
    """One question of a data set, with what its checker needs.

    Attributes:
        question: What the policy reads, a context or options included.
        answers: Right answers, any of which will do, each as its spans: one text, or several that belong together.
        solution: A perfect answer to train on; empty where the data hold none.
        key: The data's own id of the row; empty where they have none.
        id: Unique within what was loaded; the loader sets it.
        difficulty: How hard the data say it is, in three steps; ``medium`` where they do not.
        strata: What scores are told apart by.
        options: Options of a multiple choice, in the order of their letters.
        entry_point: Name of the function that was asked for (code).
        tests: Python that asserts what the function must do (code).
        preamble: Python that stands before the policy's program (code).
    """

    question: str
    answers: tuple[tuple[str, ...], ...]
    solution: str = ""
    key: str = ""
    id: str = ""
    difficulty: Difficulty = "medium"
    strata: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    entry_point: str = ""
    tests: str = ""
    preamble: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a checker says of one answer.

    Attributes:
        right: Whether the answer is right, as the data set's official metric counts it (exact match, all tests).
        score: Partial credit in [0, 1]: token F1, share of tests; 1 where it is right.
        stated: What was read as the answer; ``None`` where the text states none.
        note: Why it is not right, where that can be said.
    """

    right: bool
    score: float
    stated: str | None
    note: str = ""

    @property
    def level(self) -> float:
        """One of five levels: 1 right, 0.7 a score of at least 0.8, 0.4 of at least 0.4, 0.2 any answer, 0 none."""
        if self.right:
            return 1.0
        if self.stated is None:
            return 0.0
        return 0.7 if self.score >= 0.8 else 0.4 if self.score >= 0.4 else 0.2


Check = Callable[[Example, str, SandboxLimits | None], Verdict]
"""A checker: example, the policy's text, and the sandbox's limits where programs are run."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A public data set: where it comes from, what its rows hold, how they are read and answers checked.

    Attributes:
        name: Its name in recipes.
        title: Its name in the literature, with the paper.
        domain: What kind of question it asks.
        origin: Where the files come from.
        licence: Its licence, as its authors state it.
        schemas: The fields that a row needs, one tuple for every public shape of the data.
        parse: Reads the examples of a row.
        check: Judges an answer.
        instruction: Put under every question: how the answer is to be given.
        hub: Name on the Hugging Face hub, as ``hf:`` takes it; empty where no copy is the authors' own.
        hub_config: Configuration on the hub that is taken unless another is named.
        hub_split: Split on the hub that is taken unless another is named.
        suffixes: Endings by which the files of a folder are chosen.
        nested: Whether files lie in folders within the folder.
    """

    name: str
    title: str
    domain: Domain
    origin: str
    licence: str
    schemas: tuple[tuple[str, ...], ...]
    parse: Callable[[Row], Iterable[Example]]
    check: Check
    instruction: str
    hub: str = ""
    hub_config: str | None = None
    hub_split: str = "train"
    suffixes: tuple[str, ...] = (".jsonl", ".json", ".csv", ".parquet", ".gz")
    nested: bool = False


def options_text(options: Iterable[str]) -> str:
    """Return the options of a multiple choice, a line each, behind the letters A, B, C, ..."""
    return "\n".join(f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(options))
