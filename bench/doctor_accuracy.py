"""How often the doctor is right on labelled logs, beside a checklist of fixed thresholds.

Usage: ``python bench/doctor_accuracy.py [FOLDER] [--json] [--markdown] [--fit]``.  FOLDER holds one folder a log, with
``log.*`` and ``label.json`` (``root_cause``, ``expected_findings``, ``acceptable_findings``, ``source``,
``label_basis``); it is ``../shared/data/doctor`` unless given.

An unhealthy run is *found* when the verdict is not healthy; *top-1* when the first finding is the root cause or one
of the expected findings (*strict*: the root cause itself); *any hit* when some warning or critical finding is.  A
healthy run is a *false alarm* when the verdict is not healthy and its first finding is not among the acceptable ones.
Logs of one source are not independent: every figure is also averaged per source.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import View
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import SHIFT, SLOPE, VERDICTS
from levelhead.doctor.report import Report, examine
from levelhead.errors import InputError

DEFAULT = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "doctor"
SCORES = ("found", "top1", "top1_strict", "any_hit")


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled log with what was said of it: codes best first, the verdict, and confidences by code."""

    name: str
    source: str
    basis: str
    root: str
    expected: frozenset[str]
    acceptable: frozenset[str]
    codes: tuple[str, ...]
    confidences: tuple[float, ...]

    @property
    def healthy(self) -> bool:
        return self.root == "healthy"

    @property
    def alarmed(self) -> bool:
        return bool(self.codes)

    @property
    def right(self) -> frozenset[str]:
        return self.expected | {self.root}

    def scores(self) -> dict[str, float]:
        """The figures of this log: of an unhealthy run what was hit, of a healthy one whether it was a false alarm."""
        if self.healthy:
            return {"false_alarm": float(self.alarmed and self.codes[0] not in self.acceptable)}
        return {
            "found": float(self.alarmed),
            "top1": float(self.alarmed and self.codes[0] in self.right),
            "top1_strict": float(self.alarmed and self.codes[0] == self.root),
            "any_hit": float(any(code in self.right for code in self.codes)),
        }


def doctor(report: Report) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Codes and confidences of the doctor's warnings and critical findings, best first."""
    grave = [f for f in report.diagnosis.findings if f.severity != "info"]
    return tuple(f.code for f in grave), tuple(f.confidence for f in grave)


def checklist(report: Report | View) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """What a list of fixed thresholds says: the mean of the last quarter of the rows against each."""
    history = report.history
    codes: list[str] = []
    if any(history.series(name).bad.count for name in ("grad_norm", "loss")):
        codes.append("nonfinite")
    if history.series("reward").values and max(map(abs, history.series("reward").values)) == 0:
        codes.append("no-learning-signal-all-zero-reward")
    limits = (
        ("frac_reward_zero_std", lambda v: v >= 0.9, "reward-dead-groups"),
        ("entropy", lambda v: v < 0.1, "entropy-collapse"),
        ("kl", lambda v: v > 1, "kl-blowup"),
        ("completions/clipped_ratio", lambda v: v > 0.5, "length-truncation"),
    )
    codes += [code for name, beyond, code in limits if (v := _last_quarter(history, name)) is not None and beyond(v)]
    gradient = history.series("grad_norm").values
    if gradient and max(gradient) > 10 * stats.median(gradient) > 0:
        codes.append("gradient-spike")
    return tuple(codes), tuple(1.0 for _ in codes)


