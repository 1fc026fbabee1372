"""The doctor as a callback of TRL's trainers: findings while they train, a stop if wished, a report at the end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from levelhead import metrics as metric
from levelhead.diagnosis.findings import Language
from levelhead.doctor.live import Live
from levelhead.doctor.page import page
from levelhead.doctor.render import text
from levelhead.doctor.report import Report
from levelhead.errors import InputError

logger = logging.getLogger(__name__)

REPORT = "levelhead-doctor"
"""Name of the files written at the end, without ``.json`` and ``.html``."""


class LevelheadCallback(TrainerCallback):
    """Asks the doctor about every row that the trainer logs.

    A finding goes to the log of ``levelhead.integrations.trl.callback`` as a warning when it appears and again when it
    grows critical.  Training is observed and, unless ``stop`` is set, left alone.  The random state is not touched.
    With ``shuffle_dataset=False`` later prompts may be harder than earlier ones: what compares them is told and, unless
    scores are held out, ends no run.

    Args:
        stop: End training once a critical finding has stood for ``patience`` logged rows in a row; what the policy does
            otherwise than before counts unless the reward stands above its beginning.
        patience: How many.
        report: Folder for ``levelhead-doctor.json`` and ``levelhead-doctor.html``, the trainer's ``output_dir`` unless
            given; ``False`` for none.
        language: ``en`` or ``zh``.

    Attributes:
        live: The diagnosis so far.
        stopped_at: Step at which it ended training; ``None`` if it did not.

    Raises:
        InputError: ``patience`` is less than 1.
    """

    def __init__(
        self,
        *,
        stop: bool = False,
        patience: int = 3,
        report: str | Path | bool = True,
        language: Language = "en",
    ) -> None:
        if patience < 1:
            raise InputError(f"LevelheadCallback(patience={patience}): give 1 or more")
        self.live = Live("trl")
        self.stopped_at: int | None = None
        self._stop = stop
        self._patience = patience
        self._report = report
        self._language = language

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Begin anew; what a resumed run logged before is read again."""
        # Each process measures its own seconds: a stop that hung on them could come to some processes alone.
        self.live = Live(
            "trl",
            leave_out=(metric.STEP_TIME,) if args.world_size > 1 else (),
            ordered=getattr(args, "shuffle_dataset", None) is False,
        )
        self.stopped_at = None
        for row in state.log_history:
            self.live.see(row, float(row.get("step", 0)))
        self.live.standing = 0

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Diagnose the run with the row that TRL logs."""
        news = self.live.see(logs or {}, float(state.global_step))
        if state.is_world_process_zero:
            for finding in news:
                logger.warning("step %d: %s", state.global_step, self.live.describe(finding, self._language))
        if self._stop and self.stopped_at is None and self.live.standing >= self._patience:
            self.stopped_at = state.global_step
            control.should_training_stop = True
            if state.is_world_process_zero:
                logger.warning(
                    "step %d: training ends here, %d rows after the first critical one",
                    state.global_step,
                    self.live.standing - 1,
                )

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """Say what became of the run, and write it down."""
        report = self.live.report(args.output_dir or "this run")
        if report is None or not state.is_world_process_zero:
            return
        logger.log(logging.INFO if report.worst() == "info" else logging.WARNING, "%s", self._text(report))
        if self._report is not False:
            folder = Path(args.output_dir or ".") if self._report is True else Path(self._report)
            self._write(report, folder)

    def _text(self, report: Report) -> str:
        stopped = "" if self.stopped_at is None else f"\nstopped at step {self.stopped_at}"
        return text(report, self._language) + stopped

    def _write(self, report: Report, folder: Path) -> None:
        document = {**report.to_json(self._language), "stopped_at": self.stopped_at}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{REPORT}.json").write_text(
                json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8"
            )
            (folder / f"{REPORT}.html").write_text(page(report, self._language), encoding="utf-8")
        except OSError as error:
            # A full disk must not cost the training that has just ended.
            logger.warning("%s: the report cannot be written (%s)", folder, error.strerror or error)
