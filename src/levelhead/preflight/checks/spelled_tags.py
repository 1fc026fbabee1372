"""No special token is spelt in characters, or hidden from a reward, unseen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext

LOOKED_AT = 256
"""Prompts of a task that are read."""


class SpelledTags(Check):
    """Looks for special tokens in prompts, perfect answers and the texts of reward files."""

    name = "tokens/spelled-tags/TASK"
    needs = "data"
    proves = Message(
        "Prompts, perfect answers and rewards write no special token that would become characters or be hidden.",
        "提示词、标准答案和奖励中没有会被拆成字符或被隐藏的特殊 token。",
    )
    how = Message(
        "Reads 256 prompts and their perfect answers, and the text constants of the files of reward functions.",
        "读取 256 条提示词及其标准答案，以及奖励函数文件中的文本常量。",
    )
    cannot = Message(
        "It does not see patterns that rewards put together or read from elsewhere.",
        "它看不到奖励拼出来或从别处读来的模式。",
    )
    right = Message("no text of the task spells a special token out", "任务的文本没有写出特殊 token")
    spelled = Message(
        "{tokens} are special tokens of the tokenizer, and stand in {answers} of {prompts} perfect "
        "answers, in {asked} of "
        "{prompts} prompts and in {files} reward files: prompts and demonstrations spell them in "
        "characters, and rewards "
        "never see the tokens",
        "{tokens} 是分词器的特殊 token，出现在 {prompts} 个标准答案中的 {answers} 个、{prompts} 条提示词中"
        "的 {asked} 条和 "
        "{files} 个奖励文件里：提示词和示范会把它们拆成字符，而奖励看不到这些 token",
        fix=Fix(
            "list those that answers are to hold in tasks[].keep_special_tokens, or write other tags",
            "把回答要用的列在 tasks[].keep_special_tokens 中，或改用别的标签",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from itertools import islice

        from levelhead.tasks.function.patterns import texts_of_rewards

        template = context.codec.template
        for name, task in context.setup.tasks.items():
            tokens: dict[str, None] = {}
            prompts = answers = asked = 0
            options = None
            for prompt in islice(task.prompts("train", 0), LOOKED_AT):
                prompts, options = prompts + 1, prompt.chat
                in_prompt = template.control_tokens_in(prompt.messages, options)
                in_answer = template.control_tokens_in(task.oracle(prompt) or (), options)
                answers, asked = answers + bool(in_answer), asked + bool(in_prompt)
                tokens.update(dict.fromkeys((*in_prompt, *in_answer)))
            files = 0
            for texts in texts_of_rewards(task):
                found = template.control_tokens_in(texts, options) if options is not None else ()
                files += bool(found)
                tokens.update(dict.fromkeys(found))
            counts = {"prompts": prompts, "answers": answers, "asked": asked, "files": files}
            if tokens:
                yield self.warn(
                    self.spelled, name, evidence={"tokens": list(tokens)}, tokens=", ".join(tokens), **counts
                )
            else:
                yield self.ok(self.right, name)
