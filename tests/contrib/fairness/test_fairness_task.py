from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from contrib.fairness.bbq_rows import ambiguous_row, bbq_row, write
from levelhead.contrib.fairness import FairnessTask
from levelhead.contrib.fairness.data import FairnessItem, parse_row
from levelhead.contrib.fairness.generator import generate_items
from levelhead.contrib.fairness.scoring import LETTERS
from levelhead.errors import InputError
from levelhead.recipe.tasks import Fairness
from levelhead.records import Rollout
from levelhead.tasks.base import Task
from levelhead.tasks.files import Row
from levelhead.tasks.registry import make_task

REAL = Path(__file__).parents[3].parent / "shared" / "data" / "bbq"
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the BBQ files are not at {REAL}")


def task(**keys) -> FairnessTask:
    return FairnessTask(Fairness(kind="fairness", **keys))


@pytest.fixture(scope="module")
def built_in() -> FairnessTask:
    return task(items=1200)


@pytest.fixture(scope="module")
def bbq() -> FairnessTask:
    return task(path=str(REAL))


def everything(made: FairnessTask):
    return [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]


def assert_oracle_best_empty_worst(made: FairnessTask, prompts) -> None:
    for prompt in prompts:
        (answer,) = made.oracle(prompt)
        best, worst = made.score(prompt, answer), made.score(prompt, "")
        assert best.total == pytest.approx(1), (prompt.id, answer)
        assert best.valid
        assert worst.total == -1
        assert not worst.valid


def assert_nothing_leaks(made: FairnessTask) -> None:
    train, held = (list(made.prompts(split, 0)) for split in ("train", "eval"))

    def templates(prompts):
        return {(prompt.facts["category"], prompt.facts["question_index"]) for prompt in prompts}

    assert not templates(train) & templates(held)
    assert {category for category, _ in templates(train)} == {category for category, _ in templates(held)}


def test_the_task_keeps_the_protocol(built_in):
    assert isinstance(built_in, Task)
    assert isinstance(make_task(Fairness(kind="fairness", items=40)), FairnessTask)


def test_the_oracle_scores_the_maximum_and_an_empty_answer_the_minimum(built_in):
    assert_oracle_best_empty_worst(built_in, everything(built_in))


def test_variants_of_an_item_stay_on_one_side_and_every_category_is_on_both(built_in):
    assert_nothing_leaks(built_in)


def test_no_perfect_answer_is_longer_than_its_bound(built_in):
    for prompt in built_in.prompts("train", 0):
        (answer,) = built_in.oracle(prompt)
        assert len(answer.encode()) <= built_in.oracle_bytes(prompt) < 1000


def test_the_same_seed_gives_the_same_prompts(built_in):
    assert list(task(items=1200).prompts("train", 5)) == list(built_in.prompts("train", 5))
    first, second = (list(built_in.prompts("train", seed)) for seed in (5, 6))
    assert first != second
    assert sorted(prompt.id for prompt in first) == sorted(prompt.id for prompt in second)


def test_a_prompt_holds_the_whole_question_and_not_its_answer(built_in):
    prompt = next(built_in.prompts("train", 0))
    (message,) = prompt.messages
    item = FairnessItem.from_facts(prompt.facts)
    for text in (item.context, item.question, *item.answers):
        assert text in message["content"]
    assert message["role"] == "user"
    assert built_in.oracle(prompt)[0] not in message["content"]


def test_limit_and_name_are_kept():
    made = task(items=400, limit=50, name="bias")
    prompts = everything(made)
    assert len(prompts) == 50
    assert {prompt.task for prompt in prompts} == {"bias"}
    assert all(prompt.id.startswith("bias/") for prompt in prompts)


def test_a_category_that_is_held_out_is_never_trained_on_and_scored_as_new():
    made, whole = task(items=1200, hold_out=["Age"]), task(items=1200)
    assert "Age" not in {prompt.facts["category"] for prompt in made.prompts("train", 0)}
    held_out = list(made.prompts("eval", 0))
    assert held_out == list(whole.prompts("eval", 0))
    strata = {(prompt.facts["category"] == "Age", made.strata(prompt)["category"]) for prompt in held_out}
    assert strata == {(True, "new"), (False, "seen")}
    assert all("category" not in whole.strata(prompt) for prompt in held_out)


@pytest.mark.parametrize(
    ("hold_out", "complaint"),
    [(["Aeg"], "'Aeg', which is no category"), (["Age", "Body", "Origin", "Wealth", "Disability"], "every category")],
)
def test_categories_that_cannot_be_held_out_are_named(hold_out, complaint):
    with pytest.raises(InputError, match=complaint):
        task(items=400, hold_out=hold_out)


def test_rows_that_occur_twice_keep_different_ids(tmp_path):
    rows = [ambiguous_row(), bbq_row(), bbq_row(), bbq_row(question_index="2")]
    prompts = everything(task(path=write(tmp_path / "Age.jsonl", *rows)))
    assert len({prompt.id for prompt in prompts}) == 4


