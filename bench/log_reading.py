"""How much of what stands in a text the doctor's readers find, by form: recall and precision over rendered logs.

Usage: ``python bench/log_reading.py [--count N] [--seed S] [--half developed|held-back|all] [--json] [--show FORM]``.
Known runs are written down in every form of ``tests/doctor/rendered.py`` (N logs a form), read back, and compared
reading by reader: signal, step (or statistic, or only the order where the text names no step) and value.

*Recall*: readings of the text that were found.  *Precision*: readings found that the text has.  *Whole*: logs of which
everything was found and nothing else.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from doctor.rendered import FORMS, Reading, Rendered, draw, halves
from levelhead.doctor.readers.sources import Log, read
from levelhead.errors import InputError


@dataclass(slots=True)
class Tally:
    """Counts of one form."""

    logs: int = 0
    whole: int = 0
    expected: int = 0
    hit: int = 0
    read: int = 0

    def add(self, expected: int, hit: int, read: int) -> None:
        """Count one log."""
        self.logs += 1
        self.whole += expected == hit == read
        self.expected += expected
        self.hit += hit
        self.read += read

    @property
    def recall(self) -> float:
        """Share of the readings in the texts that were found."""
        return self.hit / max(self.expected, 1)

    @property
    def precision(self) -> float:
        """Share of the readings found that stand in the texts."""
        return self.hit / self.read if self.read else 1.0


def readings_of(log: Log | None) -> list[Reading]:
    """Everything that was read: readings with their steps, and statistics with their names."""
    if log is None:
        return []
    summary = getattr(log, "summary", {})
    readings: list[Reading] = [
        (name, step, value)
        for name, column in log.history.columns.items()
        if name not in summary
        for step, value in zip(column.steps, column.values, strict=True)
    ]
    return readings + [(name, place, value) for name, row in summary.items() for place, value in row.items()]


def compare(rendered: Rendered, log: Log | None) -> tuple[int, int, int]:
    """Readings expected, hit and read; where the text names no step, a reading counts wherever it was put."""
    stepless = any(place is None for _, place, _ in rendered.readings)

    def keys(readings: list[Reading]) -> Counter[tuple[str, str, str]]:
        return Counter((name, "" if stepless else str(place), f"{value:.5g}") for name, place, value in readings)

    expected, got = keys(rendered.readings), keys(readings_of(log))
    return expected.total(), (expected & got).total(), got.total()


def trial(name: str, rng: random.Random, folder: Path) -> tuple[Rendered, Log | None]:
    """Render one run in a form, and read it."""
    rendered = FORMS[name](draw(rng), rng)
    path = folder / "log.txt"
    path.write_text(rendered.text, encoding="utf-8")
    try:
        return rendered, read(path)
    except InputError:
        return rendered, None


def measure(names: list[str], count: int, seed: int) -> dict[str, Tally]:
    """Tallies by form of ``count`` logs each."""
    tallies = {name: Tally() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for name, tally in tallies.items():
            for i in range(count):
                tally.add(*compare(*trial(name, random.Random(f"{seed}-{name}-{i}"), Path(folder))))
    return tallies


def _show(name: str, seed: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            rendered, log = trial(name, random.Random(f"{seed}-{name}-{i}"), Path(folder))
            expected, hit, read_count = compare(rendered, log)
            if not expected == hit == read_count:
                print(f"--- {name} {i}: expected {expected}, hit {hit}, read {read_count}\n{rendered.text[:900]}")
                print("missing:", sorted(set(rendered.readings) - set(readings_of(log)), key=str)[:6])
                print("surplus:", sorted(set(readings_of(log)) - set(rendered.readings), key=str)[:6])
                return


def main(arguments: list[str]) -> None:
    """Print the table."""

    def option(name: str, default: str) -> str:
        return arguments[arguments.index(name) + 1] if name in arguments else default

    count, seed, half = int(option("--count", "100")), int(option("--seed", "1")), option("--half", "all")
    if "--show" in arguments:
        _show(option("--show", ""), seed, count)
        return
    developed, held_back = halves()
    names = {"developed": developed, "held-back": held_back}.get(half, list(FORMS))
    tallies = measure(names, count, seed)
    if "--json" in arguments:
        print(
            json.dumps(
                {
                    n: {"recall": t.recall, "precision": t.precision, "whole": t.whole / t.logs}
                    for n, t in tallies.items()
                }
            )
        )
        return
    for title, group in (("developed on", developed), ("held back", held_back)):
        members = {name: tallies[name] for name in group if name in tallies}
        if not members:
            continue
        print(f"{title}: {len(members)} forms of {count} logs")
        for name, t in members.items():
            print(f"  {name:28} recall {t.recall:6.1%}  precision {t.precision:6.1%}  whole {t.whole / t.logs:6.1%}")
        means = [sum(getattr(t, key) for t in members.values()) / len(members) for key in ("recall", "precision")]
        whole = sum(t.whole for t in members.values()) / sum(t.logs for t in members.values())
        print(f"  {'mean over forms':28} recall {means[0]:6.1%}  precision {means[1]:6.1%}  whole {whole:6.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
