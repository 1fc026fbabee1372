"""The bench of aggregators: a run that was broken off is no measurement."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def test_an_interrupted_run_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    conflicts = importlib.import_module("mergelib.conflicts")
    monkeypatch.setattr("levelhead.api.train", lambda *_, **__: SimpleNamespace(outcome="interrupted"))
    with pytest.raises(SystemExit, match="interrupted"):
        conflicts.measure(tmp_path, ["trade"], ["sum"], [0], {"trade": 2})
    assert not list(tmp_path.rglob("measured.json"))
