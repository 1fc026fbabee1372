"""Findings about what the reward says, and ``healthy``."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.catalogue.policy import BONUS, LEASH
from levelhead.diagnosis.entry import Entry, Remedy, Scaled, Text

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="reward-hacking",
        severity="critical",
        title=Text("Reward hacking", "奖励被钻空子"),
        meaning=Text(
            "The reward rises while what it stands for (correctness, validity, the held-out score) falls.",
            "奖励在升，而它所代表的（正确率、有效率、留出集得分）在降。",
        ),
        mechanism=Text(
            "An easier part of the reward pays as well as the hard one, and the policy buys it with the hard one. "
            "The proxy "
            "and the goal agree at first and part ways under optimisation.",
            "奖励中较易的部分与较难的同样划算，策略便以后者换前者。代理与目标起初一致，被优化后分道扬镳。",
        ),
        differs=Text(
            "When all parts fall it is a broken policy; when all rise with shorter answers it is conciseness.",
            "各部分都降是策略坏了；都升且回答变短是变简洁。",
        ),
        confirm=Text(
            "Read the ten best-rewarded completions, and score them by hand.",
            "读奖励最高的十条输出，并人工评分。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Pay the outcome more than the form, or pay the form only together with the outcome.",
                    "结果的权重要高于形式，或只有结果对时才给形式分。",
                ),
                source="Defining and Characterizing Reward Hacking (Skalse et al. 2022, arXiv:2209.13085)",
                recipe={"tasks[].reward_weights": [1.0, 0.1]},
                trl={"reward_weights": [1.0, 0.1]},
                verl={"custom_reward_function.path": "a reward that pays form only with outcome"},
            ),
            Remedy(
                why=Text(
                    "Normalising each part within its group keeps a part that varies easily from drowning the others.",
                    "按组分别归一化各部分，避免易变的部分淹没其他。",
                ),
                source="GDPO (2026, arXiv:2601.05242)",
                recipe={"grpo.advantage.kind": "gdpo"},
                trl={"multi_objective_aggregation": "normalize_then_sum"},
                verl={},
            ),
            LEASH,
        ),
        explains=(
            "length-collapse",
            "entropy-collapse",
            "saturated-all-one-reward",
            "no-improvement",
            "reference-drift",
        ),
    ),
    Entry(
        code="constant-answer",
        severity="critical",
        title=Text("One answer to everything", "千题一答"),
        meaning=Text(
            "The policy answers every prompt of a task alike: what it writes no longer depends on what is asked. A "
            "reward that rises meanwhile is the price of that one answer, not of anything learnt.",
            "策略对该任务的每道题都给同一个回答：写什么不再取决于问什么。此时奖励若在升，升的是这一个回答的价，而不是学到了东西。",
        ),
        mechanism=Text(
            "One answer (abstaining, the most common label, a phrase that the judge likes) earns more on average than "
            "the policy's attempts to read, and needs no reading. Each update makes it likelier, until no group holds "
            "anything else to compare it with.",
            "某个回答（弃答、最常见的标签、评判偏爱的一句话）平均得分高于策略认真读题的尝试，而且不用读题。"
            "每次更新都使它更常见，直到组内再没有别的可比。",
        ),
        differs=Text(
            "Where perfect answers are all the same too, or the reward stands at its top, the task is solved. A policy "
            "of low entropy that reads gives each prompt an answer of its own; one that draws from the same wide "
            "distribution for every prompt has not settled yet.",
            "若完美回答也都相同，或奖励已到最高，那是任务已解决。熵低但读题的策略对每题各有回答；"
            "对每题都从同一个宽分布采样的策略还没有定下来。",
        ),
        confirm=Text(
            "Score that one answer on held-out items: the policy is worth no more. Put a question whose answer is "
            "known, and its opposite.",
            "在留出集上给这一个回答打分：策略并不更值钱。再问一道已知答案的题和与它相反的题。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "GRPO sharpens what the policy can do; one that cannot read yet must be fine-tuned until it beats "
                    "the best constant answer before it is reinforced.",
                    "GRPO 只能强化策略已会的；还读不懂题的策略要先微调到胜过最好的常数回答，再做强化。",
                ),
                source="Does Reinforcement Learning Really Incentivize Reasoning Capacity? (Yue et al. 2025, "
                "arXiv:2504.13837)",
                recipe={"sft.steps": "several times what it was"},
                trl={"model": "a checkpoint whose score is above that of the best constant answer"},
                verl={"actor_rollout_ref.model.path": "a checkpoint above the best constant answer"},
            ),
            Remedy(
                why=Text(
                    "Make the constant answer pay less than an honest attempt: fewer items where abstaining is right, "
                    "classes in equal shares, a price for abstaining.",
                    "让常数回答不如认真作答划算：减少以弃答为正确的题、各类题等量、给弃答定价。",
                ),
                source="R-Tuning (Zhang et al. 2024, arXiv:2311.09677)",
                recipe={"tasks[].unanswerable": 0.1},
                trl={"reward_funcs": "one that pays the best constant answer less than the starting policy"},
                verl={"custom_reward_function.path": "one that pays the best constant answer less"},
            ),
            LEASH,
            BONUS,
        ),
        explains=(
            "entropy-collapse",
            "deadlock",
            "reward-dead-groups",
            "no-improvement",
            "length-fixed",
            "length-collapse",
            "saturated-all-one-reward",
            "zero-gradient-despite-signal",
        ),
    ),
    Entry(
        code="no-improvement",
        severity="warning",
        title=Text("No improvement", "没有进步"),
        meaning=Text(
            "After this many steps the reward stands where it began, or lower, or the policy scores no more on held-out"
            " items than the best constant answer does; and nothing else explains it.",
            "走了这么多步，奖励仍在原处或更低，或策略在留出题上的得分不高于最佳固定答案，而别无解释。",
        ),
        mechanism=Text(
            "The updates are too small for the noise, the batch holds too few informative groups, or the task is at "
            "the "
            "limit of what this policy can do. A flat training reward can hide a rising held-out score, and the "
            "reverse.",
            "更新相对噪声太小，批次里有信息的组太少，或任务已到策略极限。训练奖励持平时留出集得分可能在升，反之亦然。",
        ),
        differs=Text(
            "When groups are dead, answers cut or gradients zero, those are the cause. A few dozen rows of a noisy "
            "reward "
            "prove nothing; nor does a flat reward in a log that starts later, or under a curriculum that serves what "
            "is half solved.",
            "若死组、截断或零梯度存在，它们才是原因。几十行嘈杂的奖励说明不了什么；日志从中途开始、或课程只出半会的题时，"
            "奖励持平也说明不了什么。",
        ),
        confirm=Text(
            "Evaluate the first and the last checkpoint on held-out items with enough samples for the difference to "
            "show.",
            "用足够样本在留出集上评估首末两个检查点。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "If the KL stays near zero, the steps are too small.",
                    "若 KL 始终接近零，说明步子太小。",
                ),
                source="GRPO (Shao et al. 2024, arXiv:2402.03300)",
                recipe={"grpo.optimizer.learning_rate": Scaled(3, "learning_rate"), "eval.every": 25},
                trl={"learning_rate": Scaled(3, "learning_rate"), "eval_strategy": "steps"},
                verl={"actor_rollout_ref.actor.optim.lr": Scaled(3, "learning_rate"), "trainer.test_freq": 25},
                unless=(
                    "lr-too-high",
                    "kl-blowup",
                    "reference-drift",
                    "gradient-spike",
                    "catastrophic-update",
                    "entropy-collapse",
                    "entropy-explosion",
                    "deadlock",
                    "nonfinite",
                ),
            ),
            Remedy(
                why=Text(
                    "More rollouts a prompt and more prompts a step raise the share of signal.",
                    "每题更多采样、每步更多题，可提高信号占比。",
                ),
                source="DAPO (Yu et al. 2025, arXiv:2503.14476)",
                recipe={"grpo.group_size": 16, "grpo.batch_size": 256},
                trl={"num_generations": 16},
                verl={"actor_rollout_ref.rollout.n": 16},
            ),
        ),
        explains=(),
    ),
    Entry(
        code="judge-failure",
        severity="critical",
        title=Text("The judge failed", "评判失效"),
        meaning=Text(
            "A judge gave no grades, or the reward went blank while the policy did not change: the judge, a service or "
            "a sandbox failed, and the policy was trained on its silence.",
            "评判没有给出分数，或策略没有变而奖励成了空白：评判、服务或沙箱失效，策略在按它的沉默训练。",
        ),
        mechanism=Text(
            "A reward model that times out or a sandbox that is down returns its default for every rollout. Groups "
            "lose "
            "contrast for that time, or failures are scored as wrong answers.",
            "超时的奖励模型或宕掉的沙箱对每条采样都返回默认值。这段时间组内没有对比，或把故障当作错误扣分。",
        ),
        differs=Text(
            "In a broken policy lengths and entropy move with the reward. A deadlock has no gradient either, and "
            "does not "
            "end.",
            "策略坏掉时长度与熵随奖励一起变。deadlock 同时没有梯度，且不会结束。",
        ),
        confirm=Text(
            "Look for time-outs and errors of the judge at these steps; score a saved rollout again.",
            "查这些步的评判超时与错误；把保存的采样重新打分。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "A judge whose replies hold no grade grades nothing: give it room to reach the line 'Grade: N', or "
                    "take a model that follows instructions; `levelhead check` tries it on answers of known worth.",
                    "回复里没有分数的评判等于没有评判：给它足够的长度写到 'Grade: N' 一行，或换一个听从指令的模型；"
                    "`levelhead check` 会用已知好坏的回答试它。",
                ),
                source="docs/judges",
                recipe={"tasks[].judge.max_tokens": 512, "tasks[].judge.attempts": 3},
                trl={"reward_funcs": "log the judge's replies, and give it room to finish them"},
                verl={"custom_reward_function.path": "log the judge's replies, and give it room to finish them"},
            ),
            Remedy(
                why=Text(
                    "A failed judgement is no reward: drop those rollouts and count them, or stop.",
                    "评判失败不是奖励：丢弃并计数，或停止训练。",
                ),
                source="docs/tasks (on_reward_error)",
                recipe={"tasks[].on_reward_error": "stop"},
                trl={"reward_funcs": "return None for a failed judgement"},
                verl={"custom_reward_function.path": "raise on a failed judgement"},
            ),
        ),
        explains=(
            "reward-dead-groups",
            "no-learning-signal-all-zero-reward",
            "deadlock",
            "catastrophic-update",
            "no-improvement",
        ),
    ),
    Entry(
        code="reward-errors",
        severity="critical",
        title=Text("Reward functions fail", "奖励函数出错"),
        meaning=Text(
            "A reward function failed on more than half of a step's answers of a task, and they were dropped: the "
            "policy is trained on what is left, or on nothing.",
            "某任务一步中过半的回答，奖励函数算不出分而被丢弃：策略只在余下的（甚至什么都没有）上训练。",
        ),
        mechanism=Text(
            "With `on_reward_error: drop` an answer whose reward raises, takes too long or is no finite number leaves "
            "its group. A function that expects another form of answer, a missing column or package, or a service "
            "that is down fails on nearly all of them.",
            "设为 `on_reward_error: drop` 时，奖励抛错、超时或不是有限数的回答会离开其组。"
            "函数预期的回答形式不同、缺列缺包、或所用服务宕机，都会使它几乎次次出错。",
        ),
        differs=Text(
            "A judge's missing grades are judge-failure. A reward that is 0 for everything is computed: "
            "no-learning-signal-all-zero-reward. Some answers dropped in some steps are what `drop` is for.",
            "评判缺分是 judge-failure。全部为 0 的奖励是算出来的：no-learning-signal-all-zero-reward。"
            "个别步里丢弃个别回答，正是 `drop` 的用途。",
        ),
        confirm=Text(
            "Read the event: it quotes the last error with function, file and line. Call the function by hand on a "
            "completion from rollouts/.",
            "读该事件：它引用最后一个错误及函数、文件和行号。用 rollouts/ 里的一条输出手动调用该函数。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Stop at the first answer that cannot be rated: the error names function, row and completion. "
                    "Mend the function, then drop what is left.",
                    "在第一个无法评分的回答处停下：错误会指出函数、行和输出。修好函数，再丢弃剩下的。",
                ),
                source="docs/function-task.md",
                recipe={"tasks[].on_reward_error": "stop"},
                trl={"reward_funcs": "raise instead of returning None, until it no longer happens"},
                verl={"custom_reward_function.path": "raise on an answer that it cannot rate"},
            ),
            Remedy(
                why=Text(
                    "A function that is only slow needs more time for a batch.",
                    "若函数只是慢，就给一批更多时间。",
                ),
                source="docs/function-task.md",
                recipe={"tasks[].reward_timeout_s": 1800},
                trl={"reward_funcs": "one that answers faster"},
                verl={"custom_reward_function.path": "one that answers faster"},
            ),
        ),
        explains=(
            "reward-dead-groups",
            "no-learning-signal-all-zero-reward",
            "saturated-all-one-reward",
            "deadlock",
            "zero-gradient-despite-signal",
            "no-improvement",
            "step-time-collapse",
        ),
    ),
    Entry(
        code="healthy",
        severity="info",
        title=Text("Healthy", "健康"),
        meaning=Text(
            "Nothing in these rows needs a change.",
            "这些行里没有需要改动的东西。",
        ),
        mechanism=Text(
            "No detector found more than its doubts. Low entropy, dead groups, long answers and single spikes are "
            "part of "
            "runs that learn.",
            "没有检测器找到超出疑虑的证据。低熵、死组、长回答与个别尖峰都是正常学习的一部分。",
        ),
        differs=Text(
            "A log shows what was logged: a healthy log is no proof of a good policy.",
            "日志只显示记录了的东西：健康的日志不等于好的策略。",
        ),
        confirm=Text("Score held-out items.", "在留出集上评分。"),
        remedies=(),
        explains=(),
    ),
)
