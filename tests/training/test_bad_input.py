"""What a user can get wrong: one line that names file and key, exit code 2, and nothing written."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.cli.main import main
from levelhead.policy.policy import Policy
from small_run import TINY, recipe, rows, tiny_policy, write_rows


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``levelhead train`` on a recipe; returns the exit code and what was said on stderr."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)

    def run(given: dict[str, Any], *arguments: str) -> tuple[Any, str]:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["levelhead", "train", str(path), "--out", str(tmp_path / "run"), *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, capsys.readouterr().err

    return run


def refuses(command: Any, tmp_path: Path, given: dict[str, Any], *words: str) -> str:
    code, said = command(given)
    assert code == 2, said
    assert len(said.strip().splitlines()) <= 2
    assert said.startswith("levelhead: ")
    for word in words:
        assert word in said
    assert not (tmp_path / "run").exists()
    return str(said)


def test_a_misspelt_key(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, grpo__learning_rat=1.0)
    refuses(command, tmp_path, given, "recipe.yaml", "unknown key 'grpo.learning_rat'")


def test_a_group_size_that_does_not_divide_the_batch(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, grpo__batch_size=10)
    refuses(command, tmp_path, given, "grpo", "batch_size (10)", "group_size (3)")


def test_flash_attention_where_it_is_not_installed(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    given = recipe(tmp_path, model__attention="flash_attention_2")
    refuses(command, tmp_path, given, "model.attention", "flash_attn", "sdpa")


def test_half_of_a_surrogate_pair_in_a_prompt(command: Any, tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} \ud83d"}) + "\n" for n in range(20)), encoding="utf-8")
    refuses(command, tmp_path, recipe(tmp_path, tasks__0__path=str(path)), "half.jsonl, line 1", "surrogate pair")


def test_a_missing_data_file(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, tasks__0__path=str(tmp_path / "gone.jsonl"))
    refuses(command, tmp_path, given, "gone.jsonl", "tasks")


def test_an_empty_data_file(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    (tmp_path / "one.jsonl").write_text("", encoding="utf-8")
    refuses(command, tmp_path, given, "one.jsonl")


def test_a_malformed_line_is_named_by_its_number(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    lines = [json.dumps(row) for row in rows()]
    (tmp_path / "one.jsonl").write_text("\n".join([*lines[:2], '{"prompt": ', *lines[2:]]), encoding="utf-8")
    refuses(command, tmp_path, given, "one.jsonl, line 3")


def test_a_row_without_a_needed_field(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    write_rows(tmp_path / "one.jsonl", [*rows(3), {"answer": "no question"}])
    refuses(command, tmp_path, given, "one.jsonl", "prompt")


def test_a_prompt_longer_than_the_context(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    write_rows(tmp_path / "one.jsonl", [*rows(), {"prompt": "long " * 300, "answer": "no"}])
    refuses(command, tmp_path, given, "one", "context of 128")


def test_a_demonstration_longer_than_the_context(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path)
    write_rows(tmp_path / "one.jsonl", [*rows(), {"prompt": "short?", "answer": "long " * 300}])
    refuses(command, tmp_path, given, "one", "context of 128")


def test_a_model_without_a_chat_template(command: Any, tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.codec.tokenizer.chat_template = None
    policy.save(tmp_path / "model")
    given = recipe(tmp_path, model={"name": str(tmp_path / "model"), "dtype": "float32"})
    refuses(command, tmp_path, given, "chat template", "model.chat_template")


def test_a_model_that_is_not_there(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, model={"name": str(tmp_path / "nowhere"), "dtype": "float32"})
    refuses(command, tmp_path, given, "model.name", "nowhere")


def test_a_folder_that_holds_no_model(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, model={"name": str(tmp_path), "dtype": "float32"})
    refuses(command, tmp_path, given, "model.name", "holds no config.json")


def test_a_sink_that_is_not_installed(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.training.trackers.importlib.util.find_spec", lambda _name: None)
    refuses(command, tmp_path, recipe(tmp_path, log__wandb="project"), "log.wandb", "not installed")


def test_shaping_that_does_not_fit(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, tasks__1__shaping={"length": {"kind": "overlong", "cache": 99}})
    refuses(command, tmp_path, given, "two", "shaping", "cache")


def test_an_estimator_that_needs_larger_groups(command: Any, tmp_path: Path) -> None:
    given = recipe(tmp_path, grpo__advantage={"kind": "pass_at_k", "k": 3})
    refuses(command, tmp_path, given, "grpo", "group_size of at least 4")


def short(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return recipe(tmp_path, grpo=None, **changes)


def test_a_folder_that_holds_a_run_is_never_written_over(command: Any, tmp_path: Path) -> None:
    assert command(short(tmp_path))[0] == 0
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))}
    code, said = command(short(tmp_path))
    assert code == 2
    assert "already holds a run" in said
    assert "--resume" in said
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))} == before


def test_there_is_nothing_to_resume_in_a_folder_that_is_not_there(command: Any, tmp_path: Path) -> None:
    code, said = command(short(tmp_path), "--resume")
    assert code == 2
    assert f"{tmp_path / 'run'}: no such folder, so there is no run to go on with; leave out --resume" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_a_checkpoint_of_another_model(command: Any, tmp_path: Path, lora: dict | None) -> None:
    shared = {"model__lora": lora} if lora else {}
    assert command(short(tmp_path, **shared))[0] == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    code, said = command(short(tmp_path, model__tiny={**TINY, "hidden_size": 64}, **shared), "--resume")
    assert code == 2
    assert "model.tiny.hidden_size (32 -> 64): a checkpoint holds the weights of its own model" in said
    assert len(said.strip().splitlines()) <= 2
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_disk_that_is_full_from_the_start(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(_self: Policy, _folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "save", save)
        code, said = command(short(tmp_path))
    assert code == 2
    assert "no space left" in said
    assert "no checkpoint had been saved before" in said
    assert "whole" not in said
    assert command(short(tmp_path), "--resume")[0] == 0


def test_a_full_disk_while_saving(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, saved = Policy.save, []

    def save(self: Policy, folder: Path) -> None:
        saved.append(folder)
        if len(saved) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "save", save)
        code, said = command(short(tmp_path))
    assert code == 2
    assert "no space left" in said
    assert "step-000001, saved before, is whole" in said
    assert "--resume" in said
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert [name for name in names if name != "best"] == ["step-000001"]
    assert command(short(tmp_path), "--resume")[0] == 0
