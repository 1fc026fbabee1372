"""Findings about contrast within groups: no contrast, no gradient."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.entry import Entry, Remedy, Scaled, Text

_DAPO = "DAPO (Yu et al. 2025, arXiv:2503.14476)"
_LARGER_GROUPS = Remedy(
    why=Text(
        "With success rate p a group of K is mixed with probability 1 - p^K - (1-p)^K: larger groups find the rare "
        "success or failure that gives them contrast.",
        "成功率为 p 时，K 个样本的组有对比的概率是 1 - p^K - (1-p)^K；组越大，越容易碰到少见的成功或失败。",
    ),
    source="GRPO (Shao et al. 2024, arXiv:2402.03300)",
    recipe={"grpo.group_size": 16},
    trl={"num_generations": 16},
    verl={"actor_rollout_ref.rollout.n": 16},
)
_RESAMPLE = Remedy(
    why=Text(
        "Prompts that are always or never solved cost rollouts and teach nothing; draw others until the batch is full.",
        "总能做对或总做不对的题只耗采样、不产生梯度；应继续换题直到批次装满。",
    ),
    source=f"{_DAPO}, dynamic sampling",
    recipe={"grpo.sampling.temperature": 1.0},
    trl={"temperature": 1.0},
    verl={"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"},
)
_SFT_FIRST = Remedy(
    why=Text(
        "A policy that never succeeds gets no gradient from any estimator: teach it the form and the first successes "
        "with demonstrations, then let GRPO improve them.",
        "从不成功的策略在任何优势估计下都没有梯度；先用示范教会格式与最初的成功，再用 GRPO 提升。",
    ),
    source="DeepSeek-R1 (Guo et al. 2025, arXiv:2501.12948), cold start",
    recipe={"sft.steps": 200},
    trl={"model": "an SFT checkpoint"},
    verl={"actor_rollout_ref.model.path": "an SFT checkpoint"},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="reward-dead-groups",
        severity="warning",
        title=Text("Dead groups", "组内无对比（死组）"),
        meaning=Text(
            "Most groups hold rewards that are all equal, and the reward is not rising: most rollouts are paid for "
            "and "
            "teach nothing.",
            "大多数组内奖励完全相同且奖励没有上升：采样花了钱，却学不到东西。",
        ),
        mechanism=Text(
            "A group's advantages are rewards minus the group's mean, so equal rewards give exactly zero advantage. "
            "Whole-batch standard deviations hide it: prompts may differ from each other while no group differs "
            "within.",
            "优势等于奖励减去组均值，组内奖励相同则优势恰为零。整批标准差会掩盖这一点：题与题之间不同，组内却没有差"
            "别。",
        ),
        differs=Text(
            "All failed is no-learning-signal-all-zero-reward, all solved is saturated-all-one-reward; dead from some "
            "step on, with loss and gradient gone, is deadlock. A run that learns while most groups are dead is "
            "healthy.",
            "全失败是 no-learning-signal-all-zero-reward，全成功是 saturated-all-one-reward；"
            "从某步起损失与梯度也归零是 deadlock。死组多但奖励在升的训练是健康的。",
        ),
        confirm=Text(
            "Print the rewards of a few groups: are they equal within each prompt? Compare frac_reward_zero_std (or "
            "the "
            "within-group std) with the whole-batch std.",
            "打印几组奖励，看每道题内部是否相同；比较 frac_reward_zero_std（或组内标准差）与整批标准差。",
        ),
        remedies=(_LARGER_GROUPS, _RESAMPLE),
        explains=("zero-gradient-despite-signal", "no-improvement"),
    ),
    Entry(
        code="no-learning-signal-all-zero-reward",
        severity="critical",
        title=Text("No signal: every reward at the floor", "没有学习信号：奖励全在最低值"),
        meaning=Text(
            "Every rollout gets the lowest reward. Nothing can be learnt from this reward as it stands.",
            "所有采样都拿到最低奖励；照此奖励学不到任何东西。",
        ),
        mechanism=Text(
            "The reward function never matches what the policy writes (wrong format, wrong field, a parser that "
            "fails), "
            "or the task is out of reach. With all rewards equal every advantage is zero, and so is the gradient.",
            "奖励函数从不匹配策略的输出（格式、字段或解析有误），或任务超出能力。奖励全等则优势为零，梯度也为零。",
        ),
        differs=Text(
            "Unlike deadlock it is so from the first row: nothing was ever learnt and lost. A first stretch of zeros "
            "that ends is a hard start, not this.",
            "与 deadlock 不同，它从第一行就如此，并非学会又丢失。开头一段零之后转好，只是起步难。",
        ),
        confirm=Text(
            "Call the reward function by hand on a perfect answer and on three completions of the log.",
            "手工把一个标准答案和日志中的三个输出送进奖励函数看得分。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "First make sure that a perfect answer scores: check the reward's parser, columns and template.",
                    "先确认标准答案能得分：检查奖励函数的解析、字段与模板。",
                ),
                source="levelhead check (oracle scores the maximum)",
                recipe={"tasks[].oracle": "answer"},
                trl={"reward_funcs": "one that scores a perfect answer above an empty one"},
                verl={"custom_reward_function.path": "one that scores a perfect answer above an empty one"},
            ),
            _SFT_FIRST,
            _LARGER_GROUPS,
        ),
        explains=(
            "reward-dead-groups",
            "zero-gradient-despite-signal",
            "no-improvement",
            "deadlock",
            "entropy-collapse",
        ),
    ),
    Entry(
        code="saturated-all-one-reward",
        severity="warning",
        title=Text("Saturated: every reward at the top", "已饱和：奖励全在最高值"),
        meaning=Text(
            "Every rollout gets the highest reward: there is nothing left to learn here, or the reward is too easy.",
            "所有采样都拿到最高奖励：这里已无可学，或者奖励太容易。",
        ),
        mechanism=Text(
            "Groups in which all succeed have no contrast, and the gradient vanishes. Further steps only move the "
            "policy "
            "through its KL and entropy terms.",
            "全部成功的组没有对比，梯度消失。继续训练只会被 KL 与熵项推动。",
        ),
        differs=Text(
            "Reached after a climb it is success, and time to stop; from the first row it is a task or a reward "
            "that is "
            "too easy; reached in a leap with entropy gone it is deadlock.",
            "逐步爬升后到顶是成功，该停了；第一行就到顶是任务或奖励太易；一跃到顶且熵已消失是 deadlock。",
        ),
        confirm=Text(
            "Score held-out items, and read a few completions: are they right, or does the reward accept anything?",
            "在留出集上评分，并读几条输出：是真的对，还是奖励什么都给分？",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Harder problems give contrast again; or stop here and keep the best checkpoint.",
                    "换更难的题可恢复对比；或就此停止，保留最好的检查点。",
                ),
                source="Kimi k1.5 (2025, arXiv:2501.12599), curriculum",
                recipe={"tasks[].path": "a harder data set", "checkpoint.best": True},
                trl={"train_dataset": "a harder data set"},
                verl={"data.train_files": "a harder data set"},
            ),
            _RESAMPLE,
        ),
        explains=("reward-dead-groups", "no-improvement"),
    ),
    Entry(
        code="deadlock",
        severity="critical",
        title=Text("Deadlock", "死锁"),
        meaning=Text(
            "From this step on there is no spread of rewards, no loss and no gradient, for good: the run will never "
            "move "
            "again.",
            "从这一步起奖励无差异、损失与梯度为零，且不再恢复：训练再也不会动了。",
        ),
        mechanism=Text(
            "Updates too large for their evidence drove the policy to one answer; all rollouts of a group are now "
            "equal. "
            "Equal rewards give zero advantages and zero gradients, so nothing can bring the policy back.",
            "过大的更新把策略推到唯一的回答，组内采样全部相同。奖励相同则优势与梯度为零，策略无法自行恢复。",
        ),
        differs=Text(
            "Something moved before, unlike no-learning-signal-all-zero-reward; the entropy is gone, unlike a run "
            "that "
            "has solved its task and is merely saturated.",
            "此前曾有活动，区别于 no-learning-signal-all-zero-reward；熵已消失，区别于单纯做完题的饱和。",
        ),
        confirm=Text(
            "Sample one prompt ten times after this step: the answers are identical. Steps take a fraction of their "
            "time.",
            "在这一步之后对同一题采样十次：回答完全相同；每步耗时也骤降。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "The same run at a fifth of the learning rate keeps its entropy: go back to a checkpoint from "
                    "before "
                    "this step and continue there.",
                    "把学习率降到五分之一，同样的训练能保住熵：回到这一步之前的检查点重新开始。",
                ),
                source="The Entropy Mechanism of RL for Reasoning LMs (Cui et al. 2025, arXiv:2505.22617)",
                recipe={"grpo.optimizer.learning_rate": Scaled(0.2, "learning_rate")},
                trl={"learning_rate": Scaled(0.2, "learning_rate")},
                verl={"actor_rollout_ref.actor.optim.lr": Scaled(0.2, "learning_rate")},
            ),
            Remedy(
                why=Text(
                    "An entropy bonus that grows below a target keeps groups apart.",
                    "低于目标时自动加大的熵奖励，可保持组内差异。",
                ),
                source="Skywork-OR1 (He et al. 2025, arXiv:2505.22312)",
                recipe={
                    "grpo.entropy.coef": 0.001,
                    "grpo.entropy.controller": {"kind": "entropy_target", "target": 0.2},
                },
                trl={"entropy_coef": 0.001, "use_adaptive_entropy": True, "entropy_target": 0.2},
                verl={"actor_rollout_ref.actor.entropy_coeff": 0.001},
            ),
            _LARGER_GROUPS,
        ),
        explains=(
            "reward-dead-groups",
            "saturated-all-one-reward",
            "zero-gradient-despite-signal",
            "no-improvement",
            "step-time-collapse",
            "no-learning-signal-all-zero-reward",
            "length-fixed",
            "judge-failure",
            "reward-hacking",
            "entropy-collapse",
            "length-collapse",
        ),
    ),
    Entry(
        code="zero-gradient-despite-signal",
        severity="critical",
        title=Text("Zero gradient despite contrast", "有对比却没有梯度"),
        meaning=Text(
            "Groups differ in reward, yet the gradient is zero: the signal is lost between the advantage and the "
            "weights.",
            "组内奖励有差异，梯度却为零：信号在优势与权重之间丢失了。",
        ),
        mechanism=Text(
            "A loss mask that covers no completion token, parameters that do not require gradients, a detached "
            "tensor, or "
            "importance weights near zero multiply the advantages away. The loss may still print a number.",
            "损失掩码没有覆盖任何输出词元、参数不要求梯度、张量被 detach，或重要性权重接近零，都会把优势乘没。"
            "损失仍可能打印出数值。",
        ),
        differs=Text(
            "With dead groups the contrast itself is missing. A printed loss of 0.0 is normal on policy; a printed "
            "gradient of exactly 0 is not. TRL prints the last step's gradient beside window means.",
            "死组是对比本身不存在。在策略下损失打印 0.0 正常，梯度恰为 0 不正常。"
            "TRL 打印的是窗口最后一步的梯度与窗口均值。",
        ),
        confirm=Text(
            "Count trainable parameters with a gradient after one backward pass, and completion tokens under the mask.",
            "一次反传后统计有梯度的可训练参数数，以及掩码覆盖的输出词元数。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Preflight counts the masked tokens and the parameters that receive gradients.",
                    "预检会统计掩码内词元和得到梯度的参数。",
                ),
                source="levelhead check",
                recipe={"grpo.audit.every": 1},
                trl={"mask_truncated_completions": False},
                verl={},
            ),
        ),
        explains=("no-improvement",),
        seen_by=("doctor", "guard", "preflight"),
    ),
)
