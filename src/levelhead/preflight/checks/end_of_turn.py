"""A policy that writes the template's end-of-turn is stopped there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class EndOfTurn(Check):
    """Compares the tokens with which the template closes a turn with those at which the sampler stops."""

    name = "stops/complete"
    needs = "data"
    proves = Message(
        "A policy that writes the template's end-of-turn token is stopped there.",
        "策略写出模板的对话结束符时会在那里停下。",
    )
    how = Message(
        "Renders closed turns, finds the tokens that close them, and looks them up in the stop set.",
        "渲染已结束的轮次，找出结束它们的 token，并在停止符集合中查找。",
    )
    cannot = Message(
        "It cannot tell whether the policy will ever write it; completions/clipped_ratio of the run does.",
        "它不知道策略会不会写出结束符；训练中的 completions/clipped_ratio 会显示。",
    )
    right = Message(
        "every end-of-turn of the template stops a completion ({ends})", "模板的每个对话结束符都会结束输出（{ends}）"
    )
    none = Message(
        "the template closes turns with no token of its own; completions end with {stop}",
        "模板没有专门的对话结束符；输出以 {stop} 结束",
    )
    missed = Message(
        "the template closes turns with {token!r}, and the sampler does not stop there: it stops at {stops}",
        "模板以 {token!r} 结束一轮，采样端却不在那里停下：它只在 {stops} 停下",
        fix=Fix(
            "put the template's end-of-turn into the stop set (generation_config.eos_token_id, or the tokenizer's eos)",
            "把模板的对话结束符加入停止符（generation_config.eos_token_id，或分词器的 eos）",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        from levelhead.text.evidence import read
        from levelhead.text.stops import end_of_turn_ids

        codec = context.codec
        ends = end_of_turn_ids(codec.tokenizer, codec.template)
        evidence = {"stop_set": [{"token": s.text, "id": s.id, "from": list(s.sources)} for s in codec.stops]}
        missed = [token for token in ends if token not in codec.stop_ids]
        if missed:
            stops = ", ".join(stop.text for stop in codec.stops)
            yield self.fail(self.missed, evidence=evidence, token=read(codec, missed)[0].text, stops=stops)
        elif not ends:
            yield self.ok(self.none, evidence=evidence, stop=codec.stops[0].text)
        else:
            yield self.ok(self.right, evidence=evidence, ends=", ".join(t.text for t in read(codec, ends)))
