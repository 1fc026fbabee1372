"""A micro-batch of the recipe's size fits on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


GIB = 1 << 30


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome on a GPU."""
        import gc

        import torch

        from levelhead.policy.packing import TokenSequence
        from levelhead.preflight.trial import clean

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
            yield self.fail(self.too_large, tokens=tokens, error=str(error).splitlines()[0][:120])
        else:
            peak = torch.cuda.max_memory_allocated(policy.device) / GIB
            yield self.ok(self.right, tokens=tokens, peak=peak)
        finally:
            clean(policy)
            gc.collect()
            torch.cuda.empty_cache()
