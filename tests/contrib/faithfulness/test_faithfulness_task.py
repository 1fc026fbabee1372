import logging
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from contrib.faithfulness.halueval_rows import DIALOGUE, QA, SUMMARY, VERDICT_NO, VERDICT_YES, write
from levelhead.contrib.faithfulness import FaithfulnessTask
from levelhead.contrib.faithfulness.data import FaithfulnessItem, generate_items
from levelhead.errors import InputError
from levelhead.recipe.tasks import Faithfulness
from levelhead.records import Rollout
from levelhead.tasks.base import Task
from levelhead.tasks.registry import make_task
from levelhead.tasks.text_match import contains_quote

REAL = Path(__file__).parents[3].parent / "shared" / "data" / "halueval"
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the HaluEval files are not at {REAL}")


def task(**keys) -> FaithfulnessTask:
    return FaithfulnessTask(Faithfulness(kind="faithfulness", **keys))


@pytest.fixture(scope="module")
def built_in() -> FaithfulnessTask:
    return task(items=1200)


@pytest.fixture(scope="module")
def halueval() -> FaithfulnessTask:
    return task(path=str(REAL))


def everything(made: FaithfulnessTask):
    return [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]


def assert_oracle_best_empty_worst(made: FaithfulnessTask, prompts) -> None:
    for prompt in prompts:
        (answer,) = made.oracle(prompt)
        best, worst = made.score(prompt, answer), made.score(prompt, "")
        assert best.total == 1, (prompt.id, answer)
        assert best.valid
        assert worst.total == -1
        assert not worst.valid


def test_the_task_keeps_the_protocol(built_in):
    assert isinstance(built_in, Task)
    assert isinstance(make_task(Faithfulness(kind="faithfulness", items=40)), FaithfulnessTask)


def test_the_oracle_scores_the_maximum_and_an_empty_answer_the_minimum(built_in):
    assert_oracle_best_empty_worst(built_in, everything(built_in))


def test_no_text_is_on_both_sides(built_in):
    train, held = ({p.facts["text"] for p in built_in.prompts(split, 0)} for split in ("train", "eval"))
    assert not train & held
    assert train
    assert held


def test_rows_about_one_text_stay_together_whatever_is_withheld(tmp_path):
    rows = [
        QA | {"knowledge": f"Clock {i} was built by Ida {i}. It stands in Brill.", "question": q, "right_answer": a}
        for i in range(40)
        for q, a in ((f"Who built clock {i}?", f"Ida {i}"), (f"Where is clock {i}?", "Brill"))
    ]
    made = task(path=write(tmp_path / "qa.json", *rows), unanswerable=0.5, eval_fraction=0.3)
    sides = {prompt.id: split for split in ("train", "eval") for prompt in made.prompts(split, 0)}
    clocks: dict[str, set[str]] = {}
    for prompt in everything(made):
        number = prompt.facts["question"].rstrip("?").split()[-1]
        clocks.setdefault(number, set()).add(sides[prompt.id])
    assert len(clocks) == 40
    assert all(len(sides) == 1 for sides in clocks.values())


def test_the_recipe_says_how_many_questions_lose_their_answer(tmp_path):
    rows = [
        QA | {"question": f"Who built clock {i}?", "knowledge": f"{QA['knowledge']} It is {i} m."} for i in range(40)
    ]
    path = write(tmp_path / "qa.json", *rows)
    withheld = {
        share: sum(not prompt.facts["answerable"] for prompt in everything(task(path=path, unanswerable=share)))
        for share in (0.0, 0.5)
    }
    assert withheld[0.0] == 0
    assert 10 <= withheld[0.5] <= 30


def test_no_perfect_answer_is_longer_than_its_bound(built_in):
    for prompt in built_in.prompts("train", 0):
        (answer,) = built_in.oracle(prompt)
        assert len(answer.encode()) <= built_in.oracle_bytes(prompt) < 1000


def test_the_same_seed_gives_the_same_prompts(built_in):
    assert list(task(items=1200).prompts("train", 5)) == list(built_in.prompts("train", 5))
    first, second = (list(built_in.prompts("train", seed)) for seed in (5, 6))
    assert first != second
    assert sorted(prompt.id for prompt in first) == sorted(prompt.id for prompt in second)


def test_every_schema_becomes_a_prompt_that_holds_its_text(tmp_path):
    rows = [row | {} for row in (QA, DIALOGUE, SUMMARY, VERDICT_YES, VERDICT_NO)]
    prompts = everything(task(path=write(tmp_path / "mixed.json", *rows), unanswerable=0.0))
    assert sorted(Counter(prompt.facts["kind"] for prompt in prompts).values()) == [1, 1, 1, 2]
    for prompt in prompts:
        content = prompt.messages[0]["content"]
        assert prompt.facts["text"] in content
        assert prompt.facts["question"] in content
        assert "\nAnswer: " in content
        assert "\nEvidence: " in content


def test_braces_in_the_data_are_only_text(tmp_path):
    rows = [QA | {"question": "What is {0.right} {x}?"}, VERDICT_NO]
    made = task(path=write(tmp_path / "data.json", *rows))
    assert any("{0.right} {x}" in prompt.messages[0]["content"] for prompt in everything(made))


