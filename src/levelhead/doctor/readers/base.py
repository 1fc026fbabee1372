"""What every reader gives: rows under canonical names, and an account of what it could not read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, ClassVar, Protocol

from levelhead import metrics as metric
from levelhead.doctor.readers.keys import KeyMap
from levelhead.doctor.readers.values import LONGEST, NotANumberError, is_number, number_of, parse_pair
from levelhead.message import Message, Phrase

CORE = frozenset(
    {
        metric.LOSS,
        "policy_loss",
        metric.REWARD,
        metric.REWARD_STD,
        metric.ZERO_STD,
        metric.ENTROPY,
        metric.KL,
        "ppo_kl",
        metric.GRAD_NORM,
        metric.CLIP_REGION,
        metric.MEAN_LENGTH,
        metric.CLIPPED_RATIO,
        metric.VALIDITY,
        "mismatch/kl",
        "mismatch/prob_diff_mean",
        "mismatch/mult_prob_error",
        metric.LOGP_DIFFERENCE_MEAN,
        metric.IMPORTANCE_MEAN,
    }
)
"""Signals that make a row of training metrics a row."""


_WEAK = frozenset({metric.CLIP_REGION, metric.MEAN_LENGTH})
"""Core signals whose keys stand in configurations too, and make no row alone."""

SAMPLE = frozenset({"prompt", "completion", "response", "question", "answer", "text", "messages", "output"})
"""Keys of a printed sample: its rewards are one rollout's and not a step's."""

_SUMMARY = frozenset({"train_runtime", "train_samples_per_second", "total_flos", "train_steps_per_second"})
_FRACTIONS = frozenset({metric.ZERO_STD, metric.ALL_FAILED, metric.ALL_SOLVED, metric.CLIPPED_RATIO, metric.VALIDITY})
_EVALUATION = ("eval", "is_eval", "validation")
_NULL_IS_NAN = frozenset({metric.LOSS, "policy_loss", metric.GRAD_NORM, metric.KL, "ppo_kl", metric.ENTROPY})
"""Where these are null, sources that cannot write NaN (verl's JSON lines) or drop it (TRL's windows) mean NaN."""
_CUT_OR_CLIPPED = frozenset({"clip", "clip_ratio", "clip ratio"})
_CUT_NOT_CLIPPED = 0.45
"""Share under one of these names beyond which it is of answers that are cut: no update clips so many tokens."""
_MAX_UNREAD = 20
_MORE = Message("{rest} more", "还有 {rest} 处")
_MOST_OF_A_GROUP = 64
_MAX_STRANGERS = 200
_LONGEST_NAME = 60
_UNIX_TIME = 1e8
_MOST_STEPS = 1e15
"""Steps and epochs beyond it are no places in a run."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one line or record of the log says: readings of several signals at one step.

    Attributes:
        step: The step the source names; ``None`` where it names none.
        values: Canonical signal to number; NaN and infinities are kept, absent signals are absent.
        epoch: Where the source tells it; used to tell a restart from a continuation.
        line: Line (or record) of the source, counted from 1.
        statistic: ``first``, ``mean``, ``min``, ``max`` or ``last`` where the numbers are that of a whole run.
        part: Section, table or fenced block of a document that it stands in; rows of two parts may be of two runs.
        run: Name of its run, in a table that has a run a row or a column.
    """

    step: float | None
    values: Mapping[str, float]
    epoch: float | None = None
    line: int = 0
    statistic: str = ""
    part: int = 0
    run: str = ""


@dataclass(slots=True)
class Unread:
    """What could not be read: a bounded list of samples and a full count."""

    count: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: int, why: Phrase, text: str = "") -> None:
        """Count one item and keep it as a sample while there is room."""
        self.count += 1
        if len(self.samples) < _MAX_UNREAD:
            sample: dict[str, Any] = {"line": line, "why": why}
            if text:
                sample["text"] = text.strip()[:80]
            self.samples.append(sample)

    def to_json(self) -> list[dict[str, Any]]:
        """The samples, and a last entry that counts the rest."""
        rest = self.count - len(self.samples)
        return [*self.samples, {"line": 0, "why": _MORE(rest=rest)}] if rest > 0 else list(self.samples)


class Reader(Protocol):
    """A push parser: bytes in, rows out, in bounded memory."""

    format: str
    unread: Unread

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Yield the rows that ``chunk`` completes."""
        ...

    def close(self) -> Iterator[Row]:
        """Rows that were waiting for more input."""
        ...


class ExtensionReader(Reader, Protocol):
    """A reader that a package adds, as an entry point of ``levelhead.readers``.

    Attributes:
        signature: Stands in the first bytes of such a file, as text.
    """

    signature: ClassVar[re.Pattern[str]]

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        """Take the user's own ``canonical -> raw key`` pairs."""
        ...


