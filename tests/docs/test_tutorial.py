"""The tutorial's files, written as they stand on the page, pass the preflight and train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from levelhead.cli.main import main
from night import by_day_left_out

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
NEVER = (
    ("Question: Who {asked}?", "Question: Who is it that never {asked}?"),
    ("first if asked == one else second", "second if asked == one else first"),
)
"""What step 7 changes in ``make_data.py``."""
SHORT = ("grpo.steps=2", "grpo.batch_size=16", "eval.final_items=8", "eval.items=8")
FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)


def train(folder: Path, recipe: str, settings: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the data and train in a folder, as the page says."""
    changes = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    with monkeypatch.context() as there:
        there.chdir(folder)
        there.setattr(sys, "argv", ["levelhead", "train", recipe, *changes])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert set(files) == {"make_data.py", "my_reward.py", "mine.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    train(tmp_path, "mine.yaml", SHORT, monkeypatch)
    assert "Best constant answer:" in capsys.readouterr().out
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert '"fail"' not in (tmp_path / "runs" / "mine" / "check.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_tutorial_of_tools_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(FILE.findall((PAGE.parent / "tutorial-tools.md").read_text(encoding="utf-8")))
    assert set(files) == {"shop.py", "make_data.py", "tools.jinja", "agent.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    train(tmp_path, "agent.yaml", [*SHORT, "sft.steps=4"], monkeypatch)
    checks = (tmp_path / "runs" / "agent" / "check.json").read_text(encoding="utf-8")
    assert '"fail"' not in checks
    assert "tools/round-trip" in checks


@pytest.mark.night
@by_day_left_out
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("changes", "low", "high", "improved"), [((), 0.6, 1.0, True), (NEVER, 0.1, 0.3, False)])
def test_the_figures_of_the_page_come_out_again(
    tmp_path: Path,
    changes: tuple[tuple[str, str], ...],
    low: float,
    high: float,
    improved: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"ends between +{low:g} and +{high:.1f}" in page
    for name, text in FILE.findall(page):
        for before, after in changes if name == "make_data.py" else ():
            assert before in text
            text = text.replace(before, after)
        (tmp_path / name).write_text(text, encoding="utf-8")
    train(tmp_path, "mine.yaml", ["check=false"], monkeypatch)
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text(encoding="utf-8"))
    assert low - 0.005 <= summary["tasks"]["function"]["grpo"]["score"] <= high
    assert summary["verdict"]["function"]["improved"] is improved
