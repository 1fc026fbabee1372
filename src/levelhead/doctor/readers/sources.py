"""Which files of a path make up one run, and reading them into a history."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead.diagnosis.history import DEFAULT_CAPACITY, History
from levelhead.diagnosis.notice import printable
from levelhead.doctor.readers.base import Reader, Unread
from levelhead.doctor.readers.collect import HistoryBuilder
from levelhead.doctor.readers.detect import HEAD, make_reader, recognise
from levelhead.doctor.readers.lines import gunzip
from levelhead.doctor.readers.prose import Statement
from levelhead.documents import DocumentError, load_json, read_lines, require_regular
from levelhead.errors import InputError
from levelhead.message import Message, Phrase

CHUNK = 1 << 18
STDIN = "-"
"""The path that stands for standard input."""
_GZIP = b"\x1f\x8b"
_MOST_STEPS = 10**15
"""Beyond which a number is no step."""
_MAX_EVENTS = 1000
_MAX_CANDIDATES = 200
_NO_METRICS = Message("no training metrics found (read as {format}).", "没有找到训练指标\uff08识别为 {format}\uff09。")
_NO_ROW = Message(
    "no training metrics: the run ended before its first row.", "没有训练指标\uff1a训练在写出第一行之前就结束了。"
)
_NO_LOG = Message(
    "no log in this folder; give the path of the log file itself", "该文件夹中没有日志\uff0c请直接指定日志文件"
)
_NOTHING_THERE = Message("no such file or folder", "没有这个文件或文件夹")
_LAST_EVENT = Message("Its last event: {event}", "最后一个事件：{event}")
_NAME_IT = Message(
    "Name the format with --format, or the keys with --map reward=KEY --map loss=KEY.",
    "请用 --format 指明格式，或用 --map reward=KEY --map loss=KEY 指明键名。",
)
_OTHER_FILES = Message("other files of the folder: {count}", "文件夹中的其他文件\uff1a{count} 个")
_UNREADABLE = Message("cannot be read ({why})", "无法读取\uff08{why}\uff09")
LOG_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".log", ".txt", ".out", ".md", ".ipynb", ".gz")


@dataclass(slots=True)
class Log:
    """One run as it was read.

    Attributes:
        format: Name of the recognised (or given) format.
        history: Its readings.
        unread: What could not be read.
        files: The files it came from.
        events: What a guard did, from ``events.jsonl`` of our own runs.
        summary: Statistics of the whole run that were read instead of its course: signal to statistic to value.
        guesses: Signals whose key was judged by its words: the key, and how sure that is.
        strangers: Keys of numbers that mean no signal, and how often they stood there.
        statements: Faults that the text itself names, by finding.
        runs: Histories by name, where a table has a run a row or a column; the history is one of them.
    """

    format: str
    history: History
    unread: Unread
    files: list[Path] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, dict[str, float]] = field(default_factory=dict)
    guesses: dict[str, tuple[str, float]] = field(default_factory=dict)
    strangers: dict[str, int] = field(default_factory=dict)
    statements: dict[str, Statement] = field(default_factory=dict)
    runs: dict[str, History] = field(default_factory=dict)


def chunks_of(path: Path, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a file in pieces, gunzipped where it is gzipped.

    Raises:
        InputError: If it is no regular file, or cannot be read.
    """
    if str(path) == STDIN:
        yield from iter(lambda: sys.stdin.buffer.read(size), b"")
        return
    require_regular(path)
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            raw = iter(lambda: file.read(size), b"")
            yield from gunzip(raw) if head == _GZIP else raw
    except OSError as error:
        raise InputError(_of(path, _UNREADABLE(why=error.strerror or error))) from error


def _of(subject: object, why: Phrase) -> Phrase:
    return Phrase(f"{subject}: ", f"{subject}\uff1a") + why


