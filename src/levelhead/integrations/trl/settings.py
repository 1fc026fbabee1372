"""From TRL's settings to a recipe: what ``levelhead.trl`` rests on."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from levelhead.errors import InputError

DEFAULTS: Mapping[str, Any] = {
    "output_dir": None,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "num_iterations": 1,
    "num_generations": 8,
    "max_completion_length": 512,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "beta": 0.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    "reward_weights": None,
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "eval_strategy": "no",
    "eval_steps": None,
    "save_strategy": "steps",
    "save_steps": 500,
    "save_total_limit": None,
    "report_to": "none",
    "project": "levelhead",
    "run_name": None,
    "seed": 42,
    "bf16": None,
    "fp16": False,
    "use_cpu": False,
    "gradient_checkpointing": False,
    "chat_template_kwargs": None,
    "model_init_kwargs": None,
    "trust_remote_code": False,
    "push_to_hub": False,
    "hub_model_id": None,
}
"""TRL's defaults (1.16) of the arguments that are carried over."""
_LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("ppo_clip", "sequence_mean"),
    "dapo": ("ppo_clip", "token_mean"),
    "bnpo": ("ppo_clip", "token_mean"),
    "dr_grpo": ("ppo_clip", "fixed_length"),
    "cispo": ("cispo", "token_mean"),
    "sapo": ("sapo", "sequence_mean"),
}
_SCALES = {"group": "grpo", "True": "grpo", "batch": "batch", "none": "dr_grpo", "False": "dr_grpo"}
_SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
_SAMPLING = ("presence_penalty", "frequency_penalty", "min_new_tokens", "no_repeat_ngram")


def keys_of(args: Any, name: str, peft: Any, dataset: Any, unmoved: list[str]) -> dict[str, Any]:
    """Return the recipe as plain data; what could not be kept is added to ``unmoved``."""
    get = {key: getattr(args, key, default) for key, default in DEFAULTS.items()}
    groups, batch = _batch(get, unmoved)
    stage = {**batch, **_length(get, batch, dataset), **_objective(get)}
    stage["optimizer"] = _optimizer(get, stage, unmoved)
    stage["sampling"] = _sampling(get, unmoved)
    every = int(get["eval_steps"] or 0) if _word(get["eval_strategy"]) == "steps" else 0
    # TRL goes on where every reward returns None; such answers are dropped and counted.
    task: dict[str, Any] = {"kind": "function", "reward_weights": get["reward_weights"], "on_reward_error": "drop"}
    if dataset is not None and not hasattr(dataset, "__len__"):
        task["limit"] = max(64, groups * int(stage.get("steps", 1000)))
    label = get["run_name"] or (Path(get["output_dir"]).name if get["output_dir"] else "trl")
    return {
        "name": re.sub(r"^[.]+|[^A-Za-z0-9._-]+", "-", label)[:128] or "trl",
        "seed": int(get["seed"]),
        "model": _model(get, name, peft),
        "tasks": [task],
        "grpo": stage,
        "eval": {
            "every": every,
            "items": 32,
            "final_items": 64,
            "sampling": {"max_new_tokens": get["max_completion_length"]},
        },
        "checkpoint": {
            "every": int(get["save_steps"]) if _word(get["save_strategy"]) == "steps" else 0,
            "keep_last": int(get["save_total_limit"] or 2),
        },
        "log": {"report_to": _trackers(get["report_to"], unmoved), "project": get["project"] or "levelhead"},
    }


