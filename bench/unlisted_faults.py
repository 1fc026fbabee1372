"""Measure who catches faults that no check was written against; they stand in ``tests/faults/unlisted``.

python bench/unlisted_faults.py --out ROWS.jsonl [NAME ...]      run, each fault in a process of its own
python bench/unlisted_faults.py --out ROWS.jsonl --write before  write results and the page's tables under a label
python bench/unlisted_faults.py --out ROWS.jsonl --show NAME     all that was said of one fault

Rows go to ROWS.jsonl one by one, so that an interrupted bench goes on; runs are left in ROWS.runs/.  Each fault is held
against a sound run of the same settings: only what that run is not told counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faultlib.children import Job, make, read  # noqa: E402
from faultlib.judge import Verdict, judge  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "experiments" / "faults.md"
MARKS = ("<!-- unlisted -->", "<!-- end of unlisted -->")
LABELS = ("before", "after")
WORDS = {"stopped": "stopped", "warned": "warned", "guard": "guard or run", "doctor": "doctor", "nobody": "nobody"}


def jobs(names: Sequence[str], runs: Path) -> Iterator[tuple[str, Job]]:
    """Yield the sound run of every setting, then the faults."""
    from faults.unlisted import UNLISTED

    sound = {f"sound {probe_of(UNLISTED[name]).key}": name for name in names}
    for identity, name in sound.items():
        yield identity, partial(row_of, "sound", name, runs)
    for name in names:
        yield name, partial(row_of, "fault", name, runs)


def probe_of(fault: Any) -> Any:
    """Return the run that a fault is put into."""
    from faults.probes import Probe

    return Probe(fault.probe, fault.settings, fault.reward, fault.resumes)


def row_of(kind: str, name: str, runs: Path) -> dict[str, Any]:
    """Make one row: a fault's, or that of the sound run of its settings."""
    from faults.probes import difference, watch
    from faults.unlisted import UNLISTED

    fault = UNLISTED[name]
    probe = probe_of(fault)
    sound = runs / f"sound-{probe.key}"
    folder = sound if kind == "sound" else runs / name
    shutil.rmtree(folder, ignore_errors=True)
    if kind == "sound":
        return watch(probe, folder)
    with fault.change():
        said = watch(probe, folder)
    return {**said, "difference": difference(folder, sound)}


def verdicts(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Verdict]:
    """Return the verdict on every fault that has a row."""
    from faults.unlisted import UNLISTED

    return {
        name: judge(fault, rows[name], rows[f"sound {probe_of(fault).key}"])
        for name, fault in UNLISTED.items()
        if name in rows
    }


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write counts by class as Markdown: who saw a fault first, whether its cause was named, whether the aim is met."""
    from faults.unlisted import KINDS, UNLISTED

    lines = [
        "| class | faults | stopped | warned of | seen by guard or run | by the doctor | by nobody | named | aim |"
    ]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for kind, heading in [*KINDS.items(), (None, "**all**")]:
        selected = [results[n] for n, f in UNLISTED.items() if n in results and kind in (f.kind, None)]
        if selected:
            counts = [sum(v["caught"] == who for v in selected) for who in WORDS]
            more = [sum(bool(v["naming"]) for v in selected), sum(v["reached"] for v in selected)]
            lines.append(f"| {heading} | {' | '.join(map(str, [len(selected), *counts, *more]))} |")
    return "\n".join(lines)


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Write every fault as Markdown, a section a class; a column a label."""
    from faults.unlisted import KINDS, UNLISTED

    lines: list[str] = []
    for kind, heading in KINDS.items():
        faults = [f for f in UNLISTED.values() if f.kind == kind and any(f.name in rows for rows in results.values())]
        if not faults:
            continue
        lines += [f"### {heading[0].upper()}{heading[1:]}", ""]
        lines += [
            "| fault | what goes wrong | from | " + " | ".join(results) + " |",
            "|---|---|---|" + "---|" * len(results),
        ]
        for fault in faults:
            cells = [_cell(rows[fault.name]) if fault.name in rows else "" for rows in results.values()]
            threads = ", ".join(f"[{_short(thread)}]({thread})" for thread in fault.threads)
            lines.append(f"| `{fault.name}` | {fault.story} | {threads} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _short(thread: str) -> str:
    """``trl 3709`` for the address of a thread."""
    parts = thread.split("/")
    return f"{parts[-3]} {parts[-1]}"


def _cell(verdict: Mapping[str, Any]) -> str:
    if verdict["error"]:
        return f"not measured: {verdict['error']}"
    said = [f"stopped by `{verdict['failed'][0]}`"] if verdict["failed"] else []
    said += [f"warned of by `{verdict['warned'][0]}`"] if verdict["warned"] and not said else []
    said += [f"`{code}`, step {step}" for code, step in list(verdict["events"].items())[:1]]
    said += [f"ended: {verdict['ended'].split(':')[0]}"] if verdict["ended"] else []
    said += [f"doctor: `{verdict['doctor']}`"] if verdict["doctor"] else []
    text = "; ".join(said) or "nobody"
    return text + ("" if not said else " (**named**)" if verdict["naming"] else " (not named)")


def write(label: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a label's results, and the tables of all labels into the page."""
    said = verdicts(rows)
    if unchanged := [name for name, v in said.items() if not v.changed and not v.error]:
        print(f"these change nothing: {', '.join(unchanged)}", file=sys.stderr)
    results = {
        n: {**asdict(v), "caught": v.caught, "reached": v.reached, "run": _run(rows[n])} for n, v in said.items()
    }
    _file(label).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    by_label = {each: json.loads(_file(each).read_text(encoding="utf-8")) for each in LABELS if _file(each).is_file()}
    texts = [f"{each[0].upper()}{each[1:]}:\n\n{summary(rows)}\n" for each, rows in by_label.items()]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    body = "\n".join([*texts, table(by_label)])
    PAGE.write_text(f"{before}{MARKS[0]}\n{body}{MARKS[1]}{after}", encoding="utf-8")
    print(summary(results))


def _file(label: str) -> Path:
    return RESULTS / f"unlisted_faults_{label}.json"


def _run(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run besides its verdict."""
    return {"difference": row.get("difference"), "seconds": row["seconds"], "error": row.get("error")}


def main() -> None:
    """Run, write or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults; all unless given")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one run may take")
    parser.add_argument("--write", choices=LABELS, help="write results and page")
    parser.add_argument("--show", action="store_true", help="print what was said")
    given = parser.parse_args()
    from faults.unlisted import UNLISTED

    names = given.names or list(UNLISTED)
    if not given.write and not given.show:
        make(given.out, jobs(names, given.out.with_suffix(".runs")), given.limit)
    rows = read(given.out)
    if given.write:
        write(given.write, rows)
        return
    for name, verdict in verdicts({n: r for n, r in rows.items() if n in names or n.startswith("sound")}).items():
        print(json.dumps({"fault": name, "caught": verdict.caught, **asdict(verdict)}))
        if given.show:
            print(json.dumps(rows[name], indent=1))


if __name__ == "__main__":
    main()
