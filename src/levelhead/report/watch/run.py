"""One run folder as the live page follows it: curves, events, findings, recipe, rollouts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelhead.diagnosis.findings import CATALOGUE, Language, wording
from levelhead.documents import DocumentError, dump_json, read_text
from levelhead.documents.yaml_text import load_yaml
from levelhead.errors import InputError
from levelhead.recipe.history import ABSENT, RECIPE, Change, History, compare, in_force
from levelhead.report.reading import MARKS_OF_A_RUN, NO_FOLDER, NO_RUN
from levelhead.report.watch.rollouts import Rollouts
from levelhead.report.watch.tail import Curves, Tail, leads_out

MOST_EVENTS = 5000
"""Events that are remembered; the newest ones."""
MOST_RUNS = 24
"""Runs on one page."""
LINKS = "not read, since they are links that lead out of the run's folder: {}"
_READ = (".jsonl", ".yaml", ".json", ".gz")
_MOST_LINKS = 20
_GROWTH = 1.02
"""How much a log must have grown for its findings to be worked out again."""


class WatchedRun:
    """A run folder that is being written.

    Args:
        folder: Of the run.
        name: For headings; unique on the page.

    Attributes:
        lock: Held by whoever reads curves and events; requests come on several threads.
        browsing: The same for the rollouts, so that curves go on while a search reads.
        curves: The numbers of ``metrics.jsonl``.
        rollouts: What the policy wrote.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.lock = threading.Lock()
        self.browsing = threading.Lock()
        self._judging = threading.Lock()
        self.curves = Curves()
        self.rollouts = Rollouts(folder / "rollouts")
        self._metrics = Tail(folder / "metrics.jsonl")
        self._log = Tail(folder / "events.jsonl")
        self._events: list[dict[str, Any]] = []
        self._dropped = 0
        self._epoch = 0
        self._judged: tuple[float, float] | None = None
        self._findings: dict[str, Any] = {}

    def look(self) -> None:
        """Read what is new of metrics and events."""
        rows, anew = self._metrics.look()
        if anew:
            self._epoch += 1 << 20  # above whatever epoch a single curve has reached
            self.curves.clear(self._epoch)
        for row in rows:
            self.curves.add(row)
        events, anew = self._log.look()
        if anew:
            self._epoch += 1 << 20
            self._events, self._dropped = [], 0
        self._events += events
        if len(self._events) > MOST_EVENTS:
            self._dropped += len(self._events) - MOST_EVENTS
            del self._events[:-MOST_EVENTS]

    def state(self) -> dict[str, Any]:
        """Return what the head of the page shows, names of curves included."""
        recipe = self.recipe()
        section = recipe.get(self.curves.stage)
        steps = section.get("steps") if isinstance(section, dict) else None
        return {
            "name": self.name,
            "folder": str(self.folder),
            "stage": self.curves.stage,
            "step": self.curves.step,
            "steps": steps if isinstance(steps, int) else None,
            "running": (self.folder / "run.lock").exists(),
            "rows": self.curves.rows,
            "events": self._dropped + len(self._events),
            "unreadable": self._metrics.broken + self._log.broken + len(self.links()),
            "names": self.curves.names(),
        }

    def events(self, epoch: int, count: int) -> dict[str, Any]:
        """Return the events behind the first ``count``, or all where the file was begun anew."""
        whole = self._dropped + len(self._events)
        start = max(count, self._dropped) if epoch == self._epoch and 0 <= count <= whole else self._dropped
        return {"epoch": self._epoch, "start": start, "events": self._events[start - self._dropped :]}

    def findings(self, language: Language = "en") -> dict[str, Any]:
        """Return what the doctor says, worked out again where the log has grown by a fiftieth or has new events."""
        with self._judging:
            size = float(self._metrics.offset), float(self._log.offset)
            judged = self._judged
            if judged is None or size[1] != judged[1] or not judged[0] <= size[0] < max(judged[0], 1) * _GROWTH:
                self._judged = size
                links = self.links()
                self._findings = _nothing(LINKS.format(", ".join(links))) if links else _examined(self.folder, language)
            return self._findings

    def links(self) -> list[str]:
        """Names of the run's files that are links to somewhere outside its folder; they are not read."""
        try:
            entries = [
                entry for entry in self.folder.iterdir() if entry.name.endswith(_READ) or entry.name == "rollouts"
            ]
        except OSError:
            return []
        return sorted(entry.name for entry in entries if leads_out(self.folder, entry))[:_MOST_LINKS]

    def recipe(self) -> dict[str, Any]:
        """The recipe in force as plain data; empty where it cannot be read."""
        return {} if self._newest() is None else in_force(self.folder)

    def _newest(self) -> str | None:
        """File of the recipe in force; ``None`` where it is a link that leads out of the folder."""
        newest = History(self.folder).newest or RECIPE
        return None if leads_out(self.folder, self.folder / newest) else newest

    def recipes(self) -> dict[str, Any]:
        """Return the text of the recipe in force, and what the run changed since its first one."""
        newest = self._newest()
        if newest is None:
            return {"name": self.name, "file": RECIPE, "text": "", "changes": []}
        try:
            text = read_text(self.folder / newest)
        except (InputError, OSError):
            text = ""
        linked = leads_out(self.folder, self.folder / RECIPE)
        changes = [] if newest == RECIPE or linked else compare(_plain(self.folder / RECIPE), self.recipe())
        return {"name": self.name, "file": newest, "text": text, "changes": [_change(one) for one in changes]}


