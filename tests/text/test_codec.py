from __future__ import annotations

import pytest

from levelhead.errors import InputError
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer

MESSAGES = [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Who? A. B. C."}]


def codec() -> Codec:
    return Codec(train_tokenizer(["Who forgot? A. The nurse B. The doctor"] * 3, 300))


def test_a_demonstration_starts_from_exactly_what_a_rollout_sees():
    c = codec()
    assert c.demonstration(MESSAGES, "A").context_ids == c.render(MESSAGES)


def test_a_demonstration_is_the_answer_and_one_stop_token():
    c = codec()
    ids = c.demonstration(MESSAGES, "A").completion_ids
    assert [c.tokenizer.decode([i]) for i in ids] == ["A", "<|im_end|>"]
    assert c.decode(ids) == "A"


def test_a_tokenizer_without_template_says_how_to_give_one():
    tokenizer = train_tokenizer(["a"], 300)
    tokenizer.chat_template = None
    with pytest.raises(InputError, match=r"model\.chat_template: FILE"):
        Codec(tokenizer)
