"""Rows have ids of their own and room in the context, and enough of them are held out, none of which is trained on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from levelhead.diagnosis.verdict import FEW
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.wording import asked, common, numberless, plain, reordered, shingles
from levelhead.tasks.base import SingleTurnTask, Task


class ItemIds(Check):
    """Reads the ids of one epoch."""

    name = "data/ids/TASK"
    needs = "data"
    proves = Message("Every training item has an id of its own.", "每道训练题都有唯一的编号。")
    how = Message("Reads the ids of one epoch.", "读取一轮数据的编号。")
    cannot = Message("It does not see two items with equal text and different ids.", "它看不出文本相同而编号不同的题。")
    unique = Message("{items} training items have ids of their own", "{items} 道训练题各有编号")
    repeated = Message(
        "{count} of {items} training items have the id of another, and are sampled with the same random numbers",
        "{items} 道训练题中有 {count} 道与别的题编号相同，采样时会用同样的随机数",
        fix=Fix("give each item an id of its own", "给每道题一个唯一的编号"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        for name, task in context.setup.tasks.items():
            ids = [prompt.id for prompt in task.prompts("train", 0)]
            count = len(ids) - len(set(ids))
            if count:
                yield self.fail(self.repeated, name, count=count, items=len(ids))
            else:
                yield self.ok(self.unique, name, items=len(ids))


MANY = 0.1
"""Share of the prompts from which leaving them out or cutting them is worth a warning."""


class OverlongPrompts(Check):
    """Counts the prompts that ``tasks[].overlong`` left out or cut."""

    name = "data/overlong/TASK"
    needs = "data"
    proves = Message(
        "Every prompt and demonstration has room in the context beside the completion.",
        "每条提示词和示范都能与输出一起放进上下文。",
    )
    how = Message("Counts what tasks[].overlong left out or cut.", "统计 tasks[].overlong 去掉或截短的提示词。")
    cannot = Message(
        "It does not judge whether a prompt that was cut still holds what its answer needs.",
        "它不判断截短后的提示词是否仍含有回答所需的内容。",
    )
    right = Message("every prompt has room in the context", "每条提示词都放得进上下文")
    _dropped = (
        "{count} of {prompts} prompts have no room in the context ({room:,} tokens) and are left out",
        "{prompts} 条提示词中有 {count} 条放不进上下文（{room:,} 个 token），已去掉",
    )
    _cut = (
        "{count} of {prompts} prompts have no room in the context ({room:,} tokens) and are cut on the left",
        "{prompts} 条提示词中有 {count} 条放不进上下文（{room:,} 个 token），已从左侧截短",
    )
    _fix = Fix(
        "choose a model with a longer context, or lower sampling.max_new_tokens, if so many are wanted",
        "如果需要这么多，请选上下文更长的模型，或减小 sampling.max_new_tokens",
    )
    dropped, cut = Message(*_dropped), Message(*_cut)
    many_dropped, many_cut = Message(*_dropped, fix=_fix), Message(*_cut, fix=_fix)

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        for name in context.setup.tasks:
            counts = context.setup.overlong.get(name)
            if counts is None:
                yield self.ok(self.right, name)
                continue
            count = counts.train + counts.eval
            fields: dict[str, Any] = {"count": count, "prompts": counts.prompts, "room": counts.room}
            if count > MANY * counts.prompts:
                yield self.warn(self.many_dropped if counts.kind == "drop" else self.many_cut, name, **fields)
            else:
                yield self.ok(self.dropped if counts.kind == "drop" else self.cut, name, **fields)


class EnoughHeldOut(Check):
    """Counts the held-out items that the evaluations between stages score."""

    name = "data/enough-held-out/TASK"
    needs = "data"
    proves = Message("Enough items are held out for a verdict at the end.", "留出题足够多，结束时才能下结论。")
    how = Message(
        "Counts the held-out items that the evaluation after each stage scores.",
        "统计每个阶段之后评测所用的留出题数量。",
    )
    cannot = Message(
        "How many items a verdict takes depends on the size of the change: with more of them smaller changes show.",
        "下结论需要多少题取决于变化的大小：题越多，越小的变化也看得出。",
    )
    enough = Message("{n} held-out items are scored after each stage", "每个阶段之后对 {n} 道留出题打分")
    few = Message(
        "{n} held-out items are scored after each stage: below {least}, all but large changes stay undecided",
        "每个阶段之后只对 {n} 道留出题打分：少于 {least} 道时，除了很大的变化都无法下结论",
        fix=Fix(
            "raise tasks[].eval_fraction or eval.final_items, or collect more data",
            "调高 tasks[].eval_fraction 或 eval.final_items，或收集更多数据",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        most = context.recipe.eval.final_items
        for name, task in context.setup.tasks.items():
            n = sum(1 for _ in itertools.islice(task.prompts("eval", 0), most))
            if n < FEW:
                yield self.warn(self.few, name, n=n, least=FEW)
            else:
                yield self.ok(self.enough, name, n=n)


ROWS, HELD = 20_000, 1_000
"""Training and held-out rows that are compared beyond equality."""
ALIKE, LEAST = 0.7, 8
"""Share of the rare five-word runs of a held-out row that a training row must share, and how many it must have."""
TEMPLATE = 0.02
"""Share of the training rows from which a five-word run belongs to a template."""
PER_TEMPLATE = 3.0
"""Training rows per template, on average, from which the data are templated on purpose."""
SHARE = 0.1
"""Share of held-out rows from which near training rows are named: generated data have some by chance."""


class HeldOut(Check):
    """Compares training and held-out prompts: equal, equal but for form, and nearly equal."""

    name = "data/held-out/TASK"
    needs = "data"
    proves = Message(
        "No held-out item asks what a training item asks, in other case, white space or order of options either.",
        "没有一道留出题与训练题相同，只差大小写、空白或选项顺序的也没有。",
    )
    how = Message(
        "Compares the messages of all training and held-out prompts; of 20,000 and 1,000 rows also without case, white "
        "space and order of options (where the answers are the same), with numbers masked (where rows are no "
        "templates), and by the five-word runs that are rare in the data.",
        "比较所有训练题与留出题的消息；并在 20,000 和 1,000 行内去掉大小写、空白和选项顺序再比（答案相同时），遮住数字"
        "再比（数据不是模板时），以及比较数据中少见的五词片段。",
    )
    cannot = Message(
        "It sees words, not meaning: a translated or wholly rephrased item is not seen. Items of one template that "
        "differ in numbers are taken for what they are where most data are such.",
        "它比较文字而不是意思：翻译或完全改写的题看不出。大多数数据都来自模板时，只差数字的题不算重复。",
    )
    apart = Message("none of {held} held-out items asks what a training item asks", "{held} 道留出题都与训练题不同")
    _fix = Fix(
        "drop duplicates from the data, or split so that what asks the same falls on one side",
        "去掉数据中的重复，或在划分时让相同的题落在同一边",
    )
    shared = Message(
        "{count} of {held} held-out items ask what a training item asks: {items}",
        "{held} 道留出题中有 {count} 道与训练题相同：{items}",
        fix=_fix,
    )
    reformatted = Message(
        "{count} of {held} held-out items are training items but for case, white space, punctuation or the order of "
        "options: {items}",
        "{held} 道留出题中有 {count} 道与训练题只差大小写、空白、标点或选项顺序：{items}",
        fix=_fix,
    )
    renumbered = Message(
        "{count} of {held} held-out items are training items but for their numbers, in data where few rows share a "
        "template: {items}",
        "{held} 道留出题中有 {count} 道与训练题只差数字，而数据中很少有行共用模板：{items}",
        fix=Fix(
            "if rows were made from each other, hold out all that come from one row together (a group column)",
            "如果这些行是由别的行改写来的，请把同一来源的行一起留出",
        ),
    )
    near = Message(
        "{count} of {held} held-out items share nearly all of their rare wording with a training item of the same "
        "answer: {items}",
        "{held} 道留出题中有 {count} 道与答案相同的训练题几乎用词一致：{items}",
        fix=_fix,
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from levelhead.training.items import overlap

        for name, task in context.setup.tasks.items():
            same, held, _, _ = overlap(task)
            if same:
                yield self._outcome(self.shared, name, same, held)
            elif isinstance(task, SingleTurnTask) and (match := self._near(task)):
                yield self._outcome(match[0], name, match[1], held)
            else:
                yield self.ok(self.apart, name, held=held)

    def _outcome(self, message: Message, name: str, items: Sequence[str], held: int) -> Outcome:
        report = self.fail if message in (self.shared, self.reformatted) else self.warn
        evidence = {"items": list(items[:8])}
        return report(message, name, evidence=evidence, count=len(items), held=held, items=", ".join(items[:3]))

    def _near(self, task: Task) -> tuple[Message, list[str]] | None:
        """Return held-out rows that are training rows in other words, and in which way, the surest way first."""
        train = list(itertools.islice(task.prompts("train", 0), ROWS))
        held = list(itertools.islice(task.prompts("eval", 0), HELD))
        right = {id(prompt): plain((task.oracle(prompt) or [""])[0]) for prompt in (*train, *held)}
        texts, answers = [asked(p) for p in train], [right[id(p)] for p in train]
        bare = [plain(text) for text in texts]
        keys = [{text, reordered(whole)} - {None} for text, whole in zip(bare, texts, strict=True)]
        seen = {(key, answer) for row, answer in zip(keys, answers, strict=True) for key in row}
        rows = [(prompt.id, plain(asked(prompt)), right[id(prompt)]) for prompt in held]
        other = [reordered(asked(prompt)) for prompt in held]
        pairs = zip(rows, other, strict=True)
        again = [name for (name, text, answer), key in pairs if {(text, answer), (key, answer)} & seen]
        if again:
            return self.reformatted, again
        many = max(3.0, SHARE * len(held))
        if len(near := _nearly(bare, answers, rows)) >= many:
            return self.near, near
        return (self.renumbered, again) if len(again := _renumbered(bare, rows)) >= many else None


def _nearly(texts: Sequence[str], answers: Sequence[str], held: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return ids of held-out rows that share their rare five-word runs with one training row of the same answer."""
    rows = [shingles(text) for text in texts]
    template = common(rows, TEMPLATE)
    places: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        for shingle in row - template:
            places.setdefault(shingle, []).append(i)
    near = []
    for name, text, answer in held:
        rare = shingles(text) - template
        shared = Counter(i for shingle in rare for i in places.get(shingle, ()))
        if len(rare) >= LEAST and any(
            answers[i] == answer and count >= ALIKE * len(rare | (rows[i] - template)) for i, count in shared.items()
        ):
            near.append(name)
    return near


def _renumbered(texts: Sequence[str], held: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return ids of held-out rows that are training rows but for numbers, where templates are no habit of the data."""
    masked = [numberless(text) for text in texts]
    templates = {*masked}
    if len(texts) >= PER_TEMPLATE * len(templates):
        return []
    same = [(name, key, "") for name, text, _ in held if "#" in (key := numberless(text)) and key in templates]
    return _nearly(masked, [""] * len(masked), same)
