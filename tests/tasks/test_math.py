"""The math task: numbers are read exactly, hedges are not, and the task proves itself."""

from __future__ import annotations

import asyncio
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.recipe.tasks import Math
from levelhead.records import Prompt, Rollout, Score, Turn
from levelhead.tasks.base import Answer, Task
from levelhead.tasks.math import MathTask, generate
from levelhead.tasks.registry import make_task
from levelhead.tasks.stated import final_answer, parse_number
from tasks.datasets.samples import SAMPLES

GSM8K = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k" / "train.jsonl"


def task(**keys: object) -> MathTask:
    return MathTask(Math.model_validate({"kind": "math", "items": 60, **keys}))


def prompt(answer: str = "1080") -> Prompt:
    return Prompt("p", "math", ({"role": "user", "content": "?"},), facts={"answer": answer})


def jsonl(folder: Path, *rows: object) -> str:
    file = folder / "data.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        (" 1,080", 1080),
        ("109,200,000", 109_200_000),
        ("$1,234.50", Fraction(2469, 2)),
        ("US$5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("\u22123", -3),
        ("- 7", -7),
        ("+4", 4),
        (".5", Fraction(1, 2)),
        ("0.50", Fraction(1, 2)),
        ("7.0", 7),
        ("72.", 72),
        ("**72**", 72),
        ("72 apples", 72),
        ("5kg", 5),
        ("12%", 12),
        ("€ 30", 30),
        ("x = 9", 9),
        ("3/4", Fraction(3, 4)),
        ("1 3/4 cups", Fraction(7, 4)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"\$1{,}080", 1080),
        (r"15\text{ cm}", 15),
        ("2 million", 2_000_000),
        ("1.5e3", 1500),
        ("1\u202f080", 1080),
        ("1_000", 1000),
    ],
)
def test_one_number_in_any_dress_is_read_exactly(text: str, value: Fraction | int) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "apples", "5 or 6", "48+24=72", "10-5", "12,50", "1,2345", "3/0", "3:30", "5 5", "x5", "5x3", "2^10", "--5",
        "-$-5", "9" * 60, "5 " + "x" * 300, "1/2/3", "1.2.3", "٣",
    ],
)  # fmt: skip
def test_a_hedge_or_an_unclear_number_reads_as_none(text: str) -> None:
    assert parse_number(text) is None


@settings(deadline=None, max_examples=100)
@given(st.integers(-(10**15), 10**15), st.integers(0, 4))
def test_a_number_survives_being_written_with_separators_and_decimals(units: int, places: int) -> None:
    assert parse_number(f"${abs(units):,}") == abs(units)
    written = f"{units / 10**places:,.{places}f}"
    assert parse_number(written) == Fraction(written.replace(",", ""))


@settings(deadline=None, max_examples=100)
@given(st.text("0123456789.,-+/#$ \n\\boxed{}e٣\u2212", max_size=60))
def test_any_text_scores_within_bounds_and_never_above_a_right_answer(text: str) -> None:
    score = task_of_one.score(prompt(), text)
    assert 0.0 <= score.total <= 1.0
    assert set(score.parts) == {"correct", "format"}


task_of_one = task()


def test_the_last_marker_wins_then_boxed_then_the_sentence() -> None:
    assert final_answer("#### 1\n#### 2") == " 2"
    assert final_answer(r"so \boxed{3} and \boxed{4}, the answer is 9") == "4"
    assert final_answer("The answer is 7 apples.\nBye") == "7 apples."
    assert final_answer("I got 7") is None


def test_scores_rank_right_over_honest_over_unreadable() -> None:
    score = task_of_one.score
    asked = score(prompt(), "20 * 54 = 1080\n#### 1,080")
    boxed = score(prompt(), r"It is \boxed{1080}.")
    wrong = score(prompt(), "#### 12")
    gibberish = score(prompt(), "#### ??? 4 5")
    empty = score(prompt(), "")
    assert asked.total == 1.0
    assert asked.valid
    assert boxed.total == pytest.approx(0.9)
    assert wrong.total == pytest.approx(0.1)
    assert wrong.valid
    assert gibberish.total == empty.total == 0.0
    assert not gibberish.valid
    assert not empty.valid


def test_listing_candidates_does_not_earn_the_format_part() -> None:
    assert task_of_one.score(prompt(), "#### 1\n#### 2\n#### 1080").parts == {"correct": 1.0, "format": 0.0}
    assert task_of_one.score(prompt(), "#### 1080\nbut maybe more").parts["format"] == 0.0


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_task_proves_itself(split: str) -> None:
    made = task()
    prompts = list(made.prompts(split, seed=3))
    assert prompts
    assert isinstance(made, Task)
    for one in prompts:
        (oracle,) = made.oracle(one) or [""]
        scores = asyncio.run(made.score_batch([Answer(one, oracle), Answer(one, "")]))
        assert [score.total if score else None for score in scores] == [1.0, 0.0]


