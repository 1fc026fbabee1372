"""The fault matrix: known bugs put into a tiny run on purpose, who catches each, how fast, and what it is called.

python bench/fault_matrix.py                            run every fault and the clean run, and print the table
python bench/fault_matrix.py advantages-negated none    some of it
python bench/fault_matrix.py --list                     every fault and what goes wrong
python bench/fault_matrix.py --out rows.jsonl           go on where the file was left, and append to it
python bench/fault_matrix.py --started                  train only what the preflight lets start
python bench/fault_matrix.py --set grpo.steps=12        change the probe

The faults stand in ``tests/faults/known``.  The exit code is 1 when a fault was caught by nobody, or the clean run by
somebody, and 2 for an argument that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults.known import FAULTS, KINDS  # noqa: E402
from faults.matrix import CLEAN, Row, matrix, preflight_complaints, table  # noqa: E402
from levelhead.errors import InputError  # noqa: E402


def listing() -> list[dict[str, object]]:
    """Every fault with its kind, what goes wrong and the settings that it needs."""
    return [
        {"fault": fault.name, "kind": KINDS[fault.kind], "story": fault.story, "set": list(fault.settings)}
        for fault in FAULTS.values()
    ]


def read_rows(path: Path) -> dict[str, Row]:
    """Read the rows that a file holds already, by fault; none where there is no such file.

    Raises:
        InputError: It holds other things.
    """
    if not path.is_file():
        return {}
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [Row(**{**row, "preflight": tuple(row["preflight"])}) for row in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"--out {path}: holds other things than rows of the matrix ({error})") from None
    return {row.fault: row for row in rows}


def run(names: Sequence[str], settings: Sequence[str], out: Path | None, started: bool) -> list[Row]:
    """Run what ``out`` does not hold yet; returns all rows, in the order of the faults."""
    rows = read_rows(out) if out else {}
    missing = [n for n in names or [*FAULTS, CLEAN.name] if n not in rows or not (rows[n].trained or started)]
    for row in matrix(missing, preflight_complaints, settings, anyway=not started):
        rows[row.fault] = row
        print(json.dumps(row.to_json()), file=sys.stderr, flush=True)
        if out:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_json()) + "\n")
    return [rows[name] for name in [*FAULTS, CLEAN.name] if name in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults; all and the clean run unless given")
    parser.add_argument("--list", action="store_true", help="name every known fault and run none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the probe's recipe")
    parser.add_argument("--started", action="store_true", help="train only what the preflight lets start")
    parser.add_argument("--out", type=Path, help="go on with, and append to, this file of JSON lines")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    options = parser.parse_args(arguments)
    if options.list:
        faults = listing()
        lines = [f"{fault['fault']}: {fault['story']} ({fault['kind']})" for fault in faults]
        print(json.dumps(faults) if options.json else "\n".join(lines))
        return 0
    try:
        rows = run(options.names, options.set, options.out, options.started)
    except InputError as error:
        print(f"fault_matrix: {error}", file=sys.stderr)
        return 2
    print(json.dumps([row.to_json() for row in rows]) if options.json else table(rows))
    wrong = [row.fault for row in rows if row.caught == (row.fault == CLEAN.name)]
    if wrong:
        print(f"fault_matrix: wrong about {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
