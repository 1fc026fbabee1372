"""The doctor as it is, a checklist, and a doctor with fitted weights: on factory and real logs, always held out."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import doctor_accuracy as accuracy
import numpy as np

from factorylib import real
from factorylib.fit import Model, Point, fit_all, platt, points_of
from factorylib.real import RealLog
from factorylib.table import Row
from factorylib.verdict import Doctor
from factorylib.worlds import WORLDS
from levelhead.diagnosis import ranking

RIDGES = ((3.0, 3.0), (30.0, 30.0), (30.0, 1e9), (300.0, 300.0))
"""Ridges on the arguments' weights and on those of the log as a whole; 1e9 leaves the latter out."""
FOLDS = 6
GRID = (0.0, 0.5, 1.0, 2.0)
CURVE = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
Points = Mapping[str, Sequence[Point]]
Findings = Sequence[tuple[str, float]]


def judge(rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    """All comparisons, as a JSON document."""
    rows = [row for row in rows if row[0].judged]
    ridges = {f"{a:g}/{b:g}": _loss_left_out(rows, (a, b)) for a, b in RIDGES}
    ridge = RIDGES[int(np.argmin([r["log_loss"] for r in ridges.values()]))]
    _say("ridges", ridges)
    fitted = fitted_left_out(rows, ridge)
    doctors = {
        "doctor": [case_of(row, Doctor({}).findings(row[1])) for row in rows],
        "checklist": [case_of(row, [(code, 1.0) for code in row[1].checklist]) for row in rows],
        "fitted": [case_of(row, fitted[i]) for i, row in enumerate(rows)],
    }
    logs = real.load(folder)
    models = fit_all(factory_points(rows), *ridge)
    document: dict[str, Any] = {
        "factory": summary(rows),
        "ridges": ridges,
        "ridge": ridge,
        "families_left_out": real.intervals(doctors, "doctor"),
        "confusion": {who: confusion(rows, cases) for who, cases in doctors.items() if who != "checklist"},
        "alarms_on_sound_runs": {who: alarms(rows, cases) for who, cases in doctors.items()},
        "calibration_factory": {who: reliability(cases) for who, cases in doctors.items() if who != "checklist"},
    }
    _say("families left out", document["families_left_out"])
    real_doctors = sources_left_out(logs, rows, models, ridge)
    first = real.first_ones(folder)
    later = {who: [c for c in cases if c.name not in first] for who, cases in real_doctors.items()}
    document |= {
        "sources_left_out": real.intervals(real_doctors, "doctor"),
        "sources_left_out_later_logs": real.intervals(later, "doctor"),
        "calibration_real": {who: reliability(cases) for who, cases in real_doctors.items() if who != "checklist"},
        "learning_curve": list(learning_curve(rows, logs, ridge)),
        "ranking": ranking_grid(rows, logs, ridge),
        "as_quiet_as_today": as_quiet(rows, ridge, real.figures(doctors["doctor"])["false_alarm"]),
        "contributions": contributions(logs, models),
    }
    _say("sources left out", document["sources_left_out"])
    return document


def _say(title: str, document: Any) -> None:
    print(title, file=sys.stderr)
    for name, value in document.items():
        if isinstance(value, dict) and "found" in value:
            value = {k: [round(v["per_log"], 3), *(round(x, 3) for x in v["interval"])] for k, v in value.items()}
        print("  ", name, value, file=sys.stderr)


def case_of(row: Row, findings: Findings) -> accuracy.Case:
    """A factory case, scored as real logs are; its family stands for its source."""
    case = row[0]
    codes, confidences = tuple(c for c, _ in findings), tuple(p for _, p in findings)
    return accuracy.Case(
        f"{case.pair}-{case.fault}", case.family, "factory", case.root, case.right, case.acceptable, codes, confidences
    )


def factory_points(rows: Sequence[Row]) -> Points:
    return points_of([(features, case.right, case.acceptable) for case, features in rows])


def _folds(families: Sequence[str], count: int) -> Iterator[frozenset[str]]:
    names = sorted(set(families))
    yield from (frozenset(names[i::count]) for i in range(count))


def _loss_left_out(rows: Sequence[Row], ridge: tuple[float, float]) -> dict[str, float]:
    """Log loss of candidate findings, by models that have not seen their family."""
    losses: list[float] = []
    for fold in _folds([case.family for case, _ in rows], FOLDS):
        doctor = Doctor(fit_all(factory_points([r for r in rows if r[0].family not in fold]), *ridge))
        for own in factory_points([r for r in rows if r[0].family in fold]).values():
            for point in own:
                odds = doctor.models.get(point.heard.code, Model()).log_odds(point.heard, point.context)
                losses.append(float(np.logaddexp(0, -odds if point.right else odds)))
    return {"log_loss": float(np.mean(losses)), "candidates": len(losses)}


def fitted_left_out(rows: Sequence[Row], ridge: tuple[float, float]) -> list[Findings]:
    """Findings of each case by a doctor fitted on all other families."""
    findings: list[Findings] = [[] for _ in rows]
    for family in sorted({case.family for case, _ in rows}):
        doctor = Doctor(fit_all(factory_points([r for r in rows if r[0].family != family]), *ridge))
        for i, (case, features) in enumerate(rows):
            if case.family == family:
                findings[i] = doctor.findings(features)
    return findings


def real_points(doctor: Doctor, logs: Sequence[RealLog]) -> list[tuple[float, float, float]]:
    """``(log-odds, right, weight)`` of candidates that would be reported, each source weighing the same."""
    size = Counter(log.source for log in logs)
    points = []
    for log, (features, right, acceptable) in zip(logs, real.case_rows(logs), strict=True):
        for code, odds in doctor.log_odds(features).items():
            if odds > -1.0 and (code in right or not right or code not in acceptable):
                points.append((odds, float(code in right), 2.0 / size[log.source]))
    return points


def calibrated(models: Mapping[str, Model], logs: Sequence[RealLog]) -> Doctor:
    """A doctor whose confidences are scaled on these logs."""
    slope, shift = platt(real_points(Doctor(models), logs))
    return Doctor(models, max(slope, 0.1), shift)


def sources_left_out(
    logs: Sequence[RealLog], rows: Sequence[Row], models: Mapping[str, Model], ridge: tuple[float, float]
) -> dict[str, list[accuracy.Case]]:
    """Real logs by every doctor, whatever is fitted on real logs without the log's own source.

    ``on factory`` has seen no real log; ``calibrated`` has slope and shift from them; ``with real`` has them among its
    cases too, together as heavy as a fifth of the factory; ``hand, calibrated`` is the doctor as it is with a slope and
    a shift.
    """
    cases: dict[str, list[accuracy.Case]] = defaultdict(list)
    factory = points_of([(f, c.right, c.acceptable) for c, f in rows])
    for source in sorted({log.source for log in logs}):
        rest = [log for log in logs if log.source != source]
        weight = 0.2 * len(rows) / len(rest)
        both = {code: list(own) for code, own in factory.items()}
        for code, own in points_of(real.case_rows(rest), weight).items():
            both.setdefault(code, []).extend(own)
        doctors = {
            "on factory": Doctor(models),
            "calibrated": calibrated(models, rest),
            "with real": Doctor(fit_all(both, *ridge)),
            "hand, calibrated": calibrated({}, rest),
        }
        for log in logs:
            if log.source == source:
                cases["doctor"].append(log.today)
                cases["checklist"].append(log.checklist)
                for name, doctor in doctors.items():
                    cases[name].append(log.judged(doctor.findings(log.features)))
    return dict(cases)


def as_quiet(rows: Sequence[Row], ridge: tuple[float, float], alarms: float) -> dict[str, float]:
    """Figures of the fitted doctor where its log-odds are lowered until it alarms as seldom as the one that ships."""
    doctors = {
        fold: Doctor(fit_all(factory_points([r for r in rows if r[0].family not in fold]), *ridge))
        for fold in _folds([case.family for case, _ in rows], FOLDS)
    }
    for shift in np.arange(0.0, 3.01, 0.1):
        cases = [
            case_of(row, Doctor(doctor.models, 1.0, -float(shift)).findings(row[1]))
            for fold, doctor in doctors.items()
            for row in rows
            if row[0].family in fold
        ]
        figures = real.figures(cases)
        if figures["false_alarm"] <= alarms:
            break
    return {"shift": -float(shift), **figures}


def ranking_grid(rows: Sequence[Row], logs: Sequence[RealLog], ridge: tuple[float, float]) -> list[dict[str, Any]]:
    """How often the first finding is right where causes and effects weigh more or less in the ranking than by hand.

    The confidences do not change, so that nothing but the order does.
    """
    judged: list[tuple[Row, Doctor]] = []
    for fold in _folds([case.family for case, _ in rows], FOLDS):
        doctor = Doctor(fit_all(factory_points([r for r in rows if r[0].family not in fold]), *ridge))
        judged += [(row, doctor) for row in rows if row[0].family in fold]
    hand, grid = Doctor({}), []
    before = ranking._EXPLAINS, ranking._EXPLAINED
    try:
        for gain in GRID:
            for loss in GRID:
                ranking._EXPLAINS, ranking._EXPLAINED = before[0] * gain, before[1] * loss
                own = [case_of(row, doctor.findings(row[1])) for row, doctor in judged]
                today = [case_of(row, hand.findings(row[1])) for row, _ in judged]
                real_ones = [log.judged(hand.findings(log.features)) for log in logs]
                grid.append(
                    {
                        "explains": gain,
                        "explained": loss,
                        **{
                            who: {name: real.figures(cases)[name] for name in ("top1", "top1_strict")}
                            for who, cases in (("fitted", own), ("doctor", today), ("doctor, real", real_ones))
                        },
                    }
                )
    finally:
        ranking._EXPLAINS, ranking._EXPLAINED = before
    return grid


def learning_curve(
    rows: Sequence[Row], logs: Sequence[RealLog], ridge: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Figures of models fitted on a part of the factory: on families left out, and on real logs."""
    for share in CURVE:
        rng = np.random.default_rng(5)
        pairs = sorted({case.pair for case, _ in rows})
        some = set(rng.choice(pairs, max(20, int(share * len(pairs))), replace=False).tolist())
        left_out: list[accuracy.Case] = []
        for fold in _folds(list(WORLDS), FOLDS):
            learn = [r for r in rows if r[0].family not in fold and r[0].pair in some]
            doctor = Doctor(fit_all(factory_points(learn), *ridge))
            left_out += [case_of(r, doctor.findings(r[1])) for r in rows if r[0].family in fold]
        whole = Doctor(fit_all(factory_points([r for r in rows if r[0].pair in some]), *ridge))
        yield {
            "pairs": len(some),
            "families_left_out": real.figures(left_out),
            "real": real.figures([log.judged(whole.findings(log.features)) for log in logs]),
        }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What the factory has made."""
    cases = [case for case, _ in rows]
    return {
        "cases": len(cases),
        "sound": sum(case.healthy for case in cases),
        "families": len({case.family for case in cases}),
        "faults": len({case.fault for case in cases if case.fault}),
        "by_root": dict(Counter(case.root for case in cases).most_common()),
        "by_form": dict(Counter(case.form for case in cases).most_common()),
    }


def confusion(rows: Sequence[Row], cases: Sequence[accuracy.Case]) -> dict[str, dict[str, int]]:
    """First finding by what was wrong."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for (case, _), judged in zip(rows, cases, strict=True):
        table[case.root][judged.codes[0] if judged.codes else "healthy"] += 1
    return {root: dict(row.most_common()) for root, row in sorted(table.items())}


def alarms(rows: Sequence[Row], cases: Sequence[accuracy.Case]) -> dict[str, Any]:
    """False alarms on sound runs: by their first finding, and by the kind of run."""
    codes: Counter[str] = Counter()
    kinds: dict[str, list[float]] = defaultdict(list)
    for (case, _), judged in zip(rows, cases, strict=True):
        if case.healthy:
            wrong = judged.scores()["false_alarm"]
            kinds[WORLDS[case.family].kind].append(wrong)
            codes.update([judged.codes[0]] if wrong else [])
    shares = {kind: [round(float(np.mean(v)), 4), len(v)] for kind, v in kinds.items()}
    return {"by_finding": dict(codes.most_common()), "by_kind": shares}


def reliability(cases: Sequence[accuracy.Case]) -> dict[str, Any]:
    """Said and right of warnings and critical findings, in three bins, and the Brier score."""
    points = [
        (p, float(code in case.right))
        for case in cases
        for code, p in zip(case.codes, case.confidences, strict=True)
        if code in case.right or code not in case.acceptable
    ]
    bins = []
    for low, high in ((0.0, 0.65), (0.65, 0.85), (0.85, 1.01)):
        own = [(p, y) for p, y in points if low <= p < high]
        if own:
            bins.append(
                [len(own), round(float(np.mean([p for p, _ in own])), 3), round(float(np.mean([y for _, y in own])), 3)]
            )
    return {"findings_said_right": bins, "brier": round(float(np.mean([(p - y) ** 2 for p, y in points])), 4)}


def contributions(logs: Sequence[RealLog], models: Mapping[str, Model], count: int = 10) -> list[dict[str, Any]]:
    """The first finding of some real logs with the three arguments that weigh most."""
    doctor = Doctor(models)
    shown = []
    for log in logs[:: max(1, len(logs) // count)][:count]:
        findings = doctor.findings(log.features)
        entry: dict[str, Any] = {"log": log.today.name, "label": log.today.root, "today": log.today.codes[:1]}
        if findings:
            heard = next(h for h in log.features.heard if h.code == findings[0][0])
            parts = models.get(heard.code, Model()).contributions(heard, log.features.context)
            largest = sorted(parts.items(), key=lambda item: -abs(item[1]))[:3]
            entry |= {"says": heard.code, "confidence": round(findings[0][1], 3), "because": dict(largest)}
        shown.append(entry)
    return shown
