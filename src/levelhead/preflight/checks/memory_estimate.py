"""Training fits into memory, by a plan of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


GIB = 1 << 30
MUCH_TOO_LARGE = 1.5
"""Times the memory from which on a plan is a failure: it is held to be right to a third."""
CLOSE = 0.9
"""Share of the memory from which on it is a warning."""


class MemoryEstimate(Check):
    """Plans the run as ``levelhead check --plan`` does, with the run's own prompts."""

    name = "memory/estimate"
    needs = "data"
    proves = Message("Training is estimated to fit into memory.", "估计训练能放进内存。")
    how = Message(
        "Adds up weights, gradients, optimizer, reference, caches and the activations of the largest micro-batch that "
        "the recipe's batch can fill, phase by phase, and compares the largest phase with the memory of the device.",
        "逐阶段累加权重、梯度、优化器、参考模型、缓存，以及配方的批所能填满的最大微批的激活，并把最大的阶段与设备内存"
        "相比。",
    )
    cannot = Message(
        "It is an estimate; what else uses the device is not known to it.",
        "这是估计；它不知道设备上还有什么在占用内存。",
    )
    right = Message(
        "about {total:.2f} GiB of {room:.1f} GiB ({phase})", "约 {total:.2f} GiB，共 {room:.1f} GiB（{phase} 阶段）"
    )
    unknown = Message("about {total:.2f} GiB ({phase})", "约 {total:.2f} GiB（{phase} 阶段）")
    large = Message(
        "training is estimated to need {total:.1f} GiB of {room:.1f} GiB ({phase})",
        "估计训练需要 {total:.1f} GiB，而总共有 {room:.1f} GiB（{phase} 阶段）",
        fix=Fix(
            "use model.lora, gradient_checkpointing, or a smaller tokens_per_microbatch; levelhead check --plan finds "
            "the first setting that helps",
            "使用 model.lora 或 gradient_checkpointing，或减小 tokens_per_microbatch；levelhead check --plan 会找出第"
            "一个有用的设置",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where the recipe names a model."""
        from levelhead.preflight.plan import Prompts
        from levelhead.preflight.plan_entry import target_of
        from levelhead.preflight.planner import Planner

        recipe = context.recipe
        if recipe.sft is None and recipe.grpo is None:
            return
        longest = max((len(p.token_ids) for rows in context.prompts.values() for p in rows), default=1)
        target = target_of(recipe.model)
        plan = Planner(target, Prompts(longest, "the run's own prompts"), context.processes).plan(recipe)
        if plan.parameters != sum(p.numel() for p in context.policy.model.parameters()):
            return  # a model that was handed over in Python is not the recipe's
        total, room, phase = plan.total / GIB, (target.room or 0) / GIB, plan.peak
        evidence = {"gib": {part.name: round(part.size / GIB, 3) for part in plan.parts}, "phase": phase}
        if not room:
            yield self.ok(self.unknown, evidence=evidence, total=total, phase=phase)
        elif total <= CLOSE * room:
            yield self.ok(self.right, evidence=evidence, total=total, room=room, phase=phase)
        else:
            fields: dict[str, Any] = {"total": total, "room": room, "phase": phase}
            yield self.outcome("fail" if total > MUCH_TOO_LARGE * room else "warn", self.large, "", evidence, fields)
