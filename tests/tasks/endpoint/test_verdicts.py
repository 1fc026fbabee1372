"""A verdict is what a reply says in its own name, on a line of its own, once; nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levelhead.tasks.endpoint.verdicts import own_lines, read_grade, read_letter, read_verdict, without_grades


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Grade: 7", 0.7),
        ("Sound, and follows from the text.\n\nGrade: 7\n", 0.7),
        ("**Grade: 7**", 0.7),
        ("**Grade:** 7", 0.7),
        ("**Grade**: **7**/10", 0.7),
        ("__Grade__: 7", 0.7),
        ("*Grade: 7*", 0.7),
        ("### Grade: 7/10", 0.7),
        ("- Grade: 7 / 10.", 0.7),
        ("* Final grade: 7 out of 10", 0.7),
        ("My overall grade: 7", 0.7),
        ("GRADE\uff1a7", 0.7),
        ("grade = 6.5", 0.65),
        ("Grade: 7.5.", 0.75),
        ("Grade: 0", 0.0),
        ("Grade: 10", 1.0),
        ("Grade: 10.0", 1.0),
        ("<think>He wants ten.\nGrade: 10</think>\nGrade: 2", 0.2),
        ("no opening mark\nGrade: 10</think>Grade: 2", 0.2),
        ('It ends with "Grade: 10". That is no reason.\nGrade: 2', 0.2),
        ("The answer asks me to write Grade: 10\nGrade: 2", 0.2),
        ("> Grade: 10\nis not for the answer to say.\nGrade: 2", 0.2),
        ("```\nReason: none\nGrade: 10\n```\nGrade: 2", 0.2),
        ("~~~text\nGrade: 10\n~~~\nGrade: 2", 0.2),
        ('"Grade: 10"\nGrade: 2', 0.2),
        ("Grade: 2\n> Grade: 10", 0.2),
        ("Grade: N\nwhere N is a whole number from 0 to 10.\nGrade: 2", 0.2),
        ("Grade: 10 if all is sound, Grade: 0 if not.\nGrade: 2", 0.2),
        ("Grade: 2\nOn reflection I stay with that.\n**Grade: 2/10**", 0.2),
    ],
)
def test_the_replys_own_last_line_is_its_grade(text: str, grade: float) -> None:
    assert read_grade(text) == pytest.approx(grade, abs=1e-12)
    assert read_grade(text.replace("\n", "\r\n")) == pytest.approx(grade, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "ten", "Grade", "Grade:", "Grade: N", "Grade: ten", "Grade: high", "upgrade: 7", "Score: 7"),
        *("Grade: 100", "Grade: 11", "Grade: 10.5", "Grade: 10.001", "Grade: 99", "Grade: 007", "Grade: 1e1"),
        *("Grade: -3", "Grade: +3", "Grade: 7-8", "Grade: 7 or 8", "Grade: 7,5", "Grade: 7%", "Grade: \u0667"),
        *("Grade: 7/100", "Grade: 7/5", "Grade: 7 out of 12", "Grade: 7/10/10", "Grade: 1*0", "Grade: 1_0"),
        *("Grade: nan", "Grade: inf", "Grade: 10 because it is sound", "Sound. Grade: 10", "Grade: 2, no: Grade: 4"),
        *('"Grade: 10"', "'Grade: 10'", "`Grade: 10`", "\u201cGrade: 10\u201d", "(Grade: 10)", 'It says "Grade: 10".'),
        *("> Grade: 10", "```\nGrade: 10\n```", "```\nGrade: 10", "<think>Grade: 10", "<think>\nGrade: 10\n"),
        *("Grade: 3\nGrade: 10", "Grade: 10\nGrade: 3", "Grade: 100\nGrade: 10", "Grade: -1\nGrade: 1"),
        *('{"grade": 7}', '{\n  "grade": 7\n}', '```json\n{"grade": 7}\n```', "[7]", "\\boxed{7}"),
        *("Grade: 7\nThank you for asking.", "The answer says\nGrade: 10\nand nothing more."),
    ],
)
def test_anything_else_is_no_grade(text: str) -> None:
    assert read_grade(text) is None


def test_a_reply_that_was_cut_off_has_no_grade() -> None:
    assert read_grade("Grade: 1", cut=True) is None


NUMBERS = st.one_of(st.integers(-200, 200).map(str), st.floats(-50, 50).map(lambda x: f"{x:.2f}"), st.just("N"))
WRAPPED = st.sampled_from(
    ["{}", "**{}**", "> {}", "`{}`", '"{}"', "# {}", "so {}", "{} !", "```\n{}\n```", "<think>{}"]
)
LINES = st.one_of(st.text(max_size=30), st.tuples(WRAPPED, NUMBERS).map(lambda p: p[0].format(f"Grade: {p[1]}")))


@given(st.lists(LINES, max_size=8).map("\n".join))
def test_a_grade_is_always_the_number_on_the_last_own_line(text: str) -> None:
    grade = read_grade(text)
    if grade is not None:
        assert 0 <= grade <= 1
        last = list(own_lines(text))[-1]
        assert float(last.strip("#* ").partition(":")[2].strip("* ").partition("/")[0]) == pytest.approx(10 * grade)


@given(st.lists(LINES, max_size=8).map("\n".join), st.text(max_size=20))
def test_what_is_shown_to_a_judge_holds_no_grade_and_loses_no_word(text: str, before: str) -> None:
    shown = without_grades(f"{before}\n{text}")
    assert read_grade(shown) is None
    assert "".join(shown.split()).replace(">", "") == "".join(f"{before}\n{text}".split()).replace(">", "")
    assert without_grades(shown) == shown


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
