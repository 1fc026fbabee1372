"""The tokenizer of a checkpoint is the one that the run trains with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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
        """Yield one outcome."""
        import tempfile
        from pathlib import Path

        from transformers import GenerationConfig

        from levelhead.errors import InputError
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