def _value_name(path: Path) -> str:
    """Metric of a TensorBoard CSV, known by the file's name alone: ``run_train_reward.csv`` gives ``reward``."""
    stem = path.name.split(".")[0]
    for name in ("clipped_ratio", "mean_length", "grad_norm", "learning_rate", "reward_std", "step_time", "loss"):
        if stem.endswith(name):
            return name
    return stem.rsplit("train_", 1)[-1].rsplit("tag-", 1)[-1]


def open_reader(path: Path, head: bytes, layout: str | None, extra: Mapping[str, str] | None) -> Reader:
    """The reader for a file whose first bytes are ``head``."""
    return make_reader(layout or recognise(head), extra, _value_name(path))


def read_files(
    paths: Sequence[Path],
    layout: str | None = None,
    extra: Mapping[str, str] | None = None,
    capacity: int = DEFAULT_CAPACITY,
) -> Log:
    """Read files of one run into one history, column by column.

    Raises:
        InputError: If a file cannot be read.
    """
    unread = Unread()
    collector = HistoryBuilder(unread, capacity)
    formats: list[str] = []
    guesses: dict[str, tuple[str, float]] = {}
    strangers: dict[str, int] = {}
    statements: dict[str, Statement] = {}
    for path in paths:
        stream = chunks_of(path)
        first = next(stream, b"")
        reader = open_reader(path, first[:HEAD], layout, extra)
        formats.append(reader.format)
        for chunk in itertools.chain((first,), stream):
            for row in reader.feed(chunk):
                collector.add(row)
        for row in reader.close():
            collector.add(row)
        for sample in reader.unread.samples:
            unread.samples.append({"file": path.name, **sample} if len(paths) > 1 else sample)
        unread.count += reader.unread.count
        guesses.update(getattr(reader, "guesses", {}))
        statements.update(getattr(reader, "statements", {}))
        for name, times in getattr(reader, "strangers", {}).items():
            strangers[name] = strangers.get(name, 0) + times
    name = max(set(formats), key=formats.count) if formats else "text"
    history = collector.settle()
    guesses = {signal: guess for signal, guess in guesses.items() if signal in history}
    rest = (collector.summary, guesses, strangers, statements, collector.runs)
    return Log(name, history, unread, list(paths), [], *rest)


def read(
    path: str | Path,
    layout: str | None = None,
    extra: Mapping[str, str] | None = None,
    capacity: int = DEFAULT_CAPACITY,
) -> Log:
    """Read the run at ``path``: a log file, or a folder that a trainer wrote.

    Args:
        path: File or folder; :data:`STDIN` for standard input.
        layout: Name of the format; recognised by content when ``None``.
        extra: The user's own ``canonical -> raw key`` pairs.
        capacity: Readings kept per signal before neighbours are merged.

    Raises:
        InputError: If nothing is there, nothing can be read, or no metrics are found.
    """
    path = Path(path)
    if str(path) == STDIN:
        log = read_files([path], layout, extra, capacity)
        if not log.history.rows and not log.statements:
            raise InputError(_of("standard input", _NO_METRICS(format=repr(log.format))))
        return log
    if not path.exists():
        raise InputError(_of(path, _NOTHING_THERE()))
    folder = path.is_dir()
    log = _read_folder(path, layout, extra, capacity) if folder else read_files([path], layout, extra, capacity)
    if not log.history.rows and folder and (events := read_events(path / "events.jsonl")):
        last = events[-1]
        raise InputError(
            _of(path, _NO_ROW())
            + "\n"
            + _LAST_EVENT(event=f"{printable(last['code'], 80)}: {printable(last.get('message', ''))}")
        )
    if not log.history.rows and (folder or not log.statements):
        raise InputError(_of(path, _NO_METRICS(format=repr(log.format))) + "\n" + _NAME_IT())
    return log


