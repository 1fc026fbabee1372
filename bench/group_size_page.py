"""The page of the group-size experiment: tables and a picture from the cells that ``bench/group_size.py`` has run."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dots import Panel, figure

Row = Mapping[str, Any]

FATAL: dict[str, Any] = {
    "k": 2, "advantage": "grpo", "lr": 5e-3, "rollouts": 6, "budget": 360, "epochs": 1, "kl": 0.005, "entropy": 0.0,
}  # fmt: skip
"""What a line of the second study is told against."""


RESULTS = "collapse after an update | batches without a workflow | final validity | final reward"


def write(page: Path, rows: Sequence[Row]) -> None:
    """Put the tables between their marks on the page, and the picture beside it."""
    grid = [row for row in rows if row["study"] == "grid"]
    harsh = [row for row in rows if row["study"] == "harsh"]
    text = page.read_text(encoding="utf-8")
    for mark, table in (("grid", grid_table(grid)), ("harsh", harsh_table(harsh))):
        text = re.sub(
            f"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)",
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
    page.write_text(text, encoding="utf-8")
    if grid:
        page.with_suffix(".svg").write_text(picture(grid), encoding="utf-8")


def mean(values: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    numbers = list(values)
    return statistics.fmean(numbers), statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0


def share(values: Iterable[float]) -> str:
    middle, error = mean(values)
    return f"{middle:.1%} ± {error:.1%}"


def number(values: Iterable[float]) -> str:
    middle, error = mean(values)
    return f"{middle:.3f} ± {error:.3f}"


def grid_table(rows: Sequence[Row]) -> str:
    lines = [f"| learning rate | K | advantages | runs | {RESULTS} |", "|---|---|---|---|---|---|---|---|"]
    for lr, k, advantage in dict.fromkeys((row["lr"], row["k"], row["advantage"]) for row in sorted(rows, key=_order)):
        cells = [row for row in rows if (row["lr"], row["k"], row["advantage"]) == (lr, k, advantage)]
        lines.append(f"| {lr:g} | {k} | {advantage} | {len(cells)} | {_results(cells)} |")
    return "\n".join(lines)


def harsh_table(rows: Sequence[Row]) -> str:
    lines = [f"| what differs | updates | runs | runs lost | {RESULTS} |", "|---|---|---|---|---|---|---|---|"]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_differs(row), []).append(row)
    for words, cells in groups.items():
        lost = sum(row["validity"] < 0.5 for row in cells)
        updates = cells[0]["budget"] // cells[0]["rollouts"] * cells[0]["epochs"]
        lines.append(f"| {words} | {updates} | {len(cells)} | {lost} | {_results(cells)} |")
    return "\n".join(lines)


def _results(cells: Sequence[Row]) -> str:
    columns = [share(row["rate"] for row in cells), share(row["dead"] for row in cells)]
    columns += [share(row["validity"] for row in cells), number(row["reward"] for row in cells)]
    return " | ".join(columns)


def _differs(row: Row) -> str:
    """What sets a cell apart from the fatal configuration, in words."""
    words = []
    if row["k"] != FATAL["k"]:
        words.append(f"K={row['k']}")
    if row["advantage"] != FATAL["advantage"]:
        words.append(f"`{row['advantage']}`")
    problems = row["rollouts"] // row["k"]
    if problems != FATAL["rollouts"] // FATAL["k"]:
        words.append(f"{problems} problems a batch")
    if row["budget"] != FATAL["budget"]:
        words.append(f"{row['budget']} rollouts in all")
    words += [f"{name} {row[name]:g}" for name in ("lr", "epochs", "kl", "entropy") if row[name] != FATAL[name]]
    return ", ".join(words).replace("lr ", "learning rate ") or "nothing: the fatal configuration"


def picture(rows: Sequence[Row]) -> str:
    """Three measures by two learning rates."""
    advantages = list(dict.fromkeys(row["advantage"] for row in rows))
    rates = sorted({row["lr"] for row in rows})
    often = 0.04 * math.ceil(max(row["rate"] for row in rows) / 0.04)
    panels = []
    for measure, title, top in (
        ("rate", "collapse after an update", often),
        ("validity", "final validity", 1.0),
        ("reward", "final reward", 0.8),
    ):
        for lr in rates:
            points = {
                f"K={k}": [_point(rows, lr, k, advantage, measure) for advantage in advantages] for k in (2, 4, 8)
            }
            title_at = f"{title}, learning rate {lr:g}"
            panels.append(Panel(title_at, advantages, points, 0.0, top, percent=measure != "reward"))
    return figure(panels, len(rates), "Collapse, validity and reward by group size and advantage estimator")


def _point(rows: Sequence[Row], lr: float, k: int, advantage: str, measure: str) -> tuple[float, float] | None:
    cells = [row[measure] for row in rows if (row["lr"], row["k"], row["advantage"]) == (lr, k, advantage)]
    return mean(cells) if cells else None


def _order(row: Row) -> tuple[float, int]:
    return row["lr"], row["k"]
