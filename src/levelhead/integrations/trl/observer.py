"""Callbacks of transformers beside a run of ours: each is called as TRL's trainer would call it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from levelhead.records import Decision, Event, StepRecord

STOPPED = "callback-stop"
"""Code of the event that a callback ended the run."""
UNHEARD = "callback-unheard"
"""Code of the event that a callback asked for what is done at fixed steps here."""
_UNHEARD = ("should_save", "should_evaluate", "should_epoch_stop")


class CallbackObserver:
    """Calls callbacks of transformers, and keeps their ``TrainerState``; ``should_training_stop`` ends the run.

    Steps are counted as TRL counts them, in optimizer updates.  Evaluations and checkpoints are shown once they are
    written: before the update that follows, or at the end.

    Args:
        callbacks: Instances or classes.
        args: The script's config.
        updates: Optimizer updates of a rollout batch.
        epoch: Rollout batches of a pass over the data; ``None`` where its length is not known.
    """

    def __init__(self, callbacks: Sequence[Any], args: Any, updates: int, epoch: float | None) -> None:
        self.callbacks: list[TrainerCallback] = [c() if isinstance(c, type) else c for c in callbacks]
        self.state, self.control = TrainerState(), TrainerControl()
        self.state.log_history = []
        self._args, self._updates, self._epoch = args, updates, epoch
        self._arguments: dict[str, Any] = {}
        self._folder: Path | None = None
        self._read, self._saved, self._within = 0, "", False
        self._call("on_init_end")

    def began(self, policy: Any, folder: Path, steps: int) -> None:
        """Take up the run, and what it logged before it was interrupted."""
        self._folder, self.state.max_steps = folder, steps * self._updates
        self._arguments = {"model": policy.model, "processing_class": policy.codec.tokenizer}
        self.state.log_history = [self._row(row) for row in self._rows() if row["stage"] != "sft"]
        self.state.global_step = max((int(row["step"]) for row in self.state.log_history), default=0)
        self._call("on_train_begin")

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        """Begin a step, unless this is a later update of it."""
        if not self._within:
            self._written()
            self._within = True
            self._call("on_step_begin")
        self._call("on_pre_optimizer_step")
        return self._decisions(record.step)

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        """End a step, and log its numbers under TRL's names."""
        row = self._row(record.to_json())
        self.state.global_step, self.state.epoch, self._within = row["step"], row.get("epoch", 0.0), False
        self._call("on_step_end")
        self.state.log_history.append(row)
        self._call("on_log", logs={name: value for name, value in row.items() if name != "step"})
        return self._decisions(record.step)

    def ended(self, metrics: dict[str, float]) -> None:
        """Log the metrics of the whole run."""
        self._written()
        self.state.log_history.append({**metrics, "step": self.state.global_step})
        self._call("on_log", logs=metrics)
        self._call("on_train_end")

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """A line of ``metrics.jsonl`` as TRL logs it; numbers of an evaluation begin with ``eval_``."""
        step = int(row["step"])
        epoch = {} if self._epoch is None else {"epoch": step / self._epoch}
        return {
            **{name.replace("eval/", "eval_"): value for name, value in row.items() if name != "stage"},
            **epoch,
            "step": step * self._updates,
        }

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Lines of ``metrics.jsonl`` since the last look."""
        path = Path() if self._folder is None else self._folder / "metrics.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                self._read += len(line)
                yield json.loads(line)

    def _written(self) -> None:
        """Show the evaluations and the checkpoint that were written since the last look."""
        for row in map(self._row, (row for row in self._rows() if row["stage"] == "eval")):
            self.state.log_history.append(row)
            self._call("on_evaluate", metrics=row)
        names = sorted(path.name for path in (self._folder or Path()).glob("checkpoints/step-*"))
        if names and names[-1] != self._saved:
            self._saved = names[-1]
            self._call("on_save")

    def _call(self, event: str, **more: Any) -> None:
        for callback in self.callbacks:
            answer = getattr(callback, event)(self._args, self.state, self.control, **self._arguments, **more)
            self.control = answer or self.control

    def _decisions(self, step: int) -> list[Decision]:
        unheard = [flag for flag in _UNHEARD if getattr(self.control, flag)]
        for flag in unheard:
            setattr(self.control, flag, False)
        text = f"a callback set {', '.join(unheard)}; save_steps and eval_steps say when that is done"
        decisions = [Decision("warn", Event(step, UNHEARD, "warning", text, "warn"))] if unheard else []
        if self.control.should_training_stop:
            event = Event(step, STOPPED, "info", "a callback set should_training_stop", "stop")
            decisions.append(Decision("stop", event))
        return decisions
