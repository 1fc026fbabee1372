"""A factory of labelled training runs, and a doctor whose confidences are fitted on them.

    python bench/factory.py make --pairs 1220 --seed 1 --logs runs/factory
    python bench/factory.py hear --logs runs/factory --table runs/factory.npz
    python bench/factory.py judge --table runs/factory.npz --real FOLDER --json runs/factory.json
    python bench/factory.py check --json runs/factory_check.json

``make`` simulates pairs of a sound run and of the same run with faults in it, and writes their logs as people paste
them.  ``hear`` reads the logs back and keeps what the doctor's detectors say of each.  ``judge`` compares the doctor as
it is, a checklist of thresholds, and a doctor whose weights are fitted: each task family left out in turn on the
factory, and each source left out in turn on real labelled logs (FOLDER, as for ``doctor_accuracy.py``).  ``check``
trains the fault lab's tiny transformer with faults that the factory has too, and compares what both show.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from factorylib import make, table


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["make", "hear", "judge", "check"])
    parser.add_argument("--pairs", type=int, default=1220)
    parser.add_argument("--first", type=int, default=0, help="number of the first pair, to go on from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, default=Path("runs/factory"))
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "results" / "factory.npz")
    parser.add_argument("--real", type=Path, default=Path("../shared/data/doctor"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    if options.stage == "make":
        options.logs.mkdir(parents=True, exist_ok=True)
        with (options.logs / make.INDEX).open("a" if options.first else "w", encoding="utf-8") as index:
            for case in make.make(range(options.first, options.pairs), options.seed, options.logs):
                index.write(json.dumps(asdict(case)) + "\n")
                index.flush()
    elif options.stage == "hear":
        table.save(options.table, list(make.hear(make.index_of(options.logs), options.logs)))
    elif options.stage == "check":
        from factorylib.check import compare

        document = compare()
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    else:
        from factorylib.judge import judge

        document = judge(table.load(options.table), options.real)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{options.stage}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
