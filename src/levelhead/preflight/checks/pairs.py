"""Perfect answers belong to their prompts, by the words that they share, by their scores and by their kinds."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.wording import asked
from levelhead.records import Prompt
from levelhead.tasks.base import Answer, SingleTurnTask

if TYPE_CHECKING:
    from levelhead.preflight.pairing import Pairing, Rows
    from levelhead.training.fit import Floats


def _misplaced(by: str, by_zh: str) -> tuple[Message, Message]:
    """Return what is said of rows that are out of step and of rows that are shuffled, and by what that was seen."""
    fix = Fix(
        "look at the rows of the evidence (--evidence): sort or join prompts and answers by key, and drop no line of "
        "one file alone",
        "查看证据中的几行（--evidence）：按键对齐或合并题目与答案，不要只删其中一个文件的行",
    )
    out_of_step = Message(
        f"by {by}, {{matches}} of {{of}} answers fit the prompt {{lag:+d}} rows away best (p = {{p:.1g}}), and {{own}} "
        "their own: rows are out of step",
        f"按{by_zh}看，{{of}} 题中有 {{matches}} 题最相配的答案在 {{lag:+d}} 行处（p = {{p:.1g}}），在同一行的只有 "
        "{own} 题：数据行错位",
        fix=fix,
    )
    shuffled = Message(
        f"by {by}, {{others}} of {{n}} prompts have the answer that fits them best in another row, nearly each in one "
        "of its own (p = {p:.1g}), and their own fits no better than any (p = {own:.2g}): rows are shuffled",
        f"按{by_zh}看，{{n}} 道题中有 {{others}} 道最相配的答案在别的行，而且几乎各在不同的行（p = {{p:.1g}}），"
        "自己行的答案并不比任意一个更相配（p = {own:.2g}）：数据行被打乱",
        fix=fix,
    )
    return out_of_step, shuffled


class _Pairs(Check):
    """What is common to both ways of asking whether answers belong to their prompts."""

    alike = Message("most prompts have the same perfect answer", "大多数题目的标准答案相同")

    def _tasks(self, context: Context) -> Iterator[tuple[str, SingleTurnTask, Rows]]:
        """Yield the tasks of single answers with neighbouring rows, two at least."""
        from levelhead.preflight.pairing import neighbours

        for name, task in context.scorable.items():
            if isinstance(task, SingleTurnTask) and not task.demonstrates:
                rows = neighbours(context, name, task)
                if len(rows.prompts) > 1:
                    yield name, task, rows

    def _outcome(self, name: str, pairing: Pairing) -> Outcome:
        message = self.messages()[pairing.key]
        if pairing.key in ("out-of-step", "shuffled"):
            return self.fail(message, name, evidence=pairing.evidence, **pairing.fields)
        return self.ok(message, name, **pairing.fields)


class PairsText(_Pairs):
    """Looks for another order of the rows in which answers share more rare words with their prompts."""

    name = "pairs/text/TASK"
    needs = "data"
    proves = Message(
        "Perfect answers share rare words with their own prompts rather than with others'.",
        "标准答案与自己的题目（而不是别的题目）有共同的罕见词。",
    )
    how = Message(
        "A permutation test over shared words, weighted by rarity, on neighbouring rows.",
        "对相邻的数据行，按罕见程度加权共同的词，做置换检验。",
    )
    cannot = Message(
        "Answers that share no words with their prompts say nothing. In thousands of rows it sees a shift rather than "
        "a shuffle.",
        "与题目没有共同词的答案什么也说明不了。数据有上万行时，它能看出错位，较难看出打乱。",
    )
    belong = Message(
        "{n} answers share more words with their own prompts than with others' (p = {p:.1g})",
        "{n} 个答案与自己的题比与别的题有更多共同的词（p = {p:.1g}）",
    )
    unknown = Message(
        "shared words do not tell whether {n} answers belong to their prompts (p = {p:.2g})",
        "由共同的词无法判断 {n} 个答案是否属于各自的题（p = {p:.2g}）",
    )
    out_of_step, shuffled = _misplaced("the words they share", "共同的词")

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        from levelhead.preflight.pairing import alike, judge, level_of, word_fits

        for name, _, rows in self._tasks(context):
            if alike(rows):
                yield self.ok(self.alike, name)
                continue
            pairing = judge(word_fits(rows.prompts, rows.answers), rows, context.seed, level_of(context))
            yield self._outcome(name, pairing)


PATIENCE_S = 0.1
"""Seconds that scoring answers under other prompts may take, by the time that one row takes."""
DOUBT_S = 3.0
"""The same where they do not score more under their own."""
LEAST = 20
"""Rows that are scored at least, where that takes no more than ``DOUBT_S``."""


class PairsScores(_Pairs):
    """Scores neighbouring rows' answers under each other's prompts."""

    name = "pairs/scores/TASK"
    needs = "rewards"
    proves = Message(
        "Perfect answers score better under their own prompts than under others'.",
        "标准答案在自己的题下比在别的题下得分更高。",
    )
    how = Message(
        "Scores answers under permuted prompts: a permutation test with 999 permutations.",
        "把答案放到别的题目下打分：999 次置换的检验。",
    )
    cannot = Message(
        "Where most prompts have one answer, nothing is compared; nor are answers and a reward shuffled alike.",
        "大多数题目答案相同时无从比较；答案与奖励以同样方式打乱也看不出来。",
    )
    costly = Message(
        "a score costs calls elsewhere, so answers are not scored under other prompts",
        "打分需要调用外部服务，因此没有把答案放到别的题目下打分",
    )
    slow = Message(
        "rewards are too slow to score answers under other prompts", "奖励太慢，没有把答案放到别的题目下打分"
    )
    silent = Message("rewards do not depend on the pairing of {n} rows", "{n} 行的奖励与题目和答案是否相配无关")
    belong = Message(
        "{n} answers score more under their own prompts than under others' (p = {p:.1g})",
        "{n} 个答案在自己的题下比在别的题下得分更高（p = {p:.1g}）",
    )
    unknown = Message(
        "scores do not tell whether {n} answers belong to their prompts (p = {p:.2g})",
        "由得分无法判断 {n} 个答案是否属于各自的题（p = {p:.2g}）",
    )
    out_of_step, shuffled = _misplaced("score", "得分")

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        from levelhead.preflight.pairing import alike

        for name, task, rows in self._tasks(context):
            if task.rules is None:
                yield self.ok(self.costly, name)
            elif alike(rows):
                yield self.ok(self.alike, name)
            else:
                yield self._outcome(name, self._pairing(context, task.rules, rows))

    def _pairing(self, context: Context, rules: SingleTurnTask, rows: Rows) -> Pairing:
        """Score a few rows, and all of them where these leave a doubt that can be afforded."""
        from levelhead.preflight.pairing import Pairing, judge, level_of

        collector, n = context.collector(), len(rows.prompts)
        tokens = [collector.completion_ids(p, text) for p, text in zip(rows.prompts, rows.answers, strict=True)]

        def scored(size: int, some: Sequence[int]) -> Floats:
            answers = [Answer(rows.prompts[i], rows.answers[j], tokens[j]) for i in some for j in range(size)]
            scores = context.loop.run(rules.score_batch(answers))
            totals = [math.nan if score is None else score.total for score in scores]
            return np.array(totals, dtype=np.float64).reshape(len(some), size)

        scored(n, [0])  # whatever is only slow at first
        start = time.perf_counter()
        scored(n, [n - 1])
        each = (time.perf_counter() - start) / n
        size = min(n, max(LEAST, math.isqrt(int(PATIENCE_S / max(each, 1e-7)))))
        if each * size**2 > DOUBT_S:
            return Pairing("slow", {})
        fit_nn = scored(size, range(size))
        if np.isnan(fit_nn).any() or np.ptp(fit_nn) == 0:
            return Pairing("silent", {"n": size})
        level = level_of(context)
        pairing = judge(fit_nn, rows.first(size), context.seed, level)
        if pairing.key == "unknown" and size < n and each * n**2 <= DOUBT_S:
            pairing = judge(np.nan_to_num(scored(n, range(n)), nan=-1e9), rows, context.seed, level)
        return pairing


ROWS = 512
"""Training rows in a row, in the order of the data."""
KINDS = 12
"""Kinds of answers at most, each of at least ``EACH`` rows."""
EACH = 5
LAGS = (1, -1, 2, -2, 3, -3)
"""Rows by which answers may be out of step."""
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u9fff]")
ENOUGH = 60
"""Rows from which on words that go with no kind of answer are worth a warning."""
VERDICT = re.compile(
    r"\b(yes|no|not|true|false|(in)?correct|right|wrong|(in)?valid|even|odd|same|different|(im)?possible|more|less|equal"
    r"|greater|smaller|larger|before|after|left|none|both|n?either|unknown|maybe|can.?not|entail\w*|contradict\w*"
    r"|support\w*|refut\w*|heads|tails|win|lose|pass|fail)\b"
)
"""Answers that reasoning gives and words need not tell; names of topics, moods and the like are none of them."""
TRIES = 400
"""Permutations that the mean and deviation under chance are taken from."""
CHANCE, SURE = 2.0, 6.0
"""Deviations below which likeness is chance, and from which it is none: 1e-9 for each lag."""


class PairsClasses(Check):
    """Asks whether prompts with the same answer share words, at the rows where the answers stand and beside them."""

    name = "pairs/classes/TASK"
    needs = "data"
    proves = Message(
        "Where answers are of few kinds, no other order of the rows makes prompts of one kind more alike.",
        "答案只有少数几种时，没有另一种行顺序使同一种答案的题目更相似。",
    )
    how = Message(
        "Compares how alike prompts with the same answer are (shared rare words) with chance, 400 permutations of the "
        "answers, for the rows as they are and shifted by up to three (the Hilbert-Schmidt independence criterion of "
        "Gretton et al. 2005).",
        "以 400 次打乱答案的结果为准，检验答案相同的题目是否用词更相似（共有的罕见词）；分别按原顺序和错开至多三行检验"
        "（Gretton 等 2005 的 HSIC）。",
    )
    cannot = Message(
        "Labels that were shuffled fit no order. Where they are names of classes this is a warning; letters of "
        "options, verdicts (true or false) and numbers take reasoning, and look alike whether shuffled or not. "
        "After SFT the event learnt-by-heart asks again.",
        "被打乱的标签与任何顺序都不相配。标签是类别名时给出警告；选项字母、判断（真假）和数字需要推理，用词未必看得出，"
        "打乱与否看起来一样。监督微调之后，事件 learnt-by-heart 会再查一次。",
    )
    belong = Message(
        "prompts of the same of {kinds} kinds of answers share words ({own:.1f} deviations above chance)",
        "{kinds} 种答案中同一种的题目用词相似（高于随机 {own:.1f} 个标准差）",
    )
    unknown = Message(
        "the words of {rows} prompts do not tell their {kinds} kinds of answers apart ({own:.1f} deviations above "
        "chance): whether answers belong to their prompts is not known",
        "{rows} 条提示词的用词分不出 {kinds} 种答案（高于随机 {own:.1f} 个标准差）：无法判断答案是否属于各自的题",
    )
    shuffled = Message(
        "the words of {rows} prompts do not tell their {kinds} classes apart, such as {label} ({own:.1f} deviations "
        "above chance): labels were shuffled, or do not hang on what prompts say",
        "{rows} 条提示词的用词分不出 {kinds} 个类别（如 {label}；高于随机 {own:.1f} 个标准差）：标签被打乱，"
        "或与题目内容无关",
        fix=Fix(
            "read ten rows: where labels are not their prompts', join the two columns by key",
            "请读十行：若标签不属于各自的题，请按键合并两列",
        ),
    )
    out_of_step = Message(
        "the {kinds} kinds of answers go with the prompts {lag:+d} rows away ({shifted:.1f} deviations above chance) "
        "and not with their own ({own:.1f}): rows are out of step",
        "{kinds} 种答案与 {lag:+d} 行处的题目相配（高于随机 {shifted:.1f} 个标准差），与自己的题不相配"
        "（{own:.1f}）：数据行错位",
        fix=Fix(
            "sort or join prompts and answers by key, and drop no line of one file alone",
            "按键对齐或合并题目与答案，不要只删其中一个文件的行",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task whose perfect answers are of few kinds."""
        for name, task in context.setup.tasks.items():
            if isinstance(task, SingleTurnTask) and not task.demonstrates:
                prompts, labels = _rows(task)
                counts = sorted((labels.count(label) for label in {*labels}), reverse=True)
                if 2 <= len(counts) <= KINDS and counts[1] >= EACH:
                    yield self._judged(name, prompts, labels)

    def _judged(self, name: str, prompts: Sequence[Prompt], labels: Sequence[str]) -> Outcome:
        alike_nn = _alikeness([asked(prompt) for prompt in prompts])
        kinds, half = len({*labels}), len(labels) // 2
        for part in (slice(None), slice(half), slice(half, None)):
            own = _deviations(alike_nn[part, part], labels[part], 0)
            lags = {lag: _deviations(alike_nn[part, part], labels[part], lag) for lag in LAGS} if own < CHANCE else {}
            best = max(lags, key=lambda lag: lags[lag], default=0)
            if lags and lags[best] >= SURE:
                return self.fail(self.out_of_step, name, kinds=kinds, own=own, lag=best, shifted=lags[best])
        own = _deviations(alike_nn, labels, 0)
        if own >= CHANCE:
            return self.ok(self.belong, name, kinds=kinds, own=own)
        fields: dict[str, Any] = {"rows": len(labels), "kinds": kinds, "own": own}
        if len(labels) >= ENOUGH and _names_classes(prompts, labels):
            return self.warn(self.shuffled, name, **fields, label=max({*labels}, key=labels.count))
        return self.ok(self.unknown, name, **fields)


