"""TRL's trainer by its names: what its settings come to, what does not move, and a script that runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from levelhead.errors import InputError
from levelhead.integrations.trl.settings import settings_of
from levelhead.recipe import Recipe, trainers, validate
from levelhead.recipe.load import _direct
from levelhead.recipe.tasks import Function
from levelhead.scaffold.model import preset_folder
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


FIELDS: dict[str, Any] = json.loads((Path(__file__).parent / "trl_fields.json").read_text(encoding="utf-8"))
"""Names and defaults of TRL's arguments; a test holds them against the installed TRL."""
SERVER = {"use_vllm": True, "vllm_mode": "server"}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.01}
BESIDE: dict[str, dict[str, Any]] = {
    "vllm_mode": {"use_vllm": True},
    "vllm_enable_sleep_mode": SERVER,
    "vllm_server_base_url": SERVER,
    "vllm_server_host": SERVER,
    "vllm_server_port": SERVER,
    "vllm_importance_sampling_correction": SERVER,
    "vllm_importance_sampling_mode": SERVER,
    "vllm_importance_sampling_clip_max": SERVER,
    "vllm_importance_sampling_clip_min": SERVER,
    "vllm_importance_sampling_cap": SERVER,
    "entropy_target": ADAPTIVE,
    "entropy_coef_min": ADAPTIVE,
    "entropy_coef_max": ADAPTIVE,
    "entropy_coef_delta": ADAPTIVE,
    "eval_steps": {"eval_strategy": "steps"},
    "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_min_lr"},
    "use_bias_correction_kl": {"beta": 0.1},
    "sapo_temperature_neg": {"loss_type": "sapo"},
    "sapo_temperature_pos": {"loss_type": "sapo"},
    "use_vllm": {"vllm_mode": "server"},
}
"""Settings without which TRL does not read another."""
VALUES: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "lr_scheduler_type": "cosine",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_steps": 0.5,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "activation_checkpointing": True,
    "gradient_checkpointing": True,
    "report_to": ["wandb"],
    "adam_beta2": 0.99,
    "max_steps": 7,
    "run_name": "one",
    "output_dir": "somewhere",
    "eval_strategy": "epoch",
    "eval_steps": 7,
    "save_strategy": "no",
    "save_steps": 0.1,
    "save_total_limit": 5,
    "data_seed": 7,
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {"cpu_offload": True},
    "model_init_kwargs": {"dtype": "float32"},
    "num_generations": 4,
    "generation_batch_size": 32,
    "steps_per_generation": 2,
    "top_p": 0.9,
    "min_p": 0.1,
    "generation_kwargs": {"no_repeat_ngram_size": 3},
    "chat_template_kwargs": {"enable_thinking": False},
    "vllm_mode": "server",
    "vllm_server_base_url": "http://10.0.0.2:8000",
    "vllm_server_host": "10.0.0.2",
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_cap": 5.0,
    "delta": 4.0,
    "epsilon_high": 0.28,
    "importance_sampling_level": "sequence",
    "reward_weights": [0.5],
    "multi_objective_aggregation": "normalize_then_sum",
    "scale_rewards": "batch",
    "loss_type": "grpo",
    "top_entropy_quantile": 0.2,
    "num_completions_to_print": 3,
    "optim": "adamw_8bit",
    "metric_for_best_model": "eval_loss",
    "hub_strategy": "checkpoint",
    "num_generations_eval": 4,
    "ddp_backend": "mpi",
}
REFUSED_VALUES = ("data_seed", "fsdp_config", "vllm_importance_sampling_correction")
"""Arguments that are kept, with the value that is tried refused."""
AT_THE_END = (
    "max_tool_calling_iterations",
    "trackio_space_id",
    "push_to_hub",
    "hub_token",
    "hub_private_repo",
    "hub_model_id",
    "hub_revision",
    "load_best_model_at_end",
)
"""Settings that ``train()``, ``push_to_hub()`` and tools read; tests of their own hold them."""


def other_value(name: str) -> Any:
    """A value of an argument that is not TRL's default."""
    default = FIELDS["config"][name]
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1 if default >= 1 or default < 0 else default + 0.03125 if default else 1
    return {"x": 1} if name.endswith(("_kwargs", "_config")) else "something"