def _batch(get: Mapping[str, Any], unmoved: list[str]) -> tuple[int, dict[str, Any]]:
    """Groups and sizes of a rollout batch.

    TRL draws ``per_device_train_batch_size * processes * steps_per_generation`` rollouts and makes
    ``steps_per_generation / gradient_accumulation_steps`` updates on them, each ``num_iterations`` times.
    """
    accumulated = int(get["gradient_accumulation_steps"])
    each = int(get["per_device_train_batch_size"]) * int(os.environ.get("WORLD_SIZE", "1"))
    rollouts = int(get["generation_batch_size"] or each * int(get["steps_per_generation"] or accumulated))
    size = int(get["num_generations"])
    if rollouts % size:
        raise InputError(f"GRPOConfig: a batch of {rollouts} rollouts is no multiple of num_generations ({size})")
    groups = rollouts // size
    updates = max(1, rollouts // (each * accumulated))
    if groups % updates:
        unmoved.append(f"steps_per_generation: {updates} updates do not divide {groups} groups; one update a batch")
        updates = 1
    return groups, {
        "batch_size": rollouts,
        "group_size": size,
        "updates_per_batch": updates,
        "epochs": int(get["num_iterations"]),
    }


def _length(get: Mapping[str, Any], batch: Mapping[str, Any], dataset: Any) -> dict[str, Any]:
    steps = int(get["max_steps"] or -1)
    if steps > 0:
        return {"steps": math.ceil(steps / (batch["updates_per_batch"] * batch["epochs"]))}
    if not hasattr(dataset, "__len__"):
        raise InputError("GRPOConfig: max_steps: train_dataset has no length, so give the steps")
    return {"data_epochs": float(get["num_train_epochs"])}


def _objective(get: Mapping[str, Any]) -> dict[str, Any]:
    word = str(get["loss_type"])
    if word not in _LOSSES:
        raise InputError(f"GRPOConfig: loss_type: {word} is not there; there are {', '.join(_LOSSES)}")
    kind, aggregation = _LOSSES[word]
    clip = {"clip_low": get["epsilon"], "clip_high": get["epsilon_high"] or get["epsilon"]}
    loss: dict[str, Any] = {"kind": kind, "aggregation": aggregation}
    if str(get["importance_sampling_level"]) == "sequence":
        loss["kind"] = "gspo"
    if loss["kind"] in ("ppo_clip", "gspo"):
        loss |= clip
    if loss["kind"] == "cispo":
        loss |= {"clip_high": clip["clip_high"]}
    if loss["kind"] == "ppo_clip" and get["delta"]:
        loss["dual_clip"] = get["delta"]
    if loss["kind"] == "sapo":
        loss |= {"tau_pos": get["sapo_temperature_pos"], "tau_neg": get["sapo_temperature_neg"]}
    if float(get["top_entropy_quantile"]) < 1:
        loss["top_entropy"] = get["top_entropy_quantile"]
    advantage = _SCALES[str(get["scale_rewards"])]
    if get["multi_objective_aggregation"] == "normalize_then_sum":
        advantage = "gdpo"
    return {
        "loss": loss,
        "advantage": {"kind": advantage},
        "kl": {"coef": get["beta"]},
        "entropy": {"coef": get["entropy_coef"] or 0.0},
        "mask_truncated": bool(get["mask_truncated_completions"]),
    }


def _optimizer(get: Mapping[str, Any], stage: Mapping[str, Any], unmoved: list[str]) -> dict[str, Any]:
    word = _word(get["lr_scheduler_type"])
    schedule = _SCHEDULES.get(word)
    if schedule is None:
        unmoved.append(f"lr_scheduler_type: {word} is not there; linear")
    warmup = float(get["warmup_steps"] or 0)
    if 0 < warmup < 1:
        steps = stage.get("steps")
        if steps is None:
            unmoved.append("warmup_steps: a fraction of a number of steps that follows from the data; none")
        warmup = round(warmup * steps) if steps else 0
    return {
        "learning_rate": get["learning_rate"],
        "betas": [get["adam_beta1"], get["adam_beta2"]],
        "eps": get["adam_epsilon"],
        "weight_decay": get["weight_decay"],
        "max_grad_norm": get["max_grad_norm"],
        "schedule": schedule or "linear",
        "warmup_steps": int(warmup),
    }


def _sampling(get: Mapping[str, Any], unmoved: list[str]) -> dict[str, Any]:
    more = dict(get["generation_kwargs"] or {})
    unmoved.extend(f"generation_kwargs: {name}" for name in more if name not in _SAMPLING)
    return {
        "temperature": get["temperature"],
        "top_p": get["top_p"],
        "top_k": int(get["top_k"] or 0),
        "min_p": get["min_p"] or 0.0,
        "repetition_penalty": get["repetition_penalty"],
        "max_new_tokens": get["max_completion_length"],
        **{name: value for name, value in more.items() if name in _SAMPLING},
    }


def _model(get: Mapping[str, Any], name: str, peft: Any) -> dict[str, Any]:
    given = dict(get["model_init_kwargs"] or {})
    dtype = str(given.get("dtype") or given.get("torch_dtype") or "auto").removeprefix("torch.")
    dtype = "bfloat16" if get["bf16"] and dtype == "auto" else "float16" if get["fp16"] and dtype == "auto" else dtype
    keys: dict[str, Any] = {
        "name": name,
        "dtype": dtype,
        "revision": given.get("revision"),
        "gradient_checkpointing": bool(get["gradient_checkpointing"]),
        "trust_remote_code": bool(get["trust_remote_code"] or given.get("trust_remote_code")),
        "chat_template_kwargs": dict(get["chat_template_kwargs"] or {}),
        "device": "cpu" if get["use_cpu"] else "auto",
    }
    if given.get("attn_implementation") in ("sdpa", "eager", "flash_attention_2"):
        keys["attention"] = given["attn_implementation"]
    if peft is not None:
        modules = getattr(peft, "target_modules", None) or "all-linear"
        keys["lora"] = {
            "r": peft.r,
            "alpha": int(peft.lora_alpha),
            "dropout": peft.lora_dropout,
            "target_modules": modules if isinstance(modules, str) else sorted(modules),
            "modules_to_save": list(getattr(peft, "modules_to_save", None) or ()),
        }
    return keys


def _trackers(value: Any, unmoved: list[str]) -> list[str]:
    names: Iterable[str] = [value] if isinstance(value, str) else value or []
    there = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    unmoved.extend(f"report_to: {name}" for name in names if name not in (*there, "none"))
    return there


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))
