"""Every id of the tokenizer has a row in the embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

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
        """Yield one outcome."""
        embedding: Any = context.policy.base.get_input_embeddings()
        rows = int(embedding.weight.shape[0])
        size, stops = context.codec.vocab_size, sorted(context.codec.stop_ids)
        highest = max([size - 1, *stops])
        evidence = {"tokenizer": size, "embedding_rows": rows, "stop_ids": stops}
        if highest >= rows:
            yield self.fail(self.too_large, evidence=evidence, highest=highest, rows=rows)
        else:
            yield self.ok(self.fits, evidence=evidence, size=size, rows=rows)
