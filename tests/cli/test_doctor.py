from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import watch_scenarios as scenarios
from levelhead.cli.doctor import doctor
from levelhead.errors import InputError

app = typer.Typer()
app.command("doctor")(doctor)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def unhealthy(tmp_path: Path) -> Path:
    path = tmp_path / "unhealthy.txt"
    path.write_text("".join(f"{row}\n" for row in scenarios.rows(scenarios.UNHEALTHY["kl-runs"][0], 0, 60)))
    return path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "healthy.txt"
    path.write_text("".join(f"{row}\n" for row in scenarios.rows(scenarios.HEALTHY["learning"], 0, 60)))
    return path


def test_json_is_the_only_thing_on_stdout(unhealthy: Path) -> None:
    result = run(unhealthy, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "critical"


def test_fail_on_sets_the_exit_code(unhealthy: Path, healthy: Path) -> None:
    assert run(unhealthy, "--fail-on", "critical").exit_code == 1
    assert run(unhealthy, "--fail-on", "warning").exit_code == 1
    assert run(healthy, "--fail-on", "warning").exit_code == 0
    assert run(unhealthy).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing.log"], "no such file"),
        (["{unhealthy}", "--format", "trlx"], "unknown format"),
        (["{unhealthy}", "--lang", "fr"], "--lang"),
        (["{unhealthy}", "--fail-on", "fatal"], "--fail-on"),
        (["{unhealthy}", "--map", "reward"], "SIGNAL=KEY"),
        (["{unhealthy}", "--html", "no/such/folder/x.html"], "--html"),
    ],
)
def test_bad_input_is_named(unhealthy: Path, arguments: list[str], word: str) -> None:
    result = run(*(a.replace("{unhealthy}", str(unhealthy)) for a in arguments))
    assert isinstance(result.exception, InputError)
    assert word in str(result.exception)
    assert len(str(result.exception).splitlines()) <= 2


def test_a_page_is_written(unhealthy: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert run(unhealthy, "--html", target).exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_does_not_fit_on_the_disk_leaves_nothing(
    unhealthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("the page before")
    write = Path.write_text

    def half(self: Path, data: str, **options: str) -> int:
        write(self, data[: len(data) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    result = run(unhealthy, "--html", target)
    assert isinstance(result.exception, InputError)
    assert target.read_text() == "the page before"
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", unhealthy.name}


def test_a_page_goes_into_a_pipe_and_does_not_replace_it(unhealthy: Path) -> None:
    assert run(unhealthy, "--html", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


def test_the_users_map_and_language(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("step,punkte\n" + "".join(f"{i},0.0\n" for i in range(1, 12)))
    result = run(path, "--map", "reward=punkte", "--lang", "zh")
    assert result.exit_code == 0
    assert "行" in result.stdout


def test_following_prints_and_ends_with_an_interrupt(unhealthy: Path) -> None:
    code = f"import typer; from levelhead.cli.doctor import doctor; typer.run(doctor)  # {unhealthy.name}"
    command = [sys.executable, "-c", code, str(unhealthy), "--follow", "--json", "--every", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["verdict"] == "critical"
        process.send_signal(2)
        assert process.wait(60) == 0


def test_the_doctor_needs_no_torch_and_no_numpy(unhealthy: Path) -> None:
    """The light install: the command runs with the training stack and numpy barred from import."""
    barred = ["torch", "transformers", "numpy", "plotly", "wandb", "tensorboard", "levelhead.recipe"]
    bar = f"import sys; sys.modules.update(dict.fromkeys({barred}))"
    code = f"{bar}; import typer; from levelhead.cli.doctor import doctor; typer.run(doctor)"
    command = [sys.executable, "-c", code, str(unhealthy), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["verdict"] == "critical"


def test_two_thousand_rows_take_little_processor_time(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{row}\n" for row in scenarios.rows(scenarios.HEALTHY["learning"], 0, 2000)))
    start = time.process_time()
    assert run(path, "--json").exit_code == 0
    assert time.process_time() - start < 2.0


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs with Levelhead's files, one of TRL's, one log that lies beside them, and one that holds nothing."""
    folder = tmp_path / "runs"
    for name, scenario in (("a", scenarios.HEALTHY["learning"]), ("b", scenarios.UNHEALTHY["kl-runs"][0])):
        (folder / name).mkdir(parents=True)
        rows = [{"step": i, "stage": "grpo", **row} for i, row in enumerate(scenarios.rows(scenario, 0, 60), start=1)]
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "trl" / "checkpoint-60").mkdir(parents=True)
    state = {
        "log_history": [{"step": i, **r} for i, r in enumerate(scenarios.rows(scenarios.UNHEALTHY["cut"][0], 0, 60))]
    }
    (folder / "trl" / "checkpoint-60" / "trainer_state.json").write_text(json.dumps(state))
    (folder / "alone.log").write_text("".join(f"{r}\n" for r in scenarios.rows(scenarios.HEALTHY["learning"], 1, 60)))
    (folder / "begun").mkdir()
    (folder / "begun" / "metrics.jsonl").touch()
    return folder


def test_a_folder_of_runs_gets_a_verdict_a_run_and_nothing_is_left_out_in_silence(runs: Path) -> None:
    result = run(runs)
    assert result.exit_code == 0
    told = {line.split()[-1]: line.split()[:2] for line in result.stdout.splitlines() if "rows" in line}
    assert set(told) == {"a", "b", "trl", "alone.log"}
    assert told["a"] == told["alone.log"] == ["learns", "learns"]
    assert told["b"] == ["critical", "kl-blowup"]
    assert told["trl"][1] == "length-truncation"
    assert "begun: no training metrics" in result.stdout


def test_the_json_of_a_folder_of_runs_has_a_document_a_run(runs: Path) -> None:
    document = json.loads(run(runs, "--json").stdout)
    assert document["verdict"] == "critical"
    assert [Path(one["run"]).name for one in document["runs"]] == ["a", "b", "trl", "alone.log"]
    assert document["runs"][1]["findings"][0]["code"] == "kl-blowup"
    assert [Path(one["run"]).name for one in document["unread"]] == ["begun"]
    assert run(runs, "--fail-on", "critical").exit_code == 1


def test_a_folder_with_one_run_is_reported_at_length_as_ever(runs: Path) -> None:
    assert json.loads(run(runs / "b", "--json").stdout)["verdict"] == "critical"
    assert json.loads(run(runs / "trl", "--json").stdout)["format"].startswith("trl")


def test_a_run_that_has_lost_its_metrics_is_one_run_and_not_several(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "rollouts").mkdir()
    for name in ("one.csv", "two.csv"):
        (tmp_path / "rollouts" / name).write_text("step,reward\n" + "".join(f"{i},0.{i}\n" for i in range(1, 9)))
    assert "verdict" in json.loads(run(tmp_path, "--json").stdout)
    assert "runs" not in json.loads(run(tmp_path, "--json").stdout)


def test_a_page_for_several_runs_is_refused_before_anything_is_printed(runs: Path) -> None:
    result = run(runs, "--html", runs / "page.html")
    assert isinstance(result.exception, InputError)
    assert not result.stdout
    assert not (runs / "page.html").exists()
