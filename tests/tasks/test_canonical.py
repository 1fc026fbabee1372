"""What an answer says: equal texts for equal meaning, task by task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from levelhead.contrib.fairness import FairnessTask
from levelhead.contrib.faithfulness import FaithfulnessTask
from levelhead.contrib.openenv.task import OpenEnvTask
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.recipe.environments import OpenEnv
from levelhead.recipe.tasks import Fairness, Faithfulness, Function, Math, Workflow
from levelhead.records import Prompt
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.math import MathTask

PROMPT = Prompt("1", "task", ())


def test_a_letter_is_what_its_option_says() -> None:
    task = FairnessTask(Fairness(kind="fairness", items=400))
    first = next(task.prompts("train", 0))
    facts = dict(first.facts)
    order = [1, 2, 0]
    turned = facts | {"answers": [facts["answers"][i] for i in order], "unknown": order.index(facts["unknown"])}
    shuffled = replace(first, facts=turned)
    said = {letter: task.canonical(first, f"Reason: so it says.\nAnswer: {letter}") for letter in "ABC"}
    moved = {letter: task.canonical(shuffled, f"Reason: another reason.\nAnswer: {letter}") for letter in "ABC"}
    assert len(set(said.values())) == 3
    assert [moved[letter] for letter in "ABC"] == [said["ABC"[i]] for i in order]
    assert said["ABC"[facts["unknown"]]] == "unknown"
    assert task.canonical(first, "Answer:  maybe  A or B") == "answer: maybe a or b"


def test_the_same_letter_for_different_people_is_not_the_same_answer() -> None:
    task = FairnessTask(Fairness(kind="fairness", items=400))
    prompts = list(task.prompts("train", 0))[:200]
    assert len({task.canonical(prompt, "Reason: the text.\nAnswer: A") for prompt in prompts}) > 10


def test_an_answer_is_compared_without_its_evidence_and_all_abstentions_are_one() -> None:
    task = FaithfulnessTask(Faithfulness(kind="faithfulness", items=400))
    prompt = next(task.prompts("train", 0))
    one = task.canonical(prompt, "Evidence: none\nAnswer: The Blue Door.")
    assert one == task.canonical(prompt, 'Evidence: "in the hall"\nAnswer: blue door') == "blue door"
    abstained = {
        task.canonical(prompt, f"Evidence: none\nAnswer: {x}") for x in ("unknown", "Not stated.", "no answer")
    }
    assert abstained == {"unknown"}
    assert task.canonical(prompt, "I  WOULD rather not") == "i would rather not"


def test_a_number_is_the_same_in_any_dress() -> None:
    task = MathTask(Math(kind="math", items=20))
    said = {
        task.canonical(PROMPT, text) for text in ("so\n#### 1,080", "other words\n#### 1080.0", "The answer is 1080")
    }
    assert said == {"1080"}
    assert task.canonical(PROMPT, "No  Idea") == "no idea"


def test_a_workflow_is_the_same_however_it_is_written() -> None:
    task = WorkflowTask(Workflow(kind="workflow", items=30))
    one = task.canonical(PROMPT, "AnswerGenerate->Format")
    assert one == task.canonical(PROMPT, "<workflow>\n AnswerGenerate  ->  Format </workflow>")
    assert one == "AnswerGenerate -> Format"
    assert task.canonical(PROMPT, "AnswerGenerate ->") == "answergenerate ->"


def test_free_text_is_compared_whole() -> None:
    task = FunctionTask(Function(kind="function"), data=[{"prompt": str(n)} for n in range(4)], rewards=_one)
    start = "word " * 300
    assert task.canonical(PROMPT, start + "Yes") == task.canonical(PROMPT, start.upper() + " yes\n")
    assert task.canonical(PROMPT, start + "yes") != task.canonical(PROMPT, start + "no")


def _one(completions: list[str], **_: object) -> list[float]:
    return [1.0] * len(completions)


def test_an_episode_is_its_sequence_of_actions() -> None:
    task = OpenEnvTask(OpenEnv(kind="openenv", url="http://127.0.0.1:1", tasks=["a"]))
    assert task.canonical(PROMPT, "Left  now\nand why\n\nRIGHT\n\n") == "left now; right"


def test_an_action_on_a_page_is_what_the_grammar_reads() -> None:
    pytest.importorskip("playwright")
    pytest.importorskip("miniwob")
    from levelhead.contrib.browser.task import BrowserTask
    from levelhead.recipe.environments import Browser

    task = BrowserTask(Browser(kind="browser"))
    one = task.canonical(PROMPT, "fill( 3,\"Bob\" );\nthen\n\nclick('4')")
    assert one == task.canonical(PROMPT, "fill(3, 'Bob')\n\nclick(4)") == "fill(3, 'Bob'); click(4)"
    assert one != task.canonical(PROMPT, "fill(3, 'bob')\n\nclick(4)")
    assert task.canonical(PROMPT, "Go  Away") == "go away"
