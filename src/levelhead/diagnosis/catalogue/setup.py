"""Findings about the set-up: engines that disagree, stale weights, templates and masks."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.catalogue.policy import SLOWER
from levelhead.diagnosis.entry import Entry, Remedy, Text

_TIS = Remedy(
    why=Text(
        "Weighting each token by the truncated ratio of trainer to sampler corrects for a sampler that is not quite "
        "the "
        "policy.",
        "按训练端与采样端概率之比（截断）给词元加权，可校正不完全一致的采样器。",
    ),
    source="Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (Yao et al. 2025)",
    recipe={"grpo.loss.importance": "token_truncate", "grpo.loss.importance_high": 2.0},
    trl={"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate"},
    verl={"algorithm.rollout_correction.rollout_is": "token", "algorithm.rollout_correction.rollout_is_threshold": 2.0},
)
_CHECK = Remedy(
    why=Text(
        "The check renders, samples and re-scores a few prompts, and shows the first token at which the two differ.",
        "检查会渲染、采样并重新打分几条提示，指出第一个不一致的词元。",
    ),
    source="levelhead check",
    recipe={"model.chat_template": "the template that the policy was tuned with"},
    trl={"processing_class.chat_template": "the template that the policy was tuned with"},
    verl={"actor_rollout_ref.model.custom_chat_template": "the template that the policy was tuned with"},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="logprob-mismatch",
        severity="critical",
        title=Text("Trainer and sampler disagree", "训练端与采样端不一致"),
        meaning=Text(
            "The trainer gives the drawn tokens other probabilities than the engine that drew them (or than the "
            "reference "
            "it starts from): ratios, KL and advantages refer to another policy.",
            "训练端给出的词元概率与采样引擎（或起点参考模型）不同：比值、KL 与优势都属于另一个策略。",
        ),
        mechanism=Text(
            "Weights were not synchronised, the engines differ in precision, kernels, temperature or template, or "
            "an adapter "
            "is on in one and off in the other. Corrections then scale the gradient to nothing, or let it explode.",
            "权重没有同步，两端精度、算子、温度或模板不同，或适配器一端开一端关。校正随后把梯度缩没或放大到爆炸。",
        ),
        differs=Text(
            "A mismatch is there at the first row, before any update; drift grows from zero. Small differences "
            "(0.01 nats a "
            "token) between engines are normal.",
            "不一致在第一行、任何更新之前就有；漂移从零开始增长。两端每词元约 0.01 纳特的差别是正常的。",
        ),
        confirm=Text(
            "Before the first update re-score a batch in the trainer: mean |log-prob difference| should be under 0.03.",
            "首次更新前在训练端重算一批：平均对数概率差应小于 0.03。",
        ),
        remedies=(_TIS, _CHECK),
        explains=(
            "zero-gradient-despite-signal",
            "gradient-spike",
            "nonfinite",
            "kl-blowup",
            "entropy-explosion",
            "entropy-collapse",
            "catastrophic-update",
            "no-improvement",
            "stale-policy",
            "reference-drift",
            "reward-dead-groups",
        ),
        seen_by=("doctor", "guard", "preflight"),
    ),
    Entry(
        code="stale-policy",
        severity="warning",
        title=Text("Rollouts from a stale policy", "采样来自过时的策略"),
        meaning=Text(
            "Rollouts were drawn many updates ago, and the gradient refers to a policy that is gone.",
            "采样来自许多次更新之前，梯度对应的策略已不存在。",
        ),
        mechanism=Text(
            "Asynchronous sampling, many updates a batch or a failed weight transfer leave a gap of versions. "
            "Ratios spread, "
            "clipping removes most of the signal, and what is left is biased.",
            "异步采样、一批多次更新或权重传输失败造成版本差。比值散开，裁剪去掉大半信号，余下的有偏。",
        ),
        differs=Text(
            "A mismatch is constant and there from the first row; staleness grows between synchronisations.",
            "不一致是恒定的且第一行就有；过时则在两次同步之间增长。",
        ),
        confirm=Text(
            "Log the version of the policy with each rollout, and the gap when it is trained on.",
            "为每条采样记录策略版本，以及训练时的版本差。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "One update a rollout batch is on policy.",
                    "每批采样只更新一次即为同策略。",
                ),
                source="Asynchronous RLHF (Noukhovitch et al. 2024, arXiv:2410.18252)",
                recipe={"grpo.updates_per_batch": 1, "grpo.epochs": 1, "grpo.async": 0},
                trl={"num_iterations": 1, "steps_per_generation": 1},
                verl={"actor_rollout_ref.actor.ppo_epochs": 1},
            ),
            _TIS,
        ),
        explains=(
            "kl-blowup",
            "gradient-spike",
            "entropy-collapse",
            "length-runaway",
            "length-truncation",
            "no-improvement",
            "catastrophic-update",
        ),
    ),
    Entry(
        code="template-mismatch",
        severity="critical",
        title=Text("Template, stop tokens or parser do not fit", "模板、停止符或解析不匹配"),
        meaning=Text(
            "The policy never produces the form that is asked for, or tokens it did not write count as its own.",
            "策略从不产出所要求的格式，或不是它写的词元被算在它头上。",
        ),
        mechanism=Text(
            "The prompt is rendered otherwise than in tuning, a tag that the parser wants is already in the "
            "template, or "
            "appended tokens are not masked. Format rewards stay at zero whatever the answer, or ratios explode on "
            "tokens "
            "that were never drawn.",
            "提示的渲染与微调时不同，解析器要的标签已在模板里，或追加的词元没有掩掉。"
            "于是格式奖励恒为零，或比值在未采样的词元上爆炸。",
        ),
        differs=Text(
            "A policy that was valid and no longer is has collapsed (update-collapse). Rewards at zero with valid "
            "answers "
            "are the reward function's.",
            "曾经有效后来失效是 update-collapse；回答有效而奖励为零是奖励函数的问题。",
        ),
        confirm=Text(
            "Print one prompt and one completion with special tokens shown, and run the parser on them.",
            "显示特殊词元打印一条提示与输出，再用解析器跑一遍。",
        ),
        remedies=(_CHECK,),
        explains=(
            "eos-never",
            "length-truncation",
            "length-fixed",
            "no-learning-signal-all-zero-reward",
            "reward-dead-groups",
            "no-improvement",
        ),
        seen_by=("doctor", "guard", "preflight"),
    ),
    Entry(
        code="prompt-in-loss",
        severity="critical",
        title=Text("Prompt tokens in the loss", "提示词元进入了损失"),
        meaning=Text(
            "The loss covers tokens that the policy did not write; it learns to change probabilities of its prompts.",
            "损失覆盖了策略没有写的词元；它在学习改变提示的概率。",
        ),
        mechanism=Text(
            "A completion mask is shifted, computed from padding, or missing. The gradient of the prompt is shared "
            "by a whole "
            "group and drowns the difference between its answers.",
            "输出掩码错位、由填充推算，或缺失。提示的梯度全组共享，会淹没回答之间的差别。",
        ),
        differs=Text(
            "It shows in the set-up, not in the course of a log: preflight changes prompt labels and looks whether "
            "the loss "
            "moves.",
            "它体现在设置而非日志走势：预检改动提示标签，看损失是否变化。",
        ),
        confirm=Text(
            "Replace the prompt's labels by others: the loss must not change.",
            "把提示的标签换掉：损失不应改变。",
        ),
        remedies=(
            Remedy(
                why=Text("Only completion tokens may enter the loss.", "只有输出词元可以进入损失。"),
                source="levelhead check, masks",
                recipe={"grpo.audit.first": 3},
                trl={"completion_only_loss": True},
                verl={},
            ),
        ),
        explains=("gradient-spike", "kl-blowup", "no-improvement"),
        seen_by=("preflight",),
    ),
    Entry(
        code="gradient-conflict",
        severity="warning",
        title=Text("Gradients of the tasks oppose each other", "任务梯度相互冲突"),
        meaning=Text(
            "What improves one task worsens another: their gradients point apart most of the time.",
            "改进一个任务就损害另一个：两者梯度大多方向相反。",
        ),
        mechanism=Text(
            "Tasks share weights, and the sum of two opposed gradients follows the longer one. The shorter one's "
            "task is then "
            "trained backwards.",
            "任务共享权重，两个相反梯度之和跟随较长者。较短者的任务便被反向训练。",
        ),
        differs=Text(
            "Unequal speeds without opposition are task-imbalance.",
            "速度不同但方向不相反是 task-imbalance。",
        ),
        confirm=Text("Log the cosine between the tasks' gradients.", "记录任务梯度之间的余弦。"),
        remedies=(
            Remedy(
                why=Text(
                    "Merging by CAGrad keeps every task from losing at first order.",
                    "CAGrad 合并保证一阶意义上没有任务受损。",
                ),
                source="CAGrad (Liu et al. 2021, arXiv:2110.14048)",
                recipe={"grpo.merge.kind": "cagrad", "grpo.merge.c": 0.4},
                trl={},
                verl={},
            ),
        ),
        explains=("task-imbalance", "no-improvement"),
    ),
    Entry(
        code="task-imbalance",
        severity="warning",
        title=Text("One task starves", "某个任务被饿死"),
        meaning=Text(
            "One task's reward rises while another's falls: the batch serves the first.",
            "一个任务的奖励在升，另一个在降：训练在迁就前者。",
        ),
        mechanism=Text(
            "Rewards of larger spread, more prompts or easier progress give longer gradients, and the sum follows "
            "them. "
            "Nothing in a plain sum notices that another task is paying.",
            "方差更大、题更多或更易进步的任务梯度更长，求和便随之而去。普通求和察觉不到别的任务在付代价。",
        ),
        differs=Text(
            "Opposed gradients are gradient-conflict; parts of one reward that part ways are reward-hacking.",
            "方向相反是 gradient-conflict；同一奖励的各部分背离是 reward-hacking。",
        ),
        confirm=Text("Plot the held-out score of each task.", "分别画出各任务的留出集得分。"),
        remedies=(
            Remedy(
                why=Text(
                    "A larger share of the prompts, or merging that no task loses by, feeds the starving one.",
                    "增加它的题目占比，或用不让任何任务受损的合并方式。",
                ),
                source="Aligned-MTL (Senushkin et al. 2023, arXiv:2305.19000)",
                recipe={"tasks[].weight": 2.0, "grpo.merge.kind": "aligned_mtl"},
                trl={"reward_weights": [1.0, 2.0]},
                verl={},
            ),
            SLOWER,
        ),
        explains=("no-improvement",),
    ),
)
