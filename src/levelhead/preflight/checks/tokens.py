"""Token ids fit the model, survive a checkpoint and a tool call, and reach the trainer as they were sampled."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome


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

    def run(self, context: Context) -> Iterator[Outcome]:
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

    def run(self, context: Context) -> Iterator[Outcome]:
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

    def run(self, context: Context) -> Iterator[Outcome]:
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
