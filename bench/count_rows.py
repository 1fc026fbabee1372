"""Count the rows of real logs a second time, naively, and compare with what the doctor's readers read.

    python bench/count_rows.py FOLDER     # one log.* in each folder, as in a set of labelled logs

The second reader shares nothing with the first: it counts lines that are JSON objects, braces that hold a number, steps
that are named, and lines with numbers.  A log agrees where one of these counts is the doctor's number of rows; the
others are to be looked at by eye.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from levelhead.doctor.report import examine

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
STANDING = re.compile(rf"(?<![A-Za-z_])(?:{NUMBER})")
STEP = re.compile(r"(?i)\b(?:global_?step|step|iter(?:ation)?|train_step)\b\W{1,4}(\d+)")


def naive_counts(text: str) -> dict[str, int]:
    """Return what could be called the number of rows, by how it was counted."""
    lines = text.splitlines()
    steps = STEP.findall(text)
    return {
        "JSON objects": sum(one.strip().startswith("{") and one.strip().rstrip(",").endswith("}") for one in lines),
        "braces with a number": len(re.findall(r"\{[^{}]*:[^{}]*\d[^{}]*\}", text)),
        "named steps": len(set(steps)),
        "steps": len(steps),
        "lines with two numbers": sum(len(STANDING.findall(one)) > 1 for one in lines),
        "lines with a number": sum(bool(STANDING.search(one)) for one in lines),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    odd, logs = 0, sorted(parser.parse_args().folder.glob("*/log.*"))
    for log in logs:
        rows = examine(log).to_json()["rows"]
        counts = naive_counts(log.read_text(encoding="utf-8", errors="replace"))
        if rows not in counts.values():
            odd += 1
            print(f"{log.parent.name}: read {rows}; {', '.join(f'{n} {how}' for how, n in counts.items())}")
    print(f"{len(logs) - odd} of {len(logs)} agree")


if __name__ == "__main__":
    main()
