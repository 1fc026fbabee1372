"""Real labelled logs as features, and figures over them with intervals by source."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import doctor_accuracy as accuracy
import numpy as np

from factorylib.evidence import Features, features_of

FIGURES = ("found", "top1", "top1_strict", "false_alarm")
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class RealLog:
    """One labelled log: its case as the doctor judges it today, the checklist's, and its features."""

    today: accuracy.Case
    checklist: accuracy.Case
    features: Features

    @property
    def source(self) -> str:
        return self.today.source

    def judged(self, findings: Sequence[tuple[str, float]]) -> accuracy.Case:
        """The same log with other findings."""
        return replace(self.today, codes=tuple(c for c, _ in findings), confidences=tuple(p for _, p in findings))


def load(folder: Path) -> list[RealLog]:
    """Every labelled log that the doctor can read."""
    today = accuracy.load(folder, accuracy.doctor)
    listed = {case.name: case for case in accuracy.load(folder, accuracy.checklist)}
    logs = []
    for case in today:
        path = next(p for p in sorted((folder / case.name).iterdir()) if p.name.startswith("log"))
        logs.append(RealLog(case, listed[case.name], features_of(path)))
    return logs


def first_ones(folder: Path) -> frozenset[str]:
    """Names of the logs that the doctor was first developed on, by the data's own README."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "were here first" in line)
    words = line.split(":")[0] + line.partition(";")[2]
    words = line[line.index(";") + 1 : line.index("were here first")] if ";" in line else words
    numbers: set[int] = set()
    for part in words.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    return frozenset(p.name for p in folder.iterdir() if p.is_dir() and int(p.name[:2]) in numbers)


def figures(cases: Sequence[accuracy.Case]) -> dict[str, float]:
    """Each figure, averaged over logs."""
    scores = [case.scores() for case in cases]
    values = {name: [s[name] for s in scores if name in s] for name in FIGURES}
    return {name: float(np.mean(own)) if own else float("nan") for name, own in values.items()}


def intervals(doctors: Mapping[str, Sequence[accuracy.Case]], base: str, seed: int = 0) -> dict[str, object]:
    """Figures of each doctor and their difference from ``base``, with 95% intervals by drawing sources."""
    names = sorted({case.source for case in doctors[base]})
    by = {who: {source: [c for c in cases if c.source == source] for source in names} for who, cases in doctors.items()}
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(names, len(names)) for _ in range(RESAMPLES)]
    tables = {who: [_table(own, picks) for picks in drawn] for who, own in by.items()}
    document: dict[str, object] = {}
    for who, cases in doctors.items():
        at = figures(cases)
        per_source = {k: v["per_source"] for k, v in accuracy.summary(cases).items() if k in FIGURES}
        document[who] = {
            name: {
                "per_log": at[name],
                "per_source": per_source[name],
                "interval": _middle([t[name] for t in tables[who]]),
                "against": _middle([t[name] - u[name] for t, u in zip(tables[who], tables[base], strict=True)]),
            }
            for name in FIGURES
        }
    return document


def _table(own: Mapping[str, Sequence[accuracy.Case]], picks: Sequence[str]) -> dict[str, float]:
    return figures([case for source in picks for case in own[source]])


def _middle(values: Sequence[float]) -> list[float]:
    return [float(v) for v in np.nanquantile(values, [0.025, 0.975])]


Judge = Callable[[RealLog], Sequence[tuple[str, float]]]


def case_rows(logs: Sequence[RealLog]) -> list[tuple[Features, frozenset[str], frozenset[str]]]:
    """Features with what is right and what is acceptable."""
    return [(log.features, log.today.right - {"healthy"}, log.today.acceptable) for log in logs]


def dump(path: Path, document: object) -> None:
    """Write a JSON document."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
