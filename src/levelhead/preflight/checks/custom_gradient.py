"""A loss or estimator of the user's own points where rewards do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.records import Group, Rollout, Score, Turn

if TYPE_CHECKING:
    from torch import Tensor

    from levelhead.objective.losses import Loss

CONSIDERED = 24
"""Tokens whose slopes are compared."""
SAME = 1e-3
"""Relative difference of a slope and a finite difference that is no difference."""


class CustomGradient(Check):
    """Compares a custom loss's gradient with finite differences, and a custom estimator's advantages with rewards."""

    name = "custom/gradient"
    needs = "rewards"
    proves = Message(
        "A loss of your own makes tokens with a positive advantage likelier, and an estimator of your own gives a "
        "rollout a larger advantage for a larger reward.",
        "你自己的损失使优势为正的 token 更可能；你自己的优势估计在奖励更大时给出更大的优势。",
    )
    how = Message(
        "Evaluates the loss on made-up log-probabilities in float64, compares its gradient with finite differences "
        "token by token, and raises one reward after another.",
        "在人为的对数概率上用 float64 计算损失，逐个 token 与有限差分比较梯度，并逐个提高奖励。",
    )
    cannot = Message(
        "It tries a handful of made-up groups. A loss that detaches something on purpose has other slopes than its "
        "value.",
        "它只试少数人为的组。有意 detach 的损失，其梯度与数值的斜率不同。",
    )
    right = Message(
        "the gradient of the loss is the slope of its value at {same} of {count} tokens, and points where advantages "
        "do",
        "{count} 个 token 中有 {same} 个的损失梯度与数值的斜率相同，方向与优势一致",
    )
    detached = Message(
        "the gradient of the loss is the slope of its value at {same} of {count} tokens only, and points where "
        "advantages do: right where something is detached on purpose",
        "{count} 个 token 中只有 {same} 个的损失梯度与数值的斜率相同，方向与优势一致：如果有意 detach，这是对的",
    )
    uphill = Message(
        "at {off} of {count} tokens the loss of your own makes tokens with a positive advantage less likely",
        "{count} 个 token 中有 {off} 个，你自己的损失使优势为正的 token 变得更不可能",
        fix=Fix(
            "return a surrogate to be maximised: the sense is applied elsewhere, once",
            "返回要最大化的代理目标：方向在别处只应用一次",
        ),
    )
    rising = Message(
        "a larger reward gives a larger advantage ({count} tried)", "奖励更大，优势也更大（试了 {count} 次）"
    )
    falling = Message(
        "for {off} of {count} rollouts the advantage falls when their own reward rises",
        "{count} 条采样中有 {off} 条在自己的奖励上升时优势下降",
        fix=Fix("check the sign and the baseline of the estimator", "检查优势估计的符号和基线"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome for a custom loss and one for a custom estimator; none where there is neither."""
        grpo = context.grpo
        if grpo is None:
            return
        if grpo.loss.kind == "custom":
            yield self._loss(grpo.loss.make())
        if grpo.advantage.kind == "custom":
            yield self._estimator(context)

    def _loss(self, loss: Loss) -> Outcome:
        import torch

        from levelhead.objective import losses

        generator = torch.Generator().manual_seed(0)
        old_nt = -torch.rand(4, 6, generator=generator, dtype=torch.float64) * 3
        advantages_n = torch.tensor([1.0, -0.5, 0.7, -1.2], dtype=torch.float64)
        mask_nt = torch.ones_like(old_nt)

        def value(logp_nt: Tensor) -> Tensor:
            result = losses.policy_loss(
                loss, logp_nt, old_nt, advantages_n, mask_nt, generator=torch.Generator().manual_seed(1)
            )
            return (result.surrogate_nt * mask_nt).sum()

        def slope(logp_nt: Tensor) -> Tensor:
            leaf = logp_nt.clone().requires_grad_()
            result = value(leaf)
            return torch.autograd.grad(result, leaf)[0] if result.requires_grad else torch.zeros_like(logp_nt)

        along_nt = slope(old_nt)
        off = int((along_nt * advantages_n[:, None] < 0).sum())
        count = along_nt.numel()
        if off or not bool(along_nt.abs().max() > 0):
            return self.fail(self.uphill, off=off or count, count=count)
        logp_nt = old_nt + (torch.rand(4, 6, generator=generator, dtype=torch.float64) - 0.5) * 0.2
        along_nt, same, step = slope(logp_nt), 0, 1e-6
        for i in range(CONSIDERED):
            move_nt = torch.zeros_like(logp_nt)
            move_nt.view(-1)[i] = step
            difference = float(value(logp_nt + move_nt) - value(logp_nt - move_nt)) / (2 * step)
            same += abs(difference - float(along_nt.view(-1)[i])) <= SAME * max(abs(difference), 1e-6)
        message = self.right if same >= CONSIDERED - 2 else self.detached
        return self.ok(message, same=same, count=CONSIDERED)

    def _estimator(self, context: Context) -> Outcome:
        base = [0.2, 0.9, 0.4, 0.1]
        before = _advantages_of(context, base)
        off = 0
        for i in range(len(base)):
            raised = [value + 0.05 * (i == j) for j, value in enumerate(base)]
            off += _advantages_of(context, raised)[i] < before[i] - 1e-9
        if off:
            return self.fail(self.falling, off=off, count=len(base))
        return self.ok(self.rising, count=len(base))


def _advantages_of(context: Context, rewards: Sequence[float]) -> list[float]:
    """Return the advantage of each rollout of a group with these rewards, one each, without shaping."""
    from levelhead.training.prepare import make_objective

    assert context.grpo is not None  # noqa: S101 - asked for with a grpo stage only
    objective, estimator = make_objective(context.recipe, context.grpo)
    task = next(iter(context.setup.tasks.values()))
    (prompt,) = itertools.islice(task.prompts("train", 0), 1)
    rollouts = []
    for i, reward in enumerate(rewards):
        zeros = (0.0,) * (i + 3)
        turn = Turn((0,), (0,) * (i + 3), zeros, zeros, "stop")
        rollouts.append(Rollout(prompt.id, (turn,), Score(reward, {"reward": reward})))
    group = Group(prompt, tuple(rollouts))
    advantages, _ = estimator.assign([group], None, objective.coefficients.kl)
    return [float(value) for value in advantages[0].values]