def _read_folder(folder: Path, layout: str | None, extra: Mapping[str, str] | None, capacity: int) -> Log:
    for paths in _known_layouts(folder):
        log = read_files(paths, layout, extra, capacity)
        if log.history.rows:
            log.events = read_events(folder / "events.jsonl")
            return log
    candidates = [p for p in _walk(folder) if p.suffix in LOG_SUFFIXES and not p.name.startswith("events")]
    if not candidates:
        raise InputError(_of(folder, _NO_LOG()))
    best: Log | None = None
    for paths in _grouped(candidates):
        log = read_files(paths, layout, extra, capacity)
        if best is None or log.history.rows > best.history.rows:
            best = log
    if best is None:
        raise InputError(_of(folder, _NO_LOG()))
    if (others := len(candidates) - len(best.files)) > 0:
        best.unread.add(0, _OTHER_FILES(count=others))
    return best


def _walk(folder: Path, depth: int = 4) -> list[Path]:
    """Files under ``folder``, sorted, at most ``depth`` levels down and a bounded number of them."""
    files: list[Path] = []
    frontier = [(folder, 0)]
    while frontier and len(files) < _MAX_CANDIDATES * 10:
        current, level = frontier.pop()
        try:
            entries = sorted(current.iterdir())
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and level < depth:
                frontier.append((entry, level + 1))
            elif entry.is_file():
                files.append(entry)
    return sorted(files)


def _known_layouts(folder: Path) -> Iterator[list[Path]]:
    """File lists of the layouts that trainers write, the most telling first."""
    if (folder / "metrics.jsonl").is_file():
        yield [folder / "metrics.jsonl"]
    files = _walk(folder)
    parts = [p for p in files if p.name == "metrics.jsonl" and len(p.relative_to(folder).parts) == 2]
    if parts:
        yield parts
    if states := [p for p in files if p.name == "trainer_state.json"]:
        yield [max(states, key=_checkpoint_number)]
    if logging := [p for p in files if p.name == "logging.jsonl"]:
        yield [max(logging, key=lambda p: p.stat().st_mtime)]
    if wandb := [p for p in files if p.suffix == ".wandb"]:
        yield [max(wandb, key=lambda p: p.stat().st_size)]
    events: dict[Path, list[Path]] = {}
    for p in files:
        if "tfevents" in p.name:
            events.setdefault(p.parent, []).append(p)
    if events:
        yield max(events.values(), key=lambda paths: sum(p.stat().st_size for p in paths))


def _checkpoint_number(path: Path) -> tuple[int, str]:
    """Order of ``checkpoint-N/trainer_state.json``; one at the top of the folder is the final one."""
    name = path.parent.name
    digits = name.rsplit("-", 1)[-1]
    return (
        int(digits) if name.startswith("checkpoint-") and digits.isascii() and digits.isdigit() else 1 << 60,
        str(path),
    )


def _grouped(candidates: Sequence[Path]) -> list[list[Path]]:
    """Candidates one by one, except TensorBoard CSVs (a tag a file), which belong together."""
    together: list[Path] = []
    alone: list[Path] = []
    for path in candidates[:_MAX_CANDIDATES]:
        head = next(chunks_of(path, HEAD), b"") if path.suffix == ".csv" else b""
        (together if head and recognise(head) == "tensorboard-csv" else alone).append(path)
    return ([together] if together else []) + [[path] for path in alone]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Events of one of our own runs; what is no event is left out, and a step that is no number is 0.

    Empty where there is no such file.

    Of very many, the first and the last thousand: how trouble began, and how the run ended.
    """
    events: list[dict[str, Any]] = []
    newest: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)
    with contextlib.suppress(OSError, InputError):
        for line in read_lines(path):
            try:
                event = load_json(line)
            except DocumentError:
                continue
            if isinstance(event, dict) and isinstance(event.get("code"), str):
                (events if len(events) < _MAX_EVENTS else newest).append({**event, "step": _step(event.get("step"))})
    return [*events, *newest]


def _step(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return 0
    return given if abs(given) < _MOST_STEPS else 0
