"""A tokenizer's fingerprint: what it makes of fixed probe texts, kept beside it and compared when it is loaded again.

The class that a library picks for a saved tokenizer can change with the library's version or with a file beside it, and
another class may split or normalise text otherwise: weights would then read other tokens than they were trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from levelhead.errors import InputError

FILE = "tokenizer_fingerprint.json"
"""Name of the fingerprint in a saved model's folder."""

PROBES: tuple[str, ...] = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    if x:\n        return  x\n\treturn -x\n",
    "  two blanks   three    four, and one behind ",
    " a blank before",
    "line\nbreaks\n\n\nand \n blanks\r\nCR LF\r\n\r\nCR\rtab\t\ttabs",
    "cafe\u0301 e\u0302tre A\u030a",
    "caf\u00e9 \u00eatre \u00c5 \u212b",
    "\ufb01ne \u00bd x\u00b2 \uff21\uff22 \u2126 \u2460",
    "\u0130stanbul STRASSE stra\u00dfe \u01c5",
    "\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1f0 \u2764\ufe0f",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u1112\u1161\u11ab",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "a\u00a0b\u2003c\u200bd\ufeffe\u00adf\u2028g",
    "12345 3.14159 1,000,000 -7 2e-05 0x1F 10%",
    "don't I'LL we've 'tis rock'n'roll O\u2019Neil",
    "a.b,c;d:e!f?g (h) [i] {j} <k> \"l\" 'm' `n` @o #p $q ^r &s *t ~u |v \\w /x _y =z +",
    "https://example.org/a_b?c=d&e=f#g user@example.org C:\\temp\\new",
    "snake_case camelCase PascalCase SCREAMING kebab-case",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><s></s><pad><eos><bos><unk>[INST][/INST][CLS]",
    "<start_of_turn>model\n<|eot_id|><|start_header_id|>system<|end_header_id|><think>\n</think><tool_call>",
    "\x00\x01\x1b[31m\x7f\x85",
    "\n",
    " ",
    "",
)
"""Texts that pre-tokenizers, normalisers and special tokens take apart differently."""


class Vocabulary(Protocol):
    """What a fingerprint is taken of: a codec, as far as it is looked at."""

    tokenizer: Any
    stop_ids: frozenset[int]

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of the tokenizer's tokens."""
        ...


def take(codec: Vocabulary) -> dict[str, Any]:
    """Return the fingerprint of a codec's tokenizer, as JSON data.

    Besides the fixed probes it holds one with the tokenizer's own special tokens, its size, its stop and padding
    tokens, and a hash of its chat template.
    """
    tokenizer = codec.tokenizer
    own = " x".join(map(str, tokenizer.all_special_tokens))
    return {
        "class": type(tokenizer).__name__,
        "transformers": metadata.version("transformers"),
        "vocabulary": codec.vocab_size,
        "stop_ids": sorted(codec.stop_ids),
        "pad_id": codec.pad_id,
        "chat_template": _digest(tokenizer.chat_template),
        "probes": [_reading(tokenizer, text) for text in dict.fromkeys((*PROBES, own))],
    }


def difference(codec: Vocabulary, saved: Mapping[str, Any], *, template: bool = True) -> str | None:
    """Return in one line where a codec's tokenizer differs from a fingerprint; ``None`` where it does not.

    Args:
        codec: The tokenizer as it was loaded.
        saved: What :func:`take` gave.
        template: Whether chat template and stop tokens are compared too.

    Raises:
        KeyError, TypeError: ``saved`` is no fingerprint.
    """
    for probe in saved["probes"]:
        now = _reading(codec.tokenizer, str(probe["text"]))
        if now["ids"] != probe["ids"]:
            return f"the probe {probe['text']!r} gives the tokens {_part(now['ids'], probe['ids'])}"
        if now["decoded"] != probe["decoded"]:
            return (
                f"the probe {probe['text']!r} comes back as {now['decoded']!r}, and came back as {probe['decoded']!r}"
            )
    if codec.vocab_size != saved["vocabulary"]:
        return f"it has {codec.vocab_size} tokens, and had {saved['vocabulary']}"
    if not template:
        return None
    if _digest(codec.tokenizer.chat_template) != saved["chat_template"]:
        return "its chat template is another one"
    if sorted(codec.stop_ids) != saved["stop_ids"]:
        return f"its stop tokens are {sorted(codec.stop_ids)}, and were {saved['stop_ids']}"
    if codec.pad_id != saved["pad_id"]:
        return f"its padding token is {codec.pad_id}, and was {saved['pad_id']}"
    return None


def write(codec: Vocabulary, folder: Path) -> None:
    """Write the fingerprint beside a saved tokenizer."""
    (folder / FILE).write_text(json.dumps(take(codec)) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any] | None:
    """Read the fingerprint of a folder; ``None`` where it has none, as those written before there were any.

    Raises:
        InputError: It cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged: {error}") from None
    if not isinstance(saved, dict) or not isinstance(saved.get("probes"), list):
        raise InputError(f"{path}: damaged: it holds no probes")
    return saved


def verify(codec: Vocabulary, folder: Path, *, template: bool = True) -> None:
    """Compare a loaded tokenizer with the fingerprint in its folder, where it has one.

    Raises:
        InputError: They differ; the message names the folder and the first probe that does.
    """
    saved = read(folder)
    if saved is None:
        return
    try:
        wrong = difference(codec, saved, template=template)
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / FILE}: damaged: {error!r}") from None
    if wrong is not None:
        then = f"{saved.get('class')}, transformers {saved.get('transformers')}"
        now = f"{type(codec.tokenizer).__name__}, transformers {metadata.version('transformers')}"
        raise InputError(
            f"{folder}: the tokenizer is not the one that the weights were trained with: {wrong} "
            f"(loaded as {now}; saved as {then})"
        )


def _reading(tokenizer: Any, text: str) -> dict[str, Any]:
    """What a tokenizer makes of a text, and that of its tokens."""
    ids = [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]
    return {"text": text, "ids": ids, "decoded": str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))}


def _digest(template: Any) -> str:
    """Hash of a chat template, or of several by name; line breaks count alike, as they do when it is rendered."""
    text = json.dumps(template, sort_keys=True).replace("\\r\\n", "\\n")
    return hashlib.sha256(text.encode()).hexdigest()


def _part(now: Sequence[int], then: Sequence[int]) -> str:
    """The first place where two lists of ids part."""
    at = next((i for i, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), min(len(now), len(then)))
    return f"{list(now[at : at + 3])} from its token {at + 1} on, and gave {list(then[at : at + 3])}"
