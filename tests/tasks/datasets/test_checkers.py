"""Answers are judged as the data sets' official scripts judge them, and never by running what a policy wrote."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.tasks.datasets.base import Example, Verdict
from levelhead.tasks.datasets.equality import Comparer, check_math, equal
from levelhead.tasks.datasets.load import NAMES, dataset_named, load
from levelhead.tasks.datasets.programs import check_program
from levelhead.tasks.datasets.spans import (
    check_letter,
    check_spans,
    check_words,
    drop_normalize,
    drop_scores,
    hotpot_f1,
    hotpot_match,
)
from levelhead.tasks.stated import boxed, ends_in_box, stated
from sandboxed import can_run
from tasks.datasets import samples


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} or rather \boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}"),
        (r"\fbox{} \boxed {x}", "x"),
        (r"\boxed 7 is it", "7"),
        (r"\boxed{unclosed", None),
        ("no box", None),
    ],
)
def test_the_last_box_is_read_with_its_braces_matched(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (r"We get $\boxed{5}$.", True),
        (r"\boxed{5} apples", False),
        (r"\boxed{5}, \boxed{6}", False),
        ("5", False),
    ],
)
def test_an_answer_as_asked_is_one_box_with_no_words_after_it(text: str, ends: bool) -> None:
    assert ends_in_box(text) is ends


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("thinking\n#### Oslo\n", "Oslo"),
        ("The answer is **Oslo**.", "Oslo"),
        ("First.\nOslo", "Oslo"),
        ("", None),
        ("####", None),
    ],
)
def test_the_stated_answer_is_found(text: str, answer: str | None) -> None:
    assert stated(text) == answer


compares = pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify (the extra math) is not installed")

EQUAL = [
    (r"\frac12", "0.5"),
    (r"\dfrac{\sqrt{3}}{2}", r"\frac12\sqrt3"),
    ("x=5", "5"),
    (r"x\in(-\infty, 3]", r"(-\infty,3]"),
    (r"1\pm\sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    (r"10,\!000", "10000"),
    (r"90^\circ", "90"),
    (r"50\%", "50"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{(C)}", "C"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"15\mbox{ cm}^2", "15"),
    (r"3\frac{1}{2}", "7/2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("y=2x+3", "y-2x-3=0"),
    (r"\{1,2\}", "2,1"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"\sin^2 x+\cos^2 x", "1"),
    ("3i+2", "2+3i"),
    (r"\log_2 8", "3"),
    ("x<3", "3>x"),
    (r"\binom{5}{2}", "10"),
    ("\u2212\u221a2", r"-\sqrt{2}"),
    ("1010_2", "1010_{2}"),
    ("sqrt(3)/2", r"\frac{\sqrt3}{2}"),
    ("5%", "0.05"),
]

DIFFERENT = [
    ("1", "2"),
    (r"\frac13", "0.333"),
    ("0.333333", "1/3"),
    (r"0.33333333", r"\frac{1}{3}"),
    (r"5\text{ or }6", "5"),
    ("4, 5", "5"),
    ("7$ so $5", "5"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    ("1,2", "1,2,3"),
    ("x+1", "x-1"),
    ("2x", "2"),
    ("x", "y"),
    (r"\infty", r"-\infty"),
    ("x<3", r"x\le 3"),
    ("y=2x", "y=3x"),
    (r"\text{north}", r"\text{south}"),
]


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [("1/2", r"\dfrac{2}{4}", True), (r"\frac{1}{3}", "0.3333", False), ("7", "8", False)],
)
def test_exact_numbers_need_no_package(
    answer: str, reference: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelhead.tasks.datasets.equality._child", lambda: None)
    assert equal(answer, reference) == (same, "")


@compares
@pytest.mark.parametrize(("answer", "reference"), EQUAL)
def test_equal_mathematics_is_right_either_way_round(answer: str, reference: str) -> None:
    assert equal(answer, reference) == (True, "")
    assert equal(reference, answer) == (True, "")


@compares
@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_different_mathematics_is_wrong_either_way_round(answer: str, reference: str) -> None:
    assert not equal(answer, reference)[0]
    assert not equal(reference, answer)[0]


@pytest.fixture(scope="module")
def brisk() -> Iterator[Comparer]:
    """What compares, with little patience for answers that would take all of it."""
    comparer = Comparer(cpu_s=0.5)
    yield comparer
    comparer.close()


@compares
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch {marker}')",
        "(lambda: open('{marker}', 'w'))()",
        "9^{9^{9^9}}",
        "10000000!",
        "(" * 200 + "1" + ")" * 200,
        r"\frac{1}{0}",
        "\x00\ud800",
        r"\sqrt[10^9]{2}",
        "a" * 990,
        "((x+y+z)^{999}+1)^{999}",
        "2^{99999999}",
    ],
)
def test_hostile_answers_are_different_and_nothing_more(
    answer: str, brisk: Comparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelhead.tasks.datasets.equality._child", lambda: brisk)
    marker = tmp_path / "ran"
    began = time.process_time()
    same, _ = equal(answer.replace("{marker}", str(marker)), "1")
    assert not same
    assert time.process_time() - began < 1, "what is large costs this process nothing"
    assert not marker.exists()


@compares
def test_an_operation_that_lets_no_python_run_is_ended_by_the_kernel() -> None:
    """A power of huge numbers is one step of C: no handler of a signal gets its turn in it."""
    code = "from levelhead.tasks.datasets import worker\nworker._bound_processor(0.1)\n7 ** 10**9"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGXCPU


@compares
def test_a_comparison_that_takes_too_long_counts_as_different_and_the_next_one_works() -> None:
    comparer = Comparer(cpu_s=0.5, wall_s=60.0)
    try:
        slow = "+".join(rf"\sqrt[{n}]{{{n}x+y}}\sin({n}x)^{{{n}}}" for n in range(2, 600))
        assert comparer.compare(slow, f"{slow}+1") == (False, "the comparison took too long")
        assert comparer.compare("1/2", "0.5") == (True, "")
    finally:
        comparer.close()


@compares
def test_a_child_that_was_killed_is_started_again() -> None:
    comparer = Comparer()
    try:
        assert comparer.compare("2/4", "0.5") == (True, "")
        process = comparer._process
        assert process is not None
        process.kill()
        process.wait()
        assert comparer.compare("2/4", "0.5") == (True, "")
        verdicts: list[bool] = []
        threads = [threading.Thread(target=lambda: verdicts.append(comparer.compare("x+x", "2x")[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert verdicts == [True] * 4
    finally:
        comparer.close()
    assert comparer._process is None


@compares
@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_equal_to_itself_and_gets_a_verdict(text: str) -> None:
    example = Example("?", (("1",),))
    verdict = check_math(example, text)
    assert isinstance(verdict, Verdict)
    assert equal(text, text) == (True, "")


@pytest.mark.parametrize(
    ("answer", "reference", "match", "f1"),
    [
        ("The Lower Slaughter!", "lower slaughter", True, 1.0),
        ("Slaughter", "Lower Slaughter", False, 2 / 3),
        ("a big red dog", "red dog house", False, 2 / 3),  # (big red dog | red dog house): 2 of 3 each
        ("yes", "yes", True, 1.0),
        ("yes it is", "yes", False, 0.0),
        ("no", "no way", False, 0.0),
        ("", "Oslo", False, 0.0),
        ("cats", "dogs", False, 0.0),
    ],
)
def test_hotpotqas_scores_are_those_of_its_script(answer: str, reference: str, match: bool, f1: float) -> None:
    assert hotpot_match(answer, reference) is match
    assert hotpot_f1(answer, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The 3-yard run", "3.0 yard run"),
        ("1,000", "1000.0"),
        ("3.50", "3.5"),
        ("an Apple.", "apple"),
        ("", ""),
    ],
)
def test_drop_normalises_numbers_hyphens_and_articles(text: str, normal: str) -> None:
    assert drop_normalize(text) == normal


@pytest.mark.parametrize(
    ("answer", "reference", "scores"),
    [
        (["8"], ["8.0"], (1.0, 1.0)),
        (["8 goals"], ["8"], (0.0, 0.67)),  # precision 1/2, recall 1: F1 2/3
        (["9 goals"], ["8 goals"], (0.0, 0.0)),  # the number is another one: no credit for the word
        (["Bob", "Ann"], ["Ann", "Bob"], (1.0, 1.0)),  # spans are matched in any order
        (["Ann"], ["Ann", "Bob"], (0.0, 0.5)),
        (["Ann", "Bob", "Eve"], ["Ann", "Bob"], (0.0, 0.67)),
        (["Ann Bob"], ["Ann", "Bob"], (0.0, 0.33)),  # best pair 2/3, the other span 0
    ],
)
def test_drops_scores_are_those_of_its_script(
    answer: list[str], reference: list[str], scores: tuple[float, float]
) -> None:
    assert drop_scores(answer, reference) == pytest.approx(scores)


def test_an_answer_counts_by_the_best_of_its_annotators() -> None:
    example = Example("?", (("8",), ("eight",)))
    assert check_spans(example, "#### eight") == Verdict(right=True, score=1.0, stated="eight")
    assert check_spans(example, "") == Verdict(right=False, score=0.0, stated=None, note="no answer")
    assert check_words(Example("?", (("Rome",), ("Roma",))), "The answer is Roma.").right


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("#### B", "B"),
        ("#### (b)", "B"),
        ("The answer is B.", "B"),
        ("#### B. They ring", "B"),
        ("they ring", "B"),
        ("#### A dog", None),
        ("#### Bees", None),
        ("#### Z", None),
        ("", None),
    ],
)
def test_an_option_is_named_by_its_letter_or_its_words(text: str, letter: str | None) -> None:
    example = Example("?", (("They ring",),), options=("Nothing", "They ring"))
    verdict = check_letter(example, text)
    assert verdict.stated == letter
    assert verdict.right is (letter == "B")


@pytest.mark.parametrize(("score", "level"), [(0.9, 0.7), (0.5, 0.4), (0.1, 0.2)])
def test_partial_credit_becomes_one_of_five_levels(score: float, level: float) -> None:
    assert Verdict(right=False, score=score, stated="x").level == level
    assert Verdict(right=True, score=score, stated="x").level == 1.0
    assert Verdict(right=False, score=score, stated=None).level == 0.0


@can_run
def test_a_humaneval_answer_may_be_the_function_or_what_the_prompt_lacks(tmp_path: Path) -> None:
    first, _ = load("humaneval", samples.write_lines(tmp_path / "h.jsonl", samples.HUMANEVAL))
    whole = "Here:\n```python\ndef add0(xs):\n    return sum(xs)\n```"
    assert check_program(first, whole).right
    assert check_program(first, "    return sum(xs)\n").right
    wrong = check_program(first, "```python\ndef add0(xs):\n    return 3\n```")
    assert (wrong.right, wrong.score, wrong.level) == (False, 0.5, 0.4)
    assert check_program(first, "no program at all").level == 0.0
    assert check_program(first, " ").note == "no program"


@can_run
def test_an_mbpp_answer_is_run_against_its_tests(tmp_path: Path) -> None:
    double, area = load("mbpp", samples.write_lines(tmp_path / "m.jsonl", samples.MBPP))
    assert check_program(double, "def double(x): return x + x").right
    assert not check_program(double, "def double(x): return x * x").right
    # The tests use math without importing it: as published, the program's own import is what they see.
    assert check_program(area, "import math\ndef area(r): return 3.1416 * r ** 2").right


@can_run
@pytest.mark.parametrize("name", NAMES)
def test_every_perfect_answer_is_right_and_an_empty_one_states_nothing(name: str, tmp_path: Path) -> None:
    dataset = dataset_named(name)
    for example in load(name, samples.write_lines(tmp_path / "data.jsonl", samples.SAMPLES[name])):
        if example.solution:
            assert dataset.check(example, example.solution, None).right, example.solution
        nothing = dataset.check(example, "", None)
        assert (nothing.right, nothing.score, nothing.stated) == (False, 0.0, None)
