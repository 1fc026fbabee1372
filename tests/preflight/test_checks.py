"""Every check is one class, with its texts in both languages beside each other, and is registered once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from string import Formatter

import pytest

import levelhead.preflight.checks as folder
from levelhead.diagnosis.chinese import IDEOGRAPH
from levelhead.preflight import CHECKS, Check, Message, preflight
from levelhead.preflight.check import NEEDS, Broken, Outcome
from levelhead.preflight.explain import CATALOGUE, stored
from levelhead.training.prepare import Setup
from preflight.mutations.tokens import foreign_stop, other_vocabulary, small_embedding
from preflight_setup import setup_of

EVERY = [*CHECKS, Broken]
ONLY_FIELDS = {"error", "fix"}
"""Fields of texts that are somebody else's words and nothing more."""


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_each_check_has_a_name_of_its_own_and_none_is_left_out_of_the_list() -> None:
    assert len({check.name for check in EVERY}) == len(EVERY)
    modules = [import_module(f"{folder.__name__}.{info.name}") for info in iter_modules(folder.__path__)]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    assert {kind for kind in classes if issubclass(kind, Check) and hasattr(kind, "name")} == set(CHECKS)


@pytest.mark.parametrize("check", EVERY, ids=lambda check: check.name)
def test_each_check_says_what_it_needs_and_explains_itself_in_both_languages(check: type[Check]) -> None:
    assert check.needs in NEEDS
    for text in (check.proves, check.how, check.cannot):
        assert text.en[0].isupper()
        assert text.en.endswith(".")
        assert IDEOGRAPH.search(text.zh)


@pytest.mark.parametrize("check", EVERY, ids=lambda check: check.name)
def test_each_message_has_the_same_fields_in_both_languages(check: type[Check]) -> None:
    assert check.messages()
    for key, message in check.messages().items():
        assert fields(message.en) == fields(message.zh), key
        assert IDEOGRAPH.search(message.zh) or fields(message.en) <= ONLY_FIELDS or message.zh == "K = {k}", key
        if message.fix is not None:
            assert fields(message.fix.en) == fields(message.fix.zh), key
            assert "see the" not in message.fix.en, key


def test_a_stored_outcome_is_read_in_the_language_of_the_reader() -> None:
    check = CATALOGUE["tokens/vocabulary"]
    outcome = Outcome(
        "tokens/vocabulary", "fail", check.messages()["too-large"], {"highest": 9, "rows": 5}, {}, check.name
    )
    row = outcome.to_json()
    assert row["id"] == "tokens/vocabulary:too-large"
    assert stored(row, "zh")[0] == "分词器的 id 最大到 9，而模型的嵌入只有 5 行：其余无从检查"
    assert stored({"message": "as an older version wrote it", "fix": "x"}, "zh") == (
        "as an older version wrote it",
        "x",
    )
    assert stored(row | {"fields": {}}, "zh") == (row["message"], row["fix"])


def test_texts_are_read_without_torch() -> None:
    code = "import sys; from levelhead.preflight.explain import CATALOGUE; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_message_knows_its_key() -> None:
    class Some:
        two_words = Message("a {b}", "甲 {b}")

    assert Some.two_words.key == "two-words"
    assert Some.two_words.text({"b": 1}, "zh") == "甲 1"
    assert Some.two_words.way_out({}) == ""


@pytest.mark.parametrize("touch", [other_vocabulary, small_embedding, foreign_stop])
def test_ids_without_a_row_are_named_once_and_nothing_else_is_checked(touch: Callable[[Setup], None]) -> None:
    setup = setup_of()
    touch(setup)
    (only,) = preflight(setup).checks
    assert (only.name, only.status) == ("tokens/vocabulary", "fail")
    assert "nothing else can be checked" in only.message
