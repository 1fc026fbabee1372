"""A score depends on the answer alone."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any

import numpy as np

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome, Status
from levelhead.preflight.known import KnownAnswers, known_answers, perfect_answers, play, same, scores_of, total_of
from levelhead.records import Score

if TYPE_CHECKING:
    from levelhead.tasks.second_process import SecondProcess

LATER_S = 400 * 86400.0 + 12345.0
"""Seconds that the clock is put forward."""


@contextlib.contextmanager
def other_random_numbers() -> Iterator[None]:
    """Seed every global generator otherwise inside."""
    import torch

    from levelhead.preflight.context import same_random_numbers

    with same_random_numbers():
        random.seed(20_240_229)
        np.random.seed(20_240_229)  # noqa: NPY002 - rewards may draw from it
        torch.manual_seed(20_240_229)
        yield


class _LaterDate(dt.date):
    @classmethod
    def today(cls) -> _LaterDate:
        return cls.fromtimestamp(time.time())


class _LaterTime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _LaterTime:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> _LaterTime:
        """Return the shifted time, without a zone."""
        return cls.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> _LaterTime:
        return cls.now()


@contextlib.contextmanager
def later_clock() -> Iterator[None]:
    """Put the clock forward inside, for code that is not a library's: a reward function and what it imports."""
    real = {name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime")}
    later: dict[str, Callable[..., Any]] = {
        "time": lambda: real["time"]() + LATER_S,
        "time_ns": lambda: real["time_ns"]() + int(LATER_S * 1e9),
        "localtime": lambda seconds=None: real["localtime"](time.time() if seconds is None else seconds),
        "gmtime": lambda seconds=None: real["gmtime"](time.time() if seconds is None else seconds),
    }
    swaps: dict[int, Any] = {id(real[name]): later[name] for name in real}
    swaps |= {id(dt.datetime): _LaterTime, id(dt.date): _LaterDate}
    changed = [(time, name, real[name], later[name]) for name in real]
    changed += [(dt, "datetime", dt.datetime, _LaterTime), (dt, "date", dt.date, _LaterDate)]
    for module in _own_modules():
        attributes = [(name, value) for name, value in list(vars(module).items()) if id(value) in swaps]
        changed += [(module, name, value, swaps[id(value)]) for name, value in attributes]
    for owner, name, _, new in changed:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in changed:
            setattr(owner, name, old)


def _own_modules() -> list[Any]:
    """Modules that are neither Python's nor installed packages, nor this one."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    modules = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(libraries) and module.__name__ != __name__:
            modules.append(module)
    return modules


NOISE = 0.25
"""Share of the rewards' variance from which what should make no difference is a failure; less may be a judge's mood."""
PLAYED = 2
"""Episodes that are played twice."""


class RewardsSteady(Check):
    """Scores the same answers again, one circumstance at a time changed."""

    name = "rewards/steady/TASK"
    needs = "rewards"
    proves = Message("A score depends on the answer alone.", "得分只取决于回答。")
    how = Message(
        "Scores the same answers again: after another call, with other global random numbers, at another time, in "
        "another order, in another batch and in another process.",
        "给同样的回答再次打分：再次调用、换全局随机数、换时间、换顺序、换批、换进程。",
    )
    cannot = Message(
        "A reward that changes once in hundreds of calls may change in none of these.",
        "几百次调用才变一次的奖励，在这里可能一次也不变。",
    )
    right = Message(
        "{count} scores stay as they are, whatever else changes", "无论其他情况怎样变化，{count} 个得分保持不变"
    )
    _fix = Fix(
        "seed what a reward samples by its answer, and let it look at nothing but the answer and its columns",
        "奖励里的随机数按回答设种子，并且只看回答和它那一行的列",
    )
    again = Message(
        "{off} of {count} scores differ when they are asked for twice: {before:.4g}, then {after:.4g}",
        "{count} 个得分中有 {off} 个再次打分时不同：先是 {before:.4g}，后是 {after:.4g}",
        fix=_fix,
    )
    random = Message(
        "{off} of {count} scores depend on global random numbers: {before:.4g}, then {after:.4g}",
        "{count} 个得分中有 {off} 个受全局随机数影响：先是 {before:.4g}，后是 {after:.4g}",
        fix=_fix,
    )
    clock = Message(
        "{off} of {count} scores depend on the clock: {before:.4g}, then {after:.4g}",
        "{count} 个得分中有 {off} 个受时钟影响：先是 {before:.4g}，后是 {after:.4g}",
        fix=_fix,
    )
    process = Message(
        "{off} of {count} scores depend on the process: {before:.4g}, then {after:.4g}",
        "{count} 个得分中有 {off} 个受所在的进程影响：先是 {before:.4g}，后是 {after:.4g}",
        fix=_fix,
    )
    out_of_step = Message(
        "the scores of a batch are those of its answers alone in another order: rewards and answers are out of step",
        "一批的得分正是各回答单独打分的结果，但顺序不同：奖励与回答错位",
        fix=Fix(
            "return one reward per completion, in the order of the completions",
            "每条输出返回一个奖励，顺序与输出一致",
        ),
    )
    shifted = Message(
        "in a batch {off} of {count} answers get their neighbour's score: {left_out} answers, such as {text!r}, are "
        "left out of the list of rewards, and all others move up or down",
        "一批中 {count} 个回答有 {off} 个得到了相邻回答的分：{left_out} 个回答（例如 {text!r}）没有进入奖励列表，其余的"
        "都移了位",
        fix=Fix(
            "append one reward per completion in every branch, also where one fails (except: rewards.append(0.0))",
            "每个分支都为每条输出追加一个奖励，出错时也一样（except: rewards.append(0.0)）",
        ),
    )
    batch = Message(
        "{off} of {count} scores depend on the order or the rest of the batch: {before:.4g}, then {after:.4g}",
        "{count} 个得分中有 {off} 个受批内顺序或同批其他回答影响：先是 {before:.4g}，后是 {after:.4g}",
        fix=Fix(
            "fine for a reward that compares the answers of a batch; else correct it",
            "如果奖励本来就要比较同批的回答，这没有问题；否则请修正",
        ),
    )
    replayed = Message("{count} episodes get the same reward again", "{count} 个回合重做时奖励相同")
    episode = Message(
        "{off} of {count} perfect episodes get another reward when they are played again with the same actions, "
        "written as tokens: {before:.4g}, then {after:.4g}",
        "{count} 个标准回合中有 {off} 个以相同动作（写成 token）重做时奖励不同：先是 {before:.4g}，后是 {after:.4g}",
        fix=Fix("let an episode depend on its prompt's seed and its actions alone", "让回合只取决于题目的种子和动作"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task whose scores cost no calls elsewhere."""
        from levelhead.tasks.second_process import second_process_of

        for section in context.recipe.tasks:
            name = section.title
            if name in context.unscorable:
                continue
            probes = known_answers(context, name)
            if probes is not None:
                elsewhere = second_process_of(section, probes.answers)
                with contextlib.closing(elsewhere) if elsewhere is not None else contextlib.nullcontext():
                    yield self._of_answers(context, name, probes, elsewhere)
            elif not hasattr(context.setup.tasks[name], "rules"):
                yield self._of_episodes(context, name)

    def _of_answers(
        self, context: Context, name: str, probes: KnownAnswers, elsewhere: SecondProcess | None
    ) -> Outcome:
        answers = probes.answers
        base = scores_of(context, probes, answers)
        readings = {self.again: scores_of(context, probes, answers)}
        with other_random_numbers():
            readings[self.random] = scores_of(context, probes, answers)
        with later_clock():
            readings[self.clock] = scores_of(context, probes, answers)
        if elsewhere is not None:
            readings[self.process] = elsewhere.scores() or base
        backwards = scores_of(context, probes, answers[::-1])[::-1]
        alone = [scores_of(context, probes, [answer])[0] for answer in answers]
        noise = {message.key: _noise(base, other) for message, other in readings.items()}
        evidence = {"answers": len(answers), "share_of_variance": noise}
        for message, other in readings.items():
            if changed := _changed(base, other):
                status: Status = "fail" if max(noise.values()) > NOISE else "warn"
                return self.outcome(status, message, name, evidence=evidence, **changed)
        if skipped := _left_out(alone, base) or [len(base) - 1 - i for i in _left_out(alone[::-1], base[::-1])]:
            text = answers[skipped[0]].text[:60]
            off = int(_changed(alone, base)["off"])
            return self.fail(self.shifted, name, off=off, count=len(base), left_out=len(skipped), text=text)
        if _out_of_step(base, alone) or _out_of_step(base, backwards):
            return self.fail(self.out_of_step, name, evidence=evidence)
        if changed := _changed(base, backwards) or _changed(base, alone):
            return self.warn(self.batch, name, evidence=evidence, **changed)
        return self.ok(self.right, name, evidence=evidence, count=len(answers))

    def _of_episodes(self, context: Context, name: str) -> Outcome:
        """Play perfect episodes twice, the second time with answers that have been tokens in between."""
        task, prompts = context.setup.tasks[name], context.prompts[name][:PLAYED]

        def tokens(text: str) -> str:
            return context.codec.decode(context.collector().completion_ids(prompts[0], text), prompts[0].chat)

        async def both() -> list[tuple[float | None, float | None]]:
            pairs = []
            for prompt in prompts:
                answers = await perfect_answers(task, prompt)
                if answers:
                    first = await play(task, prompt, answers)
                    pairs.append((first, await play(task, prompt, [tokens(answer) for answer in answers])))
            return pairs

        pairs = [(a, b) for a, b in context.loop.run(both()) if a is not None and b is not None]
        off = [(a, b) for a, b in pairs if abs(a - b) > 1e-9]
        if off:
            before, after = off[0]
            return self.fail(self.episode, name, off=len(off), count=len(pairs), before=before, after=after)
        return self.ok(self.replayed, name, count=len(pairs))


def _changed(before: Sequence[Score | None], after: Sequence[Score | None]) -> dict[str, float]:
    """Return how many scores changed, of how many, and an example; nothing where none did."""
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if not same(a, b)]
    if not pairs:
        return {}
    first = pairs[0]
    return {"off": len(pairs), "count": len(before), "before": total_of(first[0]), "after": total_of(first[1])}