def _names_classes(prompts: Sequence[Prompt], labels: Sequence[str]) -> bool:
    """Whether answers are names of classes, which texts' words go with: all Latin, and no options of single rows."""
    from levelhead.tasks.mutations import forms_of

    texts = [asked(prompt).casefold() for prompt in prompts]
    kinds = [form.said.strip(" .") for form in forms_of([*{*labels}])]
    named = all(re.fullmatch(r"[a-z]{3,}([ -][a-z]+){0,2}", kind) and not VERDICT.search(kind) for kind in kinds)
    shown = sum(kind in text for text in texts for kind in kinds) / (len(texts) * len(kinds))
    return named and not any(map(_UNSPACED.search, texts)) and not 0.1 < shown < 0.9


def _rows(task: SingleTurnTask) -> tuple[list[Prompt], list[str]]:
    """Return neighbouring training rows in the order of the data, and what their answers say."""
    from levelhead.preflight.pairing import LOOKED_AT, natural

    some = sorted(itertools.islice(task.prompts("train", 0), LOOKED_AT), key=lambda prompt: natural(prompt.id))[:ROWS]
    pairs = [(prompt, " ".join(answer[0].casefold().split())) for prompt in some if (answer := task.oracle(prompt))]
    return [prompt for prompt, _ in pairs], [label for _, label in pairs]


