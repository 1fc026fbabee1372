"""Findings about completion lengths."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.entry import Entry, Remedy, Scaled, Text

_DAPO = "DAPO (Yu et al. 2025, arXiv:2503.14476)"
_BUDGET = Remedy(
    why=Text(
        "Answers that are cut before their end are scored as failures for being long; give them room, or ask for less.",
        "没写完就被截断的回答因长而被判失败；给足空间，或要求更短。",
    ),
    source=f"{_DAPO}, overlong filtering",
    recipe={"grpo.sampling.max_new_tokens": Scaled(2, "completions/max_length", whole=True)},
    trl={"max_completion_length": Scaled(2, "completions/max_length", whole=True)},
    verl={"data.max_response_length": Scaled(2, "completions/max_length", whole=True)},
)
_MASK = Remedy(
    why=Text(
        "Leaving cut answers out of the loss keeps their noise out of the gradient.",
        "把被截断的回答排除在损失之外，其噪声就不进梯度。",
    ),
    source=f"{_DAPO}, overlong filtering",
    recipe={"grpo.mask_truncated": True},
    trl={"mask_truncated_completions": True},
    verl={"reward_model.overlong_buffer.enable": True},
)
_SOFT = Remedy(
    why=Text(
        "A penalty that grows over the last tokens of the budget says what is wrong with being long.",
        "在预算末段逐渐加重的惩罚，能说清“太长”错在哪。",
    ),
    source=f"{_DAPO}, soft overlong punishment",
    recipe={"tasks[].shaping.length": {"kind": "overlong", "cache": 64}},
    trl={"reward_funcs": "add get_soft_overlong_punishment"},
    verl={"reward_model.overlong_buffer.enable": True, "reward_model.overlong_buffer.len": 512},
)
_TOKEN_MEAN = Remedy(
    why=Text(
        "Averaging within each answer first makes a long wrong answer cheap per token, and lengths creep up.",
        "先在每条回答内求均值，会使长的错误回答每词元代价变小，长度随之爬升。",
    ),
    source="Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)",
    recipe={"grpo.loss.aggregation": "token_mean"},
    trl={"loss_type": "dapo"},
    verl={"actor_rollout_ref.actor.loss_agg_mode": "token-mean"},
)
_MINIMUM = Remedy(
    why=Text(
        "A least length closes the door to empty answers while the reward is mended.",
        "设最短长度，在修好奖励之前堵住空回答。",
    ),
    source="Defining and Characterizing Reward Hacking (Skalse et al. 2022, arXiv:2209.13085)",
    recipe={"grpo.sampling.min_new_tokens": 16},
    trl={"generation_kwargs": {"min_new_tokens": 16}},
    verl={},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="length-truncation",
        severity="critical",
        title=Text("Answers are cut", "回答被截断"),
        meaning=Text(
            "Many completions end at the length limit and not by themselves, and the reward does not rise: the "
            "policy is "
            "judged on answers it could not finish.",
            "许多输出因长度上限而非自行结束，且奖励不升：策略被按没写完的回答打分。",
        ),
        mechanism=Text(
            "A cut answer usually scores as wrong whatever it would have said, so the reward measures length. Long "
            "right "
            "and long wrong answers then look alike and groups lose contrast.",
            "被截断的回答无论内容如何通常判错，奖励就成了量长度。长的对与长的错看来一样，组内失去对比。",
        ),
        differs=Text(
            "Runs that learn at the limit exist: cut answers are a fault only when the reward does not rise. When "
            "the mean "
            "length grew first, length-runaway is the cause; when nothing ever ended by itself, eos-never.",
            "也有在上限处仍在学习的训练：奖励不升时截断才是故障。若平均长度先增长，原因是 length-runaway；"
            "若从未自行结束，是 eos-never。",
        ),
        confirm=Text(
            "Read the last fifty tokens of cut answers: still working, or repeating?",
            "读被截断回答的最后五十个词元：还在推理，还是在重复？",
        ),
        remedies=(_BUDGET, _MASK, _SOFT),
        explains=("no-improvement", "length-fixed", "reward-dead-groups"),
    ),
    Entry(
        code="length-runaway",
        severity="critical",
        title=Text("Lengths run away", "长度失控增长"),
        meaning=Text(
            "Completions grow several-fold and the reward does not follow: length is being learnt, not the task.",
            "输出增长数倍而奖励没有跟上：学的是长度，不是任务。",
        ),
        mechanism=Text(
            "The loss, the reward or the truncation pays for length: per-answer averaging, a reward with a length "
            "part, or "
            "endings that are never seen. Each longer batch makes the next one longer, up to the limit.",
            "损失、奖励或截断在奖励长度：按回答求均值、奖励含长度项，或从不见结尾。每批更长，下一批更长，直到上限。",
        ),
        differs=Text(
            "Lengths that grow with the reward are reasoning. Growth with rising entropy is entropy-explosion.",
            "随奖励增长的长度是推理；伴随熵升的增长是 entropy-explosion。",
        ),
        confirm=Text(
            "Read a long completion: repetition, padding, or work? Correlate reward and length within groups.",
            "读一条长输出：重复、凑字还是推理？看组内奖励与长度的相关。",
        ),
        remedies=(_TOKEN_MEAN, _SOFT, _MASK),
        explains=("length-truncation", "no-improvement", "length-fixed"),
    ),
    Entry(
        code="length-collapse",
        severity="critical",
        title=Text("Lengths collapse", "长度崩塌"),
        meaning=Text(
            "Completions shrink to a fraction of what they were, and what they are judged on suffers.",
            "输出缩到原来的一小部分，所评判的东西也随之受损。",
        ),
        mechanism=Text(
            "Short answers collect the easy parts of the reward (format, brevity, no penalty) without the hard one. "
            "With "
            "fewer tokens there is less to get wrong, and less to get right.",
            "短回答能拿到容易的奖励（格式、简短、无罚分），却放弃难的部分。词元越少，出错越少，答对的机会也越少。",
        ),
        differs=Text(
            "Answers that grow shorter while every part of the reward rises have become concise.",
            "各项奖励都在升而回答变短，是变得简洁。",
        ),
        confirm=Text(
            "Read a few completions, and the outcome part of the reward alone.",
            "读几条输出，并单独看奖励中的结果项。",
        ),
        remedies=(_MINIMUM, _TOKEN_MEAN),
        explains=("step-time-collapse", "no-improvement", "reward-dead-groups", "entropy-collapse"),
    ),
    Entry(
        code="length-fixed",
        severity="warning",
        title=Text("All answers have one length", "所有回答长度相同"),
        meaning=Text(
            "Every completion has the same length: none ends by itself, or all are the same.",
            "每条输出长度都一样：要么无一自行结束，要么全部相同。",
        ),
        mechanism=Text(
            "Either the limit cuts all of them, or the policy gives one answer to everything. Both leave nothing to "
            "tell "
            "apart within a group.",
            "要么都被上限截断，要么策略对一切都给同一回答。两者都使组内无从区分。",
        ),
        differs=Text(
            "At the limit it goes with length-truncation or eos-never; below it with deadlock or entropy-collapse.",
            "在上限处伴随 length-truncation 或 eos-never；低于上限则伴随 deadlock 或 entropy-collapse。",
        ),
        confirm=Text("Compare the length with the limit.", "比较该长度与上限。"),
        remedies=(_BUDGET,),
        explains=(),
    ),
    Entry(
        code="eos-never",
        severity="critical",
        title=Text("No answer ever ends", "回答从不结束"),
        meaning=Text(
            "From the first row on every completion runs into the limit: the stop token is never drawn, or not "
            "recognised.",
            "从第一行起每条输出都撞到上限：从未采到结束符，或没有被识别。",
        ),
        mechanism=Text(
            "A base model never learnt to end a turn, the template's end token is not the sampler's stop token, or "
            "the stop "
            "token was masked while fine-tuning. The policy gets no chance to be rewarded for ending.",
            "基座模型没学过结束回合、模板的结束符不是采样器的停止符，或微调时把停止符掩掉了。"
            "策略没有机会因结束而得分。",
        ),
        differs=Text(
            "Truncation that grows is length-runaway or length-truncation. A deliberate limit of a few tokens cuts "
            "everything too.",
            "逐渐增加的截断是 length-runaway 或 length-truncation。有意设很小的上限也会全部截断。",
        ),
        confirm=Text(
            "Compare the tokenizer's end-of-turn id with the sampler's stop ids; look at the probability of the end "
            "token "
            "after a finished answer.",
            "比较分词器的回合结束符与采样器的停止符；看答完之后结束符的概率。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "Supervised steps on whole turns, the stop token included, teach the ending.",
                    "用包含停止符的完整回合做监督训练，教会结束。",
                ),
                source="levelhead check, stop tokens; docs/tokens",
                recipe={"sft.steps": 100},
                trl={"generation_kwargs": {"eos_token_id": "the template's end-of-turn id"}},
                verl={"actor_rollout_ref.rollout.ignore_eos": False},
            ),
            _BUDGET,
        ),
        explains=(
            "length-truncation",
            "length-fixed",
            "no-improvement",
            "reward-dead-groups",
        ),
        seen_by=("doctor", "guard", "preflight"),
    ),
)
