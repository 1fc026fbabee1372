"""Rewards do not want what the generation prompt already holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class OpenedThought(Check):
    """Scores answers behind a generation prompt that opens a thought, with its tag and without."""

    name = "rewards/opened-thought/TASK"
    needs = "rewards"
    proves = Message(
        "No reward asks a completion for a tag that the generation prompt has written already.",
        "没有奖励要求输出包含生成提示已经写好的标签。",
    )
    how = Message(
        "Where the generation prompt ends with an opened thought (<think>), scores perfect and made-up answers with "
        "the tag before them and without.",
        "如果生成提示以打开的思考（<think>）结尾，就给带标签与不带标签的标准答案和人为回答分别打分。",
    )
    cannot = Message(
        "It tries a few forms of an answer; a reward for another form is not seen.",
        "它只尝试几种回答形式，看不出针对其他形式的奖励。",
    )
    right = Message(
        "the generation prompt opens a thought with {tag}, and no reward asks for it again",
        "生成提示以 {tag} 打开思考，没有奖励再要求它",
    )
    wanted = Message(
        "the generation prompt ends with {tag}, and the reward wants it in the completion: {text!r} gets "
        "{without:.4g}, and {with_tag:.4g} with the tag before it, which no completion has",
        "生成提示以 {tag} 结尾，而奖励要求输出里有它：{text!r} 得 {without:.4g}，前面加上标签则得 {with_tag:.4g}，但没"
        "有输出会带它",
        fix=Fix(
            "let the reward take {tag} as written (a pattern that begins behind it), or take it out of the template's "
            "generation prompt (model.chat_template: FILE)",
            "让奖励把 {tag} 当作已写好（模式从它之后开始），或从模板的生成提示中去掉它（model.chat_template: FILE）",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules and whose prompts open a thought."""
        from dataclasses import replace

        from levelhead.preflight.known import known_answers, scores_of, total_of
        from levelhead.text.thoughts import opened_by

        for name in context.scorable:
            probes = known_answers(context, name)
            if probes is None:
                continue
            first = probes.answers[0].prompt
            rendered = context.codec.template.render(first.messages, generation_prompt=True, options=first.chat).text
            mark = opened_by(rendered)
            if mark.start is None:
                continue
            perfect = [a for kind, a in zip(probes.kinds, probes.answers, strict=True) if kind == "oracle"]
            texts = [context.codec.decode(a.token_ids, a.prompt.chat) for a in perfect]
            made = [
                f"one reason\n{mark.closer}\n\n{end}" for end in ("7", "<answer>7</answer>", "<answer>\n7\n</answer>")
            ]
            answers = [replace(a, text=text) for a, text in zip(perfect, texts, strict=True)]
            answers += [replace(probes.answers[0], text=text) for text in made]
            before = scores_of(context, probes, answers)
            after = scores_of(context, probes, [replace(a, text=mark.tag + mark.space + a.text) for a in answers])
            rows = [
                (total_of(a), total_of(b), answer.text) for a, b, answer in zip(before, after, answers, strict=True)
            ]
            better = [row for row in rows if row[1] > row[0] + 1e-9]
            if not better:
                yield self.ok(self.right, name, tag=mark.tag)
                continue
            without, with_tag, text = better[0]
            sure = any(row in better for row in rows[: len(perfect)])
            report = self.fail if sure else self.warn
            yield report(self.wanted, name, tag=mark.tag, text=text[:60], without=without, with_tag=with_tag)