def _alikeness(texts: Sequence[str]) -> Floats:
    """Return how alike texts are, (n, n): cosine of their words, which weigh by how rare they are, centred."""
    words = [{*re.findall(r"\w+", text.casefold())} for text in texts]
    vocabulary = {word: i for i, word in enumerate(sorted(set().union(*words)))}
    counts_nv = np.zeros((len(texts), len(vocabulary)))
    for i, row in enumerate(words):
        counts_nv[i, [vocabulary[word] for word in row]] = 1.0
    weights_nv = counts_nv * np.log(len(texts) / np.maximum(counts_nv.sum(axis=0), 1.0))
    weights_nv /= np.maximum(np.linalg.norm(weights_nv, axis=1, keepdims=True), 1e-9)
    centred_nv = weights_nv - weights_nv.mean(axis=0, keepdims=True)
    alike_nn: Floats = centred_nv @ centred_nv.T
    np.fill_diagonal(alike_nn, 0.0)
    return alike_nn


def _deviations(alike_nn: Floats, labels: Sequence[str], lag: int) -> float:
    """Return by how many deviations texts with the same label some rows on are more alike than by chance."""
    n = len(labels) - abs(lag)
    start = max(0, -lag)
    alike_nn = alike_nn[start : start + n, start : start + n]
    kinds = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    classes_n = np.array([kinds[label] for label in labels[start + lag : start + lag + n]])
    rng = np.random.default_rng(0)

    def likeness(order_n: np.ndarray[Any, Any]) -> float:
        dealt_nk = np.eye(len(kinds))[classes_n[order_n]]
        return float(np.einsum("nk,nk->", alike_nn @ dealt_nk, dealt_nk))

    chance = [likeness(rng.permutation(n)) for _ in range(TRIES)]
    deviation = float(np.std(chance))
    return (likeness(np.arange(n)) - float(np.mean(chance))) / deviation if deviation > 0 else 0.0