class Translator:
    """Turns raw pairs of one source into rows.

    Args:
        source: Format name.
        extra: The user's own ``canonical -> raw key`` pairs.
    """

    def __init__(self, source: str, extra: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.keys = KeyMap(source, extra)
        self.guesses: dict[str, tuple[str, float]] = {}
        self.strangers: dict[str, int] = {}
        self._plain: set[str] = set()
        self._null_is_nan = source == "verl-file" or source.startswith("trl")

    def knows(self, raw: str) -> bool:
        """Whether ``raw`` is a signal (steps and epochs included)."""
        return self.keys.lookup(raw) is not None

    def name(self, raw: str) -> str:
        """Canonical name of the signal that ``raw`` is; empty where it is none."""
        target = self.keys.lookup(raw)
        return target.name if target else ""

    def row(self, pairs: Iterable[tuple[str, Any]], line: int = 0, least: int = 1) -> Row | None:
        """A row from raw pairs.

        ``None`` where fewer than ``least`` core signals are among them, and for a summary of the run or a sample.

        Args:
            pairs: Raw key and value: a number, or text that spells one.
            line: Where it stands in the source.
            least: Core signals wanted; 0 where the source logs nothing else.
        """
        values: dict[str, float] = {}
        ranks: dict[str, int] = {}
        evaluation = False
        lookup = self.keys.lookup
        for raw, value in pairs:
            if value is True and raw.lower() in _EVALUATION:
                evaluation = True
                continue
            target = lookup(raw)
            if target is None:
                self._stranger(raw, value)
                if raw in _SUMMARY or (raw.lower() in SAMPLE and _is_sample(value, "step" in values)):
                    return None
                continue
            name = target.name
            if name in ranks and ranks[name] <= target.rank:
                continue
            try:
                number: float | None = float(value)
                deviation = None
            except (TypeError, ValueError, OverflowError):
                number, deviation = self._number(value, name)
            if number is None or value is True or value is False:
                continue
            if name == metric.CLIP_REGION and number > _CUT_NOT_CLIPPED and raw.strip().lower() in _CUT_OR_CLIPPED:
                name = metric.CLIPPED_RATIO
            ranks[name] = target.rank
            if target.confidence == 1:
                self._plain.add(name)
                self.guesses.pop(name, None)
            elif name not in self._plain:
                self.guesses.setdefault(name, (raw, target.confidence))
            values[name] = target.apply(number) if target.transformed else number
            if deviation is not None and name == "reward" and "reward_std" not in values:
                values["reward_std"] = deviation
        return _finish(values, line, least, evaluation)

    def _stranger(self, raw: str, value: Any) -> None:
        """Count a number under a name that means nothing here; a bounded number of names."""
        if isinstance(value, str):
            is_one = len(value) <= LONGEST and is_number(value)
        else:
            is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_one:
            return
        name = raw.strip().strip("'\"*`").strip()[:_LONGEST_NAME]
        if name in self.strangers or len(self.strangers) < _MAX_STRANGERS:
            self.strangers[name] = self.strangers.get(name, 0) + 1

    def _number(self, value: Any, name: str) -> tuple[float | None, float | None]:
        """A number in some dress, with its deviation where it carries one; ``None`` where there is none."""
        if isinstance(value, str):
            try:
                number, deviation = parse_pair(value)
            except NotANumberError:
                return None, None
        elif isinstance(value, list) and name == metric.REWARD and 1 < len(value) <= _MOST_OF_A_GROUP:
            # The rewards of one group, each by itself.
            numbers = [number_of(one) for one in value if isinstance(one, (int, float))]
            rewards = [one for one in numbers if one is not None and math.isfinite(one)]
            return (fmean(rewards), stdev(rewards)) if len(rewards) == len(value) else (None, None)
        else:
            number, deviation = number_of(value), None
        if number is None and self._null_is_nan and name in _NULL_IS_NAN and value in (None, "None"):
            return math.nan, None
        return number, deviation


def _is_sample(value: Any, stepped: bool) -> bool:
    """Whether what stands under a sample's heading is one; in a row of a step a number there is a score of it."""
    return not is_number(value) if isinstance(value, str) and stepped else isinstance(value, (str, list))


def _finish(values: dict[str, float], line: int, least: int, evaluation: bool) -> Row | None:
    step, epoch = values.pop("step", None), values.pop("epoch", None)
    if step is not None and not abs(step) <= _MOST_STEPS:
        step = None
    if epoch is not None and not abs(epoch) <= _MOST_STEPS:
        epoch = None
    if abs(values.get(metric.STEP_TIME, 0.0)) > _UNIX_TIME:
        del values[metric.STEP_TIME]
    _shares(values)
    for name in _FRACTIONS & values.keys():
        if not -1e-6 <= values[name] <= 1.0 + 1e-6 and math.isfinite(values[name]):
            # A count under a fraction's name: its scale is unknown, and a reader never invents one.
            del values[name]
    if evaluation:
        values = {f"eval/{name}": v for name, v in values.items() if name == "reward" or name.startswith("rewards/")}
    return Row(step, values, epoch, line) if values and _enough(values, least) else None


def _shares(values: dict[str, float]) -> None:
    """Counts of groups become shares where the row tells of how many; counts alone are nobody's share."""
    mixed, total = values.pop("groups/mixed", None), values.pop("groups/count", None)
    dead = values.pop("dead_groups/count", None)
    if dead is not None and total and 0 <= dead <= total:
        values.setdefault(metric.ZERO_STD, dead / total)
    sides = [name for name in (metric.ALL_FAILED, metric.ALL_SOLVED) if name in values]
    if mixed is not None and len(sides) == 2:
        total = mixed + sum(values[name] for name in sides)
    counts = [values[name] for name in sides]
    if not any(count > 1 for count in (*counts, mixed or 0)):
        return
    for name in sides:
        count = values.pop(name)
        if total and 0 <= count <= total:
            values[name] = count / total


def _enough(values: Mapping[str, float], least: int) -> bool:
    """Whether ``least`` core signals are among the values, not all of them weak; named rewards and scores count."""
    core = CORE & values.keys()
    if least == 0 or (len(core) >= least and not core <= _WEAK):
        return True
    named = sum(name.startswith(("eval/", "rewards/")) for name in values)
    return len(core) + named >= least and (named > 0 or not core <= _WEAK)