def _left_out(alone: Sequence[Score | None], batch: Sequence[Score | None]) -> list[int]:
    """Return the answers without which the scores of all others, each by itself, are those of the batch moved up.

    Nothing where no answer, or more than half of them, would have to be left out, or where scores hardly differ.
    """
    own, together = ([None if s is None else round(s.total, 9) for s in scores] for scores in (alone, batch))
    if own == together or len(set(own)) < 2:
        return []
    skipped, place = [], 0
    for i, score in enumerate(own):
        if place < len(together) and together[place] == score:
            place += 1
        else:
            skipped.append(i)
    moved = place == len(own) - len(skipped) and 0 < len(skipped) <= len(own) // 2
    rest = together[place:]
    return skipped if moved and len(set(rest)) == 1 and any(a != b for a, b in zip(own, together, strict=True)) else []


def _noise(before: Sequence[Score | None], after: Sequence[Score | None]) -> float:
    """Return the share of the variance of two readings of the same rewards that lies between the readings."""
    pairs = [(a.total, b.total) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if not pairs or sum((a is None) != (b is None) for a, b in zip(before, after, strict=True)) > len(before) // 4:
        return 1.0 if _changed(before, after) else 0.0
    within = fmean((a - b) ** 2 / 4 for a, b in pairs)
    total = pvariance([value for pair in pairs for value in pair])
    return within / total if total > 0 else 0.0


def _out_of_step(before: Sequence[Score | None], after: Sequence[Score | None]) -> bool:
    """Whether two readings hold the same rewards, not all of them equal, in another order."""
    one, other = ([round(s.total, 9) for s in scores if s is not None] for scores in (before, after))
    return one != other and len(set(one)) > 2 and sorted(one) == sorted(other)
