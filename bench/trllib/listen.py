"""A run in TRL beside the callback: what it said and when, what was logged, and the table of a page."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

_TOLD = re.compile(r"step (\d+): \w+: [^(]*\(([a-z-]+), ")


class Recorder(TrainerCallback):
    """Keeps the rows that the trainer logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Keep a row; the summary of the run is none."""
        if logs and "train_runtime" not in logs:
            self.rows.append({**logs, "step": state.global_step})


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        match = _TOLD.match(record.getMessage())
        if match:
            self.said.setdefault(match[2], int(match[1]))


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().splitlines()[0][:200]
        if text not in self.texts:
            self.texts.append(text)


@contextmanager
def trainer_warnings() -> Iterator[list[str]]:
    """What TRL and transformers themselves warn of, each text once."""
    handler = _Warnings()
    logs = [logging.getLogger(name) for name in ("trl", "transformers", "py.warnings")]
    logging.captureWarnings(True)
    for log in logs:
        log.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logging.captureWarnings(False)
        for log in logs:
            log.removeHandler(handler)


@contextmanager
def listening() -> Iterator[dict[str, int]]:
    """The step at which the callback first told of each finding."""
    log = logging.getLogger("levelhead.integrations.trl.callback")
    listener, propagate = _Listener(), log.propagate
    log.addHandler(listener)
    log.propagate = False
    try:
        yield listener.said
    finally:
        log.removeHandler(listener)
        log.propagate = propagate


def findings(callback: Any) -> dict[str, list[Any]]:
    """Confidence, first bad step and severity of what the callback holds for wrong, most likely cause first."""
    diagnosis = callback.live.diagnosis
    return {
        f.code: [round(f.confidence, 3), f.first_step, f.severity] for f in diagnosis.findings if f.severity != "info"
    }


def write_between(page: Path, mark: str, text: str) -> None:
    """Put text between ``<!-- mark -->`` and ``<!-- end of mark -->``."""
    first, last = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(first)
    inside, _, after = rest.partition(last)
    if not inside:
        raise SystemExit(f"{page}: {first} and {last} are not there")
    page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")
