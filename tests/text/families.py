"""Small tokenizers and chat templates in the shapes of the usual model families."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from levelhead.text.codec import Codec

TEMPLATES = Path(__file__).parent / "templates"
CORPUS = [
    "The user asked which of them forgot the name, and the assistant answered: the information does not say.",
    "Question 12: who was late? A. The nurse B. The doctor C. Unknown. Answer: C because nobody tells.",
    "system\nBe fair and careful.\nuser\nWho? assistant\nLine one\nLine two\n\n",
    "think of 3 + 4 = 7\n\n",
] * 4


@dataclass(frozen=True)
class Family:
    """How a family's tokenizer is set up, and what the codec must find out about it."""

    eos: str
    pad: str | None
    stops: frozenset[str]
    closing: str
    bos: str | None = None
    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    """Added tokens that are not special: text may hold them."""
    sentencepiece: bool = False
    generation_eos: tuple[str, ...] = ()
    tools: bool = True
    judged: frozenset[str] = field(default_factory=frozenset)


# A full-width bar, as the family spells its tokens.
BAR = "\uff5c"

FAMILIES = {
    "llama3": Family(
        eos="<|end_of_text|>",
        pad=None,
        bos="<|begin_of_text|>",
        special=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        generation_eos=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        stops=frozenset({"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"}),
        closing="<|eot_id|>",
        judged=frozenset({"pad-missing"}),
    ),
    "qwen25": Family(
        eos="<|im_end|>",
        pad="<|endoftext|>",
        special=("<|im_start|>",),
        plain=("<tool_call>", "</tool_call>"),
        generation_eos=("<|im_end|>", "<|endoftext|>"),
        stops=frozenset({"<|im_end|>", "<|endoftext|>"}),
        closing="<|im_end|>",
        judged=frozenset({"pad-is-stop"}),
    ),
    "qwen3": Family(
        eos="<|im_end|>",
        pad="<|endoftext|>",
        special=("<|im_start|>",),
        plain=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        stops=frozenset({"<|im_end|>"}),
        closing="<|im_end|>",
    ),
    "gemma": Family(
        eos="<eos>",
        pad="<pad>",
        bos="<bos>",
        special=("<start_of_turn>", "<end_of_turn>"),
        sentencepiece=True,
        stops=frozenset({"<eos>", "<end_of_turn>"}),
        closing="<end_of_turn>",
        tools=False,
        judged=frozenset({"eos-is-not-end-of-turn"}),
    ),
    "mistral": Family(
        eos="</s>",
        pad=None,
        bos="<s>",
        special=(
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        sentencepiece=True,
        stops=frozenset({"</s>"}),
        closing="</s>",
        judged=frozenset({"pad-missing"}),
    ),
    "phi": Family(
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        special=("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
        stops=frozenset({"<|endoftext|>", "<|end|>"}),
        closing="<|end|>",
        tools=False,
        judged=frozenset({"pad-is-stop", "eos-is-not-end-of-turn"}),
    ),
    "lfm2": Family(
        eos="<|im_end|>",
        pad="<|pad|>",
        bos="<|startoftext|>",
        special=(
            "<|im_start|>",
            "<|tool_list_start|>",
            "<|tool_list_end|>",
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            "<|tool_response_start|>",
            "<|tool_response_end|>",
        ),
        stops=frozenset({"<|im_end|>"}),
        closing="<|im_end|>",
    ),
    "smollm": Family(
        eos="<|im_end|>",
        pad="<|im_end|>",
        special=("<|im_start|>", "<|endoftext|>"),
        stops=frozenset({"<|im_end|>"}),
        closing="<|im_end|>",
        tools=False,
        judged=frozenset({"pad-is-stop"}),
    ),
    "deepseek": Family(
        eos=f"<{BAR}end▁of▁sentence{BAR}>",
        pad=f"<{BAR}end▁of▁sentence{BAR}>",
        bos=f"<{BAR}begin▁of▁sentence{BAR}>",
        special=(
            f"<{BAR}User{BAR}>",
            f"<{BAR}Assistant{BAR}>",
            f"<{BAR}tool▁calls▁begin{BAR}>",
            f"<{BAR}tool▁calls▁end{BAR}>",
            f"<{BAR}tool▁output{BAR}>",
        ),
        plain=("<think>", "</think>"),
        tools=False,
        stops=frozenset({f"<{BAR}end▁of▁sentence{BAR}>"}),
        closing=f"<{BAR}end▁of▁sentence{BAR}>",
        judged=frozenset({"pad-is-stop"}),
    ),
}


# How texts are split into words: line breaks in a row stay together, or (as in GPT-2) the last one stands apart
# where a word follows, so that the end of a prompt reads differently once something follows it.
LINES_TOGETHER = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LAST_LINE_APART = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tokenizer_of(name: str, words: str = LINES_TOGETHER) -> PreTrainedTokenizerFast:
    """Train the family's small tokenizer; it adds its bos by itself when asked for special tokens."""
    family = FAMILIES[name]
    special = list(dict.fromkeys(t for t in (family.bos, family.pad, family.eos, *family.special) if t))
    if family.sentencepiece:
        backend = Tokenizer(models.BPE(byte_fallback=True, unk_token=None, fuse_unk=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False), decoders.Fuse()]
        )
        trainer = trainers.BpeTrainer(vocab_size=264, special_tokens=special, show_progress=False, max_token_length=8)
        texts: list[str] = [word for line in CORPUS for word in re.split(r"(?= )|(?=\n)|(?<=\n)", line)]
    else:
        backend = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(words), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        texts = CORPUS
    backend.train_from_iterator(texts, trainer)
    if family.sentencepiece:
        backend = _with_bytes(backend)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    if family.bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, backend.token_to_id(family.bos))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=family.bos,
        eos_token=family.eos,
        pad_token=family.pad,
        additional_special_tokens=list(family.special),
    )
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return tokenizer


def _with_bytes(backend: Tokenizer) -> Tokenizer:
    """Add the 256 byte tokens that characters outside the vocabulary fall back to."""
    written = json.loads(backend.to_str())
    vocab = written["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    return Tokenizer.from_str(json.dumps(written))


@cache
def codec_of(name: str, **template_kwargs: bool) -> Codec:
    """Return the family's codec, made once."""
    tokenizer = tokenizer_of(name)
    generation_eos = [tokenizer.convert_tokens_to_ids(token) for token in FAMILIES[name].generation_eos]
    return Codec(tokenizer, generation_eos=generation_eos, template_kwargs=template_kwargs)
