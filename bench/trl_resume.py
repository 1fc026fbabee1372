"""Whether a GRPO run in TRL that is resumed is the run that was never interrupted, to the bit, on a CPU.

Usage, with a Python that has TRL: ``PYTHONPATH=src python bench/trl_resume.py``.

Twelve steps each, of the letters of ``bench/trl_faults.py``: twice whole, and once resumed from a checkpoint that was
saved between two rollout batches, or between two updates on one batch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
CASES: dict[str, dict[str, Any]] = {
    "saved between two batches": {"save_steps": 6},
    "saved between two iterations on a batch": {"save_steps": 5, "num_iterations": 2},
    "saved between two updates on a batch": {"save_steps": 5, "steps_per_generation": 4},
}


def play(folder: Path, settings: dict[str, Any], resume: Path | None = None) -> tuple[list[dict[str, Any]], Any]:
    """Rows, seconds left out, and last weights."""
    from trl import GRPOTrainer
    from trllib.listen import Recorder

    import trl_run

    recorder, whole = Recorder(), GRPOTrainer.train
    more = {"resume_from_checkpoint": str(resume)} if resume else {}
    with patch.object(GRPOTrainer, "train", lambda self: whole(self, **more)):
        trainer = trl_run.train(folder, steps=12, callbacks=[recorder], save_strategy="steps", **settings)
    rows = [{key: value for key, value in row.items() if "time" not in key} for row in recorder.rows]
    return rows, trainer.model.state_dict()


def main() -> None:
    """Play the cases."""
    import torch

    torch.set_num_threads(1)
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            at, folder = settings["save_steps"], Path(place)
            rows, weights = play(folder / "whole", settings)
            again, _ = play(folder / "again", settings)
            resumed, resumed_weights = play(folder / "resumed", settings, folder / "whole" / f"checkpoint-{at}")
        same = [row for row in rows if row["step"] > at] == [row for row in resumed if row["step"] > at]
        equal = all(torch.equal(weights[key], resumed_weights[key]) for key in weights)
        print(f"{name}: whole runs equal {rows == again}, resumed rows {same}, weights {equal}", flush=True)


if __name__ == "__main__":
    main()
