"""The first steps on the page: only numbers that were written stand there."""

from __future__ import annotations

import json
from pathlib import Path

from levelhead.report.reading import read_run
from levelhead.report.samples import first_steps
from synthetic_run import write_run


def test_a_sample_without_a_distribution_has_no_line_about_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    measured = {"prompt_id": "one", "entropy_first": 1.5, "entropy_mean": 1.25}
    entry = {"step": 1, "tasks": {"one": {"samples": [measured, {"prompt_id": "two"}]}}}
    (folder / "diagnostics.json").write_text(json.dumps([entry]), encoding="utf-8")
    page = first_steps(read_run(folder))
    assert page.count("at the first token") == 1
    assert "1.5 at the first token, 1.25 on average" in page
