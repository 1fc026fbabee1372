"""The tutorial's files, written as they stand on the page, pass the preflight and train."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
SHORT = ("--set", "grpo.steps=2", "--set", "eval.final_items=8", "--set", "eval.items=8")
FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)


def run(*command: str, folder: Path) -> str:
    """Run a command of the page in a folder and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    files = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert set(files) == {"make_data.py", "my_reward.py", "mine.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    run(sys.executable, "make_data.py", folder=tmp_path)
    levelhead = (sys.executable, "-m", "levelhead")
    printed = run(*levelhead, "train", "mine.yaml", *SHORT, folder=tmp_path)
    assert "Best constant answer:" in printed
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert '"fail"' not in (tmp_path / "runs" / "mine" / "check.json").read_text(encoding="utf-8")
