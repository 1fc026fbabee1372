"""A damaged checkpoint is named with the newest whole one before it, and the run goes on from that to the bit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.api import Result, evaluate, train
from levelhead.cli.main import main
from levelhead.errors import InputError
from levelhead.policy import manifest
from small_run import events, metrics, recipe, same_weights

NEWEST, BEFORE = "step-000003", "step-000002"


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Result]:
    """A run that was left alone, and its recipe."""
    folder = tmp_path_factory.mktemp("damage")
    given = recipe(folder, grpo=None, checkpoint__every=1)
    return given, train(given, out=folder / "run")


@pytest.fixture
def run(whole: tuple[dict[str, Any], Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[1].folder, tmp_path / "run"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


FILES = (
    "model.safetensors",
    "training.pt",
    "state.json",
    "tokenizer.json",
    "config.json",
    "tokenizer_fingerprint.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spoil", [cut, empty, Path.unlink])
@pytest.mark.parametrize("sums", [True, False])
def test_a_damaged_file_is_named_with_the_way_out(
    whole: tuple[dict[str, Any], Result], run: Path, name: str, spoil: Callable[[Path], None], sums: bool
) -> None:
    folder = run / "checkpoints" / NEWEST
    before = (run / "metrics.jsonl").read_bytes()
    spoil(folder / name)
    if not sums:  # as in checkpoints of before there were any
        for one in folder.parent.iterdir():
            (one / manifest.FILE).unlink()
        if name == "tokenizer_fingerprint.json" and spoil is Path.unlink:
            return  # nor were there fingerprints
    with pytest.raises(InputError) as error:
        train(whole[0], out=run, resume=True)
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith(f"{folder}")
    if sums:
        assert said.startswith(f"{folder / name}: damaged: ")
        assert f"the newest whole checkpoint before it is {run / 'checkpoints' / BEFORE}" in said
    if ": damaged: " in said:
        assert said.endswith(f"go on from it with --resume --from {BEFORE}")
    assert (run / "metrics.jsonl").read_bytes() == before
    assert not (run / "run.lock").exists()


def test_going_on_from_the_one_before_ends_as_if_nothing_had_happened(
    whole: tuple[dict[str, Any], Result], run: Path
) -> None:
    given, wanted = whole
    empty(run / "checkpoints" / NEWEST / "training.pt")
    resumed = train(given, out=run, resume=True, resume_from=BEFORE)
    assert metrics(run) == metrics(wanted.folder)
    assert same_weights(resumed.model, wanted.model)
    names = {path.name for path in (run / "checkpoints").iterdir()} - {"best"}
    assert sorted(names) == [f"aside-{NEWEST}", BEFORE, NEWEST]
    assert [event["code"] for event in events(run)] == ["went-back"]
    assert manifest.damage(run / "checkpoints" / NEWEST) is None


def test_without_a_whole_checkpoint_the_run_can_begin_again(whole: tuple[dict[str, Any], Result], run: Path) -> None:
    for name in (BEFORE, NEWEST):
        empty(run / "checkpoints" / name / "model.safetensors")
    with pytest.raises(InputError, match="no whole one is before it; begin the run again with --resume --from start"):
        train(whole[0], out=run, resume=True)
    resumed = train(whole[0], out=run, resume=True, resume_from="start")
    assert metrics(run) == metrics(whole[1].folder)
    assert same_weights(resumed.model, whole[1].model)


def test_a_name_that_is_no_checkpoint_lists_those_that_are(whole: tuple[dict[str, Any], Result], run: Path) -> None:
    with pytest.raises(InputError, match=f"no checkpoint 'step-7' .* there are: {BEFORE}, {NEWEST}, start"):
        train(whole[0], out=run, resume=True, resume_from="step-7")
    with pytest.raises(InputError, match="are for --resume"):
        train(whole[0], out=run, resume_from=BEFORE)


def test_eval_refuses_a_damaged_checkpoint(whole: tuple[dict[str, Any], Result], run: Path) -> None:
    cut(run / "checkpoints" / NEWEST / "model.safetensors")
    with pytest.raises(InputError, match=f"damaged: it has .* bytes.*before it is .*{BEFORE}$"):
        evaluate(whole[0], run / "checkpoints" / NEWEST)


@pytest.mark.parametrize("sums", [True, False])
def test_the_command_calls_an_empty_training_file_damaged_and_not_interrupted(
    whole: tuple[dict[str, Any], Result],
    run: Path,
    sums: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = run / "checkpoints" / NEWEST
    empty(folder / "training.pt")
    if not sums:
        (folder / manifest.FILE).unlink()
    path = run.parent / "recipe.yaml"
    path.write_text(yaml.safe_dump(whole[0]), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["levelhead", "train", str(path), "--out", str(run), "--resume"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(f"levelhead: {folder / 'training.pt'}: damaged: ")
    assert said.endswith(f"--resume --from {BEFORE}\n")
    assert len(said.splitlines()) == 1


def test_the_end_of_some_file_is_no_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("levelhead.recipe.load", broken)
    monkeypatch.setattr(sys, "argv", ["levelhead", "train", "recipe.yaml"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 3
    assert "EOFError: Ran out of input" in capsys.readouterr().err
