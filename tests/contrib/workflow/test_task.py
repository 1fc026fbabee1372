"""The task proves itself: its oracle is best, nothing is worst, and the same seed gives the same prompts."""

from __future__ import annotations

import asyncio
import math
import statistics
from pathlib import Path

import pytest

from levelhead.contrib.workflow.language import extract
from levelhead.contrib.workflow.simulator import expected
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.errors import InputError
from levelhead.objective.advantages.groupwise import STRUCTURE_WEIGHTS
from levelhead.recipe import Recipe
from levelhead.recipe.load import load
from levelhead.recipe.tasks import Workflow
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import Answer, Task
from levelhead.tasks.registry import make_task


def task(**keys: object) -> WorkflowTask:
    return WorkflowTask(Workflow.model_validate({"kind": "workflow", "items": 180, **keys}))


def score_all(one: WorkflowTask, answers: list[Answer]) -> list[Score]:
    scores = asyncio.run(one.score_batch(answers))
    assert None not in scores
    return [score for score in scores if score is not None]


def test_a_recipe_makes_the_task() -> None:
    recipe = Recipe.model_validate({"model": {"preset": "tiny"}, "tasks": [{"kind": "workflow", "items": 90}]})
    made = make_task(recipe.tasks[0])
    assert isinstance(made, Task)
    assert made.name == "workflow"


def test_prompts_are_short_hide_the_answer_and_follow_the_seed() -> None:
    one = task()
    prompts = list(one.prompts("train", 0))
    assert prompts == list(task().prompts("train", 0))
    assert prompts != list(one.prompts("train", 1))
    assert {prompt.id for prompt in prompts}.isdisjoint(prompt.id for prompt in one.prompts("eval", 0))
    for prompt in prompts:
        text = prompt.messages[-1]["content"]
        assert len(text.split()) < 60
        assert "answer" not in prompt.facts
        assert prompt.facts["domain"] not in text.split()


def test_the_oracle_has_the_highest_expected_reward_and_nothing_the_lowest() -> None:
    one = task()
    prompts = list(one.prompts("train", 0))
    oracle = score_all(one, [Answer(prompt, (one.oracle(prompt) or [""])[0]) for prompt in prompts])
    plain = score_all(one, [Answer(prompt, "Custom -> Review -> Revise") for prompt in prompts])
    empty = score_all(one, [Answer(prompt, "") for prompt in prompts])
    for best, other in zip(oracle, plain, strict=True):
        assert best.info["expected"] >= other.info["expected"]
    assert all(not score.valid and score.total == -0.1 for score in empty)
    assert all(score.valid and 0 <= score.total <= 1 for score in [*oracle, *plain])
    assert statistics.fmean(score.total for score in oracle) > statistics.fmean(score.total for score in plain) + 0.05


def test_a_fallback_keeps_its_reason_and_is_not_run() -> None:
    one = task()
    prompt = next(one.prompts("train", 0))
    score = one.score(prompt, "### Step 1: Analyze the problem")
    assert not score.valid
    assert score.info["workflow"] is None
    assert "column 1" in score.info["error"]
    assert set(score.parts.values()) == {0.0}


def test_equal_answers_of_a_group_are_draws_of_their_own() -> None:
    one = task()
    hard = [prompt for prompt in one.prompts("train", 0) if prompt.facts["difficulty"] == "hard"]
    scores = score_all(one, [Answer(hard[0], "Custom")] * 40)
    assert len({score.total for score in scores}) > 1
    mean = statistics.fmean(score.info["expected"] for score in scores)
    assert math.isclose(mean, scores[0].info["expected"])
    assert score_all(one, [Answer(hard[0], "Custom")] * 40) == scores


def test_one_answer_scores_the_same_alone_and_first_in_a_batch() -> None:
    one = task()
    prompts = list(one.prompts("train", 0))[:10]
    alone = [one.score(prompt, "Programmer") for prompt in prompts]
    assert score_all(one, [Answer(prompt, "Programmer") for prompt in prompts]) == alone


async def test_scoring_one_answer_works_inside_an_event_loop() -> None:
    one = task()
    prompt = next(one.prompts("train", 0))
    assert one.score(prompt, "Programmer").valid
    step = await one.episode(prompt).act("Programmer")
    assert step.done
    assert step.score == one.score(prompt, "Programmer")


def shown(one: WorkflowTask, prompt: Prompt) -> str:
    ((messages, text),) = asyncio.run(one.demonstrate(prompt))
    assert messages == list(prompt.messages)
    return text


def test_varied_demonstrations_are_valid_many_and_worse_than_the_oracle() -> None:
    one = task(demonstrations="varied")
    assert one.demonstrates
    prompts = list(one.prompts("train", 0))
    texts = [shown(one, prompt) for prompt in prompts]
    assert len(set(texts)) > 15
    assert all(extract(text).tree is not None for text in texts)
    assert texts == [shown(one, prompt) for prompt in prompts]
    rewards = [score.info["expected"] for score in score_all(one, list(map(Answer, prompts, texts)))]
    oracle = [Answer(prompt, (one.oracle(prompt) or [""])[0]) for prompt in prompts]
    highest = [score.info["expected"] for score in score_all(one, oracle)]
    assert statistics.fmean(highest) > statistics.fmean(rewards) + 0.1


def test_the_best_demonstration_is_the_oracle() -> None:
    one = task()
    for prompt in list(one.prompts("train", 0))[:20]:
        assert [shown(one, prompt)] == one.oracle(prompt)


def test_the_full_prompt_teaches_the_language_and_its_oracle_uses_tags() -> None:
    one = task(prompt="full", limits={"loop": 2})
    prompt = next(one.prompts("train", 0))
    system = prompt.messages[0]["content"]
    assert "ScEnsemble" in system
    assert "2 passes" in system
    (answer,) = one.oracle(prompt) or [""]
    assert answer.startswith("<workflow>")
    assert one.score(prompt, answer).parts["format"] == 1.0


