"""A completion that stopped holds its stop token once, last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class StopToken(Check):
    """Counts stop tokens in completions and demonstrations."""

    name = "loss/stop-token"
    needs = "rollouts"
    proves = Message(
        "A completion that stopped, and every demonstration, ends with one stop token; one that was cut holds none.",
        "正常结束的输出和每条示范都以一个停止符结尾；被截断的输出不含停止符。",
    )
    how = Message("Counts stop tokens in sampled completions and in demonstrations.", "统计采样输出和示范中的停止符。")
    cannot = Message(
        "An untrained policy rarely stops by itself, so that completions that stopped may be missing from the sample.",
        "未训练的策略很少自己停下，所以样本中可能没有正常结束的输出。",
    )
    right = Message(
        "stop tokens stand at the end of completions that stopped ({stopped} of {count}) and of {shown} "
        "demonstrations, once each",
        "停止符各一次，位于正常结束的输出（{count} 条中 {stopped} 条）和 {shown} 条示范的末尾",
    )
    _fix = Fix("train on the stop token that was sampled, and on no other", "只训练采样得到的那个停止符，不训练别的")
    added = Message(
        "a completion that ran out of its {budget} tokens holds {length}, ending in {end}: a stop token was put there "
        "that nobody sampled",
        "一条用完 {budget} 个 token 的输出含 {length} 个，末尾是 {end}：那里被加了一个并未采样到的停止符",
        fix=_fix,
    )
    doubled = Message(
        "a completion that stopped holds {stops} stop tokens: {end}",
        "一条正常结束的输出含 {stops} 个停止符：{end}",
        fix=_fix,
    )
    demonstration = Message(
        "a demonstration holds {stops} stop tokens and ends with {end}: the policy never learns to end",
        "一条示范含 {stops} 个停止符，结尾是 {end}：策略学不会结束",
        fix=Fix(
            "check the chat template: it must close the assistant's turn with a stop token",
            "检查对话模板：它应以停止符结束助手的一轮",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        from levelhead.preflight.rendering import spelled

        codec, budget = context.codec, context.controls.max_new_tokens
        for turn in context.turns:
            ids = turn.completion_ids
            stops = sum(token in codec.stop_ids for token in ids)
            if len(ids) > budget or (turn.finish == "length" and stops):
                yield self.fail(self.added, budget=budget, length=len(ids), end=spelled(codec, ids[-2:]))
                return
            if turn.finish == "stop" and (stops != 1 or ids[-1] not in codec.stop_ids):
                yield self.fail(self.doubled, stops=stops, end=spelled(codec, ids[-3:]))
                return
        pairs = [pair for prompts in context.prompts.values() for pair in context.demonstrations(prompts[:2])]
        for pair in pairs:
            stops = sum(token in codec.stop_ids for token in pair.completion_ids)
            if stops != 1 or pair.completion_ids[-1] not in codec.stop_ids:
                yield self.fail(self.demonstration, stops=stops, end=spelled(codec, pair.completion_ids[-2:]))
                return
        stopped = sum(turn.finish == "stop" for turn in context.turns)
        yield self.ok(self.right, stopped=stopped, count=len(context.turns), shown=len(pairs))