@pytest.mark.parametrize("name", list(FIELDS["config"]))
def test_every_argument_is_kept_has_no_effect_for_a_reason_or_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, value, beside = trainers.trl()["config"][name].kind, other_value(name), BESIDE.get(name, {})
    if kind == "fixed":
        trainer = GRPOTrainer("some/model", long_enough, GRPOConfig(**{**beside, name: value}), ROWS)
        assert name in capsys.readouterr().err
        assert trainer.yaml == GRPOTrainer("some/model", long_enough, GRPOConfig(**beside), ROWS).yaml
        assert trainers.trl()["config"][name].note
    elif kind in ("only", "refused") or name in REFUSED_VALUES:
        with pytest.raises(InputError, match=rf"^GRPOConfig: {name}.*: ."):
            GRPOTrainer("some/model", long_enough, GRPOConfig(**{**beside, name: value}), ROWS)
    elif name not in AT_THE_END:
        plain = {name: "colocate"} if name == "vllm_mode" else {}
        trainer = GRPOTrainer("some/model", long_enough, GRPOConfig(**{**beside, name: value}), ROWS)
        try:
            before = GRPOTrainer("some/model", long_enough, GRPOConfig(**{**beside, **plain}), ROWS).yaml
        except InputError:
            before = ""
        assert trainer.yaml != before, f"{name}={value} changes nothing"
        assert name not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment_factory": object}, "environment_factory: object has no method reset"),
        ({"environment_factory": {"a": object}}, "environment_factory: one factory, not a dict"),
        ({"reward_funcs": None}, "reward_funcs: missing"),
        ({"optimizers": (object(), None)}, "optimizers=.*: optim, learning_rate"),
        ({"reward_funcs": "OpenAssistant/reward-model"}, "OpenAssistant/reward-model is no function"),
        ({"train_dataset": None}, "train_dataset: missing"),
        ({"train_dataset": SimpleNamespace(column_names=["prompt", "image"])}, "the column image holds pictures"),
        ({"args": GRPOConfig(loss_type="vespo")}, "loss_type=vespo: there are grpo"),
        ({"args": GRPOConfig(use_vllm=True)}, "vllm_mode=colocate: no engine runs .* `levelhead serve policy`"),
        ({"args": GRPOConfig(generation_kwargs={"stop": ["</a>"]})}, "generation_kwargs: stop is not there; there are"),
        ({"args": GRPOConfig(report_to=["codecarbon"])}, "report_to: codecarbon is not there; there are tensorboard"),
        ({"args": GRPOConfig(deepspeed="zero3.json", optim_args="a=1")}, "(?s)deepspeed.*full_shard.*optim_args=a=1"),
        ({"args": GRPOConfig(optim="adafactor")}, "optim=adafactor: there are adamw_torch, .*paged_adamw_8bit"),
        ({"args": GRPOConfig(fsdp="full_shard offload")}, "fsdp: offload is not there"),
        ({"args": GRPOConfig(model_init_kwargs={"attn_implementation": "flash_attention_3"})}, "flash_attention_3"),
        ({"args": GRPOConfig(lr_scheduler_type="polynomial")}, "lr_scheduler_type=polynomial: there are constant"),
        ({"peft_config": LoraConfig(use_dora=True)}, "peft_config: use_dora is not there; there are r, lora_alpha"),
        ({"eval_dataset": {"one": ROWS}}, "eval_dataset: several data sets; join them"),
        ({"args": GRPOConfig(num_generations=3)}, "8 rollouts is no multiple of num_generations"),
        ({"wishes": 3}, "TRL has no argument wishes"),
    ],
)
def test_what_would_be_another_run_is_refused(change: dict[str, Any], said: str) -> None:
    keys: dict[str, Any] = {"reward_funcs": long_enough, "args": GRPOConfig(), "train_dataset": ROWS, **change}
    with pytest.raises(InputError, match=said):
        GRPOTrainer("some/model", **keys)


@dataclass
class Theirs:
    """A config that fills in what is not set, as TRL's does."""

    use_cpu: bool = False
    learning_rate: float = 1e-6
    fp16: bool = False
    bf16: bool | None = None
    dataloader_drop_last: bool = False
    deepspeed: str | None = None
    accelerator_config: Any = None
    output_dir: str | None = None

    def __post_init__(self) -> None:
        self.accelerator_config = {"split_batches": False}
        self.bf16 = not self.fp16 if self.bf16 is None else self.bf16


