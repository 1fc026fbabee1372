"""The generation prompt is there, and is all that the template writes before an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


MARK = "Levelhead"
"""An answer to look for in a rendered text."""


class GenerationPrompt(Check):
    """Compares what the template writes before an answer with the prompt that the policy continues."""

    name = "tokens/generation-prompt"
    needs = "data"
    proves = Message(
        "The prompt that the policy continues ends exactly where the chat template begins an answer.",
        "策略所续写的提示词恰好在对话模板开始回答的地方结束。",
    )
    how = Message(
        "Renders a question with and without the generation prompt, and once more with an answer behind it, and "
        "compares what stands before the answer.",
        "分别渲染带与不带生成提示的提问，以及后面带回答的提问，比较回答之前的内容。",
    )
    cannot = Message(
        "It asks the template alone, with one question; tokens/context looks at the run's own prompts.",
        "它只用一个问题检查模板；训练的提示词由 tokens/context 检查。",
    )
    right = Message("answers start right after {header!r}", "回答紧接在 {header!r} 之后开始")
    _fix = Fix(
        "correct the template's add_generation_prompt branch (model.chat_template: FILE) so that it ends as answers "
        "begin",
        "修正模板的 add_generation_prompt 分支（model.chat_template: FILE），使它的结尾与回答的开头相接",
    )
    stripped = Message(
        "the generation prompt ends with {header!r}, but the template writes {between!r} before every answer: its last "
        "line break was stripped, and answers start on the wrong side of it",
        "生成提示以 {header!r} 结尾，而模板在每个回答之前写的是 {between!r}：最后的换行被去掉了，回答从换行的另一侧开"
        "始",
        fix=_fix,
    )
    other_messages = Message(
        "with the generation prompt the template renders other messages than without",
        "加上生成提示之后，模板渲染出的对话内容与不加时不同",
        fix=_fix,
    )
    missing = Message(
        "the template has no generation prompt, but writes {between!r} before every answer",
        "模板没有生成提示，却在每个回答之前写 {between!r}",
        fix=_fix,
    )
    other_header = Message(
        "the generation prompt is {header!r}, but the template begins answers with {other!r}",
        "生成提示为 {header!r}，而模板以 {other!r} 开始回答",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        from levelhead.preflight.rendering import by_template, parting
        from levelhead.text.traits import probe

        codec, question = context.codec, {"role": "user", "content": "Question"}
        prompt = by_template(codec, [question], generation=True)
        bare = by_template(codec, [question], generation=False)
        answered = by_template(codec, [question, {"role": "assistant", "content": MARK}], generation=False)
        header = prompt.removeprefix(bare) if prompt.startswith(bare) else prompt[-40:]
        between = answered.removeprefix(prompt).partition(MARK)[0] if answered.startswith(prompt) else ""
        traits = probe(codec)
        evidence = {
            "generation_prompt": header,
            "before_answer": between,
            "after_stop": traits.after_stop,
            "rewrites_turns": traits.rewrites_turns,
            "drops_reasoning": traits.drops_reasoning,
        }
        before = answered.removeprefix(bare).partition(MARK)[0]
        at = parting(header, before)
        # A generation prompt may go further than the template does (reasoning that it opens), but not another way.
        other = before if at < len(header) and before[at:].strip() else ""
        if "\n" in between and not between.strip():
            yield self.fail(self.stripped, evidence=evidence, header=header[-24:], between=between)
        elif answered.startswith(bare) and not prompt.startswith(bare):
            yield self.fail(self.other_messages, evidence=evidence)
        elif between.strip() and not header.strip():
            yield self.fail(self.missing, evidence=evidence, between=between)
        elif prompt.startswith(bare) and answered.startswith(bare) and other:
            yield self.fail(self.other_header, evidence=evidence, header=header, other=other)
        else:
            yield self.ok(self.right, evidence=evidence, header=header)
