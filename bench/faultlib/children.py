"""Runs in processes of their own, each with a time limit, whose results an interrupted bench keeps."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Job = Callable[[], Mapping[str, Any]]


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Rows of a file of JSON lines by their id; the last one of an id counts."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    rows = [json.loads(line) for line in lines]
    return {row["id"]: row for row in rows}


def make(out: Path, jobs: Iterable[tuple[str, Job]], limit: float) -> None:
    """Run each job that the file has no row of, one after another, and append its row.

    Children are forked, so that what they all import is imported once; nothing but imports may have happened before.

    Args:
        out: File of JSON lines.
        jobs: Id, and what makes a row.
        limit: Seconds that a job may take.
    """
    done = read(out)
    for identity, job in jobs:
        if identity in done:
            continue
        row = {"id": identity, **_child(job, limit)}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{identity}: {row.get('error') or 'done'} ({row['seconds']:.0f} s)", file=sys.stderr, flush=True)


def _child(job: Job, limit: float) -> dict[str, Any]:
    start = time.perf_counter()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, there))
    process.start()
    there.close()
    row: dict[str, Any] = {"error": f"no end within {limit:g} seconds"}
    try:
        if here.poll(limit):
            row = here.recv()
    except EOFError:
        row = {"error": "it ended without a result"}
    finally:
        process.kill()
        process.join()
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def _work(job: Job, there: Connection) -> None:
    try:
        row = dict(job())
    except BaseException as error:
        row = {"error": f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"}
    there.send(row)
    there.close()
    sys.stdout.flush()
    os._exit(0)
