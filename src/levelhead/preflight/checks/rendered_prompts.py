"""Prompts are the template's rendering of their messages, whole, generation prompt included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class RenderedPrompts(Check):
    """Compares the ids of the run's prompts with the tokenizer's own rendering of their messages."""

    name = "tokens/context"
    needs = "data"
    proves = Message(
        "The policy reads the messages of each prompt as the template renders them, whole, generation prompt included.",
        "策略读到的是模板渲染出的完整提示词，包括生成提示。",
    )
    how = Message(
        "Renders short, long and middling prompts of every task as the run does, decodes the ids, and compares them "
        "with the tokenizer's own rendering.",
        "按训练的方式渲染每个任务的长短提示词，解码 id，并与分词器自己的渲染比较。",
    )
    cannot = Message(
        "It looks at a few prompts per task; what the sampler really read is compared by tokens/made-once.",
        "每个任务只看几条提示词；采样端实际读到的由 tokens/made-once 比较。",
    )
    right = Message("{count} prompts are their rendered messages, whole", "{count} 条提示词都是完整渲染的消息")
    _fix = Fix(
        "cut long messages before they are rendered, never the rendered ids; leave long items out with tasks[].limit",
        "长消息要在渲染之前截短，绝不能截渲染之后的 id；过长的题用 tasks[].limit 排除",
    )
    cut = Message(
        "the prompt {id!r} lacks its generation prompt: it ends with {end}, not with {header!r}; it was cut to "
        "{length} of {whole} tokens",
        "题目 {id!r} 的提示词缺少生成提示：它以 {end} 结尾，而不是 {header!r}；它被截为 {length} 个 token，原有 "
        "{whole} 个",
        fix=_fix,
    )
    other = Message(
        "the prompt {id!r} has {length} tokens where the template gives {whole}; they part at token {at}",
        "题目 {id!r} 的提示词有 {length} 个 token，而模板给出 {whole} 个；两者从第 {at} 个 token 起不同",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        from levelhead.preflight.rendering import by_template, parting, spelled

        codec, count = context.codec, 0
        lengths: dict[str, list[int]] = {}
        for prompt in (p for prompts in context.prompts.values() for p in prompts):
            count += 1
            ids = prompt.token_ids
            lengths.setdefault(prompt.task, []).append(len(ids))
            text = by_template(codec, prompt.messages, prompt.chat, generation=True)
            bare = by_template(codec, prompt.messages, prompt.chat, generation=False)
            header = text.removeprefix(bare) if text.startswith(bare) else ""
            actual = str(codec.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
            whole = codec.tokenizer.encode(text, add_special_tokens=False)
            plain = (
                not codec.template.control_tokens_in(prompt.messages, prompt.chat)
                and not codec.template.reads_the_clock
            )
            fields: dict[str, Any] = {"id": prompt.id, "length": len(ids), "whole": len(whole)}
            if header and not _ends_with(actual, header):
                yield self.fail(self.cut, end=spelled(codec, ids[-4:]), header=header, **fields)
                return
            if plain and list(ids) != list(whole) and actual.lstrip() != text.lstrip():
                yield self.fail(self.other, at=parting(ids, whole), **fields)
                return
        yield self.ok(self.right, evidence={"tokens": lengths}, count=count)


def _ends_with(text: str, header: str) -> bool:
    if header.isspace():
        return text.endswith(header)
    return "".join(text.split()).endswith("".join(header.split()))
