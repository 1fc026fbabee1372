"""Findings about the policy's spread and its distance from the reference."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.entry import Entry, Remedy, Scaled, Text

_ENTROPY_PAPER = "The Entropy Mechanism of RL for Reasoning LMs (Cui et al. 2025, arXiv:2505.22617)"
SLOWER = Remedy(
    why=Text(
        "Each update moves the policy in proportion to the learning rate; a fifth of it leaves time to see what works.",
        "每次更新的幅度与学习率成正比；降到五分之一，策略才来得及看清什么有效。",
    ),
    source=_ENTROPY_PAPER,
    recipe={"grpo.optimizer.learning_rate": Scaled(0.2, "learning_rate"), "grpo.optimizer.warmup_steps": 20},
    trl={"learning_rate": Scaled(0.2, "learning_rate"), "warmup_steps": 20},
    verl={
        "actor_rollout_ref.actor.optim.lr": Scaled(0.2, "learning_rate"),
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 20,
    },
)
CLIP_HIGHER = Remedy(
    why=Text(
        "The upper clip bound keeps rare tokens rare; raising it alone lets them grow and slows the loss of entropy.",
        "上侧裁剪使少见词元难以增大；只放宽上界可让其增长，减缓熵的流失。",
    ),
    source="DAPO (Yu et al. 2025, arXiv:2503.14476), clip-higher",
    recipe={"grpo.loss.clip_low": 0.2, "grpo.loss.clip_high": 0.28},
    trl={"epsilon": 0.2, "epsilon_high": 0.28},
    verl={"actor_rollout_ref.actor.clip_ratio_low": 0.2, "actor_rollout_ref.actor.clip_ratio_high": 0.28},
)
BONUS = Remedy(
    why=Text(
        "A bonus that is on only while the entropy is below its target holds a floor without inflating it.",
        "只在熵低于目标时开启的奖励，既托住下限又不会把熵撑大。",
    ),
    source="Skywork-OR1 (He et al. 2025, arXiv:2505.22312), adaptive entropy control",
    recipe={"grpo.entropy.coef": 0.001, "grpo.entropy.controller": {"kind": "entropy_target", "target": 0.2}},
    trl={"entropy_coef": 0.001, "use_adaptive_entropy": True, "entropy_target": 0.2},
    verl={"actor_rollout_ref.actor.entropy_coeff": 0.001},
)
LEASH = Remedy(
    why=Text(
        "The KL term pulls back in proportion to its coefficient; a band raises it by itself when the KL leaves it.",
        "KL 项的拉力与系数成正比；带状控制器在 KL 越界时自动加大系数。",
    ),
    source="InstructGPT (Ouyang et al. 2022, arXiv:2203.02155); adaptive KL of PPO (Schulman et al. 2017)",
    recipe={"grpo.kl.coef": 0.05, "grpo.kl.controller": {"kind": "band", "low": 0.01, "high": 0.1}},
    trl={"beta": 0.05},
    verl={"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.05},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="entropy-collapse",
        severity="critical",
        title=Text("Entropy collapse", "熵崩溃"),
        meaning=Text(
            "The policy has all but stopped varying its answers, and the reward does not show for it: exploration "
            "is over "
            "before the task was learnt.",
            "策略几乎不再变化，奖励却没有相应提高：任务还没学会，探索已经结束。",
        ),
        mechanism=Text(
            "Policy gradients raise what is already likely whenever it pays, so entropy is spent with every "
            "success. Spent "
            "too fast (high learning rate, low temperature, symmetric clipping, small groups), groups lose their "
            "contrast.",
            "策略梯度总在奖励已经高概率的选择，每次成功都在消耗熵。消耗过快（学习率高、温度低、对称裁剪、组太小）时，"
            "组内便失去对比。",
        ),
        differs=Text(
            "Low entropy alone is no fault: runs whose reward rises end at 0.05 nats and less. It is a collapse "
            "when the "
            "reward stands or falls, dead groups grow, or the fall takes a few steps only.",
            "仅仅熵低不是故障：奖励上升的训练可以降到 0.05 纳特以下。奖励停滞或下降、死组增多、几步之内骤降才是崩溃。",
        ),
        confirm=Text(
            "Sample one prompt ten times before and after the first bad step and count different answers.",
            "在首个异常步前后对同一题各采样十次，数不同的回答。",
        ),
        remedies=(SLOWER, CLIP_HIGHER, BONUS),
        explains=(
            "reward-dead-groups",
            "no-improvement",
            "length-fixed",
            "step-time-collapse",
            "length-collapse",
            "group-size-too-small",
        ),
    ),
    Entry(
        code="entropy-explosion",
        severity="critical",
        title=Text("Entropy explosion", "熵爆炸"),
        meaning=Text(
            "The policy is dissolving into noise: entropy climbs while the reward stands or falls.",
            "策略正在散成噪声：熵在升，奖励停滞或下降。",
        ),
        mechanism=Text(
            "Negative advantages push probability away from sampled tokens to everything else, and an entropy bonus "
            "or a "
            "high temperature adds to it. Once text degrades, all rewards are bad and the pushing continues.",
            "负优势把概率从采样词元推向其余一切，熵奖励或高温度更添其势。文本一旦变差，奖励都差，推力便不停。",
        ),
        differs=Text(
            "Entropy that doubles while the reward rises is exploration. When a gradient spike or a mismatch stands "
            "before the climb, that is the cause.",
            "奖励上升时熵翻倍是探索。若上升之前有梯度尖峰或两端不一致，则那才是原因。",
        ),
        confirm=Text(
            "Read completions from after the climb: mixed languages, broken words, endless text.",
            "读上升之后的输出：语言混杂、断词、没完没了。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "The entropy bonus pays for noise once rewards give no direction: lower it, or bound it by a "
                    "target.",
                    "奖励失去方向后，熵奖励就在奖励噪声：调低，或用目标限制。",
                ),
                source=_ENTROPY_PAPER,
                recipe={"grpo.entropy.coef": 0.0},
                trl={"entropy_coef": 0.0},
                verl={"actor_rollout_ref.actor.entropy_coeff": 0.0},
            ),
            SLOWER,
            Remedy(
                why=Text(
                    "Bounding the ratio on negative advantages bounds how hard one bad sample can push.",
                    "在负优势上限制比值，就限制了单个坏样本的推力。",
                ),
                source="Dual-clip PPO (Ye et al. 2020, arXiv:1912.09729)",
                recipe={"grpo.loss.dual_clip": 3.0},
                trl={"delta": 3.0},
                verl={"actor_rollout_ref.actor.clip_ratio_c": 3.0},
            ),
        ),
        explains=(
            "length-runaway",
            "length-truncation",
            "no-improvement",
            "kl-blowup",
            "gradient-spike",
            "update-collapse",
        ),
    ),
    Entry(
        code="entropy-sign",
        severity="critical",
        title=Text("Entropy bonus with the wrong sign", "熵奖励符号反了"),
        meaning=Text(
            "Entropy falls faster the larger its bonus: the bonus lowers what it is meant to raise.",
            "熵奖励越大熵降得越快：它在降低本该提高的东西。",
        ),
        mechanism=Text(
            "A loss is minimised and entropy is to be maximised, so exactly one minus belongs between them. With "
            "none, or "
            "with two, the optimizer is paid for determinism.",
            "损失被最小化而熵应最大化，两者之间恰需一个负号。没有或有两个，优化器就在奖励确定性。",
        ),
        differs=Text(
            "In an ordinary entropy collapse a larger bonus slows the fall.",
            "普通的熵崩溃中，加大奖励会减缓下降。",
        ),
        confirm=Text(
            "Take one step with the entropy term alone and measure the entropy before and after.",
            "只用熵项走一步，测量前后的熵。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "The term audit measures each term's slope on the run itself and stops when a bonus lowers "
                    "entropy.",
                    "项审计在训练中测量每一项的斜率，熵奖励使熵下降时即停止。",
                ),
                source="levelhead check; docs/objective.md, signs",
                recipe={"grpo.audit.first": 3, "grpo.audit.on_error": "stop"},
                trl={},
                verl={"actor_rollout_ref.actor.entropy_coeff": 0.0},
            ),
        ),
        explains=("entropy-collapse", "deadlock", "reward-dead-groups", "no-improvement"),
        seen_by=("doctor", "guard", "preflight"),
    ),
    Entry(
        code="kl-blowup",
        severity="critical",
        title=Text("KL blow-up", "KL 失控"),
        meaning=Text(
            "The policy has left the reference by more than the reward pays for; what it could do before is going.",
            "策略离参考模型太远，奖励并不值得；原有能力正在流失。",
        ),
        mechanism=Text(
            "The pull of the KL term is its coefficient times the distance, and here the reward's push is stronger "
            "at every "
            "distance reached. The k3 estimate is exponential in the log-ratio, so a few tokens then dominate loss "
            "and "
            "gradient.",
            "KL 项的拉力等于系数乘距离，此处奖励的推力始终更大。k3 估计对对数比值是指数的，少数词元便主宰损失与梯度。",
        ),
        differs=Text(
            "KL that is highest at the first row is a mismatch of set-up (logprob-mismatch), not drift. A single "
            "spike "
            "that comes back is an outlier of the estimator. A missing KL column means that no reference is kept.",
            "第一行就最高的 KL 是设置不一致（logprob-mismatch），不是漂移。单个回落的尖峰是估计量的离群值。"
            "没有 KL 列表示没有保留参考模型。",
        ),
        confirm=Text(
            "Score held-out items and an unrelated benchmark; read completions beside the reference's own.",
            "在留出集与无关基准上评分；把输出与参考模型的并排读。",
        ),
        remedies=(LEASH, SLOWER),
        explains=("no-improvement", "gradient-spike", "reference-drift", "length-collapse", "length-runaway"),
    ),
    Entry(
        code="reference-drift",
        severity="warning",
        title=Text("Drift from the reference", "偏离参考模型"),
        meaning=Text(
            "KL to the reference climbs steadily with no gain in reward to show for it.",
            "与参考模型的 KL 持续上升，奖励却没有相应提高。",
        ),
        mechanism=Text(
            "Noise in the gradient is a random walk away from the reference, and a small KL coefficient hardly "
            "opposes it. "
            "Without contrast in the groups nothing but that walk remains.",
            "梯度噪声使策略做随机游走，过小的 KL 系数难以阻挡。组内没有对比时，只剩下这种游走。",
        ),
        differs=Text(
            "A KL that climbs with the reward is learning. A KL beyond about one nat a token is kl-blowup.",
            "与奖励同步上升的 KL 是学习；每词元超过约一纳特是 kl-blowup。",
        ),
        confirm=Text("Compare held-out scores at several checkpoints.", "比较几个检查点的留出集得分。"),
        remedies=(LEASH,),
        explains=("no-improvement",),
    ),
    Entry(
        code="lr-too-high",
        severity="critical",
        title=Text("Learning rate too high", "学习率过高"),
        meaning=Text(
            "Several instabilities at once, early in the run: the updates are larger than their evidence.",
            "训练早期多种不稳定同时出现：更新超过了证据所能支持的幅度。",
        ),
        mechanism=Text(
            "A batch holds a few dozen groups, so its gradient is mostly noise; a large step follows the noise. The "
            "policy "
            "that results samples worse data, and the next gradient is larger still.",
            "一批只有几十组，梯度大半是噪声，步子大就跟着噪声走。变差的策略采到更差的数据，下一个梯度更大。",
        ),
        differs=Text(
            "One instability alone has its own name. A mismatch between trainer and sampler looks alike, and is "
            "visible at "
            "the first row.",
            "单一的不稳定有自己的名字。训练端与采样端不一致看起来相似，但第一行就能看出。",
        ),
        confirm=Text(
            "Repeat the first steps with the same seed at a fifth of the learning rate.",
            "用同一种子、五分之一的学习率重跑开头几步。",
        ),
        remedies=(
            SLOWER,
            Remedy(
                why=Text(
                    "More groups a step average the noise away.",
                    "每步更多的组可把噪声平均掉。",
                ),
                source="GRPO (Shao et al. 2024, arXiv:2402.03300)",
                recipe={"grpo.batch_size": 256},
                trl={"gradient_accumulation_steps": 8},
                verl={"data.train_batch_size": 256},
            ),
        ),
        explains=(
            "kl-blowup",
            "gradient-spike",
            "entropy-collapse",
            "entropy-explosion",
            "catastrophic-update",
            "length-collapse",
            "reference-drift",
        ),
    ),
)