def _last_quarter(history: History, name: str) -> float | None:
    values = history.series(name).values
    return stats.mean(values[-max(1, len(values) // 4) :]) if values else None


def _source(label: dict[str, Any]) -> str:
    """The repository that a log is from; the trainer where the label names none."""
    source = str(label["source"]).split(":")[0].split(" (")[0].split("#")[0]
    return source if "/" in source else f"a report on {label['framework'].split(' ')[0]}"


@functools.cache
def examined(folder: Path) -> Report | None:
    """The doctor's report on a labelled log; ``None``, said on stderr, where it cannot read the log."""
    log = next(p for p in sorted(folder.iterdir()) if p.name.startswith("log"))
    try:
        return examine(log)
    except InputError as error:
        first = str(error).partition("\n")[0]
        print(f"left out of every figure: {first}", file=sys.stderr)
        return None


def load(folder: Path, judge: Callable[[Report], tuple[tuple[str, ...], tuple[float, ...]]]) -> list[Case]:
    """Every labelled log under ``folder``, judged."""
    cases = []
    for label_file in sorted(folder.glob("*/label.json")):
        label = json.loads(label_file.read_text(encoding="utf-8"))
        report = examined(label_file.parent)
        if report is None:
            continue
        codes, confidences = judge(report)
        cases.append(
            Case(
                label_file.parent.name,
                _source(label),
                label.get("label_basis", ""),
                label["root_cause"],
                frozenset(label.get("expected_findings", ())),
                frozenset(label.get("acceptable_findings", ())),
                codes,
                confidences,
            )
        )
    return cases


def summary(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Each figure over logs, and averaged within each source first."""
    logs: dict[str, list[float]] = defaultdict(list)
    sources: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        for name, value in case.scores().items():
            logs[name].append(value)
            sources[name][case.source].append(value)
    return {
        name: {
            "per_log": stats.mean(values),
            "per_source": stats.mean([stats.mean(v) for v in sources[name].values()]),
            "logs": len(values),
            "sources": len(sources[name]),
        }
        for name, values in logs.items()
    }


def by_source(results: dict[str, list[Case]]) -> list[dict[str, Any]]:
    """One row a source: its logs, and beside each other what the doctor and the checklist made of them."""
    rows = []
    for source in sorted({case.source for case in results["doctor"]}):
        row: dict[str, Any] = {"source": source}
        for name, cases in results.items():
            own = [case for case in cases if case.source == source]
            row["unhealthy"] = sum(not case.healthy for case in own)
            row["healthy"] = sum(case.healthy for case in own)
            row[name] = {
                key: sum(case.scores().get(key, 0.0) for case in own)
                for key in ("found", "top1", "any_hit", "false_alarm")
            }
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table by source: counts, doctor / checklist."""
    lines = [
        "| source | unhealthy | found | top-1 | any hit | healthy | called unhealthy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        pairs = [
            f"{row['doctor'][key]:.0f} / {row['checklist'][key]:.0f}" if row[group] else ""
            for key, group in (
                ("found", "unhealthy"),
                ("top1", "unhealthy"),
                ("any_hit", "unhealthy"),
                ("false_alarm", "healthy"),
            )
        ]
        unhealthy, healthy = row["unhealthy"] or "", row["healthy"] or ""
        lines.append(f"| {row['source']} | {unhealthy} | {' | '.join(pairs[:3])} | {healthy} | {pairs[3]} |")
    return "\n".join(lines)


def judged_findings(folder: Path) -> list[tuple[str, float, float]]:
    """``(source, raw log-odds, right or wrong)`` of every finding of the doctor, the doubtful ones included."""
    points = []
    for label_file in sorted(folder.glob("*/label.json")):
        label = json.loads(label_file.read_text(encoding="utf-8"))
        report = examined(label_file.parent)
        fine = {label["root_cause"], *label.get("expected_findings", ()), *label.get("acceptable_findings", ())}
        for finding in report.diagnosis.findings if report is not None else ():
            if finding.code not in VERDICTS:
                p = min(max(finding.confidence, 1e-6), 1 - 1e-6)
                raw = (math.log(p / (1 - p)) - SHIFT) / SLOPE
                points.append((_source(label), raw, float(finding.code in fine)))
    return points


def fit(points: Sequence[tuple[str, float, float]], rounds: int = 4000) -> tuple[float, float]:
    """Platt scaling: slope and shift that minimise the log loss, held near (1, 0) by a Gaussian prior of width 0.5.

    The prior is there because the detectors were developed on the same logs: a free fit would believe them too much.
    """
    positive = sum(y for _, _, y in points)
    high, low = (positive + 1) / (positive + 2), 1 / (len(points) - positive + 2)
    slope, shift = 1.0, 0.0
    for _ in range(rounds):
        ds, db = 4 * (slope - 1), 4 * shift
        for _, x, y in points:
            error = stats.sigmoid(slope * x + shift) - (high if y else low)
            ds += error * x
            db += error
        slope -= 0.02 * ds / len(points)
        shift -= 0.02 * db / len(points)
    return slope, shift


def calibration(points: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Reliability in four bins and the Brier score: as shipped, and refitted with each source left out in turn."""
    shipped = [(stats.sigmoid(SLOPE * x + SHIFT), y) for _, x, y in points]
    held_out = []
    for source in sorted({s for s, _, _ in points}):
        slope, shift = fit([p for p in points if p[0] != source])
        held_out += [(stats.sigmoid(slope * x + shift), y) for s, x, y in points if s == source]
    edges = (0.0, 0.4, 0.65, 0.85, 1.001)
    bins = []
    for low, high in itertools.pairwise(edges):
        inside = [(p, y) for p, y in shipped if low <= p < high]
        if inside:
            said, true = stats.mean([p for p, _ in inside]), stats.mean([y for _, y in inside])
            bins.append({"from": low, "to": min(high, 1.0), "findings": len(inside), "said": said, "right": true})
    return {
        "bins": bins,
        "brier": stats.mean([(p - y) ** 2 for p, y in shipped]),
        "brier_held_out": stats.mean([(p - y) ** 2 for p, y in held_out]),
        "findings": len(points),
    }


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    folders = [a for a in arguments if not a.startswith("--")]
    folder = Path(folders[0]) if folders else DEFAULT
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder; give the folder with the labelled logs")
    points = judged_findings(folder)
    results = {"doctor": load(folder, doctor), "checklist": load(folder, checklist)}
    document = {name: summary(cases) for name, cases in results.items()}
    if "--json" in arguments:
        logs = [
            {
                "log": c.name,
                "source": c.source,
                "basis": c.basis,
                "label": c.root,
                "said": dict(zip(c.codes, c.confidences, strict=True)),
            }
            for c in results["doctor"]
        ]
        full = {**document, "calibration": calibration(points), "by_source": by_source(results), "logs": logs}
        print(json.dumps(full, indent=1))
        return
    if "--markdown" in arguments:
        print(markdown(by_source(results)))
        return
    for case in results["doctor"]:
        mark = "ok " if case.scores().get("top1", 1 - case.scores().get("false_alarm", 0)) else "BAD"
        print(f"{mark} {case.name[:38]:38} {case.basis:17} {case.root:36} {', '.join(case.codes[:3]) or 'healthy'}")
    for basis in ("", "stated-diagnosis", "author-outcome", "read-from-rows"):
        print(f"\n{basis or 'all logs'}")
        for name, cases in results.items():
            figures = summary([c for c in cases if not basis or c.basis == basis])
            shown = (
                f"{key} {100 * f['per_log']:.0f}% ({100 * f['per_source']:.0f}% per source, {f['logs']:.0f} logs)"
                for key, f in figures.items()
            )
            print(f"  {name:10} " + "; ".join(shown))
    print("\ncalibration:", json.dumps(calibration(points)))
    if "--fit" in arguments:
        print("fit (slope, shift):", fit(points))


if __name__ == "__main__":
    main(sys.argv[1:])
