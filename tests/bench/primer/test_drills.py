from __future__ import annotations

import re
from collections import Counter

import pytest
from primerlib.items import PrimerItem, make_items
from primerlib.lessons import Lesson, PrimerKind

DRILLS: tuple[PrimerKind, ...] = ("copy", "pairs", "trace", "facts", "letters", "numbers")


def of_kind(kind: PrimerKind, count: int = 300) -> list[PrimerItem]:
    return [item for number in range(count) for item in make_items(number, Lesson(kinds={kind: 1}))]


def answers(item: PrimerItem) -> list[tuple[str, str]]:
    """The (asked, answer) pairs of a drill that is answered line by line."""
    return [(asked, answer) for asked, _, answer in (line.rpartition(": ") for line in item.answer.split("\n"))]


@pytest.mark.parametrize("kind", DRILLS)
def test_a_drill_is_one_prompt_a_text_with_a_long_answer(kind: PrimerKind) -> None:
    items = of_kind(kind)
    assert len(items) == 300
    assert sum(len(i.answer) for i in items) > 0.15 * sum(len(i.answer) + len(i.prompt) for i in items)


def test_copied_words_are_those_of_the_prompt() -> None:
    assert all(item.prompt == f"Copy: {item.answer}" for item in of_kind("copy"))


def test_each_second_word_is_followed_by_what_stood_before_it() -> None:
    for item in of_kind("pairs"):
        told = item.prompt.split("\n")[0].removeprefix("Pairs: ").split(", ")
        assert sorted(told) == sorted(" ".join(reversed(pair.split(" "))) for pair in item.answer.split(", "))


def test_a_deed_is_traced_to_whom_the_text_says_did_it() -> None:
    for item in of_kind("trace"):
        text = item.prompt.split("\n")[0]
        for deed, person in answers(item):
            assert (f" {person} {deed}." in text) if person != "unknown" else f" {deed}." not in text


def test_a_fact_is_answered_by_the_text_or_unknown() -> None:
    for item in of_kind("facts"):
        text = item.prompt.split("\n")[0]
        for asked, value in answers(item):
            name, attribute = asked.split("'s ")
            sentences = [s for s in text.removeprefix("Text: ").split(". ") if re.search(rf"\b{name}\b", s)]
            told = [s for s in sentences if re.search(rf"\b{attribute}\b", s)]
            assert any(value in s for s in told) if value != "unknown" else not told


def test_options_are_answered_by_their_letters() -> None:
    for item in of_kind("letters"):
        assert all(f"{letter}) {option}\n" in item.prompt for option, letter in answers(item))


def test_labels_are_answered_by_the_numbers_of_their_elements() -> None:
    for item in of_kind("numbers"):
        for label, number in answers(item):
            if number == "unknown":
                assert f'"{label}"' not in item.prompt
            else:
                assert re.search(rf'\[{number}\] \w+ "{re.escape(label)}"', item.prompt)


def test_what_the_text_does_not_hold_is_asked_for_now_and_then_and_never_alone_guessable() -> None:
    for kind in ("trace", "facts", "numbers"):
        unknown = Counter(answer == "unknown" for item in of_kind(kind) for _, answer in answers(item))
        assert 0.01 < unknown[True] / unknown.total() < 0.3
