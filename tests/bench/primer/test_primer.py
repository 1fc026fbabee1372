from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from primer import PrimerTask
from primerlib.items import PrimerItem, make_items
from primerlib.lessons import KINDS, Lesson
from primerlib.pages import page_items
from primerlib.phrases import make_alike_deeds
from primerlib.words import DEEDS, LEXICON, NAMES, invent

from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.contrib.fairness import FairnessTask
from levelhead.contrib.fairness.task import INSTRUCTION
from levelhead.contrib.faithfulness import FaithfulnessTask
from levelhead.errors import InputError
from levelhead.recipe import load
from levelhead.recipe.tasks import CustomTask, Fairness, Faithfulness
from levelhead.records import Prompt
from levelhead.tasks.registry import make_task
from levelhead.training.items import overlap

ROOT = Path(__file__).parents[3]
ITEMS = [item for number in range(1500) for item in make_items(number, Lesson())]


def of_kind(kind: str) -> list[PrimerItem]:
    return [item for item in ITEMS if item.kind == kind]


@pytest.fixture(scope="module")
def task() -> PrimerTask:
    return PrimerTask(items=300)


@pytest.mark.parametrize("number", range(1, 9))
def test_the_recipes_of_the_base_model_name_it(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    section = load(f"recipes/base-tiny/{number}.yaml", ["tasks.0.settings.items=20"]).tasks[0]
    made = make_task(section)
    assert type(made).__name__ == "PrimerTask"
    assert made.name == "primer"
    assert list(made.prompts("train", 0))


def test_the_same_number_makes_the_same_text_and_another_number_another() -> None:
    assert make_items(7, Lesson()) == make_items(7, Lesson())
    assert len({make_items(n, Lesson())[0].prompt for n in range(200)}) == 200


def test_perfect_answers_score_one_and_empty_ones_minus_one(task: PrimerTask) -> None:
    for prompt in itertools.islice(task.prompts("train", 0), 200):
        assert task.score(prompt, task.oracle(prompt)[0]).total == 1
        assert task.score(prompt, "").total == -1


def test_a_right_last_line_under_a_wrong_quote_scores_zero(task: PrimerTask) -> None:
    prompt = next(
        p for p in task.prompts("train", 0) if p.facts["kind"] == "recall" and "none" not in p.facts["answer"]
    )
    answer = str(prompt.facts["answer"]).split("\n")[1]
    assert task.score(prompt, f"Evidence: nothing of the kind\n{answer}").total == 0


def test_recalled_evidence_is_a_sentence_of_the_text_that_holds_the_answer() -> None:
    for item in of_kind("recall"):
        evidence, answer = item.answer.removeprefix("Evidence: ").split("\nAnswer: ")
        if answer == "unknown":
            assert evidence == "none"
            continue
        assert evidence in item.prompt
        assert answer in evidence


def test_a_fact_is_unknown_exactly_where_no_sentence_answers_the_question() -> None:
    for item in of_kind("recall"):
        asked = re.search(r"Question: What is (\S+)'s (\S+)\?", item.prompt)
        if asked:
            name, attribute = asked.groups()
            told = f"{name}'s {attribute} is " in item.prompt or f"{attribute} of {name} is " in item.prompt
            assert told or "unknown" in item.answer or f"{name}'s {attribute} was" in item.prompt


def test_the_chosen_letter_stands_before_the_person_of_the_quoted_sentence() -> None:
    for item in of_kind("choose"):
        reason, letter = item.answer.removeprefix("Reason: ").split("\nAnswer: ")
        option = re.search(rf"^{letter}\) (.+)$", item.prompt, re.MULTILINE)
        assert option is not None
        if "but does not say which" in reason:
            assert not option[1].startswith("The ")
        else:
            assert reason in item.prompt
            assert option[1].lower() in reason.lower()


def test_right_letters_are_spread_evenly() -> None:
    letters = Counter(item.answer[-1] for item in of_kind("choose"))
    assert max(letters.values()) < 1.2 * min(letters.values())


def test_who_is_the_person_of_the_sentence_with_that_deed() -> None:
    for item in of_kind("who"):
        deed = item.prompt.rsplit("Question: Who ", 1)[1].removesuffix("?")
        reason, _, person = item.answer.rpartition("Answer: ")
        assert f" {person} {deed}." in item.prompt
        assert reason in ("", f"Reason: {person} {deed}.\n")


def test_a_lesson_about_names_tells_of_nobody_else() -> None:
    lesson = Lesson(kinds={"who": 1, "trace": 1}, people="names")
    texts = [item.prompt.split("\n")[0] for number in range(200) for item in make_items(number, lesson)]
    sentences = [sentence for text in texts for sentence in text.removeprefix("Text: ").split(". ")]
    assert all(sentence.split(" ")[0] in NAMES for sentence in sentences)
    assert any("Text: The " in item.prompt for item in of_kind("who"))


def test_a_letter_question_is_answered_by_the_line_that_names_the_option() -> None:
    for item in of_kind("letter"):
        option = item.prompt.rsplit("Which letter: ", 1)[1]
        assert f"{item.answer[-1]}) {option}\n" in item.prompt


def test_a_reasoned_letter_is_that_of_the_person_whom_the_reason_names() -> None:
    lesson = Lesson(kinds={"letter": 1}, reasoned=1)
    items = [item for number in range(200) for item in make_items(number, lesson)]
    assert sum("does not say which" in item.prompt for item in items) > 20
    for item in items:
        asked = item.prompt.rsplit("Which letter: ", 1)[1]
        line = re.search(rf"^{item.answer[-1]}\) (.+)$", item.prompt, re.MULTILINE)
        assert line is not None
        assert asked.startswith(line[1]) or ("does not say which" in asked and not line[1].startswith("The "))


def test_a_given_reason_leaves_the_letter_alone_to_say() -> None:
    whole, given = ([i for n in range(80) for i in make_items(n, Lesson(kinds={"choose": 1}, given=g))] for g in (0, 1))
    assert len(whole) == len(given)
    for full, short in zip(whole, given, strict=True):
        reason, letter = full.answer.split("\n")
        assert short.answer == letter
        assert short.prompt == f"{full.prompt.split(INSTRUCTION)[0].strip()}\n{reason}"


def test_alike_deeds_differ_in_one_word_and_are_asked_for_without_their_end() -> None:
    items = [item for number in range(200) for item in make_items(number, Lesson(kinds={"who": 1}, alike=1))]
    shortened = 0
    for item in items:
        text, asked = re.fullmatch(r"Text: (.*)\nQuestion: Who (.*)\?", item.prompt).groups()  # type: ignore[union-attr]
        person = item.answer.rsplit("Answer: ", 1)[1]
        sentences = text.removesuffix(".").split(". ")
        (sentence,) = [sentence for sentence in sentences if sentence.startswith(f"{person} ")]
        assert sentence.removeprefix(f"{person} ").split(" and ")[0] == asked
        shortened += not sentence.endswith(asked)
    assert 0.5 < shortened / len(items) < 0.9
    rng = random.Random(0)
    for _ in range(200):
        one, other = (head.split() for head in make_alike_deeds(rng, 2)[1])
        assert sum(a != b for a, b in zip(one, other, strict=True)) == 1


def test_a_click_hits_the_element_that_the_goal_names_or_a_closed_one() -> None:
    for item in of_kind("page"):
        goal = re.search(r'Goal: .*"(.+?)"', item.prompt)
        click = re.fullmatch(r"click\((\d+)\)", item.answer)
        if goal and click and "textbox value" not in item.prompt:
            line = re.search(rf'\[{click[1]}\] \w+ "([^"]*)"( \w+)?', item.prompt)
            assert line is not None
            assert line[1] == goal[1] or line[2] == " collapsed"


def test_elements_are_numbered_in_reading_order() -> None:
    for item in of_kind("page"):
        numbers = [int(n) for n in re.findall(r"\[(\d+)\]", item.prompt)]
        assert numbers == list(range(1, len(numbers) + 1))


def test_two_turns_fill_a_field_and_press_the_button() -> None:
    import random

    turns = next(t for n in range(50) if (t := page_items(random.Random(n)))[0][1].startswith("fill"))
    assert [answer.partition("(")[0] for _, answer in turns] == ["fill", "click"]


def test_texts_share_no_name_scene_or_fact_with_the_small_tasks() -> None:
    primer = {line for item in ITEMS for line in item.prompt.split("\n")}
    names = {"Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia"}
    assert not any(names & set(re.findall(r"\w+", line)) for line in primer)
    for small in (
        FairnessTask(Fairness(kind="fairness", items=2000)),
        FaithfulnessTask(Faithfulness(kind="faithfulness", items=2000)),
    ):
        texts = {
            p.messages[0]["content"].split("\n")[0] for split in ("train", "eval") for p in small.prompts(split, 0)
        }
        assert not texts & primer


def test_splits_are_disjoint_and_questions_of_a_text_follow_each_other(task: PrimerTask) -> None:
    def texts(prompts: list[Prompt]) -> list[str]:
        return [text for text, _ in itertools.groupby(p.id.split("/")[1] for p in prompts)]

    train, held_out = texts(list(task.prompts("train", 0))), texts(list(task.prompts("eval", 0)))
    assert len(train) == len(set(train))
    assert not set(train) & set(held_out)


def test_strata_are_the_kinds_of_question(task: PrimerTask) -> None:
    kinds = {task.strata(p)["kind"] for p in task.prompts("train", 0)}
    assert kinds == set(KINDS)


def test_the_lexicon_knows_words_that_no_prompt_holds(task: PrimerTask) -> None:
    lines = " ".join(task.lexicon())
    assert SYSTEM_PROMPT in lines
    assert INSTRUCTION in lines
    assert sum(word in lines for word in LEXICON) > 0.95 * len(LEXICON)


def test_invented_words_are_letters_only() -> None:
    import random

    rng = random.Random(0)
    assert all(re.fullmatch("[a-z]+", invent(rng)) for _ in range(200))


def test_lessons_come_in_turn_and_held_out_texts_are_of_the_last() -> None:
    first, second = {"texts": 50, "kinds": {"copy": 1}}, {"texts": 100, "kinds": {"recall": 1, "choose": 2}}
    task = PrimerTask(items=400, lessons=[Lesson.model_validate(one) for one in (first, second, {})])
    texts = [
        {p.facts["kind"] for p in prompts}
        for _, prompts in itertools.groupby(task.prompts("train", 0), key=lambda p: p.id.split("/")[1])
    ]
    assert set().union(*texts[:50]) == {"copy"}
    assert set().union(*texts[50:150]) == {"recall", "choose"}
    assert set().union(*texts[150:]) == set(KINDS)
    assert {p.facts["kind"] for p in task.prompts("eval", 0)} > {"letter", "page"}


@pytest.mark.parametrize(
    ("lessons", "complaint"),
    [
        ([], "at least 1 item"),
        ([{}, {}], "every lesson but the last needs a number of texts"),
        ([{"kinds": {"copy": 0}}], "the share of 'copy' must be above 0"),
        ([{"kinds": {"sing": 1}}], "'copy', 'pairs', 'trace'"),
    ],
)
def test_lessons_that_cannot_be_are_refused(lessons: list[dict[str, object]], complaint: str) -> None:
    settings = {"items": 20, "lessons": lessons}
    section = CustomTask(kind="custom", name="primer", path=f"{ROOT}/bench/primer.py:PrimerTask", settings=settings)
    with pytest.raises(InputError, match=complaint):
        make_task(section)


def test_a_lesson_without_judged_texts_asks_in_the_words_of_the_text() -> None:
    lesson = Lesson(kinds={"choose": 1}, judged=0)
    words = {question for name in ("bad_questions", "good_questions") for question in DEEDS[name]}
    items = [item for n in range(300) for item in make_items(n, lesson)]
    assert not any(question in item.prompt for item in items for question in words)
    assert any(question in item.prompt for item in of_kind("choose") for question in words)


def test_rare_words_take_the_place_of_others_in_a_text_and_its_answers_alike() -> None:
    lesson = Lesson(kinds={"who": 1}, rare=0.5)
    items = [item for number in range(200) for item in make_items(number, lesson)]
    assert sum(any(f" {word} " in item.prompt for word in LEXICON) for item in items) > 0.8 * len(items)
    for item in items:
        deed = item.prompt.rsplit("Question: Who ", 1)[1].removesuffix("?")
        assert f" {item.answer.rpartition('Answer: ')[2]} {deed}." in item.prompt


def test_rare_words_are_the_same_in_every_process() -> None:
    code = (
        "from primerlib.lessons import Lesson; from primerlib.items import make_items;"
        "print([item.prompt for n in range(20) for item in make_items(n, Lesson(rare=0.5))])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_no_held_out_question_comes_again_in_training() -> None:
    task = PrimerTask(items=24000, eval_fraction=0.5, lessons=[Lesson(kinds={"page": 0.5, "numbers": 0.5})])
    same, held, _, _ = overlap(task)
    assert held > 10000
    assert not same
