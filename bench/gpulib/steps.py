"""A policy of random weights on a device, its timed steps, and what they amount to."""

from __future__ import annotations

import gc
from statistics import median
from typing import Any

import torch
from speedlib import workloads
from speedlib.ours import Ours
from speedlib.worker import memory
from speedlib.workloads import Workload

from gpulib.peaks import Peak
from gpulib.shapes import Shape
from levelhead.policy.backends.choose import backends
from levelhead.policy.load import wrap
from levelhead.policy.policy import Policy


def make_policy(work: Workload, device: torch.device, compute: torch.dtype, *, checkpointing: bool = False) -> Policy:
    """A policy of a workload's shape, made where it runs: trained weights in float32, a frozen base in ``compute``."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(
            workloads.model_config(work), dtype=compute if work.lora else torch.float32, attn_implementation="sdpa"
        )
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    if work.lora:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(r=work.lora, lora_alpha=2 * work.lora, target_modules="all-linear", task_type="CAUSAL_LM")
        wrapped = get_peft_model(model, settings)
        if checkpointing:
            model.enable_input_require_grads()
        model = wrapped
    policy = wrap(model, workloads.tokenizer_of(work))
    policy.compute_dtype = compute
    policy.disable_dropout()
    workloads.fill_adapters(policy.model)
    return policy


def flops(policy: Policy, w: Workload) -> float:
    """Floating-point operations that training on one step's rollouts cannot avoid, a shared prompt counted once.

    Two a weight and token forward, twice that backward, or once where weights are frozen; output logits at completion
    tokens alone; attention of every token to those before it.  What is computed again counts nothing.
    """
    config: Any = policy.base.config
    modules = policy.base.get_decoder().named_modules()
    layers = sum(m.weight.numel() for n, m in modules if isinstance(m, torch.nn.Linear) and "lora_" not in n)
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    tokens = w.groups * (w.prompt + w.k * w.answer)
    pairs = w.groups * (w.prompt**2 / 2 + w.k * (w.answer * w.prompt + w.answer**2 / 2))
    attention = 4 * config.num_attention_heads * width * pairs * sum("attention" in kind for kind in kinds)
    forward = 2 * layers * tokens + 2 * config.hidden_size * w.vocab * w.drawn + attention
    return forward * (2 if w.lora else 3)


def read_bytes(policy: Policy, w: Workload) -> float:
    """Bytes that drawing one step's rollouts must read: every weight a token, and the keys and values before it."""
    from levelhead.policy.footprint import kv_bytes

    width = policy.compute_dtype.itemsize
    matrices = sum(p.numel() for n, p in policy.base.named_parameters() if "lora_" not in n) * width
    a_token = kv_bytes(policy.base.config, 1, 1, width)
    shared, own = w.groups * w.prompt * w.answer, w.rows * w.answer**2 / 2
    return float(matrices * w.answer + a_token * (shared + own))


def peak_memory(device: torch.device) -> int:
    """Bytes allocated at most since the last reset on a GPU; the process's resident peak on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else memory("VmHWM")


def empty(device: torch.device) -> None:
    """Let go of what is not used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def time_steps(
    shape: Shape, device: torch.device, compute: torch.dtype, peak: Peak | None, repeats: int, backend: str | None
) -> dict[str, Any]:
    """Time steps of our trainer, after one that is not counted.

    Args:
        shape: What is timed.
        device: Where.
        compute: Type of matrix products.
        peak: What the device can do; shares are left out without.
        repeats: Steps.
        backend: Name of the one that must run; the fastest that supports the model unless given.
    """
    w = shape.work
    empty(device)
    policy = make_policy(w, device, compute, checkpointing=shape.checkpointing)
    if backend is not None:
        kind = next(kind for kind in backends() if kind.name == backend)
        reason = kind.supports(policy)
        if reason is not None:
            return {"skipped": reason}
        policy._backend = kind()
    options = {"grpo": {"tokens_per_microbatch": shape.tokens}}
    ours = Ours(w, *workloads.examples(w), policy, options)
    work, read = flops(policy, w), read_bytes(policy, w)
    ours.step()
    steps = [ours.step() for _ in range(repeats)]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    whole = median(step["seconds"] for step in steps)
    sampling = median(step["sampling"] for step in steps)
    # The trainer waits for the device when it reads the gradient's norm: what is not sampling is training.
    training = median(step["seconds"] - step["sampling"] - step["scoring"] for step in steps)
    row = {
        "backend": policy.backend.name,
        "seconds": whole,
        "sampling_seconds": sampling,
        "training_seconds": training,
        "tokens_a_second": w.drawn / whole,
        "training_tflops": work / training / 1e12,
        "sampling_gb_a_second": read / sampling / 1e9,
        "peak_bytes": peak_memory(device),
        "steps": steps,
    }
    return row | shares(row, peak)


def shares(row: dict[str, Any], peak: Peak | None) -> dict[str, Any]:
    """Model FLOPs utilisation of training, and the share of memory bandwidth that sampling reaches."""
    if peak is None:
        return {"utilisation": None, "why_no_shares": "the device is not in bench/gpulib/peaks.py"}
    return {
        "utilisation": row["training_tflops"] * 1e12 / peak.flops,
        "bandwidth_share": row["sampling_gb_a_second"] * 1e9 / peak.bandwidth,
    }