def test_of_trls_own_config_what_the_script_set_counts_and_not_what_it_fills_in() -> None:
    assert settings_of(Theirs()) == {}
    assert settings_of(Theirs(use_cpu=True, learning_rate=1e-5)) == {"use_cpu": True, "learning_rate": 1e-5}
    with pytest.raises(InputError, match="deepspeed=zero3"):
        GRPOTrainer("some/model", long_enough, Theirs(deepspeed="zero3"), ROWS)


def test_a_misspelt_argument_is_hinted_at() -> None:
    with pytest.raises(InputError, match="TRL has no argument num_generation; did you mean num_generations"):
        GRPOConfig(num_generation=4)


class Listener(TrainerCallback):
    """Writes down what it is called with, and ends training after a number of updates."""

    def __init__(self, last: int) -> None:
        self.calls: list[str] = []
        self.last = last
        self.model: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        self.model = others["model"]
        control.should_training_stop = state.global_step >= self.last
        return control

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            object.__getattribute__(self, "calls").append(name)
        return object.__getattribute__(self, name)


def short_run(folder: Path, **settings: Any) -> GRPOConfig:
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4}
    return GRPOConfig(output_dir=str(folder), use_cpu=True, **{**sizes, "max_steps": 1, **settings})


def quick(trainer: GRPOTrainer) -> GRPOTrainer:
    """Without the preflight, and with two held-out rows scored."""
    few = {"items": 2, "final_items": 2}
    sections = {"check": False, "eval": trainer.recipe.eval.model_copy(update=few)}
    trainer.recipe = trainer.recipe.model_copy(update=sections)
    return trainer


def test_a_script_trains_saves_and_can_be_run_again(tmp_path: Path) -> None:
    args = short_run(tmp_path / "out")
    for folder in ("out", "out-2"):
        trainer = quick(GRPOTrainer(preset_folder("base-tiny"), long_enough, args, ROWS))
        steps, loss, metrics = trainer.train()
        assert trainer.result is not None
        assert trainer.result.folder == tmp_path / folder
        assert steps == 1
        assert metrics["train_runtime"] > 0
        assert metrics["train_loss"] == loss
    trainer.save_model(str(tmp_path / "saved"))
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(tmp_path / "saved")
    (plain := tmp_path / "plain").touch()
    assert (tmp_path / "saved" / "model.safetensors").stat().st_mode == plain.stat().st_mode


def test_callbacks_run_end_training_and_log_history_goes_on_where_a_run_is_resumed(tmp_path: Path) -> None:
    args = short_run(tmp_path / "out", max_steps=4, save_steps=1, eval_strategy="steps", eval_steps=1)
    listener = Listener(last=2)
    trainer = quick(GRPOTrainer(preset_folder("base-tiny"), long_enough, args, ROWS, callbacks=[listener]))
    assert trainer.train().global_step == 2
    order = ["on_init_end", "on_train_begin", "on_evaluate", "on_step_begin", "on_pre_optimizer_step", "on_step_end"]
    assert listener.calls[: len(order)] == order
    assert listener.calls[-1] == "on_train_end"
    assert {"on_save", "on_log"} <= set(listener.calls)
    assert listener.model is trainer.model
    rewards = [row["step"] for row in trainer.state.log_history if "reward" in row]
    assert rewards == [1, 2]
    assert trainer.state.max_steps == 4
    assert 0 < trainer.state.epoch < 1
    assert "eval_function/score" in trainer.evaluate()
    again = quick(GRPOTrainer(preset_folder("base-tiny"), long_enough, args, ROWS, callbacks=[Listener(last=9)]))
    assert again.train(resume_from_checkpoint=True).global_step == 4
    assert [row["step"] for row in again.state.log_history if "reward" in row] == [1, 2, 3, 4]
    again.save_state()
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == 4


def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a + b


