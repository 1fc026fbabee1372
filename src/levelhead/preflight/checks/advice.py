"""What settings cost, beside what published runs have held: group size, credit, rates, reuse, coefficients."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.tasks.base import has_one_turn


class GroupSize(Check):
    """Reads the group size and the estimator."""

    name = "rewards/group-size"
    needs = "data"
    proves = Message(
        "A group has enough rollouts for its mean and deviation to mean something.",
        "一组的采样足够多，均值和标准差才有意义。",
    )
    how = Message("Reads grpo.group_size and the estimator.", "读取 grpo.group_size 和优势估计方法。")
    cannot = Message(
        "Whether groups have contrast depends on the policy: the evaluation before the first step says how often.",
        "各组是否有差异取决于策略：第一步之前的评测会说明有多常见。",
    )
    right = Message("K = {k}", "K = {k}")
    _fix = Fix(
        "set grpo.group_size to 8 or more, or advantage.kind to rloo, which does not divide",
        "把 grpo.group_size 设为 8 或更大，或把 advantage.kind 设为不除以标准差的 rloo",
    )
    pair = Message(
        "K = 2: after division by the group's deviation the two advantages are always plus and minus the same number, "
        "however close the rewards; how much better one was is lost",
        "K = 2：除以组内标准差之后，无论奖励多接近，两个优势总是绝对值相同、一正一负；一个比另一个好多少的信息就丢失了",
        fix=_fix,
    )
    small = Message(
        "K = {k}: the group's mean and deviation are estimated from {k} rollouts, and many groups have no contrast "
        "(DeepSeekMath samples 64 per prompt, DAPO 16; TRL's default is 8)",
        "K = {k}：组内均值和标准差只由 {k} 条采样估计，而且很多组没有差异（DeepSeekMath 每题采样 64 条，DAPO 16 条；"
        "TRL 默认 8 条）",
        fix=_fix,
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where rollouts are sampled."""
        grpo = context.grpo
        if grpo is None:
            return
        if grpo.group_size == 2 and grpo.advantage.make().divides_by_std:
            yield self.warn(self.pair)
        elif grpo.group_size < 4:
            yield self.warn(self.small, k=grpo.group_size)
        else:
            yield self.ok(self.right, k=grpo.group_size)


