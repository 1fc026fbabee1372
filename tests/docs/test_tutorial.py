"""The tutorial's files, written as they stand on the page, pass the preflight and train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from night import by_day_left_out

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
NEVER = (
    ("Question: Who {asked}?", "Question: Who is it that never {asked}?"),
    ("first if asked == one else second", "second if asked == one else first"),
)
"""What step 7 changes in ``make_data.py``."""
SHORT = ("--set", "grpo.steps=2", "--set", "eval.final_items=8", "--set", "eval.items=8")
FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)


def run(*command: str, folder: Path) -> str:
    """Run a command of the page in a folder and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
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


@pytest.mark.slow
def test_the_tutorial_of_tools_works_as_it_is_written(tmp_path: Path) -> None:
    files = dict(FILE.findall((PAGE.parent / "tutorial-tools.md").read_text(encoding="utf-8")))
    assert set(files) == {"shop.py", "make_data.py", "tools.jinja", "agent.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    run(sys.executable, "make_data.py", folder=tmp_path)
    run(sys.executable, "-m", "levelhead", "train", "agent.yaml", *SHORT, "--set", "sft.steps=4", folder=tmp_path)
    checks = (tmp_path / "runs" / "agent" / "check.json").read_text(encoding="utf-8")
    assert '"fail"' not in checks
    assert "tools/round-trip" in checks


@pytest.mark.night
@by_day_left_out
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("changes", "low", "high", "improved"), [((), 0.6, 1.0, True), (NEVER, 0.1, 0.3, False)])
def test_the_figures_of_the_page_come_out_again(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], low: float, high: float, improved: bool
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"ends between +{low:g} and +{high:.1f}" in page
    for name, text in FILE.findall(page):
        for before, after in changes if name == "make_data.py" else ():
            assert before in text
            text = text.replace(before, after)
        (tmp_path / name).write_text(text, encoding="utf-8")
    run(sys.executable, "make_data.py", folder=tmp_path)
    run(sys.executable, "-m", "levelhead", "train", "mine.yaml", "--set", "check=false", folder=tmp_path)
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text(encoding="utf-8"))
    assert low - 0.005 <= summary["tasks"]["function"]["grpo"]["score"] <= high
    assert summary["verdict"]["function"]["improved"] is improved