def test_tools_are_called_and_rewards_see_calls_results_and_the_answer_as_trls_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from levelhead.tasks.tool_formats import Call
    from levelhead.tasks.tools import Toolbox
    from tasks.test_tools import TOOL_TEMPLATE

    turns = [0]

    def read(self: Toolbox, text: str) -> tuple[str, list[Call]]:
        """An untrained policy calls nothing by itself: every other turn is read as two calls."""
        turns[0] += 1
        arguments = {"a": 6, "b": 7}
        return text, [Call("multiply", arguments), Call("async_add", arguments)] if turns[0] % 2 else []

    monkeypatch.setattr(Toolbox, "read", read)
    shown: list[Any] = []

    def reward(completions: list[Any], **_: Any) -> list[float]:
        shown.extend(completions)
        return [float(len(completion[-1]["content"])) for completion in completions]

    model = AutoModelForCausalLM.from_pretrained(preset_folder("base-tiny"))
    tokenizer = AutoTokenizer.from_pretrained(preset_folder("base-tiny"))
    tokenizer.chat_template = TOOL_TEMPLATE
    chats = [{"prompt": [{"role": "user", "content": f"Six times seven, {n}?"}]} for n in range(24)]
    args = short_run(tmp_path / "out", max_tool_calling_iterations=3)
    keys = {"args": args, "train_dataset": chats, "processing_class": tokenizer, "tools": [multiply, async_add]}
    trainer = quick(GRPOTrainer(model, reward, **keys))
    assert yaml.safe_load(trainer.yaml)["tasks"][0]["tools"]["turns"] == 4
    trainer.train()
    called = [completion for completion in shown if len(completion) > 1]
    assert called
    for completion in called:
        assert [message["role"] for message in completion[:3]] == ["assistant", "tool", "tool"]
        assert [one["function"]["name"] for one in completion[0]["tool_calls"]] == ["multiply", "async_add"]
        assert [message["content"] for message in completion[1:3]] == ["42", "13"]
        assert completion[-1]["role"] == "assistant"


