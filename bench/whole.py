"""Runs that are measured: a run that was interrupted or stopped returns as a whole one does, and is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def train_whole(recipe: Any, out: Path, **options: Any) -> None:
    """Train as :func:`levelhead.train` does.

    Raises:
        SystemExit: The run did not come to its end.
    """
    from levelhead.api import train

    outcome = train(recipe, out=out, **options).outcome
    if outcome != "done":
        raise SystemExit(f"{out}: the run is {outcome}, and not done")
