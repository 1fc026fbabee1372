"""The factory's features in one small file: what a detector said of a log, number by number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from factorylib.evidence import CONTEXT, Features, Heard
from factorylib.make import Case

SEVERITIES = ("info", "warning", "critical")
Row = tuple[Case, Features]


def save(path: Path, rows: Sequence[Row]) -> None:
    """Write cases and features; weights to three digits, as half-precision numbers."""
    heard = [(i, h) for i, (_, features) in enumerate(rows) for h in features.heard]
    codes = sorted({h.code for _, h in heard})
    keys = sorted({key for _, h in heard for key in h.arguments})
    arguments = [(j, keys.index(key), weight) for j, (_, h) in enumerate(heard) for key, weight in h.arguments.items()]
    cases = {
        name: [asdict(case)[name] for case, _ in rows]
        for name in ("family", "pair", "fault", "strength", "root", "form", "rows")
    }
    listed = sorted({code for _, f in rows for code in f.checklist})
    np.savez_compressed(
        path,
        listed=np.array(listed),
        checklist=np.array([[code in f.checklist for code in listed] for _, f in rows]),
        cases=np.frombuffer(json.dumps(cases).encode(), dtype=np.uint8),
        context=np.array([[f.context[name] for name in CONTEXT] for _, f in rows], dtype=np.float16),
        codes=np.array(codes),
        keys=np.array(keys),
        heard_case=np.array([i for i, _ in heard], dtype=np.uint16),
        heard_code=np.array([codes.index(h.code) for _, h in heard], dtype=np.uint8),
        heard_severity=np.array([SEVERITIES.index(h.severity) for _, h in heard], dtype=np.uint8),
        heard_step=np.array([np.nan if h.first_step is None else h.first_step for _, h in heard], dtype=np.float16),
        heard_trust=np.array([h.trust for _, h in heard], dtype=np.float16),
        argument_of=np.diff(np.array([j for j, _, _ in arguments]), prepend=0).astype(np.uint8),
        argument_key=np.array([k for _, k, _ in arguments], dtype=np.uint8),
        argument_weight=np.array([w for _, _, w in arguments], dtype=np.float16),
    )


def load(path: Path) -> list[Row]:
    """Read what ``save`` wrote."""
    with np.load(path) as data:
        columns = {name: data[name] for name in data.files}
    cases = json.loads(columns["cases"].tobytes())
    keys, codes = columns["keys"].tolist(), columns["codes"].tolist()
    arguments: list[dict[str, float]] = [{} for _ in columns["heard_case"]]
    owners = columns["argument_of"].astype(int).cumsum()
    for j, k, w in zip(
        owners.tolist(), columns["argument_key"].tolist(), columns["argument_weight"].tolist(), strict=True
    ):
        arguments[j][keys[k]] = w
    heard: list[list[Heard]] = [[] for _ in cases["pair"]]
    for j, i in enumerate(columns["heard_case"].tolist()):
        step = float(columns["heard_step"][j])
        heard[i].append(
            Heard(
                codes[columns["heard_code"][j]],
                arguments[j],
                SEVERITIES[columns["heard_severity"][j]],
                None if np.isnan(step) else step,
                float(columns["heard_trust"][j]),
            )
        )
    rows = []
    for i, context in enumerate(columns["context"].tolist()):
        case = Case(name="", **{name: values[i] for name, values in cases.items()})
        said = tuple(columns["listed"][columns["checklist"][i]].tolist())
        rows.append((case, Features(tuple(heard[i]), dict(zip(CONTEXT, context, strict=True)), said)))
    return rows
