"""What a step takes, scaled from what the checks took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext
    from levelhead.records import Group, Turn


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where a GRPO step was tried."""
        grpo, trial = context.grpo, context.passes.trial
        if grpo is None or trial is None or context.sampled.error is not None:
            return
        cost, rollouts = context.sampled.cost, max(len(context.rollouts), 1)
        sampled = sum(len(turn.completion_ids) for turn in context.turns) / rollouts
        longest = max(len(turn.context_ids) for turn in context.turns)
        tried = sum(
            len(t.context_ids) / len(g.rollouts) + len(t.completion_ids) for g in trial.groups for t in _turns(g)
        )
        whole = grpo.batch_size * (longest / grpo.group_size + grpo.sampling.max_new_tokens)
        share = grpo.batch_size / rollouts
        longer = grpo.sampling.max_new_tokens / max(sampled, 1.0)
        sample = cost.sample_s * max(1.0, share / 4) * longer
        score, train = (cost.score_s + cost.env_s) * share, trial.seconds * whole / max(tried, 1.0) * grpo.epochs
        seconds = sample + score + train
        fields: dict[str, Any] = {
            "seconds": seconds,
            "sample": sample,
            "score": score,
            "train": train,
            "steps": grpo.steps,
        }
        yield self.ok(self.step, minutes=seconds * grpo.steps / 60, **fields)


def _turns(group: Group) -> Iterator[Turn]:
    return (turn for rollout in group.rollouts for turn in rollout.turns)
