"""Fuzz what reads files of unknown origin: the doctor on logs and run folders, reports, recipes, replies of an
endpoint.

Usage: ``python bench/fuzz.py [--count 2000] [--seed 0] [--targets logs,folders,reports,recipes,replies] [--json]``.
Each input depends on the seed, the target and its number alone; ``--only N --keep DIR`` makes one again and leaves it
in a folder.  Counted are crashes (a traceback, or an exit code that is not 0, 1 or 2), inputs that take longer than 5
seconds of processor time or more than 500 MB, and control characters that reach the terminal.  The exit code is 1 where
any of these is not zero.

The suite runs 300 inputs; ``make fuzz`` runs 100,000, for a night.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fuzzlib.guarded import prepare, run
from fuzzlib.targets import TARGETS

SHARES = {"logs": 0.45, "folders": 0.1, "reports": 0.03, "recipes": 0.07, "replies": 0.35}
"""Parts of the inputs that a target gets."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", type=int, help="run one input of the (single) target here, with its traceback")
    parser.add_argument("--keep", type=Path, help="where --only leaves the input")
    given = parser.parse_args()
    targets = given.targets.split(",")
    if given.only is not None:
        print(f"control characters: {prepare(targets[0], given.only, given.seed, given.keep or Path('fuzz-input'))}")
        return 0
    whole = sum(SHARES[target] for target in targets)
    tallies = {t: run(t, max(1, round(given.count * SHARES[t] / whole)), given.seed) for t in targets}
    if given.json:
        print(json.dumps({target: tally.to_json() for target, tally in tallies.items()}, indent=1))
    for target, tally in () if given.json else tallies.items():
        print(f"{target}: {json.dumps(tally.to_json(), indent=1)}")
    return int(not all(tally.sound for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
