"""A run that is still going: the doctor shown every row of a training, and the doctor that follows a growing log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, Finding, diagnose
from levelhead.diagnosis.reward_trend import RewardTrend
from levelhead.diagnosis.trend import trend
from levelhead.doctor.readers.base import Reader, Translator, Unread
from levelhead.doctor.readers.collect import HistoryBuilder
from levelhead.doctor.readers.detect import HEAD, recognise
from levelhead.doctor.readers.sources import CHUNK, Log, open_reader, read_events, read_files
from levelhead.doctor.render import finding_line
from levelhead.doctor.report import SEVERITIES, Report
from levelhead.documents import require_regular
from levelhead.errors import InputError

PERSISTENCE = 3
"""Rows in a row for which a finding must stand before it is told: the first few rows say little."""
AT_ONCE = frozenset({"nonfinite"})
"""Findings that need no second row; after the first there may be none, for nothing can be sampled from NaN."""
SPREAD_ALONE = frozenset({"entropy-collapse"})
"""Findings about how much the policy varies, which say nothing of how good it is."""
BEHAVIOUR = frozenset(
    {
        "entropy-explosion",
        "gradient-spike",
        "kl-blowup",
        "length-collapse",
        "length-runaway",
        "length-truncation",
        "lr-too-high",
        "reference-drift",
    }
)
"""Findings about what the policy does otherwise than before, which may be what it learns."""
IN_ANY_ORDER = frozenset(
    {
        "deadlock",
        "eos-never",
        "judge-failure",
        "kl-blowup",
        "no-learning-signal-all-zero-reward",
        "nonfinite",
        "reward-errors",
        "zero-gradient-despite-signal",
    }
)
"""Findings that stand whatever the prompts are; others compare later prompts with earlier ones."""
YOUNG = 20
"""Rows of a reward before its not rising says anything."""
LOST = 0.5
"""Strength of a fall, or of a crash from a peak, from which the reward is lost."""
CAPACITY = 512
"""Readings a signal keeps before neighbours are merged: a diagnosis of that many takes about ten milliseconds."""


class Live:
    """A diagnosis that is kept up to date.

    Args:
        source: Format name of the trainer, whose keys and settings are used.
        leave_out: Canonical signals that the diagnosis must not see.
        capacity: Readings kept per signal.
        ordered: Prompts come in the order of the data set: that later ones earn less may be their own doing, and
            unless something is held out, only findings of :data:`IN_ANY_ORDER` count as standing.

    Attributes:
        history: The readings so far.
        diagnosis: The latest; ``None`` before the first row.
        standing: Rows for which a critical finding has now stood without a break; one of :data:`SPREAD_ALONE` counts
            only once the reward has fallen, one of :data:`BEHAVIOUR` then, or where the reward has not risen in
            :data:`YOUNG` rows or has no contrast left.
    """

    def __init__(
        self, source: str, leave_out: Iterable[str] = (), capacity: int = CAPACITY, ordered: bool = False
    ) -> None:
        self.history = History(capacity)
        self.diagnosis: Diagnosis | None = None
        self.standing = 0
        self._translator = Translator(source)
        self._left_out = frozenset(leave_out)
        self._ordered = ordered
        self._stood: dict[tuple[str, int], int] = {}
        self._told: dict[str, int] = {}

    def see(self, logs: Mapping[str, Any], step: float) -> list[Finding]:
        """Take a row; return the warnings and critical findings that are new, or graver than when last returned.

        A finding is returned when it has stood for :data:`PERSISTENCE` rows, one of :data:`AT_ONCE` at once.  Rows
        without a training metric (a summary, a line of settings) change nothing.

        Args:
            logs: What the trainer logged, under its own keys.
            step: The optimizer step.
        """
        row = self._translator.row(logs.items())
        if row is None or not math.isfinite(step):
            return []
        self.history.append(step, {k: v for k, v in row.values.items() if k not in self._left_out})
        self.history.place(row.epoch)
        self.diagnosis = diagnose(self.history)
        self.standing = self.standing + 1 if self._grave(self.diagnosis) else 0
        return self._news(self.diagnosis)

    def _grave(self, diagnosis: Diagnosis) -> bool:
        """Whether a critical finding stands that the reward bears out, or that needs no reward to be grave.

        Where prompts come in order, it must be one that they cannot bring about.
        """
        codes = {finding.code for finding in diagnosis.findings if finding.severity == "critical"}
        if self._ordered and not RewardTrend(self.history).held_out:
            return bool(codes & IN_ANY_ORDER)
        if diagnosis.verdict != "critical" or codes - SPREAD_ALONE - BEHAVIOUR:
            return diagnosis.verdict == "critical"
        series = self.history.series(metric.REWARD)
        reward = trend(series)
        if reward.n < 2 or max(reward.crash, reward.fall) > LOST:
            return True
        stuck = any(f.code == "reward-dead-groups" and f.severity != "info" for f in diagnosis.findings)
        risen = reward.n < YOUNG or _stands_above_its_beginning(series.values)
        return bool(codes & BEHAVIOUR) and (stuck or not risen)

    def _news(self, diagnosis: Diagnosis) -> list[Finding]:
        ranks = {f.code: SEVERITIES.index(f.severity) for f in diagnosis.findings}
        # What is critical is a warning too: a finding that grows graver has stood as a warning all along.
        at_least = [(code, rank) for code, worst in ranks.items() for rank in range(1, worst + 1)]
        self._stood = {key: self._stood.get(key, 0) + 1 for key in at_least}
        news = [
            f
            for f in diagnosis.findings
            if (rank := ranks[f.code]) > self._told.get(f.code, 0)
            and (f.code in AT_ONCE or self._stood[f.code, rank] >= PERSISTENCE)
        ]
        self._told.update((f.code, ranks[f.code]) for f in news)
        return news

    def report(self, source: str) -> Report | None:
        """The report on what was seen, ``None`` before the first row.

        Args:
            source: What to call the run in headings.
        """
        if self.diagnosis is None:
            return None
        return Report(Log(self._translator.source, self.history, Unread()), self.diagnosis, source)

    def describe(self, finding: Finding, language: Language = "en") -> str:
        """One line: what was found, how sure that is, since when, the latest row that shows it, the first remedy."""
        report = self.report("")
        return "" if report is None else finding_line(finding, report, language)


def _stands_above_its_beginning(values: Sequence[float]) -> bool:
    """Whether the newest third of the rewards lies above the first third by more than a standard error of the gap."""
    m = len(values) // 3
    if not m:
        return False
    return stats.mean(values[-m:]) - stats.mean(values[:m]) > stats.noise(values) * math.sqrt(2 / m)


_FILES = ("metrics.jsonl", "logging.jsonl")
_DOCUMENTS = ("trl-state", "json")
_MIN_ROWS_BETWEEN = 0.02


def follow(
    path: str | Path,
    layout: str | None = None,
    keys: Mapping[str, str] | None = None,
    every: float = 2.0,
    idle: Callable[[], bool] = lambda: True,
) -> Iterator[Report]:
    """Yield a report at first, and again whenever the verdict or the leading findings change.

    A file that shrinks (a rewritten ``trainer_state.json``, a rotated log) is read again from its beginning.

    Args:
        path: Log file, or a run folder with a ``metrics.jsonl``; it need not exist yet.
        layout: Name of the format; recognised by content when ``None``.
        keys: The user's own ``canonical -> raw key`` pairs.
        every: Seconds between looks.
        idle: Called after each look; ``False`` ends the following.

    Raises:
        InputError: If the path is a folder without a log that can be followed, or no regular file.
    """
    tail = _Tail(Path(path), layout, keys)
    last: tuple[object, ...] | None = None
    while True:
        if (diagnosis := tail.look()) is not None:
            state = _state(diagnosis)
            if state != last:
                last = state
                yield tail.report(diagnosis)
        if not idle():
            return
        time.sleep(every)


def _state(diagnosis: Diagnosis) -> tuple[object, ...]:
    worse = [(f.code, f.severity) for f in diagnosis.findings if f.severity != "info"]
    # Between the verdicts on a run without a fault a growing log may go to and fro.
    return (diagnosis.verdict if diagnosis.faulty else "", *worse[:3])


class _Tail:
    """The part of a file that has been read, and the history it gave."""

    def __init__(self, path: Path, layout: str | None, keys: Mapping[str, str] | None) -> None:
        self._path, self._layout, self._keys = path, layout, keys
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._seen: tuple[int, int] | None = None
        self._reader: Reader | None = None
        self._collector = HistoryBuilder(Unread())
        self._whole: Log | None = None
        self._judged = 0
        self._events: list[dict[str, Any]] = []
        self._events_seen = 0

    def _file(self) -> Path | None:
        if self._path.is_dir():
            for name in _FILES:
                if (self._path / name).is_file():
                    return self._path / name
            raise InputError(f"{self._path}: no {' or '.join(_FILES)} to follow; give the path of the log file itself")
        if self._path.exists():
            require_regular(self._path)  # a pipe or a device has no beginning to come back to
            return self._path
        return None

    def look(self) -> Diagnosis | None:
        """Read what is new; a diagnosis when there are rows or events that have not been judged."""
        file = self._file()
        if file is None:
            return None
        state = file.stat()
        if state.st_size < self._offset or (self._seen is not None and state.st_ino != self._seen[0]):
            self._begin()
        stamp = (state.st_ino, state.st_mtime_ns)
        if self._whole is not None or (self._offset == 0 and self._is_document(file)):
            if stamp == self._seen:
                return None
            self._whole = read_files([file], self._layout, self._keys)
            self._seen, self._offset = stamp, state.st_size
            return diagnose(self._whole.history) if self._whole.history.rows else None
        self._seen = stamp
        self._read_on(file)
        rows, told = self._collector.run.rows, self._read_events()
        # Judging a long history for every single row would cost more than it tells.
        if rows - self._judged < max(1, _MIN_ROWS_BETWEEN * self._judged) and not (told and rows):
            return None
        self._judged = rows
        return diagnose(self._collector.run, events=self._events)

    def _read_events(self) -> bool:
        """Read the events of a run folder where there are new ones; returns whether there are."""
        path = self._path / "events.jsonl"
        if not self._path.is_dir() or not path.is_file() or path.stat().st_mtime_ns == self._events_seen:
            return False
        self._events_seen = path.stat().st_mtime_ns
        self._events = read_events(path)
        return True

    def _is_document(self, file: Path) -> bool:
        """Whether the file is one JSON document, which is rewritten as a whole and not appended to."""
        with file.open("rb") as stream:
            return (self._layout or recognise(stream.read(HEAD))) in _DOCUMENTS

    def _read_on(self, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                stream.seek(self._offset)
                while chunk := stream.read(CHUNK):
                    self._offset += len(chunk)
                    if self._reader is None:
                        self._reader = open_reader(file, chunk[:HEAD], self._layout, self._keys)
                    for row in self._reader.feed(chunk):
                        self._collector.add(row)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error

    def report(self, diagnosis: Diagnosis) -> Report:
        """The report for a diagnosis of what was read so far."""
        if self._whole is not None:
            return Report(self._whole, diagnosis, str(self._path))
        reader = self._reader
        unread = reader.unread if reader else Unread()
        log = Log(reader.format if reader else "text", self._collector.run, unread, events=self._events)
        return Report(log, diagnosis, str(self._path))