def differences(runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
    """Return the keys in which the runs' recipes differ, with the value of each run, as text."""
    recipes = [run.recipe() for run in runs]
    values: dict[str, list[Any]] = {}
    for index, other in enumerate(recipes):
        for change in compare(recipes[0], other):
            values.setdefault(change.key, [change.before] * len(recipes))[index] = change.after
    return [{"key": key, "values": [_text(value) for value in row]} for key, row in values.items()]


def find_runs(paths: Sequence[Path]) -> list[WatchedRun]:
    """Return the runs at the paths: run folders, or folders of run folders.

    Raises:
        InputError: A folder is missing or holds no run, or there are too many of them.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(NO_FOLDER(folder=path))
        inside = [path] if _holds_run(path) else sorted(p for p in path.iterdir() if p.is_dir() and _holds_run(p))
        if not inside:
            raise InputError(NO_RUN(folder=path, files=", ".join(MARKS_OF_A_RUN)))
        folders.update(dict.fromkeys(folder.resolve() for folder in inside))
    if len(folders) > MOST_RUNS:
        raise InputError(f"{paths[0]}: {len(folders)} runs are too many for one page (at most {MOST_RUNS}); name some")
    return [WatchedRun(folder, name) for folder, name in zip(folders, _names(list(folders)), strict=True)]


def _holds_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS_OF_A_RUN)


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as tell them apart."""
    for depth in range(1, 8):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _nothing(note: str) -> dict[str, Any]:
    return {"verdict": "", "note": note, "findings": []}


def _examined(folder: Path, language: Language) -> dict[str, Any]:
    # Imported late: the doctor is the heaviest part, and the page opens on the curves.
    from levelhead.doctor.report import examine
    from levelhead.doctor.survey import first_line
    from levelhead.message import in_language_of

    try:
        report = examine(folder)
    except InputError as error:
        return _nothing(in_language_of(first_line(error, folder), language) if language != "en" else str(error))
    document = report.to_json(language)
    findings = []
    for finding, entry in zip(report.diagnosis.findings, document["findings"], strict=True):
        texts = CATALOGUE[finding.code]
        sides = {
            name: [
                wording(finding.code, one.key, one.numbers, language)
                for one in finding.evidence
                if one.weight * sign > 0
            ]
            for sign, name in ((1, "for"), (-1, "against"))
        }
        findings.append({**entry, **sides, "title": texts.title.get(language), "meaning": texts.meaning.get(language)})
    return {"verdict": document["verdict"], "rows": document["rows"], "note": "", "findings": findings}


def _plain(path: Path) -> dict[str, Any]:
    try:
        value = load_yaml(read_text(path))
    except (DocumentError, InputError, OSError):
        return {}
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else {}


def _change(change: Change) -> dict[str, str]:
    return {"key": change.key, "before": _text(change.before), "after": _text(change.after)}


def _text(value: Any) -> str:
    return "" if value is ABSENT else value if isinstance(value, str) else dump_json(value)
