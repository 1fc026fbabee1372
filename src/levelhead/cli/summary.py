"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

STAGES = (("start", "untrained"), ("sft", "after SFT"), ("grpo", "after GRPO"))


def show_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Print held-out score, validity and length of each task after each stage."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Held-out results", title_justify="left")
    for column in ("task", "stage", "score", "validity", "length", "items"):
        table.add_column(column, justify="left" if column in ("task", "stage") else "right")
    for name, stages in summary.get("tasks", {}).items():
        shown = [(stages[key], label) for key, label in STAGES if key in stages]
        for row, (result, label) in enumerate(shown):
            table.add_row(
                name if row == 0 else "",
                label,
                f"{result['score']:+.3f} ± {result['se']:.3f}",
                f"{result['validity']:.1%}",
                f"{result['length']:.1f}",
                str(result["n"]),
                end_section=row == len(shown) - 1,
            )
    console = Console()
    console.print(table)
    if "seconds" in summary:
        console.print(f"{summary['seconds']:.0f} s in all; score ± standard error.  {folder / 'report.html'}")
