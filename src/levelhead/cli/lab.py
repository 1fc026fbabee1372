"""``levelhead lab``: known bugs put in on purpose, to see who catches them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from levelhead.lab.matrix import Complaint, Row
    from levelhead.training.prepare import Setup

lab = typer.Typer(help="Put known bugs into a tiny run, and see who catches them.", no_args_is_help=True)


@lab.command("list")
def faults_list(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Name every known fault."""
    from levelhead.lab.faults import FAULTS, KINDS

    rows = [
        {"fault": f.name, "kind": KINDS[f.kind], "story": f.story, "set": list(f.settings)} for f in FAULTS.values()
    ]
    if as_json:
        say_json(rows)
        return
    for row in rows:
        say(f"{row['fault']}: {row['story']} ({row['kind']})")


@lab.command("faults")
def faults(
    names: Annotated[list[str] | None, typer.Argument(help="Faults to run.  [all]", show_default=False)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change the probe, as grpo.steps=12.", show_default=False)
    ] = None,
    started: Annotated[
        bool, typer.Option("--started", help="Train only what the preflight lets start; the rest is caught already.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Go on with, and append to, this file of JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Run the fault matrix: each known bug, who caught it, how fast, and what it was called.

    Exit code 1 when a fault was caught by nobody, or the clean run by somebody.
    """
    from levelhead.lab.faults import FAULTS
    from levelhead.lab.matrix import CLEAN, matrix, table

    rows = _read(out) if out else {}
    wanted = [n for n in names or [*FAULTS, CLEAN.name] if n not in rows or not (rows[n].trained or started)]
    for row in matrix(wanted, _check, settings or (), anyway=not started):
        rows[row.fault] = row
        say_json(row.to_json(), error=True)
        if out:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_json()) + "\n")
    order = [rows[name] for name in [*FAULTS, CLEAN.name] if name in rows]
    if as_json:
        say_json([row.to_json() for row in order])
    else:
        say(table(order))
    missed = [row.fault for row in order if row.caught == (row.fault == CLEAN.name)]
    if missed:
        say(f"levelhead: wrong about {', '.join(missed)}", error=True)
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Row]:
    """Rows that a file holds already, by fault."""
    from levelhead.lab.matrix import Row

    if not path.is_file():
        return {}
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [Row(**{**row, "preflight": tuple(row["preflight"])}) for row in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"--out {path}: holds other things than rows of the matrix ({error})") from None
    return {row.fault: row for row in rows}


def _check(setup: Setup) -> Sequence[Complaint]:
    """The preflight, as the matrix wants it; cost and speed are left out."""
    from levelhead.lab.matrix import Complaint
    from levelhead.preflight import preflight
    from levelhead.preflight.run import FAMILIES

    families = [name for name in FAMILIES if name not in ("memory", "throughput")]
    names = {"fail": "critical", "warn": "warning"}
    checks = preflight(setup, families=families).checks
    return [Complaint(check.name, names[check.status]) for check in checks if check.status in names]
