"""The bench of judges: a run is the same whatever ran before it in the process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_no_judge_of_a_run_remembers_the_calls_of_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    judges = importlib.import_module("judges")
    functions = importlib.import_module("judgelib.functions")
    first: list[float] = []

    def train(*_: Any, **__: Any) -> None:
        first.append(functions._grade("drifting", "a", "Verdict: yes"))
        for _i in range(80):
            functions._grade("drifting", "a", "Verdict: yes")
        raise InterruptedError

    monkeypatch.setattr(judges, "train_whole", train)
    for seed in (0, 1):
        with pytest.raises(InterruptedError):
            judges.run(tmp_path, "worst", ["drifting"], seed, 2)
    assert first[0] == first[1]