def test_near_misses_count_only_where_the_recipe_says_so() -> None:
    strict, lenient = task(), task(near_misses=True)
    prompt = next(strict.prompts("train", 0))
    assert not strict.score(prompt, "custom => review").valid
    score = lenient.score(prompt, "custom => review")
    assert score.info["workflow"] == "Custom -> Review"
    assert score.info["repairs"] == ["arrow", "spelling"]
    assert score.parts["format"] == 0.0


def test_domain_ratios_shape_the_prompts() -> None:
    one = task(domains={"math": 2, "qa": 1})
    domains = [prompt.facts["domain"] for prompt in one.prompts("train", 0)]
    assert domains.count("math") == pytest.approx(2 * domains.count("qa"), abs=2)
    assert "code" not in domains


def test_the_summary_counts_what_was_written() -> None:
    one = task(near_misses=True)
    prompts = list(one.prompts("eval", 0))[:6]
    texts = ["Programmer", "Programmer", "custom -> format", "### Step 1", "[Custom, Custom] -> ScEnsemble", "Custom"]
    scores = score_all(one, list(map(Answer, prompts, texts)))
    values = one.summarize([(p, Rollout(p.id, (), s)) for p, s in zip(prompts, scores, strict=True)])
    assert values["fallback"] == pytest.approx(1 / 6)
    assert values["normalised"] == pytest.approx(1 / 6)
    assert values["unique"] == pytest.approx(4 / 5)
    assert values["structure/single"] == pytest.approx(3 / 5)
    assert values["structure/parallel"] == pytest.approx(1 / 5)
    assert values["accuracy"] == pytest.approx(statistics.fmean(s.parts["correctness"] == 1.0 for s in scores))
    assert values["expected_reward"] == pytest.approx(
        statistics.fmean(s.info["expected"] if s.valid else s.total for s in scores)
    )
    assert values["tokens"] == pytest.approx(statistics.fmean(s.info["tokens"] for s in scores if s.valid))
    assert one.summarize([]) == {}


def test_the_best_fixed_workflow_is_one_that_the_task_can_run() -> None:
    one = task()
    fixed = one.best_fixed_workflow("eval")
    tree = extract(fixed).tree
    assert tree is not None
    problem = one.problems("eval")[0]
    assert expected(tree, problem.domain, problem.difficulty, one._section.reward).reward > 0.5


def test_expected_reward_stands_beside_the_bars_that_it_is_held_against() -> None:
    one = task()
    prompts = list(one.prompts("eval", 0))
    fixed = one.best_fixed_workflow("eval")
    oracle = [(one.oracle(prompt) or [""])[0] for prompt in prompts]
    for texts, bar in (([fixed] * len(prompts), "best_fixed"), (oracle, "best_by_class")):
        scores = score_all(one, list(map(Answer, prompts, texts)))
        values = one.summarize([(p, Rollout(p.id, (), s)) for p, s in zip(prompts, scores, strict=True)])
        assert values["expected_reward"] == pytest.approx(values[f"expected_reward/{bar}"])
        assert values["expected_reward/best_fixed"] < values["expected_reward/best_by_class"] - 0.05


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        task(path=str(tmp_path / "nothing.jsonl"))


def test_prompts_stay_with_their_problem() -> None:
    one = task()
    stranger = Prompt("unknown", "workflow", ({"role": "user", "content": "?"},))
    with pytest.raises(KeyError):
        one.oracle(stranger)


def test_structural_features_are_those_that_workflow_aware_advantages_ask_for() -> None:
    one = task()
    hard = next(prompt for prompt in one.prompts("train", 0) if prompt.facts["difficulty"] == "hard")
    texts = ["Custom", "Custom", "Custom -> Test -> Revise", "### Step 1"]
    scores = score_all(one, [Answer(hard, text) for text in texts])
    features = [score.info["features"] for score in scores]
    assert all(set(row) == set(STRUCTURE_WEIGHTS) for row in features)
    assert [row["diversity"] for row in features] == pytest.approx([2 / 3, 2 / 3, 1.0, 0.0])
    assert [row["operator_variety"] for row in features] == pytest.approx([1 / 6, 1 / 6, 3 / 6, 0.0])
    assert features[0]["improvement"] == features[1]["improvement"] == 0.0
    assert set(features[3].values()) == {0.0}
    assert all(0.0 <= value <= 1.0 for row in features for value in row.values())


def test_what_a_revision_made_of_the_first_draft_is_its_improvement() -> None:
    one = task()
    prompts = [prompt for prompt in one.prompts("train", 0) if prompt.facts["domain"] == "code"]
    scores = score_all(one, [Answer(prompt, "CustomCodeGenerate -> (Test ? Revise : done) * 3") for prompt in prompts])
    better = [score for score in scores if score.info["features"]["improvement"] > 0]
    assert 0.1 < len(better) / len(scores) < 0.9
    assert all(score.info["calls"] > 2 for score in better)


@pytest.mark.parametrize("name", ["workflow-tiny", "workflow-collapse", "workflow-qwen2.5-7b"])
def test_the_ready_recipes_load_and_describe_this_task(name: str) -> None:
    recipe = load(
        Path(__file__).parents[3] / "recipes" / f"{name}.yaml",
        ["tasks.0.executor.cache=null"] if "qwen" in name else (),
    )
    (section,) = recipe.tasks
    assert recipe.name == name
    assert make_task(section).name == "workflow"
    assert recipe.grpo is not None
    assert recipe.grpo.batch_size % recipe.grpo.group_size == 0
