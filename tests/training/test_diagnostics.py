"""The first steps leave a record of tokens and distributions, and the report shows it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from levelhead import train
from small_run import recipe


def test_first_steps_leave_boundaries_and_distributions_that_the_report_shows(tmp_path: Path) -> None:
    result = train(recipe(tmp_path, sft=None), out=tmp_path / "run")
    entries = json.loads((tmp_path / "run" / "diagnostics.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    for entry in entries:
        for task in ("one", "two"):
            told = entry["tasks"][task]
            assert len(told["samples"]) == 2
            for sample in told["samples"]:
                assert sample["context_end"][-1]["text"] == "\n"
                assert 0 < sample["entropy_mean"] <= torch.log(torch.tensor(300.0)) + 1e-3
                assert 0 < sample["top_probability_mean"] <= 1
                assert sample["gap_mean"] >= 0
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "First steps" in page
    assert "answer starts" in page
