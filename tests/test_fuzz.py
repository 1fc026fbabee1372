"""Some hundred hostile logs, run folders, reports, recipes and replies; ``make fuzz`` tries many more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_no_hostile_input_crashes_hangs_or_reaches_the_terminal() -> None:
    command = [sys.executable, "bench/fuzz.py", "--count", "300", "--seed", "0", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    report = json.loads(done.stdout)
    counts = {target: {k: row[k] for k in ("crashes", "hangs", "memory", "controls")} for target, row in report.items()}
    assert set(counts) == {"logs", "folders", "reports", "recipes", "replies"}
    assert all(not any(row.values()) for row in counts.values()), json.dumps(report, indent=1)
    assert sum(row["inputs"] for row in report.values()) == 300