def test_too_long_rows_are_left_out_and_counted(tmp_path, caplog):
    rows = [QA | {"question": f"Who built clock {i}?", "knowledge": f"Clock {i}. " * (i + 1)} for i in range(20)]
    path = write(tmp_path / "qa.json", *rows)
    with caplog.at_level(logging.WARNING):
        made = task(path=path, max_prompt_chars=250)
    prompts = everything(made)
    assert 0 < len(prompts) < 20
    assert f"{20 - len(prompts)} of 20 rows left out" in caplog.text
    with pytest.raises(InputError, match="max_prompt_chars is 100"):
        task(path=path, max_prompt_chars=100)


def test_limit_and_name_are_kept():
    prompts = everything(task(items=400, limit=50, name="grounded"))
    assert len(prompts) == 50
    assert {prompt.task for prompt in prompts} == {"grounded"}


def test_rows_that_occur_twice_keep_different_ids(tmp_path):
    prompts = everything(task(path=write(tmp_path / "data.json", QA, QA, VERDICT_NO)))
    assert len({prompt.id for prompt in prompts}) == 3


def test_metrics_come_from_scored_rollouts(built_in):
    prompts = list(islice(built_in.prompts("eval", 0), 40))
    results = [(p, Rollout(p.id, (), built_in.score(p, built_in.oracle(p)[0]))) for p in prompts]
    metrics = built_in.summarize([*results, (prompts[0], Rollout(prompts[0].id, ()))])
    assert metrics["exact_match"] == 1
    assert metrics["hallucinated"] == 0


def test_built_in_items_are_many_and_different():
    items = generate_items(10_000, 0.2)
    assert len({item.text for item in items}) == 10_000
    assert generate_items(500, 0.2) == items[:500]


def test_built_in_items_need_their_text():
    """The right answer stands in the text and nowhere else, beside a tempting one in half of the items."""
    items = generate_items(4000, 0.2)
    answerable = [item for item in items if item.answerable]
    assert len(answerable) / len(items) == pytest.approx(0.8, abs=0.03)
    tempting = [item for item in answerable if contains_quote(item.text, item.hallucinated)]
    assert len(tempting) / len(answerable) == pytest.approx(0.5, abs=0.05)
    for item in items:
        assert item.answerable == contains_quote(item.text, item.right) == (item.right != "unknown")
        assert item.right != item.hallucinated
        assert not contains_quote(item.question, item.right)
    # Nothing but the facts themselves tells an unanswerable item: neither its length nor what its question is about.
    lengths = [
        [item.text.count(".") for item in items if item.answerable == answerable] for answerable in (True, False)
    ]
    assert sum(lengths[0]) / len(lengths[0]) == pytest.approx(sum(lengths[1]) / len(lengths[1]), abs=0.1)
    for item in items:
        name = item.question.removeprefix("What is ").split("'")[0]
        assert contains_quote(item.text, name)
    first = [item.text.index(item.right) < item.text.index(item.hallucinated) for item in tempting]
    assert sum(first) / len(first) == pytest.approx(0.5, abs=0.05)


def test_no_built_in_items_are_unanswerable_when_none_are_asked_for():
    assert all(item.answerable for item in generate_items(300, 0.0))


def test_a_policy_that_never_answers_and_one_that_always_guesses_lose_to_one_that_reads(built_in):
    def mean(answer_of) -> float:
        prompts = list(islice(built_in.prompts("train", 0), 400))
        return sum(built_in.score(prompt, answer_of(prompt)).total for prompt in prompts) / len(prompts)

    def guess(prompt) -> str:
        item = FaithfulnessItem.from_facts(prompt.facts)
        return f'Answer: {item.hallucinated}\nEvidence: "{item.text.split(". ")[0]}"'

    never = mean(lambda prompt: "Answer: unknown\nEvidence: none")
    assert mean(guess) < never < 0 < mean(lambda prompt: built_in.oracle(prompt)[0]) == 1


@real
@pytest.mark.data
def test_on_halueval_the_oracle_scores_the_maximum_and_an_empty_answer_the_minimum(halueval):
    assert_oracle_best_empty_worst(halueval, islice(everything(halueval), 0, None, 5))


@real
@pytest.mark.data
def test_on_halueval_no_text_or_query_is_on_both_sides(halueval):
    sides = []
    for split in ("train", "eval"):
        items = [FaithfulnessItem.from_facts(prompt.facts) for prompt in halueval.prompts(split, 0)]
        sides.append({item.question if item.kind == "general" else item.question + item.text for item in items})
        assert {item.kind for item in items} == {"qa", "general"}
    assert not sides[0] & sides[1]
    prompts = everything(halueval)
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 4400


@real
@pytest.mark.data
def test_on_halueval_withheld_questions_have_no_answer_left(halueval):
    items = [FaithfulnessItem.from_facts(prompt.facts) for prompt in everything(halueval)]
    withheld = [item for item in items if not item.answerable]
    assert 30 < len(withheld) < 90
    assert all(item.kind == "qa" and item.right == "unknown" for item in withheld)
