"""The reference is the policy of step 0, and frozen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class Reference(Check):
    """Compares the reference's log-probabilities with the policy's, and looks for weights that both share."""

    name = "agreement/reference"
    needs = "passes"
    proves = Message(
        "The reference is the policy of step 0 and has weights of its own.",
        "参考模型就是第 0 步的策略，并有自己的权重。",
    )
    how = Message(
        "Keeps a reference as the run does, compares its log-probabilities with the policy's, and looks for trained "
        "weights in it.",
        "像训练那样保留参考模型，把它的对数概率与策略的相比，并查找其中是否有被训练的权重。",
    )
    cannot = Message(
        "It does not know whether the recipe wanted another model as its reference.",
        "它不知道配方是否想用别的模型作参考。",
    )
    none = Message("no task is under a KL penalty, so no reference is kept", "没有任务使用 KL 惩罚，因此不保留参考模型")
    right = Message(
        "the reference equals the policy at step 0 (at most {most:.1g} nats apart) and has weights of its own",
        "参考模型在第 0 步与策略相同（最多相差 {most:.1g} nat），并有自己的权重",
    )
    _fix = Fix("copy the weights and freeze the copy before training", "训练之前复制权重，并冻结副本")
    differs = Message(
        "at step 0 reference and policy differ by {most:.3g} nats per token: the KL does not start at 0",
        "第 0 步时参考模型与策略每 token 相差 {most:.3g} nat：KL 不是从 0 开始",
        fix=_fix,
    )
    moves = Message(
        "the reference shares trained weights with the policy: it moves with it, and the KL will stay 0 whatever "
        "happens",
        "参考模型与策略共用被训练的权重：它随策略一起变，KL 会始终为 0",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        from levelhead.policy.rounding import tolerance

        trial = context.passes.trial
        if trial is None:
            return
        if not trial.objective.reference:
            yield self.ok(self.none)
            return
        most = max(float((own - other).abs().max()) for own, other in trial.objective.reference)
        if trial.aliased:
            yield self.fail(self.moves)
        elif not most <= tolerance(context.policy).most:
            yield self.fail(self.differs, most=most)
        else:
            yield self.ok(self.right, most=most)
