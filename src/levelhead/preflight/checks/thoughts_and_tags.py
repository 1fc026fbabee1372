"""What texts say reaches the policy and the reward: thoughts, tags, special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from levelhead.errors import InputError
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.preflight.known import known_answers, scores_of, total_of
from levelhead.tasks.base import SingleTurnTask
from levelhead.text.thoughts import Thought, holds_thought

if TYPE_CHECKING:
    from levelhead.text.template import ChatTemplate

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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from levelhead.preflight.rendering import opened_thought
        from levelhead.text.traits import left_out, probe

        codec = context.codec
        for name, task in context.setup.tasks.items():
            prompts = list(islice(task.prompts("train", 0), LOOKED_AT))
            lost = [part for prompt in prompts if (part := left_out(codec, prompt.messages, prompt.chat))]
            if lost:
                role, text = lost[0][0]
                evidence, counts = {"left_out": lost[:5]}, {"count": len(lost), "prompts": len(prompts)}
                yield self.warn(self.dropped, name, evidence=evidence, role=role, text=text[:60], **counts)
                continue
            if not isinstance(task, SingleTurnTask) and probe(codec).drops_reasoning:
                yield self.warn(self.unseen, name)
                continue
            mark = opened_thought(codec, prompts[0]) if prompts else Thought()
            answers = [answer for prompt in prompts for answer in (task.oracle(prompt) or ())[:1]]
            silent = [answer for answer in answers if not holds_thought(answer)]
            if context.recipe.sft is not None and mark.start is not None and silent:
                counts = {"count": len(silent), "prompts": len(answers)}
                yield self.warn(self.thoughtless, name, tag=mark.tag, closer=mark.closer, **counts)
            else:
                yield self.ok(self.right, name, prompts=len(prompts))


READ = 256
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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from levelhead.tasks.function.loading import texts_of_rewards
        from levelhead.text.rendered import plain, strings

        template = context.codec.template
        for name, task in context.setup.tasks.items():
            tokens: dict[str, None] = {}
            prompts = answers = asked = 0
            options, before, mark = None, 0, ""
            frames = _frames(template)
            for prompt in islice(task.prompts("train", 0), READ):
                prompts, options = prompts + 1, prompt.chat
                if sign := _rendered(" ".join(strings([plain(m) for m in prompt.messages])), frames):
                    before, mark = before + 1, mark or sign
                in_prompt = template.control_tokens_in(prompt.messages, options)
                in_answer = template.control_tokens_in(task.oracle(prompt) or (), options)
                answers, asked = answers + bool(in_answer), asked + bool(in_prompt)
                tokens.update(dict.fromkeys((*in_prompt, *in_answer)))
            files = 0
            for texts in texts_of_rewards(task):
                controls = template.control_tokens_in(texts, options) if options is not None else ()
                files += bool(controls)
                tokens.update(dict.fromkeys(controls))
            counts = {"prompts": prompts, "answers": answers, "asked": asked, "files": files}
            evidence = {"tokens": list(tokens)}
            if before:
                yield self.warn(self.rendered, name, evidence=evidence, count=before, prompts=prompts, mark=mark)
            elif tokens:
                yield self.warn(self.spelled, name, evidence=evidence, tokens=", ".join(tokens), **counts)
            else:
                yield self.ok(self.right, name)


def _frames(template: ChatTemplate) -> tuple[str, str]:
    """Return what the run's template writes before the text of a user's turn, and before an answer."""
    try:
        chat = [{"role": "user", "content": "QZX"}]
        asked = template.render(chat, generation_prompt=False).text
        header = template.render(chat, generation_prompt=True).text.removeprefix(asked)
    except InputError:
        return "", ""
    return asked.partition("QZX")[0].rstrip().rpartition("\n")[2], header.strip()


def _rendered(text: str, frames: tuple[str, str]) -> str:
    """Return the mark by which a text shows that it was rendered; empty where it shows none."""
    opening, header = frames
    if header and header in text and (text.rstrip().endswith(header) or (opening and opening in text)):
        return header
    marks = re.findall(_FAMILIES, text)
    return marks[0] if len(marks) > 1 else ""


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules and whose prompts open a thought."""
        from levelhead.preflight.rendering import opened_thought

        for name in context.scorable:
            probes = known_answers(context, name)
            if probes is None:
                continue
            mark = opened_thought(context.codec, probes.answers[0].prompt)
            if mark.start is None:
                continue
            perfect = [a for kind, a in zip(probes.kinds, probes.answers, strict=True) if kind == "oracle"]
            texts = [context.codec.decode(a.token_ids, a.prompt.chat) for a in perfect]
            thoughtful = [
                f"one reason\n{mark.closer}\n\n{end}" for end in ("7", "<answer>7</answer>", "<answer>\n7\n</answer>")
            ]
            answers = [replace(a, text=text) for a, text in zip(perfect, texts, strict=True)]
            answers += [replace(probes.answers[0], text=text) for text in thoughtful]
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
