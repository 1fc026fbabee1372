"""What the guard reports, in English and Chinese."""

from __future__ import annotations

from levelhead.diagnosis.findings import CATALOGUE, wording
from levelhead.diagnosis.ranking import Finding
from levelhead.message import Message, Phrase

GRADIENT_SPIKE = Message(
    "the gradient's norm is {norm:.3g}, {times:.0f} times the usual", "梯度范数为 {norm:.3g}，是平时的 {times:.0f} 倍"
)
SKIPPED = Message("; the update was skipped", "；已跳过这次更新")
UNEXPLAINED = Message(
    "{share:.0%} of the gradient comes from no term of the objective: left over from another step, or added",
    "梯度中有 {share:.0%} 不来自目标函数的任何一项：是别的步遗留的，或被额外加入的",
)

# The trust region.
MOVED = Message(
    "the update moved the policy by {kl:.3g} nats a token, more than {most:g}",
    "这次更新使策略每 token 变化 {kl:.3g} nat，超过上限 {most:g}",
)
DRIFTED = Message(
    "updates moved the policy by {kl:.3g} nats a token from the one that sampled the batch, more than {most:g}",
    "更新之后，策略与采样这批数据时每 token 相差 {kl:.3g} nat，超过上限 {most:g}",
)
SHORTENED = Message("; {scale:.2g} of the last one stands", "；最后一次更新只保留 {scale:.2g}")
UNDONE = Message("; the last one was undone", "；最后一次更新已撤销")
SPENT = Message("; the rest of the batch is left out", "；这批数据的其余部分不再使用")

# A collapse, and what is done about it.
VALIDITY, REWARD = Message("validity", "有效率"), Message("reward", "奖励")
FELL = Message(
    "{what} fell from {best:.3g} to {now:.3g} over the last {steps} steps",
    "{what}在最近几步内由 {best:.3g} 降到 {now:.3g}（{steps} 步）",
)
NO_CONTRAST = Message(
    "no group has had contrast for {steps} steps and the entropy is gone", "连续 {steps} 步没有一组有差异，熵也已耗尽"
)
NO_GRADIENT = Message("no gradient for {steps} steps", "连续 {steps} 步没有梯度")
ONE_ANSWER = Message(
    "{share:.0%} of the prompts of {task} get the same answer, and its reward has stopped; what answers told of the "
    "prompt went from {best:.2g} nats to {now:.2g}",
    "{share:.0%} 的题得到同一个回答（任务 {task}），奖励也已停滞；回答中关于题目的信息由 {best:.2g} nat 降到 {now:.2g}",
)
BACK = Message(
    "; back to the weights of step {step}, learning rate times {factor:g}",
    "；回到第 {step} 步的权重，学习率乘以 {factor:g}",
)
OBSERVED = Message(
    "; nothing was done, for the guard observes only (`protect` would: {deed})",
    "；守护仅观察，未采取措施（`protect` 会：{deed}）",
)
DEEDS = {
    "skip": Message("skip the update", "跳过这次更新"),
    "shrink": Message("shorten the update or undo it", "缩短或撤销这次更新"),
    "rollback": Message("return to the last good weights", "回到最近的好权重"),
    "stop": Message("stop the run", "停止运行"),
}
RETURNS = Message(" after {count} returns to good weights", "（已 {count} 次回到好的权重）")
DIAGNOSIS = Message(
    "; diagnosis: {title} ({code}, confidence {confidence:.0%})",
    "；诊断：{title}（{code}，置信度 {confidence:.0%}）",
)
SINCE = Message(" since step {step:g}", "，始于第 {step:g} 步")

# Coefficients.
SLOWER = Message(
    "{count} of the last {all} updates had to be shortened; the learning rate is taken down",
    "最近的更新中有 {count} 次（共 {all} 次）不得不缩短；学习率已调低",
)
FASTER = Message(
    "{count} updates in a row needed no shortening; some of the learning rate is given back",
    "连续 {count} 次更新无须缩短；学习率已部分恢复",
)
CONTRAST_AGAIN = Message(
    "groups have contrast again: no more are sampled in place of those without", "组内重新出现差异，不再补采"
)
RAISED_ENTROPY = Message("{title}: the entropy bonus is raised", "{title}：已提高熵奖励")
LOWERED_ENTROPY = Message("{title}: the entropy bonus is lowered", "{title}：已降低熵奖励")
RAISED_KL = Message("{title}: the KL coefficient is raised", "{title}：已提高 KL 系数")
RESAMPLED = Message("{title}: groups are redrawn", "{title}：已补采新的组")
WARMER = Message(", and sampled warmer", "，并提高采样温度")
FINDING = Message(
    "{title} (confidence {confidence:.0%}): {argument}; {meaning}",
    "{title}（置信度 {confidence:.0%}）：{argument}；{meaning}",
)
PASSED = Message("no longer seen: {title}", "已不再出现：{title}")

# What cannot be in a sound trainer.
FROZEN_MOVES = Message(
    "the policy has moved, and its KL to the reference is exactly 0: the reference moves along",
    "策略已经变化，与参考模型的 KL 却恰好为 0：参考模型在跟着一起变",
)
ADVANTAGES_AGAINST = Message(
    "over {n} steps advantages ran against the rewards they are made of (cosine {mean:.2f}): a sign is lost, or they "
    "belong to other rollouts",
    "{n} 步以来，优势与计算它的奖励方向相反（余弦 {mean:.2f}）：丢了一个负号，或优势属于别的采样",
)
UPDATES_AGAINST = Message(
    "over {n} updates the better-rewarded answers became less likely (cosine {mean:.2f}): the sign of advantages, "
    "ratio or optimizer is wrong, or advantages belong to other rollouts",
    "{n} 次更新以来，奖励较高的回答反而概率下降（余弦 {mean:.2f}）：优势、比值或优化器的符号错了，或优势属于别的采样",
)
REPEATS = Message(
    "{share:.1%} of the rollouts repeat another of their prompt and chance makes {expected:.1%}: they are not sampled "
    "one by one (a chance of 1 in 10^{digits:.0f})",
    "{share:.1%} 的采样与同题的另一条重复，而偶然只会有 {expected:.1%}：它们不是逐条独立采样的"
    "（偶然概率为 10 的 -{digits:.0f} 次方）",
)
ENGINES_DIFFER = Message(
    "at the same weights trainer and sampler differ by {nats:.2g} nats a token more than rounding explains: they do "
    "not score the same tokens, behind the same context, at the same temperature",
    "权重相同时，训练端与采样端的差异超出舍入误差（每 token {nats:.2g} nat）："
    "两端计算的不是相同上下文、相同温度下的相同 token",
)


def described(finding: Finding) -> Phrase:
    """Return a finding in words, with its strongest argument."""
    strongest = max(finding.evidence, key=lambda evidence: evidence.weight)
    en, zh = (wording(finding.code, strongest.key, strongest.numbers, language) for language in ("en", "zh"))
    meaning = CATALOGUE[finding.code].meaning.phrase
    title, confidence = title_of(finding.code), finding.confidence
    return FINDING(title=title, confidence=confidence, argument=Phrase(en, zh), meaning=meaning)


def title_of(code: str) -> Phrase:
    """Return the title of a finding of the catalogue."""
    return CATALOGUE[code].title.phrase
