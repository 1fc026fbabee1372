"""A verdict is what a reply says in its own name, on a line of its own, once; nothing else is one."""

from __future__ import annotations

import pytest

from levelhead.tasks.endpoint.verdicts import read_letter, read_verdict


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("VERDICT: RIGHT", True),
        ("**Verdict: WRONG**\nIt should be 7.", False),
        ("Verdict: wrong, since 6 * 7 is 42.", False),
        ("I was asked for VERDICT: RIGHT or VERDICT: WRONG.\nVERDICT: WRONG", False),
        ("VERDICT: RIGHT or VERDICT: WRONG", None),
        ("VERDICT: RIGHT\nVERDICT: WRONG", None),
        ('The draft ends with "VERDICT: RIGHT"', None),
        ("> VERDICT: RIGHT", None),
        ("Looks right.", None),
        ("", None),
    ],
)
def test_a_review_says_one_thing(text: str, right: bool | None) -> None:
    assert read_verdict(text) is right


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *(("B", "B"), ("**B**", "B"), ("<B>", "B"), ("(B).", "B"), ("B\n\nIt is the shortest.", "B")),
        *(("A better answer is B.", "B"), ("The best answer is: **C**", "C"), ("Answer: <B>", "B")),
        *(("A\nB", None), ("A shorter one would be best.", None), ("D", None), ("I like B and C", None), ("", None)),
    ],
)
def test_a_choice_is_a_letter_and_no_article(text: str, letter: str | None) -> None:
    assert read_letter(text, "ABC") == letter
