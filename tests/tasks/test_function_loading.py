"""The texts of reward files are read, and nothing of them is run."""

from __future__ import annotations

from pathlib import Path

from function_task import ROWS, section, task
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.function.loading import texts_of_rewards

FILE = '''
"""A docstring with <doc>."""
import re

PATTERN = re.compile(r"^<think>.*?<\\|end\\|>")


class Rate:
    def __call__(self, completions, **columns):
        """Another <doc>."""
        return [float("<answer>" in text) for text in completions]


rate = Rate()


def fmt(completions, **columns):
    return [float(bool(PATTERN.match(text))) for text in completions]
'''


def test_patterns_are_read_without_their_backslashes_and_docstrings_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(FILE, encoding="utf-8")
    made = FunctionTask(section(), data=ROWS, rewards=[f"{file}:fmt", f"{file}:rate"])
    (texts,) = texts_of_rewards(made)
    assert "^<think>.*?<|end|>" in texts
    assert "<answer>" in texts
    assert not any("<doc>" in text for text in texts)


def test_rewards_without_a_file_hold_nothing() -> None:
    assert list(texts_of_rewards(task(ROWS, [len_of]))) != []
    made = eval("lambda completions, **_: [0.0] * len(completions)")
    assert list(texts_of_rewards(task(ROWS, made))) == []


def len_of(completions: list[str], **_: object) -> list[float]:
    return [float(len(text)) for text in completions]
