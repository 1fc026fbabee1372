"""No special token is spelt in characters or hidden from a reward unseen, and no prompt was rendered before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext
    from levelhead.text.template import ChatTemplate

LOOKED_AT = 256
"""Prompts of a task that are read."""
_FAMILIES = (
    r"<\|im_(?:start|end|sep)\|>|<\|(?:start|end)_header_id\|>|<\|eot_id\|>|<\|begin_of_text\|>|"
    r"</?(?:start|end)_of_turn>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<\|(?:user|assistant|system)\|>|"
    r"<｜(?:User|Assistant)｜>|<\|(?:START|END)_OF_TURN_TOKEN\|>"
)
"""Marks by which the templates of the common model families open and close turns."""


class SpelledTags(Check):
    """Looks for special tokens in prompts, perfect answers and the texts of reward files."""

    name = "tokens/spelled-tags/TASK"
    needs = "data"
    proves = Message(
        "Prompts, perfect answers and rewards write no special token that would become characters or be hidden, and no "
        "prompt went through a chat template before.",
        "提示词、标准答案和奖励中没有会被拆成字符或被隐藏的特殊 token，提示词也没有事先套用过对话模板。",
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
    rendered = Message(
        "{count} of {prompts} prompts were rendered by a chat template before ({mark!r} stands in their text), and the "
        "template is applied again: the policy reads one turn inside another",
        "{prompts} 条提示词中有 {count} 条事先套用过对话模板（文本中有 {mark!r}），又会再套用一次：策略会读到轮次里嵌着"
        "轮次",
        fix=Fix(
            "give the bare text, or a list of messages, and leave the template to the run",
            "请给出未套用模板的文本或消息列表，模板由训练时套用",
        ),
    )
    spelled = Message(
        "{tokens} are special tokens of the tokenizer, and stand in {answers} of {prompts} perfect answers, in "
        "{asked} of {prompts} prompts and in {files} reward files: prompts and demonstrations spell them in "
        "characters, and rewards never see the tokens",
        "{tokens} 是分词器的特殊 token，出现在 {prompts} 个标准答案中的 {answers} 个、{prompts} 条提示词中的 {asked} "
        "条和 {files} 个奖励文件里：提示词和示范会把它们拆成字符，而奖励看不到这些 token",
        fix=Fix(
            "list those that answers are to hold in tasks[].keep_special_tokens, or write other tags",
            "把回答要用的列在 tasks[].keep_special_tokens 中，或改用别的标签",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from itertools import islice

        from levelhead.tasks.function.patterns import texts_of_rewards
        from levelhead.text.rendered import plain, strings

        template = context.codec.template
        for name, task in context.setup.tasks.items():
            tokens: dict[str, None] = {}
            prompts = answers = asked = 0
            options, before, mark = None, 0, ""
            frames = _frames(template)
            for prompt in islice(task.prompts("train", 0), LOOKED_AT):
                prompts, options = prompts + 1, prompt.chat
                if sign := _rendered(" ".join(strings([plain(m) for m in prompt.messages])), frames):
                    before, mark = before + 1, mark or sign
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
            if before:
                fields = {"count": before, "prompts": prompts, "mark": mark}
                yield self.warn(self.rendered, name, evidence={"tokens": list(tokens)}, **fields)
            elif tokens:
                yield self.warn(
                    self.spelled, name, evidence={"tokens": list(tokens)}, tokens=", ".join(tokens), **counts
                )
            else:
                yield self.ok(self.right, name)


def _frames(template: ChatTemplate) -> tuple[str, str]:
    """Return what the run's template writes before the text of a user's turn, and before an answer."""
    from levelhead.errors import InputError

    try:
        chat = [{"role": "user", "content": "QZX"}]
        asked = template.render(chat, generation_prompt=False).text
        header = template.render(chat, generation_prompt=True).text.removeprefix(asked)
    except InputError:
        return "", ""
    return asked.partition("QZX")[0].rstrip().rpartition("\n")[2], header.strip()


def _rendered(text: str, frames: tuple[str, str]) -> str:
    """Return the mark by which a text shows that it was rendered; empty where it shows none."""
    import re

    opening, header = frames
    if header and header in text and (text.rstrip().endswith(header) or (opening and opening in text)):
        return header
    marks = re.findall(_FAMILIES, text)
    return marks[0] if len(marks) > 1 else ""
