"""``levelhead eval``: a score never stands alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from levelhead.api import train
from levelhead.cli.main import app
from small_run import recipe, rows, write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("eval")
    given = recipe(folder, tasks__0__strata=["level"], tasks__0__eval_fraction=0.5, grpo=None)
    write_rows(folder / "one.jsonl", [{**row, "level": ["easy", "hard"][i % 2]} for i, row in enumerate(rows(40))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        done = train(given, out=folder / "run")
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    return path, max((done.folder / "checkpoints").glob("step-*"))


def test_eval_shows_strata_and_the_constant_answer(run: tuple[Path, Path]) -> None:
    path, checkpoint = run
    shown = CliRunner().invoke(
        app, ["eval", str(path), "--checkpoint", str(checkpoint), "--items", "20"], env={"COLUMNS": "160"}
    )
    assert shown.exit_code == 0, shown.output
    for words in ("constant", "level=easy", "level=hard", "balanced score", "Best constant answer:"):
        assert words in shown.output


def test_eval_as_json_holds_them(run: tuple[Path, Path]) -> None:
    path, checkpoint = run
    shown = CliRunner().invoke(app, ["eval", str(path), "--checkpoint", str(checkpoint), "--items", "20", "--json"])
    one = json.loads(shown.stdout)["greedy"]["one"]
    assert set(one["strata"]) == {"level=easy", "level=hard"}
    assert set(one["constant"]) == {"answer", "score", "se"}
    assert {"score", "se", "balanced"} == set(one["over_constant"])
