"""The command that starts a server holds what the recipe says, and is whole."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from levelhead.cli.main import app
from levelhead.errors import InputError
from levelhead.recipe import Recipe, dump, validate
from levelhead.rollout.generators.vllm.command import serve_command
from small_run import recipe


def made(folder: Path, **keys: Any) -> Recipe:
    lora = {"r": 9, "alpha": 8} if keys.get("sync") == "adapter" else None
    changes: dict[str, Any] = {"model__lora": lora} if lora else {}
    section = {"kind": "vllm", "urls": ["http://10.0.0.2:8000"], "shared": str(folder / "shared"), **keys}
    return validate(recipe(folder, generator=section, grpo__loss={"importance": "token_truncate"}, **changes))


def options(arguments: Any) -> dict[str, str]:
    return {a: b for a, b in zip(arguments, [*arguments[1:], ""], strict=True) if a.startswith("--")}


def test_an_adapter_has_room_for_two_versions_of_its_rank(tmp_path: Path) -> None:
    command = serve_command(made(tmp_path, sync="adapter"), "http://10.0.0.2:8000", "org/model", dtype="bfloat16")
    given = options(command.arguments)
    assert (given["--max-lora-rank"], given["--max-loras"], given["--dtype"]) == ("16", "2", "bfloat16")
    assert (given["--host"], given["--port"]) == ("10.0.0.2", "8000")
    assert command.variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert command.arguments[:3] == ["vllm", "serve", "org/model"]


def test_a_server_on_the_trainers_gpu_gets_its_share_and_may_sleep(tmp_path: Path) -> None:
    command = serve_command(made(tmp_path, gpu_share=0.35, sleep=True), "http://h:1", "m", dtype="float32")
    assert options(command.arguments)["--gpu-memory-utilization"] == "0.35"
    assert "--enable-sleep-mode" in command.arguments
    assert json.loads(options(command.arguments)["--weight-transfer-config"]) == {"backend": "files"}


def test_a_rank_that_no_server_takes_is_refused(tmp_path: Path) -> None:
    one = made(tmp_path, sync="adapter")
    data = one.model_dump(by_alias=True)
    data["model"]["lora"]["r"] = 600
    with pytest.raises(InputError, match=r"model\.lora\.r"):
        serve_command(validate(data), "http://h:1", "m", dtype="float32")


def test_the_command_is_printed_and_its_model_is_there(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(made(tmp_path, api_key_env="ENGINE_KEY")), encoding="utf-8")
    result = CliRunner().invoke(app, ["serve", "policy", str(path), "--cpu", "--python", "/opt/v/bin/python"])
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if "api_server" in line)
    assert 'VLLM_API_KEY="$ENGINE_KEY"' in line
    words = shlex.split(line)
    assert "/opt/v/bin/python" in words
    model = Path(words[words.index("--model") + 1])
    assert (model / "model.safetensors").is_file()
    assert "--enforce-eager" in words


def test_bad_input_to_the_command_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(made(tmp_path)), encoding="utf-8")
    runner = CliRunner()
    wrong = runner.invoke(app, ["serve", "policy", str(path), "--url", "http://other:1"])
    assert isinstance(wrong.exception, InputError)
    assert "generator.urls" in str(wrong.exception)
    local = runner.invoke(app, ["serve", "policy", str(path), "--set", "generator=local"])
    assert isinstance(local.exception, InputError)
    assert "generator.kind" in str(local.exception)
