"""TRL's trainer by its names: what its settings come to, what does not move, and a script that runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from levelhead.errors import InputError
from levelhead.recipe import Recipe, trainers, validate
from levelhead.recipe.load import _direct
from levelhead.recipe.tasks import Function
from levelhead.trl import GRPOConfig, GRPOTrainer

DOCS = Path(__file__).resolve().parents[2] / "docs" / "from-trl.md"
ROWS = [{"prompt": f"Count to {n}.", "answer": str(n)} for n in range(24)]


def long_enough(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [min(1.0, len(text) / 20) for text in completions]


def grpo(**settings: Any) -> dict[str, Any]:
    """The ``grpo`` section that settings of TRL come to."""
    trainer = GRPOTrainer("some/model", long_enough, GRPOConfig(**settings), ROWS)
    keys: dict[str, Any] = yaml.safe_load(trainer.yaml)["grpo"]
    return keys


def test_sizes_are_those_that_trl_makes_of_its_own() -> None:
    keys = grpo(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=8,
        num_generations=4,
        max_steps=40,
        num_iterations=2,
    )
    assert (keys["batch_size"], keys["group_size"], keys["updates_per_batch"], keys["epochs"]) == (32, 4, 4, 2)
    assert keys["steps"] == 40 / (4 * 2)


def test_trls_defaults_are_kept_where_ours_differ() -> None:
    keys = grpo()
    assert keys["data_epochs"] == 3.0
    assert keys["optimizer"]["schedule"] == "linear"
    assert keys["optimizer"]["learning_rate"] == 1e-6
    assert keys["sampling"]["max_new_tokens"] == 512
    assert (keys["loss"]["kind"], keys["loss"]["aggregation"], keys["advantage"]["kind"]) == (
        "ppo_clip",
        "token_mean",
        "grpo",
    )


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({"loss_type": "grpo"}, "loss.aggregation", "sequence_mean"),
        ({"loss_type": "dr_grpo"}, "loss.aggregation", "fixed_length"),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, "loss.clip_high", 5.0),
        ({"loss_type": "sapo", "sapo_temperature_neg": 1.1}, "loss.tau_neg", 1.1),
        ({"importance_sampling_level": "sequence", "epsilon": 3e-4}, "loss.kind", "gspo"),
        ({"epsilon": 0.2, "epsilon_high": 0.28}, "loss.clip_high", 0.28),
        ({"delta": 4.0}, "loss.dual_clip", 4.0),
        ({"top_entropy_quantile": 0.2}, "loss.top_entropy", 0.2),
        ({"scale_rewards": False}, "advantage.kind", "dr_grpo"),
        ({"scale_rewards": "batch"}, "advantage.kind", "batch"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "advantage.kind", "gdpo"),
        ({"beta": 0.04}, "kl.coef", 0.04),
        ({"mask_truncated_completions": True}, "mask_truncated", True),
        ({"lr_scheduler_type": "cosine"}, "optimizer.schedule", "cosine"),
        ({"max_steps": 50, "warmup_steps": 0.1}, "optimizer.warmup_steps", 5),
        ({"adam_beta2": 0.99}, "optimizer.betas", [0.9, 0.99]),
        ({"generation_kwargs": {"presence_penalty": 0.5}}, "sampling.presence_penalty", 0.5),
    ],
)
def test_a_setting_keeps_its_meaning(settings: dict[str, Any], path: str, value: Any) -> None:
    keys: Any = grpo(**settings)
    for part in path.split("."):
        keys = keys[part]
    assert keys == value


def test_what_does_not_move_is_told_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    args = GRPOConfig(use_vllm=True, deepspeed="zero3.json", report_to=["wandb", "codecarbon"], vllm_mode=None)
    trainer = GRPOTrainer("some/model", long_enough, args, ROWS, callbacks=[object()])
    told = capsys.readouterr().err.splitlines()
    names = ["use_vllm", "deepspeed", "callbacks", "report_to: codecarbon"]
    assert len(told) == len(trainer.unmoved) == 4
    for name in names:
        assert sum(f"not moved: {name}" in line for line in told) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": [print]}, "tools: an environment of your own"),
        ({"environment_factory": object}, "environment_factory: an environment"),
        ({"reward_funcs": "OpenAssistant/reward-model"}, "OpenAssistant/reward-model is no function"),
        ({"train_dataset": None}, "train_dataset: missing"),
        ({"train_dataset": SimpleNamespace(column_names=["prompt", "image"])}, "the column image holds pictures"),
        ({"args": GRPOConfig(loss_type="vespo")}, "loss_type: vespo is not there"),
        ({"args": GRPOConfig(num_generations=3)}, "8 rollouts is no multiple of num_generations"),
        ({"wishes": 3}, "TRL has no argument wishes"),
    ],
)
def test_what_would_be_another_run_is_refused(change: dict[str, Any], said: str) -> None:
    keys: dict[str, Any] = {"reward_funcs": long_enough, "args": GRPOConfig(), "train_dataset": ROWS, **change}
    with pytest.raises(InputError, match=said):
        GRPOTrainer("some/model", **keys)


def test_a_misspelt_argument_is_hinted_at() -> None:
    with pytest.raises(InputError, match="TRL has no argument num_generation; did you mean num_generations"):
        GRPOConfig(num_generation=4)


def test_a_script_trains_saves_and_can_be_run_again(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from levelhead.scaffold.model import preset_folder

    args = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=8,
        num_generations=4,
        max_steps=1,
        max_completion_length=4,
        use_cpu=True,
    )
    for folder in ("out", "out-2"):
        trainer = GRPOTrainer(preset_folder("base-tiny"), long_enough, args, ROWS)
        trainer.recipe = trainer.recipe.model_copy(
            update={"check": False, "eval": trainer.recipe.eval.model_copy(update={"final_items": 2})}
        )
        output = trainer.train()
        assert output.result.folder == tmp_path / folder
        assert output.global_step == 1
        assert output.metrics["train_runtime"] > 0
    trainer.save_model(str(tmp_path / "saved"))
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(tmp_path / "saved")
    (plain := tmp_path / "plain").touch()
    assert (tmp_path / "saved" / "model.safetensors").stat().st_mode == plain.stat().st_mode


def test_every_key_that_is_named_is_one_of_a_recipe() -> None:
    settings = [*trainers.trl()["config"].values(), *trainers.trl()["trainer"].values()]
    keys = [s.key for s in settings if s.kind in ("same", "like") and not s.key.startswith("levelhead")]
    for key in dict.fromkeys([*keys, *(key for key, _ in trainers.words().values())]):
        models: set[Any] = {Function} if key.startswith("tasks.0.") else {Recipe}
        for part in key.removeprefix("tasks.0.").split("."):
            fields = [f for model in models for name, f in model.model_fields.items() if (f.alias or name) == part]
            assert fields, f"{key}: no {part}"
            models = {model for field in fields for model in _direct(field.annotation)}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"beta": 0.1}, "TRL's beta is 'grpo.kl.coef' here"),
        ({"grpo": {"num_generations": 4}}, "TRL's num_generations is 'grpo.group_size' here"),
        ({"grpo": {"loss": {"clip_ratio_high": 0.3}}}, "verl's clip_ratio_high is 'grpo.loss.clip_high' here"),
        ({"grpo": {"n_samples_per_prompt": 4}}, "OpenRLHF's n_samples_per_prompt is 'grpo.group_size' here"),
        ({"model": {"preset": "tiny", "lora_rank": 8}}, "verl's lora_rank is 'model.lora.r' here"),
        ({"grpo": {"stps": 4}}, "did you mean 'grpo.steps'"),
    ],
)
def test_a_word_of_another_trainer_hints_at_ours(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        validate({"model": {"preset": "tiny"}, "tasks": [{"kind": "math"}], **keys})
    assert said in str(raised.value)


def test_the_page_holds_the_tables() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for part in ("config", "trainer"):
        assert trainers.table(part) in page, "run python -m levelhead.recipe.trainers docs/from-trl.md"


def test_the_table_has_every_argument_of_the_installed_trl() -> None:
    python = os.environ.get("LEVELHEAD_TRL_PYTHON", sys.executable)
    if "LEVELHEAD_TRL_PYTHON" not in os.environ and importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed; LEVELHEAD_TRL_PYTHON names a Python that has it")
    code = (
        "import dataclasses, inspect, json, trl; print(json.dumps({'version': trl.__version__, "
        "'config': {f.name: f.default if isinstance(f.default, (int, float, str, bool)) else None "
        "for f in dataclasses.fields(trl.GRPOConfig)}, "
        "'trainer': list(inspect.signature(trl.GRPOTrainer.__init__).parameters)[1:]}))"
    )
    done = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    installed = json.loads(done.stdout.splitlines()[-1])
    assert set(installed["config"]) == set(trainers.trl()["config"])
    assert set(installed["trainer"]) == set(trainers.trl()["trainer"])
    version = yaml.safe_load((Path(trainers.__file__).parent / "trl.yaml").read_text())["version"]
    assert installed["version"].startswith(str(version))
    from levelhead.integrations.trl.settings import DEFAULTS

    ours = {"report_to", "project", "gradient_checkpointing"}
    for name in set(DEFAULTS) - ours:
        theirs = installed["config"][name]
        assert theirs in (None, DEFAULTS[name]), f"{name}: TRL's default is {theirs}"
