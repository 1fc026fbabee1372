"""What the run takes of the machine: memory, time, and the precision of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead import metrics as metric
from levelhead.errors import first_line
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome

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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where the recipe names a model."""
        from levelhead.preflight.memory_plan import Prompts, target_of
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
            report = self.fail if total > MUCH_TOO_LARGE * room else self.warn
            yield report(self.large, evidence=evidence, total=total, room=room, phase=phase)


class MicroBatchFits(Check):
    """Computes the fullest micro-batch that the recipe allows, forward and backward; on a GPU alone."""

    name = "memory/micro-batch"
    needs = "passes"
    proves = Message(
        "A micro-batch of the recipe's size fits, forward and backward.", "配方大小的微批能放下，包括前向和反向。"
    )
    how = Message(
        "Computes the fullest that the recipe's batch can fill, on a GPU; on a CPU memory/estimate stands alone.",
        "在 GPU 上计算配方的批所能填满的最大微批；在 CPU 上只靠 memory/estimate。",
    )
    cannot = Message("The optimizer's state does not exist yet.", "这时优化器的状态还不存在。")
    right = Message(
        "forward and backward of {tokens} tokens fit (peak {peak:.2f} GiB)",
        "{tokens} 个 token 的前向和反向能放下（峰值 {peak:.2f} GiB）",
    )
    too_large = Message(
        "a micro-batch of {tokens} tokens does not fit: {error}",
        "{tokens} 个 token 的微批放不下：{error}",
        fix=Fix(
            "lower tokens_per_microbatch, or set model.gradient_checkpointing: true",
            "减小 tokens_per_microbatch，或设 model.gradient_checkpointing: true",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome on a GPU."""
        import gc

        import torch

        from levelhead.policy.packing import TokenSequence

        policy, grpo = context.policy, context.grpo
        stages = [stage for stage in (context.recipe.sft, grpo) if stage is not None]
        if policy.device.type != "cuda" or not stages or not context.turns:
            return
        longest = max(context.turns, key=lambda turn: len(turn.context_ids))
        most = grpo.sampling.max_new_tokens if grpo is not None else context.recipe.eval.sampling.max_new_tokens
        completion = (longest.completion_ids * most)[:most]
        length = len(longest.context_ids) + most
        rows = max(stage.batch_size for stage in stages)
        asked = min(max(stage.tokens_per_microbatch for stage in stages), rows * length)
        sequences = [TokenSequence(longest.context_ids, completion, i) for i in range(max(1, asked // length))]
        tokens = length * len(sequences)
        torch.cuda.reset_peak_memory_stats(policy.device)
        try:
            with policy.training():
                (micro, *_) = policy.pack(sequences, max(asked, length))
                stats = policy.score(micro)
                (stats.logp.mean() + 0.0 * stats.entropy.mean()).backward()
        except torch.OutOfMemoryError as error:
            yield self.fail(self.too_large, tokens=tokens, error=first_line(error)[:120])
        else:
            peak = torch.cuda.max_memory_allocated(policy.device) / GIB
            yield self.ok(self.right, tokens=tokens, peak=peak)
        finally:
            policy.model.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()


class Throughput(Check):
    """Scales sampling, scoring and training of the shared rollouts to the recipe's batch."""

    name = "throughput/step"
    needs = "passes"
    proves = Message("Nothing: it says how long a step will take, by part.", "不证明什么：它说明一步各部分要多久。")
    how = Message(
        "Scales what sampling, scoring and training took here to the recipe's batch, by tokens.",
        "把这里采样、打分和训练的耗时按 token 换算到配方的批大小。",
    )
    cannot = Message(
        "Larger batches are cheaper by the token than it says, and a policy that writes longer answers takes longer.",
        "更大的批每 token 更便宜；写得更长的策略更慢。",
    )
    step = Message(
        "at most about {seconds:.1f} s per GRPO step (sampling {sample:.1f}, scoring {score:.1f}, training "
        "{train:.1f}), {minutes:.0f} min for {steps} steps",
        "GRPO 每步最多约 {seconds:.1f} 秒（采样 {sample:.1f}，打分 {score:.1f}，训练 {train:.1f}），{steps} 步约 "
        "{minutes:.0f} 分钟",
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where a GRPO step was tried."""
        grpo, trial = context.grpo, context.passes.trial
        if grpo is None or trial is None or context.sampled.error is not None:
            return
        cost, rollouts = context.sampled.cost, max(len(context.rollouts), 1)
        sampled = sum(len(turn.completion_ids) for turn in context.turns) / rollouts
        longest = max(len(turn.context_ids) for turn in context.turns)
        turns = [(turn, len(group.rollouts)) for group in trial.groups for r in group.rollouts for turn in r.turns]
        tried = sum(len(turn.context_ids) / k + len(turn.completion_ids) for turn, k in turns)
        whole = grpo.batch_size * (longest / grpo.group_size + grpo.sampling.max_new_tokens)
        share = grpo.batch_size / rollouts
        longer = grpo.sampling.max_new_tokens / max(sampled, 1.0)
        sample = cost.sample_s * max(1.0, share / 4) * longer
        score, took = (cost.score_s + cost.env_s) * share, trial.result.record.timings.get(metric.TIME_TRAIN, 0.0)
        train = took * whole / max(tried, 1.0) * grpo.epochs
        seconds = sample + score + train
        minutes = seconds * grpo.steps / 60
        parts = {"sample": sample, "score": score, "train": train}
        yield self.ok(self.step, seconds=seconds, minutes=minutes, steps=grpo.steps, **parts)


HIDDEN, FEW = 0.7, 0.1
"""Cosine below which a stage's updates count as hidden, and that of next to none."""


class VisibleUpdate(Check):
    """Compares the learning rate with the spacing of the numbers that hold the weights."""

    name = "precision/update/STAGE"
    needs = "rollouts"
    proves = Message(
        "What a stage's updates change is seen by the sampler, the trainer and the reference, whose products may round "
        "the weights.",
        "一个阶段的更新所改变的内容能被采样器、训练器和参考模型看到（它们的矩阵乘法可能会对权重舍入）。",
    )
    how = Message(
        "Changes some entries of each trained weight by the rate times the root of the number of updates, as AdamW "
        "does under noise, rounds them to the computing type, and compares the two changes.",
        "把各权重的若干元素改变“学习率 × 更新次数的平方根”（噪声下 AdamW 的步长），按计算类型舍入，再比较两种改变。",
    )
    cannot = Message(
        "It does not know the gradients: updates that all point one way are seen earlier.",
        "它不知道梯度：方向始终一致的更新会更早被看到。",
    )
    right = Message(
        "{kind} lets the updates through: cosine {cosine:.2f} after {updates} at a rate of {rate:.2g}",
        "{kind} 能反映更新：学习率 {rate:.2g} 下 {updates} 次更新后的余弦为 {cosine:.2f}",
    )
    lost = Message(
        "{kind} hides the updates: after {updates} at a rate of {rate:.2g} what it shows has cosine {cosine:.2f} with "
        "what was learnt, and norm {norm:.2f} of it",
        "{kind} 掩盖了更新：学习率 {rate:.2g} 下 {updates} 次更新后，可见的改变与所学的余弦为 {cosine:.2f}，"
        "范数为其 {norm:.2f}",
        fix=Fix(
            "set model.dtype to float32 on a CPU or float16 on a GPU, train an adapter (model.lora), or raise the rate",
            "CPU 上将 model.dtype 设为 float32，GPU 上设为 float16；或训练适配器（model.lora），或提高学习率",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per stage; a failure where the weights are stored so that next to nothing can move."""
        import torch

        from levelhead.policy.rounding import coarsest, foresee_visible

        policy, weights = context.policy, context.policy.parameters
        kind = coarsest(policy)
        for stage, section in (("sft", context.recipe.sft), ("grpo", context.recipe.grpo)):
            if section is None or not weights:
                continue
            rate, updates = section.optimizer.learning_rate, section.steps
            stored = all(weight.dtype != torch.float32 for weight in weights)  # then each update is rounded by itself
            seen = foresee_visible(weights, kind, rate, 1 if stored else updates)
            fields: dict[str, Any] = {
                "kind": str(kind).removeprefix("torch."), "rate": rate, "updates": 1 if stored else updates,
                "cosine": seen.cosine, "norm": seen.norm,
            }  # fmt: skip
            if seen.cosine >= HIDDEN:
                yield self.ok(self.right, stage, **fields)
            else:
                report = self.fail if stored and seen.cosine < FEW else self.warn
                yield report(self.lost, stage, **fields)
