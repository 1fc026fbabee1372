"""A small tokenizer trained on the tasks' own text, for policies that start from nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# A word without end is cut: merges within one cost the square of its length.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}{1,256}| ?[^\s\p{L}\p{N}]{1,256}|\s{1,256}(?!\S)|\s{1,256}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with a ChatML template; the same texts give the same tokenizer.

    Digits are split one by one, and every byte is in the vocabulary: any text can be encoded and comes back
    unchanged.

    Args:
        texts: What to learn merges from.
        vocab_size: Upper bound on the number of tokens, the 3 special tokens and 256 bytes included.

    Raises:
        ValueError: ``vocab_size`` cannot hold the bytes and the special tokens.
    """
    special = [PAD, TURN_START, TURN_END]
    smallest = 256 + len(special)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size is {vocab_size}; a byte-level vocabulary with 3 special tokens needs {smallest}")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [
            Digits(individual_digits=True),
            Split(Regex(_WORDS), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=TURN_END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
