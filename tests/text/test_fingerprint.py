"""A tokenizer is recognised by what it makes of fixed texts, whatever its class and version say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from levelhead.errors import InputError
from levelhead.text import fingerprint
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from text.families import FAMILIES, codec_of

TEXTS = ["def f(x):\n    return  x  # caf\u00e9"] * 3


def codec() -> Codec:
    return Codec(train_tokenizer(TEXTS, 300))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_tokenizer_equals_its_own_fingerprint_after_json(name: str) -> None:
    saved = json.loads(json.dumps(fingerprint.take(codec_of(name))))
    assert fingerprint.difference(codec_of(name), saved) is None


def words(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize(
    "normalizer", [normalizers.NFC(), normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace("\r", "")]
)
def test_another_normaliser_is_seen(normalizer: normalizers.Normalizer) -> None:
    saved, other = fingerprint.take(codec()), codec()
    other.tokenizer.backend_tokenizer.normalizer = normalizer
    assert "the probe" in str(fingerprint.difference(other, saved))


@pytest.mark.parametrize("pattern", [r"\s+|\S+", r" ?\S+|\s+", r"\n|[^\n]+"])
def test_another_way_of_splitting_words_is_seen(pattern: str) -> None:
    saved, other = fingerprint.take(codec()), codec()
    other.tokenizer.backend_tokenizer.pre_tokenizer = words(pattern)
    assert "the probe" in str(fingerprint.difference(other, saved))


def test_another_special_token_template_and_vocabulary_are_seen() -> None:
    saved = fingerprint.take(codec())
    taught = codec()
    taught.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    assert "<think>" in str(fingerprint.difference(taught, saved))
    longer = codec()
    longer.tokenizer.add_tokens(["never seen in a probe"])
    assert "it has 2" in str(fingerprint.difference(longer, saved))
    other = Codec(train_tokenizer(TEXTS, 300), chat_template="{{ messages[0]['content'] }}<|im_end|>")
    assert fingerprint.difference(other, saved) == "its chat template is another one"
    assert fingerprint.difference(other, saved, template=False) is None
    stops = Codec(train_tokenizer(TEXTS, 300), generation_eos=[7])
    assert "its stop tokens are" in str(fingerprint.difference(stops, saved))


def test_the_error_is_one_line_with_folder_and_probe(tmp_path: Path) -> None:
    codec().save(tmp_path)
    other = codec()
    other.tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    with pytest.raises(InputError) as error:
        fingerprint.verify(other, tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert "'cafe\u0301 " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"probes": 1}', '{"probes": [1]}', '{"probes": []}'])
def test_a_damaged_fingerprint_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / fingerprint.FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer_fingerprint\.json: damaged"):
        fingerprint.verify(codec(), tmp_path)


def test_a_folder_of_before_fingerprints_is_taken_as_it_is(tmp_path: Path) -> None:
    fingerprint.verify(codec(), tmp_path)
