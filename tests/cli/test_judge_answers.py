"""``levelhead judge answers``: what the starting policy says, for judges to compare with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from levelhead.cli.main import app
from levelhead.recipe.load import load
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.judges.questions import read_references, text_of
from levelhead.tasks.registry import make_rules
from levelhead.training.curriculum import make_stream
from small_run import recipe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    judges = {
        "members": [{"base_url": "http://127.0.0.1:9/v1", "model": "m"}],
        "pairwise": {"kind": "reference", "reference": str(tmp_path / "start.jsonl")},
    }
    given = recipe(tmp_path, tasks__0__judges=judges, sft=None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return tmp_path / "recipe.yaml"


def test_greedy_answers_are_those_that_the_judges_compare_with(path: Path) -> None:
    """Written before they are there, though the recipe names them; twice the same; of every prompt of both splits."""
    out = path.with_name("start.jsonl")
    shown = CliRunner().invoke(app, ["judge", "answers", str(path), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "24 answers written" in shown.output
    first = out.read_bytes()
    assert CliRunner().invoke(app, ["judge", "answers", str(path), "--out", str(out)]).exit_code == 0
    assert out.read_bytes() == first
    answers = read_references(str(out))
    for section in load(path).tasks:
        task = make_rules(section)
        assert isinstance(task, SingleTurnTask)
        for split in ("train", "eval"):
            assert all(text_of(prompt) in answers for prompt in task.prompts(split, 0))


def test_some_prompts_will_do_and_a_place_that_cannot_be_written_is_one_line(path: Path) -> None:
    out = path.with_name("some.jsonl")
    shown = CliRunner().invoke(app, ["judge", "answers", str(path), "--out", str(out), "--items", "2"])
    assert shown.exit_code == 0, shown.output
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(written) < 24
    assert written[0].keys() == {"prompt", "answer"}
    given = load(path)
    rules = make_rules(given.tasks[0])
    stream = make_stream([rules], [1.0], derive(given.seed, "stream", "grpo"))
    assert [row["prompt"] for row in written[:2]] == [text_of(prompt) for prompt in stream.take(2)]
    shown = CliRunner().invoke(app, ["judge", "answers", str(path), "--out", str(path / "x" / "y"), "--items", "1"])
    assert shown.exit_code != 0
    assert "cannot be written" in str(shown.exception or shown.output)
