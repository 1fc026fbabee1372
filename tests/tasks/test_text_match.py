import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.tasks.text_match import (
    contains_quote,
    content_words,
    exact_match,
    normalize_answer,
    repetition,
    sentences,
    token_f1,
    words,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Delhi.", "delhi"),
        ("  an  Apple,\n a day ", "apple day"),
        ("1,000", "1000"),
        ("Arthur\u2019s", "arthurs"),
        ("A", "a"),
        ("...", ""),
    ],
)
def test_answers_are_normalised_as_squad_does(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match_looks_past_case_articles_and_punctuation_only():
    assert exact_match("the Delhi.", "Delhi")
    assert not exact_match("New Delhi", "Delhi")
    assert not exact_match("", "")
    assert not exact_match("...", "!")


@pytest.mark.parametrize(
    ("answer", "reference", "f1"),
    [
        ("Delhi", "Delhi", 1.0),
        ("New Delhi", "Delhi", 2 * 0.5 * 1 / 1.5),
        ("city of Delhi", "Delhi", 2 * (1 / 3) * 1 / (4 / 3)),
        ("cat cat", "cat", 2 * 0.5 * 1 / 1.5),
        ("Mumbai", "Delhi", 0.0),
        ("", "Delhi", 0.0),
    ],
)
def test_token_f1_by_hand(answer, reference, f1):
    assert token_f1(answer, reference) == pytest.approx(f1)


@settings(deadline=None)
@given(a=st.text(max_size=40), b=st.text(max_size=40))
def test_token_f1_is_symmetric_and_bounded(a, b):
    assert token_f1(a, b) == token_f1(b, a)
    assert 0 <= token_f1(a, b) <= 1


TEXT = 'The clerk said: "He left\nat noon\u2014alone." It\u2019s 3.5 km (no more).'


@pytest.mark.parametrize(
    "quote",
    ['"He left at noon', "he LEFT at noon-alone.", "It's 3.5 km", "no more", "...left at noon...", TEXT],
)
def test_a_quote_is_found_whatever_its_case_spaces_and_marks(quote):
    assert contains_quote(TEXT, quote)


@pytest.mark.parametrize("quote", ["", "...", '""', "e clerk said", "left noon", "3.6 km", "he left at noon today"])
def test_what_does_not_stand_there_is_no_quote(quote):
    assert not contains_quote(TEXT, quote)


@settings(deadline=None)
@given(text=st.text(max_size=60), start=st.integers(0, 60), size=st.integers(1, 20))
def test_whole_words_cut_from_a_text_are_quotes_of_it(text, start, size):
    tokens = text.split()
    cut = " ".join(tokens[start : start + size])
    if words(cut):
        assert contains_quote(text, cut)


def test_sentences_part_where_the_space_is_missing_and_hold_at_abbreviations():
    text = "It ran in the 19th century.First for Women is new. Dr. Smith of the U.S.A. came! He paid 3.50 there.\nEnd"
    assert sentences(text) == [
        "It ran in the 19th century.",
        "First for Women is new.",
        "Dr. Smith of the U.S.A. came!",
        "He paid 3.50 there.",
        "End",
    ]
    assert sentences(" ... ") == []


def test_content_words_leave_function_words_out_and_fold_plurals():
    assert content_words("The cars' drivers were not at the boss's") == ["car", "driver", "boss"]


def test_repetition_counts_what_came_before():
    assert repetition([]) == 0
    assert repetition(["a", "b", "c"]) == 0
    assert repetition(["a", "a", "b", "a"]) == 0.5


def test_long_texts_take_no_quadratic_time():
    assert not contains_quote("a " * 50_000, "b " * 5_000)
    assert len(sentences("Word. " * 20_000)) == 20_000
    assert len(sentences("A. " * 20_000)) == 1
