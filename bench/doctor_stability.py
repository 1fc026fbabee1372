"""How much the doctor's verdicts on labelled logs hang on its weights, its threshold and the rows it was given.

Usage: ``python bench/doctor_stability.py [FOLDER] [--json]``, FOLDER as for ``doctor_accuracy.py``.  Questions:

* **Weights.** Each argument's weight is multiplied by exp(0.25 g), g standard normal and drawn once for an argument of
  a finding: 200 other doctors.  Verdicts that hang on one hand-set number change.
* **Threshold.** The log-odds from which a run counts as unhealthy are chosen on all sources but one, and tried on that
  one.
* **Rows.** Parts of a log (halves, every second row, one signal left out) are judged as logs of their own.  A part of a
  healthy run is healthy; of an unhealthy run, every second row still shows what is the matter.
* **Noise and steps.** Every reading is multiplied by 1 + w g, fresh g for each; steps are multiplied.
* **Forms.** The rows are written as other trainers would have (``doctor_forms.py``), read back, and judged as the same
  signals in memory are.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import doctor_accuracy as accuracy
from doctor_forms import FORMS

from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Candidate, View
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, diagnose, too_fast, weigh
from levelhead.doctor.report import examine

DOCTORS = 200
WIDTH = 0.25
LEAST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Labelled:
    """A log with its label and what the detectors said before anything was weighed."""

    source: str
    root: str
    right: frozenset[str]
    acceptable: frozenset[str]
    view: View
    candidates: tuple[Candidate, ...]

    def figures(self, diagnosis: Diagnosis) -> dict[str, float]:
        """The figures of one verdict, named as in ``doctor_accuracy``."""
        codes = [f.code for f in diagnosis.findings if f.severity != "info"]
        if self.root == "healthy":
            return {"false_alarm": float(bool(codes) and codes[0] not in self.acceptable)}
        return {"found": float(bool(codes)), "top1": float(bool(codes) and codes[0] in self.right)}


def load(folder: Path) -> list[Labelled]:
    """Read every labelled log and ask the detectors about it."""
    cases = []
    for case in accuracy.load(folder, accuracy.doctor):
        log = next(p for p in sorted((folder / case.name).iterdir()) if p.name.startswith("log"))
        view = View(examine(log).history)
        candidates = [s for detector in DETECTORS for s in detector.examine(view)]
        candidates += too_fast(candidates, view)
        cases.append(Labelled(case.source, case.root, case.right, case.acceptable, view, tuple(candidates)))
    return cases


def averaged(results: Sequence[tuple[str, dict[str, float]]]) -> dict[str, float]:
    """Each figure, averaged within each source first."""
    by: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for source, figures in results:
        for name, value in figures.items():
            by[name][source].append(value)
    return {name: stats.mean([stats.mean(v) for v in sources.values()]) for name, sources in by.items()}


def shaken(logs: Sequence[Labelled], seed: int) -> dict[str, float]:
    """The figures of a doctor whose weights are all a little different."""
    rng = random.Random(seed)
    factors: dict[tuple[str, str], float] = defaultdict(lambda: math.exp(rng.gauss(0, WIDTH)))
    results = []
    for log in logs:
        other = [
            replace(s, evidence=[replace(c, weight=c.weight * factors[s.code, c.key]) for c in s.evidence])
            for s in log.candidates
        ]
        results.append((log.source, log.figures(weigh(other, log.view))))
    return averaged(results)


def worst_log_odds(log: Labelled) -> float:
    """The largest log-odds of any finding that is worse than a note and that the label does not call acceptable."""
    grave = [
        s.log_odds
        for s in log.candidates
        if s.evidence and (s.severity or CATALOGUE[s.code].severity) != "info" and s.code not in log.acceptable
    ]
    return max(grave, default=-10.0)


def held_out_threshold(logs: Sequence[Labelled]) -> dict[str, float]:
    """Found and false alarms when the threshold for a source is chosen on all others."""
    results = []
    for source in sorted({log.source for log in logs}):
        rest = [(worst_log_odds(log), log.root != "healthy") for log in logs if log.source != source]
        threshold = _best_threshold(rest)
        for log in logs:
            if log.source == source:
                unhealthy = worst_log_odds(log) >= threshold
                results.append((source, {"false_alarm" if log.root == "healthy" else "found": float(unhealthy)}))
    return averaged(results)


def _best_threshold(points: Sequence[tuple[float, bool]]) -> float:
    """The middle of the gap that tells unhealthy from healthy best, by found minus twice the false alarms."""
    marks = sorted({score for score, _ in points})
    gaps = [(a + b) / 2 for a, b in itertools.pairwise(marks)]
    unhealthy = max(1, sum(s for _, s in points))
    healthy = max(1, len(points) - sum(s for _, s in points))

    def worth(threshold: float) -> float:
        hits = sum(s and score >= threshold for score, s in points) / unhealthy
        return hits - 2 * sum(not s and score >= threshold for score, s in points) / healthy

    best = max(worth(gap) for gap in gaps)
    return stats.median([gap for gap in gaps if worth(gap) == best])


def rows_of(history: History) -> list[tuple[float, dict[str, float]]]:
    """The finite readings back as rows."""
    rows: dict[float, dict[str, float]] = defaultdict(dict)
    for name, series in history.columns.items():
        for step, value in zip(series.steps, series.values, strict=True):
            rows[step][name] = value
    return sorted(rows.items())


def parts(history: History) -> Iterator[tuple[str, History]]:
    """Parts of a log, each with its kind."""
    rows = rows_of(history)
    n = len(rows)
    yield "every second row", _history(rows[::2])
    for kind, start, stop in (
        ("first half", 0, n // 2),
        ("second half", n // 2, n),
        ("middle half", n // 4, 3 * n // 4),
    ):
        yield kind, _history(rows[start:stop])
    for name in history.columns:
        if name != "reward":
            yield (
                "one signal left out",
                _history([(step, {k: v for k, v in row.items() if k != name}) for step, row in rows]),
            )


def _history(rows: Sequence[tuple[float, dict[str, float]]]) -> History:
    history = History()
    for step, row in rows:
        history.append(step, row)
    return history


def of_parts(logs: Sequence[Labelled]) -> dict[str, dict[str, float]]:
    """Figures of the parts, by kind; halves are asked of healthy runs only."""
    results: dict[str, list[tuple[str, dict[str, float]]]] = defaultdict(list)
    for log in logs:
        # Readings that are not finite are kept as counts, and cannot be put back into rows.
        counted = any(series.bad.count for series in log.view.history.columns.values())
        if log.view.rows < LEAST_ROWS or counted:
            continue
        for kind, history in parts(log.view.history):
            if log.root == "healthy" or not kind.endswith("half"):
                results[kind].append((log.source, log.figures(diagnose(history))))
    return {kind: {**averaged(scores), "parts": len(scores)} for kind, scores in results.items()}


def noisy(rows: Sequence[tuple[float, dict[str, float]]], width: float, seed: int) -> History:
    """Every reading times 1 + ``width`` g; what is exactly 0 or 1 is a fact and not a measurement, and stays."""
    rng = random.Random(seed)
    changed = []
    for step, row in rows:
        other = {k: v if v in (0.0, 1.0) else v * (1 + width * rng.gauss(0, 1)) for k, v in row.items()}
        # A share stays one.
        changed.append((step, {k: min(v, 1.0) if 0 <= row[k] <= 1 and "ratio" in k else v for k, v in other.items()}))
    return _history(changed)


def whole(logs: Sequence[Labelled]) -> Iterator[tuple[Labelled, list[tuple[float, dict[str, float]]]]]:
    """Logs whose rows can be had back, with them."""
    for log in logs:
        if not any(series.bad.count for series in log.view.history.columns.values()):
            yield log, rows_of(log.view.history)


def of_noise(logs: Sequence[Labelled]) -> dict[str, dict[str, float]]:
    """Figures under noise, five draws a log, and with steps ten times as large."""
    results: dict[str, list[tuple[str, dict[str, float]]]] = defaultdict(list)
    for log, rows in whole(logs):
        for width in (0.05, 0.15):
            for seed in range(5):
                results[f"noise of {width:.0%}"].append((log.source, log.figures(diagnose(noisy(rows, width, seed)))))
        results["steps times 10"].append((log.source, log.figures(diagnose(_history([(10 * s, r) for s, r in rows])))))
    return {kind: {**averaged(scores), "logs": len(scores)} for kind, scores in results.items()}


def of_forms(logs: Sequence[Labelled]) -> dict[str, dict[str, float]]:
    """By form: how many logs it was tried on, and the share in which verdict and first finding are those of memory."""
    results: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for log, rows in whole(logs):
            for name, (suffix, write, carried) in FORMS.items():
                carried_rows = [(s, {k: v for k, v in r.items() if carried is None or k in carried}) for s, r in rows]
                carried_rows = [(s, r) for s, r in carried_rows if r and s == int(s)]
                if len({name for _, r in carried_rows for name in r}) < 3:
                    continue
                path = Path(folder) / f"log.{suffix}"
                path.write_text(write(carried_rows), encoding="utf-8")
                there, here = examine(path).diagnosis, diagnose(_history(carried_rows))
                same = (there.verdict, there.findings[0].code) == (here.verdict, here.findings[0].code)
                if not same and "--why" in sys.argv:
                    print(name, log.source, log.root, there.findings[0].code, here.findings[0].code, file=sys.stderr)
                results[name].append(float(same))
    return {name: {"same": stats.mean(scores), "logs": len(scores)} for name, scores in results.items()}


def main(arguments: Sequence[str]) -> None:
    """Print the answers."""
    folders = [a for a in arguments if not a.startswith("--")]
    logs = load(Path(folders[0]) if folders else accuracy.DEFAULT)
    others = [shaken(logs, seed) for seed in range(DOCTORS)]
    document = {
        "weights": {
            name: {"mean": stats.mean(values), "worst_of_20": stats.quantile(values, 0.95 if "alarm" in name else 0.05)}
            for name in others[0]
            if (values := [other[name] for other in others])
        },
        "threshold_held_out": held_out_threshold(logs),
        "parts": of_parts(logs),
        "noise": of_noise(logs),
        "forms": of_forms(logs),
        "doctors": DOCTORS,
    }
    if "--json" in arguments:
        print(json.dumps(document, indent=1))
        return
    for question, answer in document.items():
        print(question, json.dumps(answer, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
