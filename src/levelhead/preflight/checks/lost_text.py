"""What messages say reaches the policy, and demonstrations close what the prompt opens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext

LOOKED_AT = 64
"""Prompts of a task that are rendered."""


class LostText(Check):
    """Looks for the texts of each message in the rendered prompt."""

    name = "tokens/lost-text/TASK"
    needs = "data"
    proves = Message(
        "The chat template shows every text of the messages to the policy, thoughts of earlier turns included, and "
        "demonstrations think where the generation prompt opens a thought.",
        "对话模板把消息的每段文本都展示给策略，包括之前轮次的思考；生成提示打开思考时，示范也会思考。",
    )
    how = Message(
        "Renders 64 prompts and looks for the text, the reasoning and the tool calls of each message; tries what the "
        "template does to a thought of an earlier turn.",
        "渲染 64 条提示词，查找每条消息的文本、推理和工具调用；并试出模板如何处理之前轮次的思考。",
    )
    cannot = Message(
        "It does not judge whether what is left out matters, nor what the environment of an episode will say.",
        "它不判断丢掉的内容是否重要，也不知道环境会说什么。",
    )
    right = Message("the template shows all of {prompts} prompts", "模板完整展示了 {prompts} 条提示词")
    dropped = Message(
        "the chat template leaves text of {count} of {prompts} prompts out, such as {text!r} of {role}",
        "对话模板丢掉了 {prompts} 条提示词中 {count} 条的文本，例如 {role} 的 {text!r}",
        fix=Fix(
            "earlier thoughts are dropped by many templates on purpose: take them out of the data, or give a template "
            "that shows what the policy is to read (model.chat_template: FILE)",
            "许多模板有意丢掉之前的思考：请从数据中去掉它们，或换一个会展示它们的模板（model.chat_template: FILE）",
        ),
    )
    unseen = Message(
        "the chat template drops the thoughts of earlier turns: in episodes of several turns the policy does not see "
        "what it thought before",
        "对话模板会丢掉之前轮次的思考：在多轮回合中，策略看不到自己之前的思考",
        fix=Fix(
            "expect it, or give a template that keeps thoughts (model.chat_template: FILE)",
            "请留意这一点，或换一个保留思考的模板（model.chat_template: FILE）",
        ),
    )
    thoughtless = Message(
        "the generation prompt opens a thought with {tag}, and {count} of {prompts} perfect answers hold none: SFT "
        "would teach to close it without a word",
        "生成提示以 {tag} 打开思考，而 {prompts} 个标准答案中有 {count} 个没有思考：监督微调会教模型什么都"
        "不想就结束思考",
        fix=Fix(
            "write answers with their thoughts (...{closer}answer), or let the template open none "
            "(model.chat_template_kwargs: {{enable_thinking: false}})",
            "在答案中写出思考（...{closer}答案），或让模板不打开思考（model.chat_template_kwargs: "
            "{{enable_thinking: false}}）",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from itertools import islice

        from levelhead.tasks.base import SingleTurnTask
        from levelhead.text.thoughts import holds_thought, opened_by
        from levelhead.text.traits import left_out, probe

        codec = context.codec
        for name, task in context.setup.tasks.items():
            prompts = list(islice(task.prompts("train", 0), LOOKED_AT))
            lost = [part for prompt in prompts if (part := left_out(codec, prompt.messages, prompt.chat))]
            if lost:
                role, text = lost[0][0]
                counts: dict[str, Any] = {"count": len(lost), "prompts": len(prompts)}
                yield self.warn(
                    self.dropped, name, evidence={"left_out": lost[:5]}, role=role, text=text[:60], **counts
                )
                continue
            if not isinstance(task, SingleTurnTask) and probe(codec).drops_reasoning:
                yield self.warn(self.unseen, name)
                continue
            ends = [
                codec.template.render(p.messages, generation_prompt=True, options=p.chat).text[-60:] for p in prompts
            ]
            mark = opened_by(ends[0]) if ends else opened_by("")
            answers = [answer for prompt in prompts for answer in (task.oracle(prompt) or ())[:1]]
            silent = [answer for answer in answers if not holds_thought(answer)]
            if context.recipe.sft is not None and mark.start is not None and silent:
                counts = {"count": len(silent), "prompts": len(answers)}
                yield self.warn(self.thoughtless, name, tag=mark.tag, closer=mark.closer, **counts)
            else:
                yield self.ok(self.right, name, prompts=len(prompts))
