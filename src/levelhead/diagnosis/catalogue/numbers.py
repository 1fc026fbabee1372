"""Findings about numbers and single updates: what is not finite, what explodes, what breaks the policy at once."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.catalogue.policy import LEASH, SLOWER
from levelhead.diagnosis.entry import Entry, Remedy, Scaled, Text

_CLIP = Remedy(
    why=Text(
        "Scaling the gradient down to a bound turns an absurd direction into a small step.",
        "把梯度缩到上限内，荒唐的方向也只走一小步。",
    ),
    source="On the difficulty of training RNNs (Pascanu et al. 2013, arXiv:1211.5063)",
    recipe={"grpo.optimizer.max_grad_norm": 0.5},
    trl={"max_grad_norm": 0.5},
    verl={"actor_rollout_ref.actor.grad_clip": 0.5},
)
_BOUND = Remedy(
    why=Text(
        "On a negative advantage the ratio is not bounded from above by plain clipping; dual clipping bounds it.",
        "优势为负时普通裁剪不限制比值上界；双侧裁剪可以。",
    ),
    source="Dual-clip PPO (Ye et al. 2020, arXiv:1912.09729)",
    recipe={"grpo.loss.dual_clip": 3.0},
    trl={"delta": 3.0},
    verl={"actor_rollout_ref.actor.clip_ratio_c": 3.0},
)
_NO_STD = Remedy(
    why=Text(
        "Dividing by a group's standard deviation makes the smallest differences as loud as the largest; with two "
        "rollouts every advantage is +-0.7 or +-1 whatever the rewards.",
        "除以组内标准差会让最小的差异与最大的一样响；只有两个采样时，无论奖励如何优势都是 ±0.7 或 ±1。",
    ),
    source="Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)",
    recipe={"grpo.advantage.kind": "dr_grpo"},
    trl={"scale_rewards": "none", "loss_type": "dr_grpo"},
    verl={"algorithm.norm_adv_by_std_in_grpo": False},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="nonfinite",
        severity="critical",
        title=Text("Not finite", "出现非有限值"),
        meaning=Text(
            "Loss, gradient, KL or entropy is NaN or infinite. From the first such update on the weights may be lost.",
            "损失、梯度、KL 或熵为 NaN 或无穷。从第一次这样的更新起，权重可能已毁。",
        ),
        mechanism=Text(
            "Half precision overflows, a logarithm of zero, an exponential of a large log-ratio, or a mean over no "
            "tokens; "
            "one such number in a sum makes the whole gradient NaN. If it reaches the weights every later output is "
            "NaN.",
            "半精度溢出、对零取对数、对大的对数比值取指数，或对零个词元求均值；和式中一个即可使整个梯度成为 NaN。"
            "一旦进入权重，此后全是 NaN。",
        ),
        differs=Text(
            "A lone infinite gradient at the start is fp16 loss scaling finding its range, and a trainer that skips "
            "the "
            "step loses nothing. NaN in a reward is the reward function's, in a single KL column the reference's.",
            "开头个别无穷梯度是 fp16 损失缩放在寻找量程，跳过该步即无损失。奖励中的 NaN 来自奖励函数，"
            "只有 KL 列为 NaN 来自参考模型。",
        ),
        confirm=Text(
            "Check the weights of the last checkpoint for NaN; recompute one batch's log-probabilities in float32.",
            "检查最近检查点的权重是否含 NaN；用 float32 重算一批对数概率。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "bfloat16 has the range of float32; float16 overflows at 65504.",
                    "bfloat16 的量程与 float32 相同；float16 到 65504 即溢出。",
                ),
                source="Mixed Precision Training (Micikevicius et al. 2018, arXiv:1710.03740)",
                recipe={"model.dtype": "bfloat16"},
                trl={"bf16": True, "fp16": False},
                verl={"actor_rollout_ref.rollout.dtype": "bfloat16"},
            ),
            _CLIP,
            _BOUND,
        ),
        explains=(
            "zero-gradient-despite-signal",
            "no-improvement",
            "reward-dead-groups",
            "no-learning-signal-all-zero-reward",
            "length-fixed",
            "length-truncation",
            "eos-never",
            "step-time-collapse",
            "catastrophic-update",
        ),
        seen_by=("doctor", "guard", "preflight"),
    ),
    Entry(
        code="gradient-spike",
        severity="critical",
        title=Text("Gradient spike", "梯度尖峰"),
        meaning=Text(
            "Gradients far beyond the run's own normal, with harm to show for it or too large to be harmless.",
            "梯度远超本次训练的常态，且已造成损害，或大到不可能无害。",
        ),
        mechanism=Text(
            "Importance ratios and k3 KLs are exponentials: a few tokens whose probability has changed much carry "
            "the whole "
            "gradient. Unclipped, or clipped again and again in that direction, it overwrites what was learnt.",
            "重要性比值与 k3 KL 都是指数：少数概率大变的词元承担了全部梯度。不裁剪，或反复朝该方向裁剪，都会覆盖所学。",
        ),
        differs=Text(
            "One spike of twenty times the median that leaves reward, entropy and KL where they were is harmless: "
            "clipping "
            "did its work.",
            "单个二十倍于中位数的尖峰，若奖励、熵与 KL 都未变，则无害：裁剪已起作用。",
        ),
        confirm=Text(
            "Look at the batch of that step: which tokens have the largest ratios, which rollouts the largest "
            "advantages?",
            "查看该步的批次：哪些词元比值最大，哪些采样优势最大？",
        ),
        remedies=(_CLIP, _BOUND, SLOWER),
        explains=(
            "catastrophic-update",
            "nonfinite",
            "kl-blowup",
            "entropy-explosion",
            "entropy-collapse",
            "length-collapse",
            "no-improvement",
        ),
    ),
    Entry(
        code="catastrophic-update",
        severity="critical",
        title=Text("Catastrophic update", "灾难性更新"),
        meaning=Text(
            "Within a few updates the reward fell to its floor and never came back: one step broke the policy.",
            "几次更新之内奖励跌到最低且不再恢复：某一步毁了策略。",
        ),
        mechanism=Text(
            "A step that is too large in the policy's own terms moves probability to text that no rollout had "
            "punished yet. "
            "From there the rewards hold no direction back.",
            "对策略而言过大的一步，把概率推到尚无采样惩罚过的文本上。从那里开始，奖励里没有回头的方向。",
        ),
        differs=Text(
            "A slow decline is drift or hacking. A blank reward with unchanged lengths and entropy is judge-failure.",
            "缓慢下降是漂移或钻空子；奖励空白而长度与熵不变是 judge-failure。",
        ),
        confirm=Text(
            "Compare completions of the checkpoints before and after the step.",
            "比较该步前后两个检查点的输出。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Go back to the checkpoint before this step; a lower learning rate and other random draws avoid "
                    "it.",
                    "回到该步之前的检查点；降低学习率并更换随机数即可避开。",
                ),
                source="levelhead guard, rollback",
                recipe={"grpo.optimizer.learning_rate": Scaled(0.2, "learning_rate"), "checkpoint.every": 10},
                trl={"learning_rate": Scaled(0.2, "learning_rate"), "save_steps": 10},
                verl={"actor_rollout_ref.actor.optim.lr": Scaled(0.2, "learning_rate"), "trainer.save_freq": 10},
            ),
            _CLIP,
            LEASH,
        ),
        explains=(
            "entropy-explosion",
            "entropy-collapse",
            "length-collapse",
            "length-runaway",
            "length-truncation",
            "length-fixed",
            "kl-blowup",
            "deadlock",
            "no-learning-signal-all-zero-reward",
            "reward-dead-groups",
            "no-improvement",
            "step-time-collapse",
        ),
    ),
    Entry(
        code="update-collapse",
        severity="critical",
        title=Text("Collapse after updates", "更新后失效"),
        meaning=Text(
            "Validity is lost right after updates: the policy no longer writes what can be parsed.",
            "更新之后有效率立即丢失：策略不再写出可解析的内容。",
        ),
        mechanism=Text(
            "In groups of valid but imperfect answers the worse ones are pushed away as hard as any failure, and "
            "the policy "
            "flees to text that no rollout has punished yet. Once nothing is valid there is nothing to go back to.",
            "在都有效但不完美的组里，较差者被像失败一样用力推开，策略便逃向尚未被惩罚的文本。一旦全都无效，就无路可"
            "回。",
        ),
        differs=Text(
            "A catastrophic update shows in the reward alone; here the answers stop parsing. A policy that never "
            "parsed has "
            "a template-mismatch.",
            "灾难性更新表现在奖励；此处是回答不再能解析。从未能解析的是 template-mismatch。",
        ),
        confirm=Text(
            "Read the rollouts before and after one such update.",
            "读某次这样的更新前后的采样。",
        ),
        remedies=(
            _NO_STD,
            Remedy(
                why=Text(
                    "Larger groups hold better answers beside the imperfect ones, so that being valid is not what "
                    "is punished.",
                    "更大的组里同时有更好的回答，被惩罚的便不是“有效”本身。",
                ),
                source="GRPO (Shao et al. 2024, arXiv:2402.03300)",
                recipe={"grpo.group_size": 8},
                trl={"num_generations": 8},
                verl={"actor_rollout_ref.rollout.n": 8},
            ),
            Remedy(
                why=Text(
                    "Bounded advantages bound the push of a single group. Divided by the deviation of a group of K, "
                    "none passes sqrt(K - 1): a bound of 2 acts from K = 6 on.",
                    "限制优势即限制单组的推力。组内标准化优势不超过 sqrt(K - 1)，故界限 2 自 K = 6 起才起作用。",
                ),
                source="DeepSeekMath GRPO with clipped advantages (docs/objective.md)",
                recipe={"grpo.advantage.clip": 2.0},
                trl={},
                verl={},
            ),
        ),
        explains=("catastrophic-update", "no-improvement", "length-runaway", "entropy-explosion", "reward-dead-groups"),
    ),
    Entry(
        code="step-time-collapse",
        severity="warning",
        title=Text("Steps cost nothing any more", "每步耗时骤降"),
        meaning=Text(
            "Steps suddenly take a small fraction of their time: hardly anything is generated or trained on.",
            "每步突然只用原来很小一部分时间：几乎没有生成或训练任何东西。",
        ),
        mechanism=Text(
            "Completions have shrunk to a token or two, the batch is empty after filtering, or updates are skipped. "
            "A step "
            "that does no work teaches nothing.",
            "输出缩到一两个词元，过滤后批次为空，或更新被跳过。不干活的一步学不到东西。",
        ),
        differs=Text(
            "A speed-up of two or so comes from shorter answers, caches or compilation.",
            "两倍左右的提速来自更短的回答、缓存或编译。",
        ),
        confirm=Text("Compare tokens a step before and after.", "比较前后每步的词元数。"),
        remedies=(
            Remedy(
                why=Text(
                    "A floor on the length keeps rollouts from vanishing while the cause is sought.",
                    "设最短长度，避免采样消失，以便查找原因。",
                ),
                source="docs/findings/length-collapse.md",
                recipe={"grpo.sampling.min_new_tokens": 8},
                trl={"generation_kwargs": {"min_new_tokens": 8}},
                verl={},
            ),
        ),
        explains=("no-improvement",),
    ),
    Entry(
        code="advantage-two-valued",
        severity="warning",
        title=Text("Advantages of two values", "优势只有两个值"),
        meaning=Text(
            "The largest and smallest advantages are the same in every row: the size of a reward no longer matters.",
            "每一行的最大与最小优势都相同：奖励的大小不再起作用。",
        ),
        mechanism=Text(
            "A group of two, normalised by its own standard deviation, gives +-0.707 (sample) or +-1 (population) "
            "for any "
            "difference. A tie-break of 0.01 is then as strong as right against wrong.",
            "两个采样的组除以自身标准差后，任何差异都给出 ±0.707（样本）或 ±1（总体）。0.01 的差别与对错之差一样强。",
        ),
        differs=Text(
            "Binary rewards in larger groups give advantages that depend on how many succeeded.",
            "更大的组配二值奖励，优势会随成功个数而变。",
        ),
        confirm=Text(
            "Simulate: levelhead simulate --k 2 --estimator grpo.",
            "模拟：levelhead simulate --k 2 --estimator grpo。",
        ),
        remedies=(_NO_STD,),
        explains=("group-size-too-small", "update-collapse"),
        seen_by=("doctor", "guard", "preflight"),
    ),
    Entry(
        code="group-size-too-small",
        severity="warning",
        title=Text("Groups too small", "组太小"),
        meaning=Text(
            "With so few rollouts a prompt the baseline is noise, and most groups have no contrast.",
            "每题采样太少，基线就是噪声，多数组也没有对比。",
        ),
        mechanism=Text(
            "The group's mean stands for the prompt's value, with an error of 1/sqrt(K). At K = 2 a pair differs "
            "only when "
            "exactly one succeeds, and normalisation then makes every difference equal.",
            "组均值代表该题的价值，误差为 1/√K。K = 2 时只有恰一个成功才有差别，归一化又把所有差别变得一样大。",
        ),
        differs=Text(
            "Dead groups at K = 16 come from prompts that are too easy or too hard.",
            "K = 16 时的死组来自太易或太难的题。",
        ),
        confirm=Text("Simulate the estimator for this K and success rate.", "对此 K 与成功率做模拟。"),
        remedies=(
            Remedy(
                why=Text(
                    "Eight rollouts a prompt bring the baseline's error to a third.",
                    "每题八个采样可把基线误差降到三分之一。",
                ),
                source="GRPO (Shao et al. 2024, arXiv:2402.03300)",
                recipe={"grpo.group_size": 8},
                trl={"num_generations": 8},
                verl={"actor_rollout_ref.rollout.n": 8},
            ),
            _NO_STD,
        ),
        explains=("advantage-two-valued", "reward-dead-groups", "update-collapse"),
        seen_by=("doctor", "guard", "preflight"),
    ),
)
