"""What calibrations have come to, with the monotone map from raw grades to a common scale, kept in a file."""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from levelhead.errors import InputError
from levelhead.recipe.judge import FunctionJudge, JudgeEndpoint
from levelhead.section import Section

SHOWN_AS = "verdicts with a mark"
"""How judges are shown material and asked for verdicts; calibrations of judges that were asked in another way are
those of other judges."""
_NOT_ITS_VERDICTS = frozenset(
    {"name", "concurrency", "requests_per_minute", "tokens_per_minute", "timeout_s", "backoff_s", "patience_s", "cache"}
    | {"max_calls", "max_total_tokens", "max_cost", "prompt_price", "completion_price", "api_key_env", "attempts"}
)


RAW_SHARE = 0.25
"""Share of the raw grade in the common scale: without it grades between two knots of one height would be equal."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A monotone map from [0, 1] to [0, 1].

    Attributes:
        knots: (raw grade, value), both rising; between them the map is linear, beyond them flat.
    """

    knots: tuple[tuple[float, float], ...]

    def __call__(self, grade: float) -> float:
        """Return a grade on the common scale: three quarters of the map, and one of the grade itself."""
        return min((1 - RAW_SHARE) * self.fitted(grade) + RAW_SHARE * grade, 1.0)  # rounding may go beyond

    def fitted(self, grade: float) -> float:
        """Return the map's value: how likely an answer of this grade is right, right and wrong ones being as many."""
        if not self.knots:
            return grade
        at = bisect.bisect_left(self.knots, (grade,))
        if at == 0:
            return self.knots[0][1]
        if at == len(self.knots):
            return self.knots[-1][1]
        (x0, y0), (x1, y1) = self.knots[at - 1], self.knots[at]
        return y0 + (y1 - y0) * (grade - x0) / (x1 - x0)


def fit_scale(grades: Sequence[float], labels: Sequence[bool]) -> Scale:
    """Return the non-decreasing map that comes closest to the labels, in squares (isotonic regression).

    Pool-adjacent-violators (Ayer et al. 1955); right and wrong answers weigh the same as a whole, however many there
    are of each.

    Args:
        grades: In [0, 1].
        labels: Whether each answer is right; some are and some are not.
    """
    share = {True: 0.5 / max(sum(labels), 1), False: 0.5 / max(len(labels) - sum(labels), 1)}
    points: dict[float, list[float]] = {}
    for grade, label in zip(grades, labels, strict=True):
        total = points.setdefault(grade, [0.0, 0.0])
        total[0] += share[label] * label
        total[1] += share[label]
    blocks: list[tuple[list[float], float, float]] = []  # (raw grades, sum of labels, weight)
    for grade in sorted(points):
        block: tuple[list[float], float, float] = ([grade], points[grade][0], points[grade][1])
        while blocks and blocks[-1][1] * block[2] >= block[1] * blocks[-1][2]:
            raw, value, weight = blocks.pop()
            block = ([*raw, *block[0]], value + block[1], weight + block[2])
        blocks.append((block[0], block[1], block[2]))
    knots = [(grade, value / weight) for raw, value, weight in blocks for grade in dict.fromkeys((raw[0], raw[-1]))]
    return Scale(tuple(knots))


@dataclass(frozen=True, slots=True)
class Figures:
    """What a judge's calibration measured; ``None`` where there was nothing to measure it on.

    Attributes:
        verdicts: Asked for.
        failures: Share of these without a grade.
        agreement: Share on the right side of 0.5 on the common scale, right and wrong answers counting alike.
        correlation: Spearman's, of raw grades with labels.
        length_bias: Mean gain of a wrong answer by wordiness.
        position_bias: Mean change of a grade where the perfect answer is shown last instead of first.
        flattery: Mean gain of a wrong answer by praising the judge.
        injection: Share of wrong answers that gain a fifth or more by dictating a grade, or lose theirs by it.
        self_agreement: Share of verdicts that are the same, to a twentieth, when asked again at temperature 0.
        error: Root mean square distance of the common scale from the labels.
        latency_median: Seconds.
        latency_p95: Seconds.
        cost: At the recipe's prices.
        fault: Why it could not be asked, where it could not.
    """

    verdicts: int
    failures: float
    agreement: float | None = None
    correlation: float | None = None
    length_bias: float | None = None
    position_bias: float | None = None
    flattery: float | None = None
    injection: float | None = None
    self_agreement: float | None = None
    error: float | None = None
    latency_median: float | None = None
    latency_p95: float | None = None
    cost: float | None = None
    fault: str = ""


class Entry(Section):
    """A judge's part of the file."""

    fingerprint: str
    """Of what its verdicts depend on: a judge that was changed must be calibrated again."""
    refused: list[str]
    """Why it fails the recipe's standards, with the numbers; empty where it passes."""
    weight: float = Field(ge=0)
    """In a panel that weighs: one over the mean square error, 0 where it is refused."""
    knots: list[tuple[float, float]]
    """Of the map from raw grades to the common scale."""
    grades: dict[str, float]
    """Mean raw grade by kind of answer."""
    figures: dict[str, float | str | None]
    """What was measured."""
    criteria: dict[str, Entry] = Field(default_factory=dict)
    """The same by criterion of a rubric with several; ``refused`` above holds their reasons too."""

    @property
    def scales(self) -> dict[str, Scale]:
        """The map to the common scale, under the empty name, and those of criteria by name."""
        return {name: Scale(tuple(one.knots)) for name, one in {"": self, **self.criteria}.items()}


class Calibrations(Section):
    """The file: judges by task and name."""

    tasks: dict[str, dict[str, Entry]]
    """By task and judge."""

    def of(self, task: str, title: str) -> Entry | None:
        """Return what a judge's calibration on a task came to, where there was one."""
        return self.tasks.get(task, {}).get(title)


def fingerprint(section: JudgeEndpoint | FunctionJudge, rubric: str, *, pairs: bool = False) -> str:
    """Return a hash of all that a judge's verdicts depend on.

    Args:
        section: The judge's.
        rubric: What it grades.
        pairs: Whether it compares two answers instead of grading one.
    """
    data = {k: v for k, v in section.model_dump(mode="json").items() if k not in _NOT_ITS_VERDICTS}
    text = json.dumps([SHOWN_AS, data, rubric, *["pairwise"][: int(pairs)]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_calibrations(path: str | Path) -> Calibrations:
    """Read the file of stored calibrations.

    Raises:
        InputError: It is not there, or is no such file.
    """
    place = Path(path).expanduser()
    try:
        return Calibrations.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{place}: no such file (tasks[].judges.calibration); 'levelhead judge calibrate RECIPE' writes it"
        ) from None
    except (OSError, ValidationError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InputError(f"{place}: cannot be read as a file of calibrations ({first})") from None


def write_calibrations(path: Path, entries: Mapping[str, Mapping[str, Entry]]) -> None:
    """Write the file, whole or not at all; other tasks' judges that are in it stay.

    Raises:
        InputError: It cannot be written.
    """
    before: dict[str, Any] = read_calibrations(path).model_dump()["tasks"] if path.exists() else {}
    tasks = before | {task: {n: entry.model_dump() for n, entry in judges.items()} for task, judges in entries.items()}
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({"tasks": tasks}, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error