class IncrementEnv:
    """The environment of TRL's documentation: a counter that the policy adds to."""

    made: ClassVar[list[IncrementEnv]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.counter, self.goal = -1, -1

    def reset(self, goal: int, **row: Any) -> str:
        assert row["prompt"][0]["role"] == "user"
        self.counter, self.goal = 0, goal
        return f" The counter stands at {self.counter}."

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return float(self.counter == self.goal)


def test_an_environment_factory_makes_a_counter_a_rollout_that_tools_change_and_rewards_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from levelhead.tasks.tool_formats import Call
    from levelhead.tasks.tools import Toolbox
    from tasks.test_tools import TOOL_TEMPLATE

    turns = [0]

    def read(self: Toolbox, text: str) -> tuple[str, list[Call]]:
        """An untrained policy calls nothing by itself: every other turn is read as two calls."""
        turns[0] += 1
        return text, [Call("increment", {"step": 2}), Call("increment", {"step": 1})] if turns[0] % 2 else []

    monkeypatch.setattr(Toolbox, "read", read)
    monkeypatch.setattr(IncrementEnv, "made", [])
    seen: list[tuple[int, Any]] = []

    def reward(environments: list[IncrementEnv], completions: list[Any], **_: Any) -> list[float]:
        pairs = zip(environments, completions, strict=True)
        seen.extend((environment.counter, completion) for environment, completion in pairs)
        return [float(environment.counter) for environment in environments]

    model = AutoModelForCausalLM.from_pretrained(preset_folder("base-tiny"))
    tokenizer = AutoTokenizer.from_pretrained(preset_folder("base-tiny"))
    tokenizer.chat_template = TOOL_TEMPLATE
    chats = [{"prompt": [{"role": "user", "content": f"Add {n}, please."}], "goal": n % 4} for n in range(24)]
    args = short_run(tmp_path / "out", reward_weights=[0.5])
    keys = {"args": args, "train_dataset": chats, "processing_class": tokenizer, "environment_factory": IncrementEnv}
    trainer = quick(GRPOTrainer(model, reward, **keys))
    (task,) = trainer.recipe.tasks
    assert task.reward_weights == [0.5, 1.0]
    assert task.tools.functions == ["increment"]
    trainer.train()
    played = [(counter, completion) for counter, completion in seen if len(completion) > 1]
    assert played
    for counter, completion in played:
        assert [message["content"] for message in completion if message["role"] == "tool"][:2] == ["2", "3"]
        assert counter == 3 * sum(message["role"] == "assistant" and "tool_calls" in message for message in completion)
    assert len(IncrementEnv.made) < len(seen), "environments are used again"
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert any("rewards/IncrementEnv/mean" in line for line in lines)


def test_an_environment_owns_the_reward_where_no_function_is_given(tmp_path: Path) -> None:
    keys = {"args": short_run(tmp_path / "out"), "train_dataset": ROWS, "environment_factory": IncrementEnv}
    trainer = GRPOTrainer(preset_folder("base-tiny"), **keys)
    assert [function.__name__ for function in trainer._data["rewards"]] == ["IncrementEnv"]


def test_eval_dataset_is_what_evaluations_score(tmp_path: Path) -> None:
    scored: list[str] = []

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        scored.extend(answer)
        return [float(len(text)) for text in completions]

    held_out = [{"prompt": f"Name the number {n}.", "answer": f"held out {n}"} for n in range(3)]
    args = short_run(tmp_path / "out", load_best_model_at_end=True)
    trainer = GRPOTrainer(preset_folder("base-tiny"), reward, args, ROWS, held_out)
    assert trainer.recipe.eval.final_items == 3
    trainer.recipe = trainer.recipe.model_copy(update={"check": False})
    trainer.train()
    assert {row["answer"] for row in held_out} <= set(scored)
    assert len({answer for answer in scored if not answer.startswith("held out")}) == 2, "one step of two groups"


def test_a_loaded_model_takes_the_adapter_and_is_pushed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[dict[str, Any]] = []

    class Hub:
        def __init__(self, token: str | None) -> None:
            assert token == "secret"

        def create_repo(self, name: str, **_: Any) -> Any:
            return SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, **what: Any) -> None:
            pushed.append({**what, "files": sorted(path.name for path in Path(what["folder_path"]).iterdir())})

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    model = AutoModelForCausalLM.from_pretrained(preset_folder("base-tiny"))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    args = short_run(tmp_path / "out", push_to_hub=True, hub_model_id="mine", hub_token="secret", hub_revision="dev")
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    trainer = quick(GRPOTrainer(model, long_enough, args, ROWS, peft_config=adapter))
    trainer.train()
    assert trainer.result is not None
    assert trainer.model.get_base_model() is model
    names = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert names
    assert all("lora_" in name for name in names)
    base = dict(model.named_parameters())
    for name, weight in before.items():
        assert torch.equal(weight, base.get(name, base.get(re.sub(r"[.](weight|bias)$", r".base_layer.\1", name))))
    (upload,) = pushed
    assert (upload["repo_id"], upload["revision"]) == ("me/mine", "dev")
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors"} <= set(upload["files"])


def test_what_peft_would_do_where_no_modules_are_named_is_done() -> None:
    trainer = GRPOTrainer(preset_folder("base-tiny"), long_enough, GRPOConfig(), ROWS, peft_config=LoraConfig())
    assert trainer.recipe.model.lora is not None
    assert trainer.recipe.model.lora.target_modules == ["q_proj", "v_proj"]


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


def test_the_table_has_every_stored_argument_and_default() -> None:
    table = trainers.trl()
    assert set(FIELDS["config"]) == set(table["config"])
    assert set(FIELDS["trainer"]) == set(table["trainer"])
    for name, default in FIELDS["config"].items():
        assert (table["config"][name].default or None) == (default or None), name


def test_the_stored_fields_are_those_of_the_installed_trl() -> None:
    python = os.environ.get("LEVELHEAD_TRL_PYTHON", sys.executable)
    if "LEVELHEAD_TRL_PYTHON" not in os.environ and importlib.util.find_spec("trl") is None:
        pytest.skip("TRL is not installed; LEVELHEAD_TRL_PYTHON names a Python that has it")
    code = (
        "import dataclasses, inspect, json, trl; plain = lambda f: getattr(f.default, 'value', f.default) "
        "if f.default is not dataclasses.MISSING else f.default_factory(); "
        "print(json.dumps({'version': trl.__version__, "
        "'config': {f.name: plain(f) for f in dataclasses.fields(trl.GRPOConfig)}, "
        "'trainer': list(inspect.signature(trl.GRPOTrainer.__init__).parameters)[1:]}))"
    )
    done = subprocess.run([python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == FIELDS