class CreditByTurn(Check):
    """Reads the estimator, ``loss.turns`` and whether tasks have episodes of several turns."""

    name = "rewards/credit-by-turn"
    needs = "data"
    proves = Message(
        "Credit by turn is unbiased where the policy decides how many turns an episode has.",
        "在由策略决定一个回合有多少轮时，按轮分配的信用没有偏差。",
    )
    how = Message(
        "Reads grpo.advantage, grpo.loss.turns and the kind of each task.",
        "读取 grpo.advantage、grpo.loss.turns 和每个任务的种类。",
    )
    cannot = Message(
        "Whether episodes have unequal numbers of turns depends on the policy: completions and num_turns show it.",
        "各回合的轮数是否不同取决于策略：请看采样和 num_turns。",
    )
    right = Message("{kind}, turns: {turns}", "{kind}，各轮合并方式为 {turns}")
    one_turn = Message(
        "{kind} tells turns apart, and every answer here is one turn",
        "{kind} 区分各轮，而这里每个回答只有一轮",
    )
    stopping = Message(
        "{kind} has a baseline for each turn that an episode has: where the policy decides when to stop, the gradient "
        "leans towards fewer turns wherever turns earn something",
        "{kind} 给回合的每一轮各减一个基线：在由策略决定何时停止、而每轮都有奖励时，梯度会偏向更少的轮数",
        fix=Fix(
            "set grpo.advantage.kind to return_to_go, whose baseline is made of other rollouts alone",
            "把 grpo.advantage.kind 设为 return_to_go，它的基线只由其他采样得出",
        ),
    )
    mean = Message(
        "{kind} gives each turn its own advantage, and loss.turns: mean divides them by the turns of the episode, "
        "which the policy decides: turns of long episodes count for less",
        "{kind} 给每一轮各自的优势，而 loss.turns: mean 会除以该回合的轮数（由策略决定）：长回合里的每一轮算得更少",
        fix=Fix("set grpo.loss.turns to sum", "把 grpo.loss.turns 设为 sum"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield outcomes where the estimator tells turns apart."""
        grpo = context.grpo
        estimator = None if grpo is None else grpo.advantage.make()
        if grpo is None or estimator is None or "turns_gkn" not in estimator.arrays:
            return
        kind = grpo.advantage.kind
        if all(has_one_turn(task) for task in context.setup.tasks.values()):
            yield self.ok(self.one_turn, kind=kind)
        elif estimator.biased_by_length:
            yield self.warn(self.stopping, kind=kind)
        elif grpo.loss.turns == "mean":
            yield self.warn(self.mean, kind=kind)
        else:
            yield self.ok(self.right, kind=kind, turns=grpo.loss.turns)


LARGE = 100_000_000
"""Parameters from which published learning rates for language models apply."""
FULL, LORA = (1e-7, 1e-5), (1e-6, 2e-4)
"""Learning rates that are known to hold, with all weights and with adapters."""


class GrpoLearningRate(Check):
    """Compares the learning rate with published ones."""

    name = "advice/grpo-learning-rate"
    needs = "data"
    proves = Message(
        "The learning rate of GRPO lies where published runs of models of this size have held.",
        "GRPO 的学习率在这种规模的模型已发表的训练所用的范围内。",
    )
    how = Message(
        "Compares it with a published range, with and without LoRA.", "与已发表的范围相比，区分是否使用 LoRA。"
    )
    cannot = Message(
        "For models below 100M parameters there is no published range, and it always passes.",
        "1 亿参数以下的模型没有已发表的范围，总是通过。",
    )
    small = Message(
        "{rate:g} for {millions:.1f}M parameters; published rates are for larger models",
        "{millions:.1f}M 参数，学习率 {rate:g}；已发表的学习率针对更大的模型",
    )
    inside = Message(
        "{rate:g} lies in what is known to hold ({low:g} to {high:g})",
        "{rate:g} 在已知可行的范围内（{low:g} 到 {high:g}）",
    )
    _fix = Fix(
        "set grpo.optimizer.learning_rate to {start:.0e} and go from there",
        "把 grpo.optimizer.learning_rate 设为 {start:.0e}，再由此调整",
    )
    off_full = Message(
        "learning rate {rate:g} lies outside of what is known to hold ({low:g} to {high:g}): DeepSeekMath (Shao et al. "
        "2024) and DAPO (Yu et al. 2025) train all weights at 1e-6",
        "学习率 {rate:g} 在已知可行的范围（{low:g} 到 {high:g}）之外：DeepSeekMath (Shao et al. 2024) 和 DAPO (Yu et "
        "al. 2025) 以 1e-6 训练全部权重",
        fix=_fix,
    )
    off_lora = Message(
        "learning rate {rate:g} lies outside of what is known to hold ({low:g} to {high:g}): LoRA takes about ten "
        "times the rate of full training (LoRA Without Regret, Schulman et al. 2025)",
        "学习率 {rate:g} 在已知可行的范围（{low:g} 到 {high:g}）之外：LoRA 的学习率约为全参数训练的十倍"
        "（LoRA Without Regret, Schulman et al. 2025）",
        fix=_fix,
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        if context.grpo is None:
            return
        size = sum(p.numel() for p in context.policy.model.parameters())
        rate, lora = context.grpo.optimizer.learning_rate, context.policy.lora
        low, high = LORA if lora else FULL
        if size < LARGE:
            yield self.ok(self.small, rate=rate, millions=size / 1e6)
        elif low <= rate <= high:
            yield self.ok(self.inside, rate=rate, low=low, high=high)
        else:
            off = self.off_lora if lora else self.off_full
            yield self.warn(off, rate=rate, low=low, high=high, start=(low * high) ** 0.5)


class SftLearningRate(Check):
    """Compares the learning rate with a bound."""

    name = "advice/sft-learning-rate"
    needs = "data"
    proves = Message(
        "The learning rate of the supervised stage is not above what models of this size bear.",
        "监督微调的学习率没有超过这种规模的模型所能承受的。",
    )
    how = Message("Compares it with a bound, with and without LoRA.", "与上限相比，区分是否使用 LoRA。")
    cannot = Message("For models below 100M parameters it always passes.", "1 亿参数以下的模型总是通过。")
    right = Message("{rate:g} for {millions:.1f}M parameters", "{millions:.1f}M 参数，学习率 {rate:g}")
    high = Message(
        "learning rate {rate:g} is above {bound:g}; models of this size forget at it",
        "学习率 {rate:g} 高于 {bound:g}；这种规模的模型会因此遗忘",
        fix=Fix(
            "set sft.optimizer.learning_rate to {start:g} and go from there",
            "把 sft.optimizer.learning_rate 设为 {start:g}，再由此调整",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        if context.recipe.sft is None:
            return
        size = sum(p.numel() for p in context.policy.model.parameters())
        rate, bound = context.recipe.sft.optimizer.learning_rate, 1e-3 if context.policy.lora else 1e-4
        if size < LARGE or rate <= bound:
            yield self.ok(self.right, rate=rate, millions=size / 1e6)
        else:
            yield self.warn(self.high, rate=rate, bound=bound, start=bound / 10)


MOST = 16
"""Updates of a batch of rollouts that clipping can correct."""


class BatchReuse(Check):
    """Counts groups per update and updates per batch."""

    name = "advice/batch"
    needs = "data"
    proves = Message(
        "An update sees more than one prompt, and a batch of rollouts is not used for more updates than clipping can "
        "correct.",
        "每次更新包含多道题，而且一批采样的更新次数没有超过裁剪所能校正的。",
    )
    how = Message("Divides the batch by group size and updates per batch.", "用组大小和每批更新次数去除批大小。")
    cannot = Message(
        "How far each update moves the policy depends on the learning rate; the guard measures it.",
        "每次更新使策略移动多远取决于学习率；训练中的守护器会测量。",
    )
    right = Message(
        "{groups} groups of {k} per update, {updates} updates per rollout batch",
        "每次更新 {groups} 组，每组 {k} 条；每批采样更新 {updates} 次",
    )
    one_group = Message(
        "one group per update: every update follows a single prompt",
        "每次更新只有一组：更新的方向由一道题决定",
        fix=Fix("raise grpo.batch_size to several groups", "增大 grpo.batch_size，使每次更新包含多组"),
    )
    reused = Message(
        "{updates} updates per rollout batch: PPO-style clipping corrects small steps only; DAPO makes 16 updates per "
        "batch at 1e-6, TRL's default is 1",
        "每批采样更新 {updates} 次：PPO 式裁剪只能校正很小的变化；DAPO 以 1e-6 每批更新 16 次，TRL 默认 1 次",
        fix=Fix("lower grpo.updates_per_batch or grpo.epochs", "减小 grpo.updates_per_batch 或 grpo.epochs"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per thing that is off, or one pass."""
        grpo = context.grpo
        if grpo is None:
            return
        groups = grpo.batch_size // grpo.group_size // grpo.updates_per_batch
        updates = grpo.updates_per_batch * grpo.epochs
        if groups < 2:
            yield self.warn(self.one_group)
        if updates > MOST:
            yield self.warn(self.reused, updates=updates)
        if groups >= 2 and updates <= MOST:
            yield self.ok(self.right, groups=groups, k=grpo.group_size, updates=updates)


LARGEST = {"kl": 1.0, "entropy": 0.1}
"""Coefficients from which on a term is likely to drown the reward."""


class Coefficients(Check):
    """Compares the coefficients that tasks really start from, each by the key that sets it, with published ones."""

    name = "advice/coefficients"
    needs = "data"
    proves = Message(
        "The coefficients of KL and entropy are not so large that they drown the reward.",
        "KL 和熵的系数没有大到淹没奖励。",
    )
    how = Message("Compares those that tasks start from with published ones.", "把各任务起始的系数与已发表的相比。")
    cannot = Message(
        "Controllers may move them later; the guard watches that.", "控制器以后可能改变它们；由守护器监视。"
    )
    right = Message(
        "KL {low:g} to {top:g} by task, entropy {entropy:g}", "各任务的 KL 为 {low:g} 到 {top:g}，熵 {entropy:g}"
    )
    large = Message(
        "{key} {value:g}: such a term drowns the reward; DeepSeekMath uses a KL coefficient of 0.04 and DAPO none, "
        "entropy bonuses of 0.001 to 0.01 are usual (PPO, Schulman et al. 2017, takes 0.01)",
        "{key} {value:g}：这么大的系数会淹没奖励；DeepSeekMath 的 KL 系数为 0.04，DAPO 不用 KL，熵奖励通常取 0.001 到 "
        "0.01（PPO, Schulman et al. 2017 取 0.01）",
        fix=Fix("set {key} to {start:g} or less", "把 {key} 设为不超过 {start:g}"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per coefficient that is too large, or one pass."""
        grpo, tasks = context.grpo, context.recipe.tasks
        if grpo is None:
            return
        coefficients = {"grpo.entropy.coef": (grpo.entropy.coef, LARGEST["entropy"])}
        if any(task.kl is None for task in tasks):
            coefficients["grpo.kl.coef"] = (grpo.kl.coef, LARGEST["kl"])
        coefficients |= {f"tasks.{i}.kl": (t.kl, LARGEST["kl"]) for i, t in enumerate(tasks) if t.kl is not None}
        large = {key: pair for key, pair in coefficients.items() if pair[0] > pair[1]}
        for key, (value, most) in large.items():
            yield self.warn(self.large, key=key, value=value, start=most / 10)
        if not large:
            starts = [task.kl if task.kl is not None else grpo.kl.coef for task in tasks]
            yield self.ok(self.right, low=min(starts), top=max(starts), entropy=grpo.entropy.coef)
