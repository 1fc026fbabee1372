"""What the next step of a run begins with, in a few hashes: saved with a checkpoint and compared when it is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from levelhead.message import Message, joined
from levelhead.policy.policy import REFERENCE_ADAPTER, Policy
from levelhead.policy.sharding import full
from levelhead.records import Event, Prompt
from levelhead.training.items import content
from levelhead.training.optim import Updater
from levelhead.training.step_result import Trainer

K = 8
"""Entries of each tensor that are read."""
_ANYTHING = ("grpo*", "tasks*", "guard*", "model*")
PARTS: Mapping[str, tuple[Message, tuple[str, ...]]] = {
    "weights": (Message("the trained weights", "训练的权重"), ("model.dtype", "model.device")),
    "frozen": (
        Message("weights that are not trained", "不训练的权重"),
        ("model.dtype", "model.device", "model.attention"),
    ),
    "reference": (Message("the reference policy", "参考模型"), ("model.dtype", "model.device")),
    "optimizer": (Message("the optimizer's moments and step counts", "优化器的动量和步数"), ("model.dtype",)),
    "schedule": (
        Message("the place in the learning rate's schedule", "学习率计划中的位置"),
        ("*.steps", "*.updates_per_batch", "*.epochs"),
    ),
    "prompts": (
        Message("the prompts of the next batch", "下一批的题目"),
        ("tasks*", "*.batch_size", "*.group_size", "grpo.curriculum*"),
    ),
    "seed": (Message("the seed of the next samples", "下一次采样的种子"), ()),
    "sampling": (
        Message("the sampling controls of the next step", "下一步的采样设置"),
        ("grpo.sampling*", "grpo.steps"),
    ),
    "generator": (Message("the generator of the gradient merge", "梯度合并的随机数发生器"), ("grpo.merge*",)),
    "on_the_way": (
        Message(
            "groups on their way, coefficients, running statistics or the guard's state",
            "正在采样的组、系数、运行统计量或守护器的状态",
        ),
        _ANYTHING,
    ),
    "statistics": (
        Message("coefficients, running statistics or the guard's state", "系数、运行统计量或守护器的状态"),
        _ANYTHING,
    ),
}
"""Parts of a digest: what each is called, and keys of the recipe that may change it when a run goes on."""


DIFFERS = Message("the run does not go on as it was left: other are {parts}", "继续后的训练与中断时不同：{parts}")


def digest(policy: Policy, updater: Updater, prompts: Sequence[Prompt], rest: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each part of what the next step begins with.

    Of tensors a few entries are read, so that a large policy costs no more than a small one.

    Args:
        policy: With the weights of now.
        updater: Its optimizer.
        prompts: Of the next batch.
        rest: Further parts, as JSON.
    """
    named = [(name, p) for name, p in policy.model.named_parameters() if f".{REFERENCE_ADAPTER}." not in name]
    moments: list[tuple[str, Tensor]] = []
    counts: list[float] = []
    for number, parameter in enumerate(updater.parameters):
        for state in (part.state.get(parameter, {}) for part in updater.parts):
            moments += [(f"{number}.{k}", v) for k, v in state.items() if isinstance(v, Tensor) and v.numel() > 1]
            counts += [float(state["step"])] if "step" in state else []
    parts = {
        "weights": _tensors([(name, p) for name, p in named if p.requires_grad]),
        "frozen": _tensors([(name, p) for name, p in named if not p.requires_grad]),
        "reference": _tensors(policy.reference_named()),
        "optimizer": f"{_tensors(moments)} {_hash(counts)}",
        "schedule": _hash([updater.done, updater.steps]),
        "prompts": _hash([[prompt.id, content(prompt)] for prompt in prompts]),
    }
    return parts | {name: _hash(value) for name, value in rest.items()}


def next_digest(policy: Policy, trainer: Trainer, step: int) -> dict[str, str]:
    """Return the digest of a step that a trainer is about to make; an empty one where it cannot be had."""
    try:
        return digest(policy, trainer.updater, trainer.upcoming(), trainer.begins(step))
    except (RuntimeError, TypeError, ValueError):  # a checkpoint is worth more than its digest
        return {}


def compare(then: Mapping[str, str], now: Mapping[str, str], touched: Callable[..., bool], step: int) -> list[Event]:
    """Report where the step that a resumed run begins with is not the one that the run before would have made.

    Args:
        then: The digest that the checkpoint holds; an empty one says nothing.
        now: That of the run which goes on.
        touched: Whether a key of the recipe that matches one of some patterns has changed, and was accepted.
        step: Steps done, to date the event by.
    """
    parts = [name for name in then if name in PARTS and then[name] != now.get(name, then[name])]
    parts = [name for name in parts if not (PARTS[name][1] and touched(*PARTS[name][1]))]
    if not parts:
        return []
    text = DIFFERS(parts=joined([PARTS[name][0]() for name in parts], "; ", "；"))
    return [Event(step, "resume-differs", "critical", text, "warn", {"parts": parts})]


def _tensors(named: Sequence[tuple[str, Tensor]]) -> str:
    """Hash of a few entries of each tensor, by name."""
    nonempty = [(name, tensor) for name, tensor in sorted(named, key=lambda pair: pair[0]) if tensor.numel()]
    if not nonempty:
        return ""
    rows = torch.cat([_read(full(tensor)) for _, tensor in nonempty])  # one whole tensor at a time
    shapes = json.dumps([[name, list(tensor.shape)] for name, tensor in nonempty])
    return _hash([shapes, hashlib.blake2b(rows.numpy().tobytes(), digest_size=8).hexdigest()])


def _read(tensor: Tensor) -> Tensor:
    """Entries spread evenly over a tensor, shape (K,), float32 on the CPU; one may repeat in a small tensor."""
    places = torch.linspace(0, tensor.numel() - 1, K, dtype=torch.float64).round().to(torch.int64)
    return tensor.detach().reshape(-1)[places.to(tensor.device)].float().cpu()


def _hash(value: object) -> str:
    text = json.dumps(json.loads(json.dumps(value, default=str)), sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
