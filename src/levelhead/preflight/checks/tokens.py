"""Token ids fit the model, survive a checkpoint and a tool call, and reach the trainer as they were sampled."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError
from levelhead.preflight.check import Check, Fix, Message, Outcome
from levelhead.tasks.base import SingleTurnTask

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class Vocabulary(Check):
    """Compares the tokenizer's ids with the rows of the embedding."""

    name = "tokens/vocabulary"
    needs, decisive = "data", True
    proves = Message(
        "Every id that the tokenizer can make, stop tokens included, has a row in the model's embedding.",
        "分词器能产生的每个 id（包括停止符）在模型的嵌入中都有一行。",
    )
    how = Message("Compares the largest id with the number of rows.", "比较最大的 id 与嵌入的行数。")
    cannot = Message(
        "A tokenizer of the right size may still be another model's: its answers are then noise.",
        "大小相符的分词器仍可能属于别的模型，那时的回答只是噪声。",
    )
    fits = Message("{size} ids fit {rows} embedding rows", "{size} 个 id，嵌入有 {rows} 行")
    too_large = Message(
        "the tokenizer has ids up to {highest}, and the model's embedding only {rows} rows: nothing else can be "
        "checked",
        "分词器的 id 最大到 {highest}，而模型的嵌入只有 {rows} 行：其余无从检查",
        fix=Fix(
            "use the model's own tokenizer, or resize the embedding and save the model before training",
            "使用模型自己的分词器，或在训练前调整嵌入的大小并保存模型",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Compare the tokenizer's ids with the rows of the embedding."""
        embedding: Any = context.policy.base.get_input_embeddings()
        rows = int(embedding.weight.shape[0])
        size, stops = context.codec.vocab_size, sorted(context.codec.stop_ids)
        highest = max([size - 1, *stops])
        evidence = {"tokenizer": size, "embedding_rows": rows, "stop_ids": stops}
        if highest >= rows:
            yield self.fail(self.too_large, evidence=evidence, highest=highest, rows=rows)
        else:
            yield self.ok(self.fits, evidence=evidence, size=size, rows=rows)


class TokenizerRoundTrip(Check):
    """Saves the tokenizer as a checkpoint does, loads it again, and compares."""

    name = "tokens/round-trip"
    needs = "data"
    proves = Message(
        "The tokenizer that a checkpoint will hold makes the same tokens as the one that the run trains with.",
        "检查点中的分词器与训练所用的分词器产生相同的 token。",
    )
    how = Message(
        "Saves it as a checkpoint does, loads it again, and compares the tokens of a few texts that differ between "
        "tokenizer classes.",
        "像检查点那样保存并重新加载，比较几段在不同分词器类之间会有差异的文本。",
    )
    cannot = Message(
        "It tries a few probe texts, not every one, and this version of the library alone.",
        "只试几段探测文本，而且只针对当前版本的库。",
    )
    right = Message(
        "saved and loaded again, the tokenizer gives the same tokens", "分词器保存再加载之后，产生的 token 相同"
    )
    changed = Message(
        "saved and loaded again, {error}",
        "分词器保存再加载之后：{error}",
        fix=Fix(
            "set model.tokenizer to a folder where it was saved as "
            "PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer), which is loaded as it is",
            "把分词器存为 PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)，它会原样加载；再把 "
            "model.tokenizer 设为该文件夹",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Save the tokenizer, load it again and compare."""
        from transformers import GenerationConfig

        from levelhead.policy.load import load_saved_codec

        codec = context.codec
        evidence = {"class": type(codec.tokenizer).__name__}
        with tempfile.TemporaryDirectory(prefix="levelhead-") as name:
            folder = Path(name)
            codec.save(folder)
            if not context.policy.lora:  # these files decide which class is loaded, and where generation stops
                context.policy.base.config.save_pretrained(str(folder))
                GenerationConfig(eos_token_id=sorted(codec.stop_ids)).save_pretrained(str(folder))
            try:
                evidence["loaded_as"] = type(load_saved_codec(context.recipe.model, folder).tokenizer).__name__
            except InputError as error:
                yield self.fail(self.changed, evidence=evidence, error=str(error).removeprefix(f"{folder}: "))
                return
        yield self.ok(self.right, evidence=evidence)


class ToolCalls(Check):
    """Renders a call of each tool with arguments of its types, and reads it again."""

    name = "tools/round-trip/TASK"
    needs = "data"
    proves = Message(
        "A call of each tool goes through the chat template and is read again, and its result is shown.",
        "对每个工具的调用经过对话模板后能再读出来，其结果也会显示。",
    )
    how = Message(
        "Renders a call with arguments of the schema's types and a result, and parses what the template wrote.",
        "按模式的类型渲染一次调用及其结果，再解析模板写出的文字。",
    )
    cannot = Message(
        "Whether the policy writes calls at all: completions and failed_calls show it.",
        "策略究竟会不会写调用：请看采样和 failed_calls。",
    )
    right = Message("{tools} in the format {format}", "{tools}，格式为 {format}")
    wrong = Message("{error}", "{error}")

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield an outcome per task with tools that are executed."""
        for name, task in context.setup.tasks.items():
            if task.tools is None or not task.tools.names:
                continue
            try:
                task.tools.learn_format(context.codec, name, task.tools.room)
            except InputError as error:
                yield self.fail(self.wrong, name, error=str(error))
            else:
                yield self.ok(self.right, name, tools=", ".join(task.tools.names), format=task.tools.format)


class MadeOnce(Check):
    """Compares what the sampler returned with what comes out of the collector, id for id."""

    name = "tokens/made-once"
    needs = "rollouts"
    proves = Message(
        "The completions that reach the trainer are the tokens that were sampled, none added, dropped or made anew, "
        "and each was sampled behind the prompt of its group.",
        "到达训练端的输出正是采样得到的 token，没有增加、丢失或重新分词，而且都是在本组的提示词之后采样的。",
    )
    how = Message(
        "Remembers what the sampler returns and compares it with what comes out of the collector.",
        "记下采样端返回的内容，与收集之后的比较。",
    )
    cannot = Message(
        "It cannot see a sampler that returns other tokens than it sampled; agreement/sampler does.",
        "采样端返回的不是它采样的 token 时这里看不出来，由 agreement/sampler 检查。",
    )
    right = Message("completions are exactly the tokens that were sampled", "输出正是采样得到的 token")
    changed = Message(
        "{count} of {all} completions are not the tokens that were sampled: {sampled} was sampled and {arrived} "
        "arrived",
        "{all} 条输出中有 {count} 条不是采样得到的 token：采样得到 {sampled}，收到的却是 {arrived}",
        fix=Fix(
            "pass the sampled ids on; never decode and tokenize again, append or cut on the way",
            "原样传递采样得到的 id；途中绝不要解码再分词、追加或截断",
        ),
    )
    other_prompt = Message(
        "a rollout in the group of prompt {id!r} has read another prompt: {length} tokens, where its own has {wanted}",
        "题目 {id!r} 的组里有一条采样读的是别的提示词：{length} 个 token，而它自己的有 {wanted} 个",
        fix=Fix(
            "order completions prompt by prompt, k of each, as prompts are ordered",
            "输出按题目的顺序排列，每题 k 条连在一起",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Compare the tokens in the batch with those sampled."""
        from levelhead.preflight.rendering import parting, spelled

        sampled = [turn for _, turns in context.sampled.turns for turn in turns]
        pairs = {(turn.context_ids, turn.completion_ids) for turn in sampled}
        arrived = context.turns
        changed = [turn for turn in arrived if (turn.context_ids, turn.completion_ids) not in pairs]
        if changed:
            first = changed[0]
            same = [turn for turn in sampled if turn.context_ids == first.context_ids] or sampled
            near = max(same, key=lambda turn: parting(turn.completion_ids, first.completion_ids))
            fields: dict[str, Any] = {
                "sampled": spelled(context.codec, near.completion_ids[-5:]),
                "arrived": spelled(context.codec, first.completion_ids[-5:]),
            }
            yield self.fail(self.changed, count=len(changed), all=len(arrived), **fields)
            return
        for group in context.sampled.groups:
            wanted = context.codec.render(group.prompt.messages, group.prompt.chat)
            single = isinstance(context.setup.tasks[group.prompt.task], SingleTurnTask)
            for rollout in group.rollouts if single else ():
                ids = rollout.turns[0].context_ids
                if rollout.prompt_id != group.prompt.id or tuple(ids) != tuple(wanted):
                    yield self.fail(self.other_prompt, id=group.prompt.id, length=len(ids), wanted=len(wanted))
                    return
        yield self.ok(self.right)