def test_the_seed_alone_decides_the_order_and_the_sides_never_share_a_question() -> None:
    first, again, other = (list(task().prompts("train", seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {p.id for p in first} == {p.id for p in other}
    held_out = list(task().prompts("eval", 1))
    assert not {p.messages[0]["content"] for p in first} & {p.messages[0]["content"] for p in held_out}


def test_built_in_problems_differ_and_their_steps_add_up() -> None:
    problems = generate(3000)
    assert len({question for question, _, _ in problems}) == 3000
    assert generate(100) == problems[:100]
    for _, solution, answer in problems:
        *steps, final = solution.split("\n")
        assert final == f"#### {answer}"
        for step in steps:
            left, right = step.split(" = ")
            a, operator, b = left.split(" ")
            x, y = Fraction(a), Fraction(b)
            assert {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[operator] == Fraction(right)


def test_built_in_problems_keep_a_small_vocabulary() -> None:
    words = {word.strip(".,?$") for question, _, _ in generate(3000) for word in question.split()}
    assert len({word for word in words if word.isalpha()}) < 130


def test_asking_for_more_problems_than_there_are_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.tasks.math._PATIENCE", 1)  # problems that are there already, one after the other
    with pytest.raises(InputError, match=r"run out at about \d+"):
        generate(10**7)


def test_a_file_in_the_schema_loads_without_calculator_notes(tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {i}+1?", "answer": f"It is <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1}"} for i in range(9)
    ]
    made = task(path=jsonl(tmp_path, *rows))
    one = next(made.prompts("train", 0))
    assert "<<" not in str(made.oracle(one))
    assert one.id.startswith("data-")
    assert one.messages[-1]["content"].endswith("as a number.")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "a"}, "'answer' is missing"),
        ({"question": "a", "answer": "5"}, r"must end in '#### N'"),
        ({"question": "a", "answer": "#### five"}, "not one number"),
        ({"question": " ", "answer": "#### 5"}, "'question' is empty"),
        ({"question": 3, "answer": "#### 5"}, "must be text"),
        ("{oops", "not a JSON object"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: object, says: str) -> None:
    with pytest.raises(InputError, match=r"data\.jsonl, line 2: .*" + says):
        task(path=jsonl(tmp_path, {"question": "b", "answer": "#### 1"}, row))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        task(path="nowhere.jsonl")


def test_summary_counts_right_numbers() -> None:
    turn = Turn((), (), (), (), "stop")
    results = [
        (prompt(), Rollout("p", (turn,), Score(1.0, {"correct": float(right), "format": 1.0})))
        for right in (1, 0, 0, 1)
    ]
    assert task_of_one.summarize(results) == {"accuracy": 0.5, "format": 1.0}
    assert task_of_one.summarize([]) == {}


def test_the_registry_makes_it_under_its_own_name() -> None:
    made = make_task(Math(kind="math", name="sums", items=20, limit=10))
    assert made.name == "sums"
    assert len(list(made.prompts("train", 0))) + len(list(made.prompts("eval", 0))) == 10


@pytest.mark.data
@pytest.mark.skipif(not GSM8K.exists(), reason=f"GSM8K is not at {GSM8K}")
def test_every_real_gsm8k_row_loads_and_its_own_solution_is_right() -> None:
    made = task(path=str(GSM8K))
    prompts = [one for split in ("train", "eval") for one in made.prompts(split, 0)]
    assert len(prompts) == 7473
    for one in random.Random(0).sample(prompts, 2000):
        (oracle,) = made.oracle(one) or [""]
        assert made.score(one, oracle).total == 1.0


def mathematics(folder: Path, dataset: str, *rows: object) -> MathTask:
    return task(dataset=dataset, path=jsonl(folder, *rows))


@pytest.mark.parametrize("name", ["math", "aime"])
def test_mathematics_in_a_box_is_judged_as_mathematics(name: str, tmp_path: Path) -> None:
    made = mathematics(tmp_path, name, *SAMPLES[name])
    for split in ("train", "eval"):
        for asked in made.prompts(split, 0):
            assert str(asked.messages[0]["content"]).endswith("\\boxed{}.")
            (perfect,) = made.oracle(asked) or [""]
            assert made.score(asked, perfect).parts == {"correct": 1.0, "format": 1.0}
            assert made.score(asked, "").total == 0.0
            assert not made.score(asked, "no box").valid


def test_equal_mathematics_scores_alike_whatever_its_form(tmp_path: Path) -> None:
    made = mathematics(tmp_path, "math", *SAMPLES["math"])
    asked = next(
        p for split in ("train", "eval") for p in made.prompts(split, 0) if p.facts["answer"] == r"\frac{1}{2}"
    )
    assert made.score(asked, r"So $\boxed{0.5}$.").total == 1.0
    assert made.score(asked, r"\boxed{2/4} is it").total == pytest.approx(0.9)
    assert made.score(asked, r"\boxed{2}").total == pytest.approx(0.1)
    scores = asyncio.run(made.score_batch([Answer(asked, r"\boxed{0.50}"), Answer(asked, "")]))
    assert [score.total if score else None for score in scores] == [1.0, 0.0]
    assert made.strata(asked) == {"subject": "Prealgebra"}


def test_a_data_set_without_a_path_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="dataset math needs path: its file, files, folder or hf:NAME"):
        task(dataset="math")
