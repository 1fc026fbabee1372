"""An answer scores the same after it has been tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class RewardsRoundTrip(Check):
    """Encodes and decodes answers of known worth, and scores both texts."""

    name = "rewards/round-trip/TASK"
    needs = "rewards"
    proves = Message("An answer scores the same after it has been tokens.", "回答变成 token 再还原之后得分不变。")
    how = Message(
        "Encodes and decodes answers of known worth and scores both texts.",
        "把已知好坏的回答编码再解码，给两份文本打分。",
    )
    cannot = Message(
        "It looks at perfect and made-up answers, not at everything that a policy may write.",
        "它只看标准答案和人为的回答，看不到策略可能写出的一切。",
    )
    right = Message(
        "{count} answers score the same as text and as tokens ({changed} texts differ)",
        "{count} 个回答作为文本和作为 token 得分相同（{changed} 份文本有变化）",
    )
    changed = Message(
        "{off} of {count} answers score otherwise once they have been tokens ({before:.4g} before, {after:.4g} after): "
        "{text!r} came back as {now!r}",
        "{count} 个回答中有 {off} 个变成 token 再还原之后得分不同（之前 {before:.4g}，之后 {after:.4g}）：{text!r} 变"
        "成了 {now!r}",
        fix=Fix(
            "the tokenizer loses what the reward looks for (white space, special tokens): let it do without",
            "分词器丢掉了奖励要找的内容（空白、特殊 token）：让奖励不依赖它们",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules."""
        from dataclasses import replace

        from levelhead.preflight.known import known_answers, same, scores_of, total_of
        from levelhead.preflight.rendering import parting

        for name in context.scorable:
            probes = known_answers(context, name)
            if probes is None:
                continue
            scores = scores_of(context, probes, probes.answers)
            back = [replace(a, text=context.codec.decode(a.token_ids, a.prompt.chat)) for a in probes.answers]
            after = scores_of(context, probes, back)
            again = scores_of(context, probes, probes.answers)  # what is not steady is not the tokens' doing
            rows = enumerate(zip(probes.kinds, scores, after, again, strict=True))
            off = [i for i, (kind, a, b, c) in rows if kind != "gibberish" and not same(a, b) and same(a, c)]
            if not off:
                changed = sum(a.text != b.text for a, b in zip(probes.answers, back, strict=True))
                yield self.ok(self.right, name, count=len(back), changed=changed)
                continue
            i = min(off, key=lambda at: probes.kinds[at] != "oracle")
            text, now = probes.answers[i].text, back[i].text
            near = slice(max(0, parting(text, now) - 20), parting(text, now) + 20)
            fields: dict[str, Any] = {
                "before": total_of(scores[i]),
                "after": total_of(after[i]),
                "text": text[near],
                "now": now[near],
            }
            evidence = {"text": text[:200], "after": now[:200]}
            yield self.fail(self.changed, name, evidence=evidence, off=len(off), count=len(back), **fields)