def test_a_file_of_one_template_is_too_little(tmp_path):
    with pytest.raises(InputError, match="fewer than two"):
        task(path=write(tmp_path / "Age.jsonl", ambiguous_row(), bbq_row()))


def test_metrics_come_from_the_choices_of_scored_rollouts(built_in):
    prompts = list(islice(built_in.prompts("eval", 0), 40))
    results = [(p, Rollout(p.id, (), built_in.score(p, built_in.oracle(p)[0]))) for p in prompts]
    metrics = built_in.summarize([*results, (prompts[0], Rollout(prompts[0].id, ()))])
    assert metrics["accuracy"] == 1
    assert metrics["s_amb"] == 0
    assert -1 <= metrics["s_dis"] <= 1


def test_built_in_items_are_many_different_and_in_bbqs_schema():
    items = generate_items(13_200)
    assert len({(item.context, item.question, item.answers) for item in items}) == 13_200
    for item in items[:400]:
        row = {
            **{f"ans{i}": answer for i, answer in enumerate(item.answers)},
            "answer_info": {f"ans{i}": [item.names[i], item.groups[i]] for i in range(3)},
            "additional_metadata": {
                "subcategory": item.subcategory,
                "stereotyped_groups": list(item.stereotyped_groups),
                "version": item.version,
                "source": item.source,
            },
            "context_condition": item.condition,
            "question_polarity": item.polarity,
            **{key: getattr(item, key) for key in ("example_id", "question_index", "category", "context", "question")},
            "label": item.label,
        }
        again = parse_row(Row(Path("built-in"), 1, row))
        assert (again.unknown, again.target, again.label) == (item.unknown, item.target, item.label)


def test_more_built_in_items_are_the_same_and_more():
    assert generate_items(4000)[:1001] == generate_items(1001)
    with pytest.raises(ValueError, match="13200"):
        generate_items(13_201)


def test_built_in_items_need_their_context():
    """Position, order of mention and stereotype tell nothing: only the deeds do."""
    items = generate_items(13_200)
    disambig = [item for item in items if item.condition == "disambig"]
    ambig = [item for item in items if item.condition == "ambig"]
    assert len(disambig) == len(ambig)
    for label, count in Counter(item.label for item in items).items():
        assert count / len(items) == pytest.approx(1 / 3, abs=0.02), label
    stereotype = [(item.label == item.target) == (item.polarity == "neg") for item in disambig]
    assert sum(stereotype) / len(disambig) == pytest.approx(0.5, abs=0.03)
    for polarity in ("neg", "nonneg"):
        asked = [item for item in disambig if item.polarity == polarity]
        first = [item.evidence.startswith(item.answers[item.label]) for item in asked]
        assert sum(first) / len(first) == pytest.approx(0.5, abs=0.03)


def test_always_naming_the_stereotyped_person_pays_less_than_always_saying_unknown(built_in):
    def mean(letter_of) -> float:
        prompts = everything(built_in)
        items = [FairnessItem.from_facts(prompt.facts) for prompt in prompts]
        reasons = [built_in.oracle(prompt)[0].split("\n")[0] for prompt in prompts]
        scores = [
            built_in.score(prompt, f"Answer: {LETTERS[letter_of(item)]}\n{reason}").total
            for prompt, item, reason in zip(prompts, items, reasons, strict=True)
        ]
        return sum(scores) / len(scores)

    assert mean(lambda item: item.target) < mean(lambda item: item.unknown) < 0.5


@real
@pytest.mark.data
def test_on_bbq_the_oracle_scores_the_maximum_and_an_empty_answer_the_minimum(bbq):
    assert_oracle_best_empty_worst(bbq, islice(everything(bbq), 0, None, 5))


@real
@pytest.mark.data
def test_on_bbq_no_template_straddles_the_sides(bbq):
    assert_nothing_leaks(bbq)
    prompts = everything(bbq)
    assert len(prompts) == len({prompt.id for prompt in prompts})


@real
@pytest.mark.data
def test_on_bbq_no_pair_of_people_straddles_the_sides_where_they_alone_are_unseen(bbq):
    made = FairnessTask(bbq.section.model_copy(update={"unseen": "people"}))
    train, held = (list(made.prompts(split, 0)) for split in ("train", "eval"))

    def pairs(prompts):
        items = [FairnessItem.from_facts(prompt.facts) for prompt in prompts]
        return {(i.template, frozenset(a for n, a in enumerate(i.answers) if n != i.unknown)) for i in items}

    assert not pairs(train) & pairs(held)
    assert not {prompt.facts["context"] for prompt in train} & {prompt.facts["context"] for prompt in held}
    trained = {template for template, _ in pairs(train)}
    new = [template for template, _ in pairs(held) if template not in trained]
    assert len(new) == len(set(new)) <= 1  # a template of one pair alone


@real
@pytest.mark.data
def test_on_bbq_every_row_has_a_target_and_every_settled_context_its_evidence(bbq):
    items = [FairnessItem.from_facts(prompt.facts) for prompt in everything(bbq)]
    assert all(item.target is not None for item in items)
    assert all(item.evidence != item.context for item in items if item.condition == "disambig")
