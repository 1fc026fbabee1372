"""How the arguments for and against a finding are worded."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.entry import Language, Text

CLUES: dict[str, Text] = {
    "advantages-pinned": Text("advantages are ±{value:.3g} in every row", "每行优势都是 ±{value:.3g}"),
    "starts-later": Text(
        "the log starts at step {step:.0f}: what was learnt before it does not show",
        "日志从第 {step:.0f} 步开始：之前学到的看不见",
    ),
    "prompts-are-chosen": Text(
        "a curriculum chooses prompts by how far they are solved, which holds the reward still; its own estimate of "
        "success goes from {early:.2f} to {late:.2f}",
        "课程按解出的程度选题，奖励因此不动；它自己估计的成功率从 {early:.2f} 到 {late:.2f}",
    ),
    "beyond-rounding": Text(
        "in {share:.0%} of the rows trainer and sampler, at the same weights, differ by more than rounding explains "
        "(up to {value:.3g} nats a token more)",
        "{share:.0%} 的行里，同一权重下训练端与采样端之差超出舍入所能解释的（每词元至多多出 {value:.3g} 纳特）",
    ),
    "ended-by-rewards": Text(
        "the last event, after step {step:.0f}, is a reward that could not be computed: {message}",
        "最后一个事件（第 {step:.0f} 步之后）是奖励无法计算：{message}",
    ),
    "ended-by-endpoint": Text(
        "the last event, after step {step:.0f}, is an endpoint that refused, fell silent or ran out of budget: "
        "{message}",
        "最后一个事件（第 {step:.0f} 步之后）是接口拒绝、无应答或预算用尽：{message}",
    ),
    "ended-by-guard": Text(
        "the guard stopped the run for it at step {step:.0f}: {message}",
        "守护器因此在第 {step:.0f} 步停止了训练：{message}",
    ),
    "ended-by-error": Text(
        "the last event, after step {step:.0f}, is an error: {message}",
        "最后一个事件（第 {step:.0f} 步之后）是错误：{message}",
    ),
    "bonus-lowers-entropy": Text(
        "entropy changes by {low:.2g} a step under a small bonus and by {high:.2g} under a large one",
        "奖励小时熵每步变化 {low:.2g}，奖励大时变化 {high:.2g}",
    ),
    "audit-coefficient": Text(
        "the audit finds the entropy term with coefficient {value:.3g}", "审计测得熵项系数为 {value:.3g}"
    ),
    "cap": Text("the limit is {cap:.0f} tokens", "长度上限为 {cap:.0f} 词元"),
    "clipped-at-once": Text(
        "{share:.0%} of the tokens are clipped at the first row", "第一行就有 {share:.0%} 的词元被裁剪"
    ),
    "clipped-much": Text(
        "{share:.0%} of the tokens are clipped: the policy has moved since it drew them",
        "{share:.0%} 的词元被裁剪：采样之后策略已经移动",
    ),
    "contrast-fades": Text(
        "the spread of rewards within groups fades from {early:.3g} to {late:.3g}",
        "组内奖励的差异从 {early:.3g} 淡到 {late:.3g}",
    ),
    "loss-exploded": Text("the loss grew from {early:.3g} to {late:.3g}", "损失从 {early:.3g} 升到 {late:.3g}"),
    "stalled": Text(
        "the reward has stood still at {value:.3g} since entropy and contrast went",
        "自熵与对比消失后，奖励停在 {value:.3g}",
    ),
    "contrast-not-measured": Text("dead groups are not logged", "日志没有死组比例"),
    "cut-share": Text("{share:.0%} of the answers are cut at the limit", "{share:.0%} 的回答在上限处被截断"),
    "cut-share-grows": Text(
        "cut answers grow from {early:.0%} to {late:.0%}", "截断比例从 {early:.0%} 升到 {late:.0%}"
    ),
    "dead-rows-are-usual": Text(
        "rows without contrast are usual in this run: {rows:.0f} in a row may be chance",
        "本次训练中无对比的行很常见，连续 {rows:.0f} 行可能是偶然",
    ),
    "dead-share": Text("{share:.0%} of the groups are dead", "{share:.0%} 的组是死组"),
    "dead-share-grows": Text("dead groups grow from {early:.0%} to {late:.0%}", "死组从 {early:.0%} 升到 {late:.0%}"),
    "early-in-the-run": Text("it begins early, at step {step:.0f}", "开始得早，在第 {step:.0f} 步"),
    "engines-differ": Text("{metric} stands at {value:.3g}", "{metric} 为 {value:.3g}"),
    "engines-do-not-correlate": Text(
        "probabilities of trainer and sampler correlate by {value:.3g} only", "两端概率的相关系数只有 {value:.3g}"
    ),
    "entropy-fell": Text("entropy fell from {early:.3g} to {late:.3g}", "熵从 {early:.3g} 降到 {late:.3g}"),
    "entropy-fell-fast": Text("it fell {factor:.1f}-fold within a few rows", "几行之内降了 {factor:.1f} 倍"),
    "entropy-high": Text("entropy stands at {late:.3g} nats", "熵为 {late:.3g} 纳特"),
    "entropy-low": Text("entropy stands at {late:.3g} nats", "熵为 {late:.3g} 纳特"),
    "entropy-kept": Text("entropy is still at {late:.3g}", "熵仍有 {late:.3g}"),
    "entropy-rose": Text("entropy rose from {early:.3g} to {late:.3g}", "熵从 {early:.3g} 升到 {late:.3g}"),
    "entropy-rose-by": Text("that is {nats:.2g} nats more", "即多了 {nats:.2g} 纳特"),
    "few-rows": Text("only {rows:.0f} rows show it", "只有 {rows:.0f} 行显示"),
    "form-never-rewarded": Text(
        "{metric} is 0 in every row while answers are right", "{metric} 每行都是 0，而回答有对的"
    ),
    "gradient-absurd": Text("a gradient norm of {value:.3g}", "梯度范数达 {value:.3g}"),
    "gradient-grew": Text("gradients grew from {early:.3g} to {late:.3g}", "梯度从 {early:.3g} 升到 {late:.3g}"),
    "answer": Text("you say that {name} is {value}", "您说 {name} 为 {value}"),
    "answers-all-alike": Text(
        "in {share:.0%} of the groups all answers are the same", "{share:.0%} 的组内回答全部相同"
    ),
    "answers-constant": Text(
        "{share:.0%} of {count:.0f} answers are one and the same", "{count:.0f} 个回答中 {share:.0%} 完全相同"
    ),
    "answers-cut": Text(
        "{share:.0%} of {count:.0f} answers stop in the middle of a sentence",
        "{count:.0f} 个回答中 {share:.0%} 在句中断掉",
    ),
    "answers-empty": Text("{share:.0%} of {count:.0f} answers are empty", "{count:.0f} 个回答中 {share:.0%} 为空"),
    "answers-mixed": Text(
        "{share:.0%} of {count:.0f} answers change to another script", "{count:.0f} 个回答中 {share:.0%} 混入别的文字"
    ),
    "answers-repeating": Text(
        "{share:.0%} of {count:.0f} answers end in a loop", "{count:.0f} 个回答中 {share:.0%} 以循环结尾"
    ),
    "answers-template": Text(
        "{share:.0%} of {count:.0f} answers hold tokens of a chat template",
        "{count:.0f} 个回答中 {share:.0%} 含对话模板 token",
    ),
    "answers-whole": Text(
        "next to none of {count:.0f} answers stops in the middle of a sentence", "{count:.0f} 个回答几乎都完整结束"
    ),
    "near-limit": Text(
        "answers fill {share:.0%} of the {limit:.0f} tokens that they may have on average",
        "回答平均占满 {limit:.0f} 个 token 上限的 {share:.0%}",
    ),
    "setting": Text("{name} is {value:g}", "{name} 为 {value:g}"),
    "gradient-spiked": Text(
        "a gradient of {factor:.0f} times the usual at step {step:.0f}", "第 {step:.0f} 步梯度为平时的 {factor:.0f} 倍"
    ),
    "gradient-spikes-often": Text("{count:.0f} spikes", "{count:.0f} 个尖峰"),
    "gradient-tiny": Text(
        "gradients next to zero in {rows:.0f} of {of:.0f} rows with contrast",
        "有对比的 {of:.0f} 行中 {rows:.0f} 行梯度近零",
    ),
    "gradient-zero": Text(
        "gradients of exactly 0 in {rows:.0f} of {of:.0f} rows with contrast",
        "有对比的 {of:.0f} 行中 {rows:.0f} 行梯度恰为 0",
    ),
    "gradients-heavy-tailed": Text(
        "the largest gradients are {factor:.0f} times the median", "最大的梯度是中位数的 {factor:.0f} 倍"
    ),
    "gradients-oppose": Text("the cosine is {cosine:.2f}", "余弦为 {cosine:.2f}"),
    "group-size": Text("{size:.0f} rollouts a prompt", "每题 {size:.0f} 个采样"),
    "groups-failed": Text("{share:.0%} of the groups fail as a whole", "{share:.0%} 的组全部失败"),
    "harm-after-spike": Text(
        "reward, entropy, KL or length moved for good after step {step:.0f}",
        "第 {step:.0f} 步之后奖励、熵、KL 或长度再没有回来",
    ),
    "held-out-falls-while-reward-rises": Text(
        "{metric} falls from {early:.3g} to {late:.3g} while the training reward rises",
        "训练奖励上升，而 {metric} 从 {early:.3g} 降到 {late:.3g}",
    ),
    "held-out-rises": Text("the held-out score rises", "留出集得分在升"),
    "verdicts-missing": Text(
        "in {steps:.0f} steps more than half of the judge's verdicts held no grade: {failed:.0f} of {asked:.0f}",
        "{steps:.0f} 步里评判过半没有给出分数：{asked:.0f} 次中 {failed:.0f} 次",
    ),
    "answers-dropped": Text(
        "in {steps:.0f} steps rewards failed on more than half of a task's answers, on up to {share:.0%}",
        "{steps:.0f} 步里某任务过半的回答奖励出错，最多 {share:.0%}",
    ),
    "judge-errors": Text("up to {share:.0%} of the judgements failed", "多达 {share:.0%} 的评判失败"),
    "kl-beyond-reason": Text("no policy needs {late:.3g} nats a token", "没有策略需要每词元 {late:.3g} 纳特"),
    "kl-climbs": Text("KL climbs steadily, to {late:.3g}", "KL 持续上升到 {late:.3g}"),
    "kl-grew": Text("it grew {factor:.0f}-fold", "增长了 {factor:.0f} 倍"),
    "kl-high": Text("KL stands at {late:.3g} nats a token", "KL 为每词元 {late:.3g} 纳特"),
    "kl-high-from-the-first-row": Text(
        "KL is {first:.3g} at the first row, before training could move it",
        "第一行 KL 就是 {first:.3g}，训练还来不及改变它",
    ),
    "kl-negative": Text(
        "KL stands at {late:.3g}, which no mean over the policy's own draws can: the tokens were drawn otherwise",
        "KL 为 {late:.3g}；对策略自身采样取平均不可能为负：这些 token 另有来源",
    ),
    "leap-with-short-answers": Text(
        "the reward leaps to its maximum as answers shrink from {before:.0f} to {after:.0f} tokens",
        "奖励跃至最高的同时，回答从 {before:.0f} 缩到 {after:.0f} 词元",
    ),
    "learning-rate-tiny": Text("the learning rate never exceeds {rate:.2g}", "学习率从未超过 {rate:.2g}"),
    "length-grew": Text("mean length grew from {early:.0f} to {late:.0f}", "平均长度从 {early:.0f} 升到 {late:.0f}"),
    "length-same": Text("every answer has {length:.0f} tokens", "每条回答都是 {length:.0f} 词元"),
    "length-shrank": Text(
        "mean length shrank from {early:.0f} to {late:.0f}", "平均长度从 {early:.0f} 缩到 {late:.0f}"
    ),
    "length-tiny": Text("{late:.0f} tokens are hardly an answer", "{late:.0f} 个词元算不上回答"),
    "mismatch-grows": Text("{metric} grows from {early:.3g} to {late:.3g}", "{metric} 从 {early:.3g} 升到 {late:.3g}"),
    "moved-too": Text(
        "{metric} moved at the same step, from {early:.3g} to {late:.3g}",
        "{metric} 在同一步从 {early:.3g} 变为 {late:.3g}",
    ),
    "never-ends": Text(
        "every answer runs into the limit, in all {rows:.0f} rows", "全部 {rows:.0f} 行中每条回答都撞到上限"
    ),
    "never-ends-and-never-right": Text(
        "from the first row answers neither end nor score", "从第一行起回答既不结束也不得分"
    ),
    "never-finite": Text("{metric} is never finite ({rows:.0f} rows)", "{metric} 从未有限（{rows:.0f} 行）"),
    "never-valid": Text(
        "hardly an answer parses in {rows:.0f} rows ({share:.0%} at best)",
        "{rows:.0f} 行中几乎没有能解析的（最多 {share:.0%}）",
    ),
    "no-harm-after-spike": Text("nothing moved for good after the spikes", "尖峰之后没有什么发生持久变化"),
    "not-finite-at-first": Text(
        "{metric} was not finite in the first {rows:.0f} rows only", "只有开头 {rows:.0f} 行的 {metric} 非有限"
    ),
    "not-finite-at-times": Text(
        "{metric} was not finite in {share:.1%} of the rows", "{share:.1%} 的行 {metric} 非有限"
    ),
    "not-finite-to-the-end": Text("{metric} is not finite to the end", "{metric} 直到最后都非有限"),
    "nothing-wrong": Text("no detector found more than doubts in {rows:.0f} rows", "{rows:.0f} 行中没有检测器找到实据"),
    "part-falls-while-other-rises": Text(
        "{falls} falls from {early:.3g} to {late:.3g} while {rises} rises",
        "{rises} 上升，而 {falls} 从 {early:.3g} 降到 {late:.3g}",
    ),
    "policy-has-not-moved": Text(
        "KL never exceeds {kl:.2g}: the policy has hardly moved", "KL 从未超过 {kl:.2g}：策略几乎没动"
    ),
    "policy-recent": Text(
        "by the log rollouts are no more than {updates:.1f} updates old", "日志显示采样至多落后 {updates:.1f} 次更新"
    ),
    "agreed-on-policy": Text(
        "trainer and sampler agreed on rollouts of the same weights; later ones are {updates:.1f} updates old",
        "同一权重的采样上训练端与采样端一致；之后的采样落后 {updates:.1f} 次更新",
    ),
    "policy-lag": Text("rollouts are {updates:.0f} updates old", "采样落后 {updates:.0f} 次更新"),
    "policy-unmoved": Text(
        "answers are as long and as uncertain as before: the policy is the same", "回答长度与熵如前：策略并未改变"
    ),
    "policy-moved-before-training": Text(
        "old and new policy differ by {value:.3g} at the first row", "第一行新旧策略就相差 {value:.3g}"
    ),
    "rate-high": Text("a learning rate of {rate:.2g}", "学习率为 {rate:.2g}"),
    "ratio-away-from-one": Text("the mean importance ratio is {value:.3g}", "平均重要性比值为 {value:.3g}"),
    "reward-almost-always": Text("the mean reward is {value:.3g}", "平均奖励为 {value:.3g}"),
    "reward-always": Text("the reward is {value:.3g} in all {rows:.0f} rows", "全部 {rows:.0f} 行奖励都是 {value:.3g}"),
    "reward-at-top": Text("the reward stands at {value:.3g} of {top:.3g}", "奖励为 {value:.3g}，最高 {top:.3g}"),
    "reward-blank": Text(
        "the reward is exactly {value:.3g} for {rows:.0f} rows while answers stay as they were",
        "奖励连续 {rows:.0f} 行恰为 {value:.3g}，而回答没有变",
    ),
    "reward-falls": Text("the reward falls, to {value:.3g}", "奖励下降到 {value:.3g}"),
    "reward-fell-at-once": Text(
        "the reward fell from {early:.3g} to {late:.3g} within a few rows", "奖励几行之内从 {early:.3g} 跌到 {late:.3g}"
    ),
    "reward-flat": Text("the reward does not rise", "奖励没有上升"),
    "reward-flat-for": Text(
        "after {rows:.0f} rows the reward is {late:.3g}, it began at {early:.3g}",
        "{rows:.0f} 行之后奖励为 {late:.3g}，起初为 {early:.3g}",
    ),
    "answers-alike": Text(
        "{task}: {share:.0%} of the prompts get the same answer; answers differ by {entropy:.2g} nats and tell "
        "{information:.2g} nats of the prompt",
        "{task}：{share:.0%} 的题得到同一个回答；回答的熵为 {entropy:.2g} 纳特，对题目只含 "
        "{information:.2g} 纳特的信息",
    ),
    "answers-should-differ": Text(
        "of perfect answers to the same prompts {share:.0%} would be the same",
        "同样的题，完美回答中只有 {share:.0%} 相同",
    ),
    "answers-told-more": Text(
        "what answers tell of the prompt fell from {early:.2g} to {late:.2g} nats",
        "回答对题目所含的信息从 {early:.2g} 降到 {late:.2g} 纳特",
    ),
    "answers-never-told": Text(
        "answers told nothing of the prompt before either; in {rows:.0f} rows the best answer to all prompts may just "
        "have been found",
        "回答此前也不含题目的信息；{rows:.0f} 行里也许只是先找到了对所有题都最好的回答",
    ),
    "equal-rewards": Text(
        "in {rows:.0f} rows without contrast the mean reward stays between {low:.3g} and {high:.3g}",
        "{rows:.0f} 行组内无对比，平均奖励停在 {low:.3g} 到 {high:.3g} 之间",
    ),
    "answers-are-short": Text(
        "answers have {length:.0f} tokens: the task may ask for just these",
        "回答只有 {length:.0f} 个 token：也许任务要求如此",
    ),
    "advantages-are-rewards": Text(
        "advantages are the rewards themselves: no baseline is taken away", "优势就是奖励本身：没有减去基线"
    ),
    "perplexity-rises-with-reward": Text(
        "{metric} rose from {early:.3g} to {late:.3g} as the reward did",
        "{metric} 随奖励一起从 {early:.3g} 升到 {late:.3g}",
    ),
    "kl-jumps": Text(
        "KL jumps to {value:.3g} and back, {count:.0f} times", "KL 跳到 {value:.3g} 又回落，共 {count:.0f} 次"
    ),
    "held-out-flat": Text(
        "{metric} stands at {late:.3g} after {rows:.0f} evaluations, it began at {early:.3g}",
        "{rows:.0f} 次评测之后 {metric} 为 {late:.3g}，起初为 {early:.3g}",
    ),
    "not-above-constant": Text(
        "held-out {task}: the policy's score minus the best constant answer's is {gap:+.3g}, give or take {error:.2g}",
        "留出集 {task}：策略得分减去最佳固定答案得分为 {gap:+.3g}，误差 {error:.2g}",
    ),
    "schedule-done": Text(
        "the learning rate has come to the end of its schedule: no more is to come", "学习率计划已走完：不会再有提升"
    ),
    "reward-holds": Text(
        "the reward stands high and has lost nothing ({value:.3g})", "奖励处于高位，没有下降（{value:.3g}）"
    ),
    "reward-near-top": Text("the reward is near its maximum ({value:.3g})", "奖励接近最高值（{value:.3g}）"),
    "reward-not-finite": Text("the reward was not finite in {rows:.0f} rows", "{rows:.0f} 行奖励非有限"),
    "reward-not-logged": Text("no reward is logged that would show what it is for", "日志没有奖励可说明这是为了什么"),
    "reward-rises": Text("the reward rises", "奖励在上升"),
    "temperature-cools": Text(
        "the recipe cools the sampling temperature from {early:.3g} to {late:.3g}",
        "配方把采样温度从 {early:.3g} 降到 {late:.3g}",
    ),
    "reward-rose-slowly-to-top": Text(
        "the reward was climbed to over {rows:.0f} rows", "奖励是经过 {rows:.0f} 行爬升到顶的"
    ),
    "several-instabilities": Text("{count:.0f} instabilities at once", "{count:.0f} 种不稳定同时出现"),
    "some-end": Text("some answers end by themselves ({length:.0f} tokens)", "有些回答自行结束（{length:.0f} 词元）"),
    "stands-still": Text(
        "no contrast, no gradient from step {step:.0f} on, for {rows:.0f} rows",
        "从第 {step:.0f} 步起 {rows:.0f} 行无对比、无梯度",
    ),
    "steps-cost-nothing": Text(
        "steps take {after:.2g} s, they took {before:.3g} s", "每步 {after:.2g} 秒，原为 {before:.3g} 秒"
    ),
    "task-falls-while-other-rises": Text("{falls} falls while {rises} rises", "{rises} 上升而 {falls} 下降"),
    "validity-fell": Text("valid answers fell from {early:.0%} to {late:.0%}", "有效率从 {early:.0%} 降到 {late:.0%}"),
    "validity-lost": Text(
        "{count:.0f} updates lost more than half of the validity; it was {early:.0%} and is {late:.0%}",
        "{count:.0f} 次更新使有效率损失过半；原为 {early:.0%}，现为 {late:.0%}",
    ),
    "validity-lost-by-updates": Text(
        "{count:.0f} of {updates:.0f} updates were followed by it, and {others:.0%} of the other steps",
        "{updates:.0f} 次更新中有 {count:.0f} 次之后如此，其余步骤中为 {others:.0%}",
    ),
    "validity-lost-often": Text("{share:.0%} of all updates do so", "{share:.0%} 的更新如此"),
    "validity-recovers": Text("validity is back at {late:.0%}", "有效率已恢复到 {late:.0%}"),
}

LABELS: dict[str, Text] = {
    "healthy": Text("healthy", "健康"),
    "warning": Text("warning", "警告"),
    "critical": Text("critical", "严重"),
    "info": Text("note", "备注"),
    "rows": Text("rows", "行"),
    "format": Text("read as", "识别为"),
    "steps": Text("steps", "步"),
    "curves": Text("curves", "曲线"),
    "log-scale": Text("logarithmic scale", "对数刻度"),
    "dashed": Text("dashed line", "虚线"),
    "confidence": Text("confidence", "置信度"),
    "since": Text("since step", "始于第"),
    "for": Text("for", "支持"),
    "against": Text("against", "反对"),
    "evidence": Text("rows that show it", "数据"),
    "differs": Text("not to be confused", "鉴别"),
    "confirm": Text("would confirm it", "如何确认"),
    "remedies": Text("change", "应改动"),
    "mechanism": Text("how it comes about", "机理"),
    "explains": Text("explains", "可解释"),
    "also": Text("also seen", "另见"),
    "unread": Text("not read", "未能读取"),
    "guard": Text("what the guard did", "守护器的动作"),
    "source": Text("source", "出处"),
    "meaning": Text("what it means", "含义"),
    "because": Text("because", "原因"),
    "severity": Text("severity when sure", "确定时的严重程度"),
    "seen_by": Text("seen by", "由谁发现"),
}


def clue(key: str, numbers: dict[str, float | str], language: Language = "en") -> str:
    """One argument in words; its bare key where it has no wording or lacks a number."""
    text = CLUES.get(key)
    if text is None:
        return key
    try:
        return text.get(language).format(**numbers)
    except (KeyError, ValueError, IndexError):
        return key


def label(key: str, language: Language = "en") -> str:
    """A heading or word of a report."""
    return LABELS[key].get(language)
