from __future__ import annotations

import random
import time

import pytest
from transformers import AutoTokenizer

from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer

TEXTS = [f"Question {i}: who forgot the {i * 7} names? A. The nurse B. The doctor C. Unknown" for i in range(50)]


def test_the_same_texts_give_the_same_tokenizer():
    first, second = train_tokenizer(TEXTS, 400), train_tokenizer(TEXTS, 400)
    assert first.get_vocab() == second.get_vocab()
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_short_answers_are_one_token_and_digits_stand_alone():
    tokenizer = train_tokenizer(TEXTS, 400)
    for answer in ("A", "B", "C"):
        assert len(tokenizer.encode(answer)) == 1
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12345")] == list("12345")


@pytest.mark.parametrize("text", ["", "plain words", "1 + 2 = 3\n\n", "Zoë, 東京 🎲\t<|im"])
def test_any_text_comes_back_unchanged(text):
    tokenizer = train_tokenizer(TEXTS, 300)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_saved_and_loaded_it_is_the_same_codec(tmp_path):
    codec = Codec(train_tokenizer(TEXTS, 400))
    codec.save(tmp_path)
    again = Codec(AutoTokenizer.from_pretrained(tmp_path))
    messages = [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Who forgot?\nA. B. C."}]
    assert again.render(messages) == codec.render(messages)
    assert again.demonstration(messages, "C") == codec.demonstration(messages, "C")
    assert (again.stop_ids, again.stop_id, again.pad_id) == (codec.stop_ids, codec.stop_id, codec.pad_id)


def test_special_tokens_have_one_meaning_each():
    codec = Codec(train_tokenizer(TEXTS, 400))
    ids = codec.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert ids == [0, 1, 2]
    assert codec.pad_id == 0
    assert codec.stop_ids == {2}
    assert not codec.pad_collides


def test_a_vocabulary_too_small_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="259"):
        train_tokenizer(TEXTS, 100)


@pytest.mark.parametrize("letters", ["abcdefgh", "天地玄黄宇宙洪荒", "+-*/=#", "\n\t ", "0123456789"])
def test_a_word_of_a_million_characters_does_not_hold_up_the_tokenizer(letters: str) -> None:
    began = time.process_time()
    word = "".join(random.Random(0).choices(letters, k=1_000_000))
    tokenizer = train_tokenizer([word, "plain words", "plain words"], 400)
    assert tokenizer.decode(tokenizer.encode("plain words")) == "plain words"
    assert time.process_time() - began < 60
