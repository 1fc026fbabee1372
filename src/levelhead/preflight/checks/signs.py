"""Each term pulls where its sense says, and the gradient of the weights is that of the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome

if TYPE_CHECKING:
    from torch import Tensor

    from levelhead.objective.terms import Term
    from levelhead.preflight.trial import TermSlopes

WEIGHT_ERROR = 0.02
"""Relative error of a term's weight from which on it is wrong."""


class TermSigns(Check):
    """Explains the slopes of the loss along the tokens by the slopes of its terms, and these by what the terms mean.

    It looks at one trial step, token by token; :class:`~levelhead.training.signs.UpdateAudits` looks at real updates,
    weight by weight.
    """

    name = "signs/audit"
    needs = "passes"
    proves = Message(
        "Each term of the objective enters the update with the sign and the weight that its sense asks for: rewarded "
        "answers become likelier, the KL pulls towards the reference, the bonus raises entropy.",
        "目标的每一项都以应有的符号和权重进入更新：得到奖励的回答变得更可能，KL 拉向参考模型，熵奖励提高熵。",
    )
    how = Message(
        "Records the gradient that arrives at each log-probability and entropy in one step of the run's own trainer, "
        "with known rewards and a reference a known distance away; expresses it by the gradients of the terms; and "
        "looks whether each term's own gradient points where its name says, at every answer and every token.",
        "在训练器自己的一步中（已知的奖励，参考模型相距已知的距离），记录到达每个对数概率和熵的梯度，用各项的梯度表示它"
        "，再看每一项自己的梯度在每条回答、每个 token 处是否指向其名称所说的方向。",
    )
    cannot = Message(
        "It looks at the first update, on policy, with tasks summed instead of merged and without importance weights, "
        "top_entropy, mask_truncated and a KL in the reward; the run's own audit (grpo.audit) looks at real ones. An "
        "estimator that does not aim at the mean reward is replaced by GRPO's.",
        "它只看首次更新（同策略），各任务相加而不合并，且不含重要性权重、top_entropy、mask_truncated 和奖励中的 KL；"
        "训练自己的审计（grpo.audit）看真实的更新。不以平均奖励为目标的优势估计以 GRPO 的代替。",
    )
    right = Message(
        "every term enters the update with the right sign and weight ({terms})",
        "每一项都以应有的符号和权重进入更新（{terms}）",
    )
    _fix = Fix(
        "a term carries its natural value and a sense; only objective.terms turns senses into signs. With a loss or "
        "estimator of your own (kind: custom), look there first",
        "每一项带着自己的原值和方向；只有 objective.terms 把方向变成符号。如果使用了自己的损失或优势估计（kind: custom"
        "），请先检查它",
    )
    wrong_weight = Message(
        "the {term} term of task {task} enters the loss {actual:.3g} times, and should {wanted:.3g} times",
        "任务 {task} 的 {term} 项以 {actual:.3g} 倍进入损失，而应为 {wanted:.3g} 倍",
        fix=_fix,
    )
    reward_falls = Message(
        "the surrogate of task {task} makes rewarded answers less likely: a sign is lost, or advantages are on the "
        "wrong samples",
        "任务 {task} 的代理目标使得到奖励的回答变得更不可能：丢了一个负号，或优势放错了样本",
        fix=_fix,
    )
    misplaced = Message(
        "{wrong} of {all} answers of task {task} are pushed the other way than their rewards ask, the others as they "
        "ask: advantages are on the wrong samples",
        "任务 {task} 的 {all} 条回答中有 {wrong} 条的更新方向与奖励相反，其余一致：优势放错了样本",
        fix=Fix(
            "keep advantages in the order of the rollouts: where samples are sorted, packed or split, reorder both",
            "优势须与采样同序：排序、打包或拆分样本时，两者一起调整",
        ),
    )
    summed = Message(
        "the entropy term of task {task} is {times:.3g} times the mean over its completion tokens: a sum, or another "
        "divisor",
        "任务 {task} 的熵项是其输出 token 平均熵的 {times:.3g} 倍：用了总和，或除数不对",
        fix=Fix("divide the entropy by the completion tokens that it is summed over", "熵应除以求和的输出 token 数"),
    )
    kl_leaves = Message(
        "the KL of task {task} pushes the policy away from the reference",
        "任务 {task} 的 KL 把策略推离参考模型",
        fix=_fix,
    )
    entropy_falls = Message(
        "the entropy term of task {task} falls where entropies rise", "熵上升时任务 {task} 的熵项却下降", fix=_fix
    )
    masked = Message(
        "the {term} of task {task} gives {wrong} of {all} completion tokens another weight than the others: the mask "
        "of the {term} is wrong",
        "任务 {task} 的 {term} 项给 {all} 个输出 token 中的 {wrong} 个以不同于其余的权重：{term} 的掩码错了",
        fix=Fix(
            "take the mean of {term} over all completion tokens, and over nothing else",
            "对全部输出 token（且只对它们）取 {term} 的平均",
        ),
    )
    no_gradient = Message(
        "the {term} term of task {task} has weight {weight:.3g} and no gradient",
        "任务 {task} 的 {term} 项权重为 {weight:.3g}，却没有梯度",
        fix=Fix("look for a detached tensor, or a mask that is empty", "检查是否有张量被 detach，或掩码为空"),
    )

    broke_off = Message(
        "a step of the trainer breaks off: {error}",
        "训练器的一步中断：{error}",
        fix=Fix(
            "look for a detached tensor or an empty mask; out of memory: a smaller grpo.tokens_per_microbatch",
            "检查是否有张量被 detach，或掩码为空；若内存不足，调小 grpo.tokens_per_microbatch",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per error, or one pass."""
        trial = context.passes.trial
        if context.passes.broken:
            yield self.fail(self.broke_off, error=context.passes.broken)
        if trial is None or context.grpo is None:
            return
        by_rewards = context.grpo.advantage.kind != "custom"
        pairs = zip(trial.objective.micro_batches, trial.listener.stats, strict=True)
        errors = [
            error
            for slopes, (_, along, along_entropy) in pairs
            for error in self._of_micro_batch(slopes, along, along_entropy, by_rewards=by_rewards)
        ]
        yield from errors
        if not errors:
            terms = {term.name for slopes in trial.objective.micro_batches for term in slopes.terms if term.weight > 0}
            yield self.ok(self.right, terms=", ".join(sorted(terms)))

    def _of_micro_batch(
        self, slopes: TermSlopes, along: Tensor, along_entropy: Tensor, *, by_rewards: bool
    ) -> Iterator[Outcome]:
        """Solve for the weight with which each term of a micro-batch enters the loss, and compare it with the plan's.

        Args:
            slopes: The terms, and how each depends on the policy's numbers.
            along: (m,) gradient of the whole loss along the micro-batch's m log-probabilities.
            along_entropy: (m,) the same along its entropies.
            by_rewards: Whether the surrogate is also held against the rewards.
        """
        import torch

        from levelhead.objective.terms import EXPECTED_SENSES

        # Slopes by every log-probability, then by every entropy: of the whole loss, and of each term before its sign.
        total = torch.cat([along, along_entropy]).double()
        live: list[tuple[Term, Tensor]] = []
        for term, natural in zip(slopes.terms, slopes.natural, strict=True):
            if term.weight == 0:
                continue
            if natural is None or not bool(natural.abs().max() > 0):
                if any(sample.has_signal for sample in slopes.samples):
                    yield self.fail(self.no_gradient, term=term.name, task=slopes.task, weight=term.weight)
                continue
            full = torch.zeros_like(total)
            full[: len(natural)] = natural.double()
            live.append((term, full))
        if not live:
            return
        system = torch.stack([natural / natural.norm() for _, natural in live], dim=1)
        factors = torch.linalg.lstsq(system.cpu(), total[:, None].cpu()).solution[:, 0]
        for (term, natural), factor in zip(live, factors.tolist(), strict=True):
            sense = EXPECTED_SENSES.get(term.name, term.sense)
            wanted = term.weight * (-1.0 if sense == "maximize" else 1.0)
            actual = factor / float(natural.norm())
            if abs(actual - wanted) > WEIGHT_ERROR * abs(wanted):
                yield self.fail(self.wrong_weight, term=term.name, task=slopes.task, actual=actual, wanted=wanted)
            if (wrong := self._wrong(slopes, term, natural, by_rewards=by_rewards)) is not None:
                yield wrong

    def _wrong(self, slopes: TermSlopes, term: Term, natural: Tensor, *, by_rewards: bool) -> Outcome | None:
        """Return what is wrong with a term's own gradient: its direction, or that of some samples or tokens."""
        import torch

        from levelhead.preflight.trial import alternating

        lengths, samples, task = list(slopes.lengths), slopes.samples, slopes.task
        along, along_entropy = natural.tensor_split(2)
        if term.name == "policy":
            pushes = [float(s.centred_reward * p.sum()) for s, p in zip(samples, along.split(lengths), strict=True)]
            against = sum(push < 0 for push in pushes)
            alike = by_rewards and all(sample.advantages is None for sample in samples)
            if alike and against and any(push > 0 for push in pushes):
                return self.fail(self.misplaced, task=task, wrong=against, all=len(pushes))
            falls = sum(pushes) <= 0 and any(sample.centred_reward for sample in samples)
            return self.fail(self.reward_falls, task=task) if falls else None
        if term.name not in ("kl", "entropy"):
            return None
        weights = torch.repeat_interleave(torch.tensor([s.weight for s in samples]), torch.tensor(lengths))
        slope = (along if term.name == "kl" else along_entropy) / weights.to(natural)
        # An entropy's slope is the token's weight; a KL's differs with its distance, and is 0 where it is left out.
        usual = slope.median() if term.name == "entropy" else slope
        apart = ((slope - usual).abs() > WEIGHT_ERROR * slope.abs().max()) | (slope == 0)
        if bool(apart.any()):
            return self.fail(self.masked, task=task, term=term.name, wrong=int(apart.sum()), all=len(slope))
        if term.name == "entropy":
            times = float((slope * weights.to(slope)).sum())  # 1 of a mean over all tokens, less of a part of them
            if times > 1 + WEIGHT_ERROR:
                return self.fail(self.summed, task=task, times=times)
            return self.fail(self.entropy_falls, task=task) if times <= 0 else None
        # The reference lies below the policy at even places, above it at odd ones; of k1 only the mean has a meaning.
        centred = along - along.mean()
        constant = bool(centred.abs().max() <= 1e-6 * along.abs().max())
        pulls = float((centred * alternating(along)).sum())
        return self.fail(self.kl_leaves, task=task) if not constant and pulls <= 0 else None


class Descent(Check):
    """Moves the weights a little along the trainer's own gradient, forward and back."""

    name = "signs/descent"
    needs = "passes"
    proves = Message(
        "The gradient of the weights is that of the loss: a small step along it lowers the loss by as much as it says.",
        "权重的梯度正是损失的梯度：沿它走一小步，损失下降得与它所说的一样多。",
    )
    how = Message(
        "Moves the weights a step along the gradient and a step back, runs the trainer's pass at both, and compares "
        "half the difference of the loss with the gradient's norm; shorter steps where the two disagree.",
        "沿梯度前后各走一步，在两处各做一次训练端的前向，把损失之差的一半与梯度范数相比；不一致时用更短的步。",
    )
    cannot = Message(
        "Only where trained weights are float32, and where some step is short enough to be a derivative: else it says "
        "that it cannot be judged.",
        "只在被训练的权重是 float32、且某个步长足够短时才能判断；否则会说明无法判断。",
    )
    right = Message(
        "a step along the update changes the loss by {measured:.2e}, and its gradient says {predicted:.2e}",
        "沿更新走一步，损失变化 {measured:.2e}，而梯度所说的为 {predicted:.2e}",
    )
    unjudged = Message("cannot be judged here: {why}", "这里无法判断：{why}")
    wrong = Message(
        "a step along the update changes the loss by {measured:.2e}, and its gradient says {predicted:.2e}: the "
        "backward pass is not that of the forward pass",
        "沿更新走一步，损失变化 {measured:.2e}，而梯度所说的为 {predicted:.2e}：反向传播与前向不符",
        fix=Fix(
            "try another model.attention or model.backend, and model.gradient_checkpointing the other way; look for "
            "detached or custom layers in the model",
            "换一种 model.attention 或 model.backend，切换 model.gradient_checkpointing；检查模型中被 detach 的层或自"
            "定义层",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a group of two rollouts."""
        if context.passes.trial is None:
            return
        descent = context.passes.descent
        evidence = {"step": descent.step}
        if not descent.judged:
            yield self.ok(self.unjudged, evidence=evidence, why=descent.why)
            return
        report, message = (self.ok, self.right) if descent.agrees else (self.fail, self.wrong)
        yield report(message, evidence=evidence, measured=descent.measured, predicted=descent.predicted)
