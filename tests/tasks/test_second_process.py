"""Scores of another process, which ends with whoever asked for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from levelhead.recipe.tasks import Function
from levelhead.tasks.base import Answer
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.second_process import SecondProcess, second_process_of
from small_run import rows, write_rows

LENGTH = """
def length(prompts, completions, completion_ids, **columns):
    return [float(len(completion)) for completion in completions]
"""


def started(folder: Path, rewards: bytes) -> tuple[SecondProcess | None, list[Answer]]:
    data = write_rows(folder / "rows.jsonl", rows())
    (folder / "rewards.py").write_bytes(rewards)
    section = Function(kind="function", path=str(data), oracle="answer", rewards=[f"{folder / 'rewards.py'}:length"])
    answers = [Answer(prompt, prompt.id, ()) for prompt in FunctionTask(section).prompts("train", 0)]
    return second_process_of(section, answers), answers


def test_another_process_gives_the_same_scores(tmp_path: Path) -> None:
    elsewhere, answers = started(tmp_path, LENGTH.encode())
    assert elsewhere is not None
    scores = elsewhere.scores()
    assert scores is not None
    assert [score and score.total for score in scores] == [float(len(answer.text)) for answer in answers]


def test_a_process_whose_scores_nobody_asks_for_ends(tmp_path: Path) -> None:
    elsewhere, _ = started(tmp_path, LENGTH.encode())
    assert elsewhere is not None
    elsewhere.close()
    assert elsewhere._process.poll() is not None


@pytest.mark.parametrize("last", ["3", "[3]", "{}", "null", "no JSON"])
def test_an_odd_last_line_is_no_scores(tmp_path: Path, last: str) -> None:
    at_exit = f"import atexit\natexit.register(print, {last!r})\n"
    elsewhere, _ = started(tmp_path, (at_exit + LENGTH).encode())
    assert elsewhere is not None
    assert not elsewhere.scores()


def test_rewards_in_another_encoding_are_looked_at_all_the_same(tmp_path: Path) -> None:
    elsewhere, _ = started(tmp_path, b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + LENGTH.encode())
    assert elsewhere is not None
    elsewhere.close()
