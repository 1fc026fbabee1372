"""Sections of a recipe from TRL's settings, a function each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError

Settings = Mapping[str, Any]
"""TRL's settings by name, defaults filled in."""

_LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("ppo_clip", "sequence_mean"),
    "dapo": ("ppo_clip", "token_mean"),
    "bnpo": ("ppo_clip", "token_mean"),
    "dr_grpo": ("ppo_clip", "fixed_length"),
    "cispo": ("cispo", "token_mean"),
    "sapo": ("sapo", "sequence_mean"),
}
_SCALES = {"group": "grpo", "True": "grpo", "batch": "batch", "none": "dr_grpo", "False": "dr_grpo"}
_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_apex_fused"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    "paged_adamw_8bit": "paged_adamw_8bit",
}
_SAMPLING = {
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_new_tokens": "min_new_tokens",
    "min_tokens": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram",
    "no_repeat_ngram_size": "no_repeat_ngram",
}
_MOST_TURNS = 64
_TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
_LOADING = ("dtype", "torch_dtype", "revision", "trust_remote_code", "attn_implementation")
_ATTENTION = ("sdpa", "eager", "flash_attention_2")
_ADAPTER = ("r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save")
# What these say changes no number of a run.
_LOADING_ALIKE = ("device_map", "use_cache", "low_cpu_mem_usage")
_ADAPTER_ALIKE = (
    "task_type",
    "peft_type",
    "inference_mode",
    "base_model_name_or_path",
    "peft_version",
    "runtime_config",
)
_SHARDING_ALIKE = (
    "version",
    "reshard_after_forward",
    "cpu_ram_efficient_loading",
    "state_dict_type",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a script asks for besides its settings.

    Attributes:
        model: Name or folder of the model.
        kind: Its ``model_type``; empty where that is not known yet.
        peft: PEFT's ``LoraConfig``; ``None`` for whole weights.
        four_bits: Whether the frozen base is held in four bits.
        rows: Rows that are trained on; ``None`` where their number is not known.
        tools: Names of the functions that the policy may call.
    """

    model: str
    kind: str
    peft: Any
    four_bits: bool
    rows: float | None
    tools: Sequence[str] = ()


class Clock:
    """TRL counts optimizer updates and passes over the data; a recipe counts rollout batches of so many updates.

    Args:
        get: TRL's settings.
        rows: Rows that are trained on.
        groups: Prompts of a rollout batch.
        updates: Optimizer updates on it.
    """

    def __init__(self, get: Settings, rows: float | None, groups: int, updates: int) -> None:
        self._get, self._updates, self._steps = get, updates, int(get["max_steps"] or -1)
        self._epoch = None if rows is None else max(1, math.ceil(rows / groups))

    def length(self) -> dict[str, Any]:
        """Return ``steps`` or ``data_epochs`` of the stage."""
        if self._steps > 0:
            return {"steps": math.ceil(self._steps / self._updates)}
        if self._epoch is None:
            raise InputError("GRPOConfig: max_steps: train_dataset has no length, so give the steps")
        return {"data_epochs": float(self._get["num_train_epochs"])}

    @property
    def total(self) -> int:
        """Optimizer updates of the run."""
        if self._steps > 0 or self._epoch is None:
            return self._steps
        return math.ceil(self._epoch * float(self._get["num_train_epochs"])) * self._updates

    def every(self, what: str) -> int:
        """Return the batches between two evaluations (``eval``) or checkpoints (``save``); 0 for none on the way."""
        strategy, number = word(self._get[f"{what}_strategy"]), self._get[f"{what}_steps"]
        if strategy == "no":
            return 0
        if strategy == "best":
            return self.every("eval")
        if strategy == "epoch":
            if self._epoch is None:
                raise refusal(f"{what}_strategy", self._get, "train_dataset has no length, so count in steps")
            return self._epoch
        number = float(number or self._get["logging_steps"])
        return max(1, math.ceil((number * self.total if number < 1 else number) / self._updates))


def refusal(name: str, get: Settings, way_out: str) -> InputError:
    """Return the error of a setting whose value no run here would keep."""
    return InputError(f"GRPOConfig: {name}={word(get[name]):.60}: {way_out}")


def word(value: Any) -> str:
    """Return a value as text; of a word of an enumeration, the word."""
    return str(getattr(value, "value", value))


def _only(place: str, names: Iterable[str], *allowed: str) -> None:
    for name in names:
        if name not in allowed:
            raise InputError(f"{place}: {name} is not there; there are {', '.join(allowed)}")


def batch(get: Settings) -> tuple[int, dict[str, Any]]:
    """Return the groups and sizes of a rollout batch.

    TRL samples ``per_device_train_batch_size * processes * steps_per_generation`` rollouts and makes
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
        raise InputError(
            f"GRPOConfig: steps_per_generation: {updates} updates do not divide the {groups} groups of a batch; "
            "set it so that they do, or num_generations lower"
        )
    sizes = {"batch_size": rollouts, "group_size": size, "updates_per_batch": updates}
    return groups, {**sizes, "epochs": int(get["num_iterations"])}


def objective(get: Settings) -> dict[str, Any]:
    """Return loss, advantage, KL penalty and entropy bonus of the stage."""
    loss_type = str(get["loss_type"])
    if loss_type not in _LOSSES:
        raise refusal("loss_type", get, f"there are {', '.join(_LOSSES)}")
    kind, aggregation = _LOSSES[loss_type]
    clip = {"clip_low": get["epsilon"], "clip_high": get["epsilon_high"] or get["epsilon"]}
    loss: dict[str, Any] = {"kind": kind, "aggregation": aggregation, **_importance(get)}
    if str(get["importance_sampling_level"]) == "sequence":
        loss["kind"] = "gspo"
    if loss["kind"] in ("ppo_clip", "gspo"):
        loss |= clip
    if loss["kind"] == "cispo":
        loss |= {"clip_high": clip["clip_high"]}
    if loss["kind"] == "sapo":
        loss |= {"tau_pos": get["sapo_temperature_pos"], "tau_neg": get["sapo_temperature_neg"]}
    if get["delta"] and loss["kind"] != "ppo_clip":
        raise refusal("delta", get, f"the loss {loss['kind']} has no second clip; leave it out")
    if get["delta"]:
        loss["dual_clip"] = get["delta"]
    if float(get["top_entropy_quantile"]) < 1:
        loss["top_entropy"] = get["top_entropy_quantile"]
    advantage = _SCALES[str(get["scale_rewards"])]
    if get["multi_objective_aggregation"] == "normalize_then_sum":
        advantage = "gdpo"
    corrected = get["beta"] and get["use_bias_correction_kl"]
    return {
        "loss": loss,
        "advantage": {"kind": advantage},
        "kl": {"coef": get["beta"], "gradient": "importance" if corrected else "plain"},
        "entropy": _entropy(get),
        "mask_truncated": bool(get["mask_truncated_completions"]),
    }


def _importance(get: Settings) -> dict[str, Any]:
    """The correction for an engine that samples with kernels of its own."""
    if not get["use_vllm"]:
        return {}
    if not get["vllm_importance_sampling_correction"]:
        raise refusal("vllm_importance_sampling_correction", get, "an engine samples with other kernels; leave it on")
    high = get["vllm_importance_sampling_cap"] or get["vllm_importance_sampling_clip_max"]
    return {
        "importance": get["vllm_importance_sampling_mode"],
        "importance_low": get["vllm_importance_sampling_clip_min"] or 0.0,
        "importance_high": high or 1e9,
    }


def _entropy(get: Settings) -> dict[str, Any]:
    section: dict[str, Any] = {"coef": get["entropy_coef"] or 0.0}
    if get["use_adaptive_entropy"]:
        section["controller"] = {
            "kind": "entropy_target",
            "target": get["entropy_target"],
            "delta": get["entropy_coef_delta"],
            "coef_min": get["entropy_coef_min"],
            "coef_max": get["entropy_coef_max"],
        }
    return section


def optimizer(get: Settings, clock: Clock) -> dict[str, Any]:
    """Return the optimizer of the stage."""
    schedule, more = word(get["lr_scheduler_type"]), dict(get["lr_scheduler_kwargs"] or {})
    if schedule not in _SCHEDULES:
        raise refusal("lr_scheduler_type", get, f"there are {', '.join(_SCHEDULES)}")
    final = more.pop("min_lr_rate", None)
    if (lowest := more.pop("min_lr", None)) is not None:
        final = float(lowest) / float(get["learning_rate"])
    if more or (final is not None and schedule != "cosine_with_min_lr"):
        raise refusal("lr_scheduler_kwargs", get, "min_lr or min_lr_rate of cosine_with_min_lr alone")
    if (kind := word(get["optim"])) not in _OPTIMIZERS:
        raise refusal("optim", get, f"there are {', '.join(_OPTIMIZERS)}")
    warmup = float(get["warmup_steps"] or 0)
    if 0 < warmup < 1:
        warmup = math.ceil(warmup * clock.total)
    return {
        "kind": _OPTIMIZERS[kind],
        "learning_rate": get["learning_rate"],
        "betas": [get["adam_beta1"], get["adam_beta2"]],
        "eps": get["adam_epsilon"],
        "weight_decay": get["weight_decay"],
        "max_grad_norm": get["max_grad_norm"],
        "schedule": _SCHEDULES[schedule],
        "warmup_steps": int(warmup),
        **({} if final is None else {"final_fraction": final}),
    }


def tools(get: Settings, asked: Asked) -> dict[str, Any]:
    """Return the functions of the task; TRL bounds neither their time nor their results, nor turns unless asked to."""
    if not asked.tools:
        return {}
    calling = get["max_tool_calling_iterations"]
    turns = _MOST_TURNS if calling is None else min(_MOST_TURNS, int(calling) + 1)
    limits = {"turns": turns, "calls": 64, "timeout_s": 3600, "result_chars": 1_000_000}
    return {"tools": {"functions": list(asked.tools), **limits}}


def sampling(get: Settings) -> dict[str, Any]:
    """Return how rollouts are sampled."""
    more = {name: value for name, value in dict(get["generation_kwargs"] or {}).items() if name != "do_sample"}
    _only("GRPOConfig: generation_kwargs", more, *_SAMPLING)
    return {
        "temperature": get["temperature"],
        "top_p": get["top_p"],
        "top_k": int(get["top_k"] or 0),
        "min_p": get["min_p"] or 0.0,
        "repetition_penalty": get["repetition_penalty"],
        "max_new_tokens": get["max_completion_length"],
        **{_SAMPLING[name]: value for name, value in more.items()},
    }


def evaluation(get: Settings, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Return how held-out rows are scored."""
    section = {"every": clock.every("eval"), "items": 32, "final_items": 64}
    if "per_device_eval_batch_size" in settings:
        section["batch_size"] = int(get["per_device_eval_batch_size"])
    return {**section, "sampling": {"max_new_tokens": get["max_completion_length"]}}


def logging(get: Settings, settings: Settings) -> dict[str, Any]:
    """Return what is sent to trackers."""
    names = get["report_to"] or []
    trackers = [name for name in ([names] if isinstance(names, str) else names) if name != "none"]
    _only("GRPOConfig: report_to", trackers, *_TRACKERS)
    section = {"report_to": trackers, "project": settings.get("project") or "levelhead"}
    return section | ({"rollouts": int(number)} if (number := get["num_completions_to_print"]) else {})


def model(get: Settings, asked: Asked) -> dict[str, Any]:
    """Return how the model is loaded, and its adapter."""
    loading = dict(get["model_init_kwargs"] or {})
    _only("GRPOConfig: model_init_kwargs", loading, *_LOADING, *_LOADING_ALIKE)
    attention = loading.get("attn_implementation") or "sdpa"
    _only("GRPOConfig: model_init_kwargs: attn_implementation", [attention], *_ATTENTION)
    dtype = str(loading.get("dtype") or loading.get("torch_dtype") or "auto").removeprefix("torch.")
    dtype = "bfloat16" if get["bf16"] and dtype == "auto" else "float16" if get["fp16"] and dtype == "auto" else dtype
    keys: dict[str, Any] = {
        "name": asked.model,
        "dtype": dtype,
        "revision": loading.get("revision"),
        "gradient_checkpointing": bool(get["gradient_checkpointing"] or get["activation_checkpointing"]),
        "trust_remote_code": bool(get["trust_remote_code"] or loading.get("trust_remote_code")),
        "chat_template_kwargs": dict(get["chat_template_kwargs"] or {}),
        "device": "cpu" if get["use_cpu"] else "auto",
        "attention": attention,
    }
    if asked.peft is not None:
        keys["lora"] = _adapter(asked)
    elif asked.four_bits:
        raise InputError("GRPOTrainer: quantization_config: weights of four bits are frozen; give peft_config")
    return keys


def _adapter(asked: Asked) -> dict[str, Any]:
    """``model.lora`` of a ``LoraConfig``; what it says besides the five keys that are there is refused by name."""
    peft, plain = asked.peft, type(asked.peft)()
    alike = (*_ADAPTER, *_ADAPTER_ALIKE)
    changed = [name for name, value in vars(peft).items() if name not in alike and value != getattr(plain, name, None)]
    _only("GRPOTrainer: peft_config", changed, *_ADAPTER)
    if peft.lora_alpha != int(peft.lora_alpha):
        raise InputError(f"GRPOTrainer: peft_config: lora_alpha={peft.lora_alpha}: a whole number is wanted")
    modules = peft.target_modules
    if modules is None:
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

        modules = USUAL.get(asked.kind)
    if modules is None:
        raise InputError('GRPOTrainer: peft_config: target_modules: name them, or "all-linear"')
    return {
        "r": peft.r,
        "alpha": int(peft.lora_alpha),
        "dropout": peft.lora_dropout,
        "target_modules": modules if isinstance(modules, str) else sorted(modules),
        "modules_to_save": list(peft.modules_to_save or ()),
        "load_in_4bit": asked.four_bits,
    }


def generator(get: Settings, asked: Asked) -> dict[str, Any]:
    """Return ``generator`` of ``use_vllm``: weights go through a folder to a server on this machine, else by NCCL."""
    if not get["use_vllm"]:
        return {}
    if get["vllm_mode"] != "server":
        ways = (
            "no engine runs inside the trainer; leave use_vllm out, and Levelhead samples, or start a server with "
            "`levelhead serve policy` and set vllm_mode='server'"
        )
        raise refusal("vllm_mode", get, ways)
    url = str(get["vllm_server_base_url"] or f"http://{get['vllm_server_host']}:{get['vllm_server_port']}")
    url = url.replace("//0.0.0.0", "//127.0.0.1").rstrip("/")
    near = re.match(r"https?://(127\.|localhost\b|\[::1\])", url) is not None
    whole = asked.peft is None or bool(asked.peft.modules_to_save) or asked.four_bits
    sync = ("files" if whole else "adapter") if near else "nccl"
    folder = Path(get["output_dir"] or "runs/trl").absolute()
    shared = {"shared": str(folder.with_name(f"{folder.name}-weights"))} if near else {}
    section = {"kind": "vllm", "urls": [url], "sync": sync, "sleep": bool(get["vllm_enable_sleep_mode"]), **shared}
    return {"generator": section}


def processes(get: Settings, settings: Settings) -> dict[str, Any]:
    """Return how a model is divided over processes."""
    section: dict[str, Any] = {"timeout_s": float(get["ddp_timeout"])} if "ddp_timeout" in settings else {}
    fsdp = get["fsdp"] or []
    words = fsdp.split() if isinstance(fsdp, str) else ["full_shard"] if fsdp is True else [word(one) for one in fsdp]
    _only("GRPOConfig: fsdp", words, "full_shard", "auto_wrap")
    config = {name.removeprefix("fsdp_"): value for name, value in dict(get["fsdp_config"] or {}).items()}
    _only("GRPOConfig: fsdp_config", [name for name, value in config.items() if value], *_SHARDING_ALIKE)
    if "full_shard" in words:
        section["shard"] = "full"
    return {"distributed": section} if section else {}
