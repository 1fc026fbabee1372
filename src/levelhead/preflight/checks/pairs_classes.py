"""Prompts of the same kind of answer are alike, where answers are of few kinds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.wording import asked
from levelhead.records import Prompt
from levelhead.tasks.base import SingleTurnTask

if TYPE_CHECKING:
    from levelhead.training.fit import Floats

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
