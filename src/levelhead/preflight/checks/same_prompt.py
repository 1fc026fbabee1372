"""Supervised steps and rollouts read the same ids for the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        from levelhead.preflight.rendering import behind_prompt, parting, spelled

        if context.recipe.sft is None:
            return
        codec, compared = context.codec, 0
        for name, prompts in context.prompts.items():
            task = context.setup.tasks[name]
            for prompt in [] if task.demonstrates else [p for p in prompts if task.oracle(p)]:
                (pair,) = context.demonstrations([prompt])
                compared += 1
                if pair.context_ids != prompt.token_ids:
                    at = parting(pair.context_ids, prompt.token_ids)
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
