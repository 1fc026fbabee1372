"""The Pareto front of some checkpoints for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelhead.diagnosis.notice import printable
from levelhead.errors import InputError
from levelhead.recipe import Recipe

FOLDERS = ("checkpoints/front", "front", "checkpoints", ".")
"""Where the checkpoints of a front are looked for, within a run's folder or the folder itself."""


def front_folders(place: Path) -> list[Path]:
    """Return the checkpoints of a run's front, oldest first: ``checkpoints/front/step-*`` of a run, or of a folder.

    Raises:
        InputError: There are none.
    """
    if not place.is_dir():
        raise InputError(f"{place}: no such folder; --front takes the folder of a run, or of its checkpoints/front")
    for name in FOLDERS:
        checkpoints = sorted(path for path in (place / name).glob("step-*") if path.is_dir())
        if checkpoints:
            return checkpoints
    raise InputError(
        f"{place}: no checkpoints of a front in {place / FOLDERS[0]}; a run keeps them with checkpoint.front: 4 (say)"
    )


def score_front(recipe: Recipe, folders: Sequence[Path], items: int | None) -> dict[str, Any]:
    """Score checkpoints on the same held-out items as the run did, and return the document of their front.

    Args:
        recipe: The run's.
        folders: Of the checkpoints.
        items: Held-out items a task; as the recipe says unless given.

    Raises:
        InputError: The recipe has fewer than two objectives, or a checkpoint does not fit it.
    """
    from levelhead.api import evaluate
    from levelhead.training.front import front_document

    results = [evaluate(recipe, folder, items=items, as_run=True)["run"] for folder in folders]
    return front_document(recipe, folders, results)


def show_front(console: Console, page: Mapping[str, Any]) -> None:
    """Print a front: a row a checkpoint, the hypervolume and the knee.

    Args:
        console: Where to.
        page: What :func:`score_front` returns.
    """
    names = [printable(str(name), 40) for name in page["objectives"]]
    table = Table("checkpoint", *names, "front", "chance", box=box.SIMPLE_HEAD)
    for row in page["points"]:
        scores = [f"{value:+.3f} ± {error:.3f}" for value, error in zip(row["values"], row["errors"], strict=True)]
        knee = " (knee)" if row["step"] == page["knee"] else ""
        cells = [
            printable(Path(str(row["weights"])).name, 80),
            *scores,
            f"yes{knee}" if row["front"] else "",
            f"{row['chance']:.0%}",
        ]
        table.add_row(*cells, style="bold" if row["front"] else "")
    console.print(table)
    if page["hypervolume"] is not None:
        around = "" if page["hypervolume_se"] is None else f" ± {round(page['hypervolume_se'], 12):.2g}"
        reference = ", ".join(f"{name} {value:g}" for name, value in zip(names, page["reference"], strict=True))
        console.print(Text(f"Hypervolume {page['hypervolume']:.4g}{around} above ({reference})."))
