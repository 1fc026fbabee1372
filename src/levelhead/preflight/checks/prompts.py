"""Prompts are what the chat template renders, and the same for supervised steps and rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome

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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Compare the template with and without a generation prompt."""
        from levelhead.preflight.rendering import by_template
        from levelhead.text.spans import common_prefix
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
        at = common_prefix(header, before)
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
        "It looks at a few prompts per task.",
        "每个任务只看几条提示词。",
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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Compare every sampled prompt with the template's own rendering."""
        from levelhead.preflight.rendering import by_template, spelled
        from levelhead.text.spans import common_prefix

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
                yield self.fail(self.other, at=common_prefix(ids, whole), **fields)
                return
        yield self.ok(self.right, evidence={"tokens": lengths}, count=count)


def _ends_with(text: str, header: str) -> bool:
    if header.isspace():
        return text.endswith(header)
    return "".join(text.split()).endswith("".join(header.split()))


class SamePrompt(Check):
    """Compares the demonstrations of some prompts with the prompts that are sampled from."""

    name = "tokens/same-prompt"
    needs = "data"
    proves = Message(
        "Supervised steps and rollouts read identical token ids for the same prompt, and a demonstration is what the "
        "task's oracle wrote.",
        "对同一道题，监督微调与采样读到完全相同的 token id，而示范正是任务的标准答案。",
    )
    how = Message(
        "Builds the demonstrations of some prompts as the supervised stage does and compares their ids with the "
        "prompts' and their text with the oracle's.",
        "按监督微调的方式构造一些题目的示范，比较 id 与提示词、文本与标准答案。",
    )
    cannot = Message(
        "It does not judge whether the oracle's answer is right (rewards/order does). Episodes of several turns are "
        "left to the demonstrations that the environment gives.",
        "它不判断标准答案是否正确（由 rewards/order 判断）。多轮回合的示范由环境给出，不在此列。",
    )
    right = Message(
        "supervised and rollout prompts have identical ids ({compared} compared)",
        "监督微调与采样的提示词 id 相同（比较了 {compared} 条）",
    )
    nothing = Message("no demonstration without an environment to compare", "没有不依赖环境的示范可比较")
    other_prompt = Message(
        "for prompt {id!r} the supervised stage reads {shown} tokens and rollouts {sampled}; they part at token {at}: "
        "{here} against {there}",
        "对题目 {id!r}，监督微调读到 {shown} 个 token，而采样读到 {sampled} 个；两者从第 {at} 个 token 起不同：{here} "
        "与 {there}",
        fix=Fix(
            "render both with Codec.render and Codec.demonstration",
            "两边都用 Codec.render 和 Codec.demonstration 渲染",
        ),
    )
    other_answer = Message(
        "the demonstration of {id!r} reads {shown!r} where the oracle wrote {wanted!r}",
        "题目 {id!r} 的示范是 {shown!r}，而标准答案是 {wanted!r}",
        fix=Fix(
            "check the chat template: it must render an answer as it is; keep what it drops out of the oracle's "
            "answers",
            "检查对话模板：它应原样渲染回答；标准答案中不要含有它会去掉的内容",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        from levelhead.preflight.rendering import behind_prompt, spelled
        from levelhead.text.spans import common_prefix

        if context.recipe.sft is None:
            return
        codec, compared = context.codec, 0
        for name, prompts in context.prompts.items():
            task = context.setup.tasks[name]
            for prompt in [] if task.demonstrates else [p for p in prompts if task.oracle(p)]:
                (pair,) = context.demonstrations([prompt])
                compared += 1
                if pair.context_ids != prompt.token_ids:
                    at = common_prefix(pair.context_ids, prompt.token_ids)
                    here = spelled(codec, pair.context_ids[at : at + 4])
                    there = spelled(codec, prompt.token_ids[at : at + 4])
                    sizes: dict[str, Any] = {"shown": len(pair.context_ids), "sampled": len(prompt.token_ids)}
                    yield self.fail(self.other_prompt, id=prompt.id, at=at, here=here, there=there, **sizes)
                    return
                (answer,) = task.oracle(prompt) or [""]
                wanted = behind_prompt(codec, prompt, answer)
                shown = codec.decode(pair.completion_ids, prompt.chat)
                if "".join(wanted.split()) not in "".join(shown.split()):
                    yield self.fail(self.other_answer, id=prompt.id, shown=shown[:60], wanted=wanted[:60])
                    return
        yield self.ok(self.right, compared=compared) if compared else self.ok(self.nothing)
