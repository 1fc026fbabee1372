"""The simulator: true distributions, one draw and the exact expectation of the same thing, and the best choice."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.workflow import reward
from levelhead.contrib.workflow.interpret import Job
from levelhead.contrib.workflow.language import Limits, check, extract, parse, to_text
from levelhead.contrib.workflow.operators import OPERATORS, Role
from levelhead.contrib.workflow.problems import DOMAINS, Problem
from levelhead.contrib.workflow.simulator import (
    SimulatedExecutor,
    best_fixed_workflow,
    best_workflow,
    expected,
    model,
    varied_workflows,
)
from levelhead.contrib.workflow.simulator.choose import catalogue, outcomes
from levelhead.contrib.workflow.simulator.model import Quality, World
from levelhead.recipe.workflow import ThreeLevelReward, WeightedReward
from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain

REWARD = WeightedReward(kind="weighted")
CLASSES: list[tuple[Domain, Difficulty]] = [(domain, difficulty) for domain in DOMAINS for difficulty in DIFFICULTIES]

worlds = st.builds(World, st.sampled_from(DOMAINS), st.sampled_from(DIFFICULTIES), st.booleans())
qualities = st.sampled_from(list(Quality))


def names(role: Role) -> st.SearchStrategy[str]:
    return st.sampled_from([operator.name for operator in OPERATORS.values() if operator.role is role])


def problems(n: int, domain: Domain = "math", difficulty: Difficulty = "hard") -> list[Problem]:
    return [Problem("?", (("1",),), id=f"p{i}", domain=domain, difficulty=difficulty) for i in range(n)]


def jobs(text: str, items: list[Problem], sample: int = 0) -> list[Job]:
    tree = parse(text)
    check(tree)
    return [Job(tree, to_text(tree), item, sample) for item in items]


@given(worlds, names(Role.DRAFT), st.none() | qualities, names(Role.JUDGE), qualities, st.booleans())
@settings(deadline=None)
def test_every_operator_is_a_distribution(
    world: World, drafter: str, before: Quality | None, judge: str, quality: Quality, fault: bool
) -> None:
    for chances in (
        model.draft(drafter, world, before),
        model.revise(world, quality, judge, fault),
        model.reduce(world, quality),
    ):
        assert math.isclose(sum(chance for chance, _ in chances), 1.0)
        assert min(chance for chance, _ in chances) >= 0.0
    assert 0.0 <= model.notices(judge, world, quality) <= 1.0


@given(worlds, names(Role.VOTE), st.lists(qualities, min_size=1, max_size=6))
@settings(deadline=None)
def test_an_ensemble_takes_one_of_its_drafts_whatever_their_order(
    world: World, ensemble: str, drafts: list[Quality]
) -> None:
    chances = model.vote(ensemble, world, drafts)
    assert math.isclose(sum(chance for chance, _ in chances), 1.0)
    assert {quality for _, quality in chances} <= set(drafts)
    turned = dict.fromkeys(Quality, 0.0)
    for sign, order in ((1.0, drafts), (-1.0, drafts[::-1])):
        for chance, quality in model.vote(ensemble, world, order):
            turned[quality] += sign * chance
    assert all(abs(rest) < 1e-12 for rest in turned.values())


@pytest.mark.parametrize(
    "text",
    [
        "Programmer",
        "Custom -> Review ? Revise : done",
        "AnswerGenerate -> (Test ? Revise : done) * 3 -> Format",
        "[AnswerGenerate, Custom -> Format, Custom] -> ScEnsemble -> Review -> Revise",
        "Custom -> (Review ? (Programmer -> Test -> Revise) : done) * 2 -> Format",
        "[Custom, [Custom, Programmer] -> MdEnsemble] -> ScEnsemble",
    ],
)
@pytest.mark.parametrize(("domain", "difficulty"), [("math", "hard"), ("code", "medium"), ("qa", "easy")])
async def test_the_mean_of_many_runs_is_the_exact_expectation(
    text: str, domain: Domain, difficulty: Difficulty
) -> None:
    extraction = extract(text)
    assert extraction.tree is not None
    runs = await SimulatedExecutor(7).execute(jobs(text, problems(600, domain, difficulty)))
    looks = reward.looks(extraction)
    rewards = [reward.total(REWARD, reward.parts(REWARD, looks, run.level, run.tokens)) for run in runs]
    exact = expected(extraction.tree, domain, difficulty, REWARD)
    error = statistics.stdev(rewards) / math.sqrt(len(rewards))
    assert abs(statistics.fmean(rewards) - exact.reward) < 4 * error
    right = statistics.fmean(run.level == 1.0 for run in runs)
    assert abs(right - exact.right) < 4 * math.sqrt(exact.right * (1 - exact.right) / len(runs))
    assert abs(statistics.fmean(run.tokens for run in runs) / exact.tokens - 1) < 0.1


def test_an_expectation_worked_out_by_hand() -> None:
    # Custom on easy math: right 0.8, on the 5% of tricky problems 0.4.
    chances = outcomes(parse("Custom"), "math", "easy")
    assert math.isclose(chances[Quality.RIGHT, 240], 0.95 * 0.8 + 0.05 * 0.4)
    assert math.isclose(sum(chances.values()), 1.0)
    # 3% of the drafts that are not right are nothing at all.
    assert math.isclose(chances[Quality.NONE, 240], 0.03 * (0.95 * 0.2 + 0.05 * 0.6))


def test_outcomes_depend_on_seed_problem_workflow_and_sample_and_on_nothing_else() -> None:
    import asyncio

    items = problems(60)

    def levels(seed: int, text: str, sample: int, order: list[Problem]) -> dict[str, float]:
        runs = asyncio.run(SimulatedExecutor(seed).execute(jobs(text, order, sample)))
        return {item.id: run.level for item, run in zip(order, runs, strict=True)}

    base = levels(0, "Custom", 0, items)
    shuffled = random.Random(0).sample(items, len(items))
    assert levels(0, "Custom", 0, shuffled) == base
    assert levels(1, "Custom", 0, items) != base
    assert levels(0, "Custom", 1, items) != base
    assert levels(0, "AnswerGenerate", 0, items) != base


def test_whether_a_problem_is_tricky_is_the_same_for_every_workflow_and_as_frequent_as_documented() -> None:
    simulator = SimulatedExecutor(0)
    for difficulty, share in zip(DIFFICULTIES, model.TRICKY_SHARE, strict=True):
        tricky = [simulator.world(item).tricky for item in problems(4000, "qa", difficulty)]
        assert tricky == [simulator.world(item).tricky for item in problems(4000, "qa", difficulty)]
        assert abs(statistics.fmean(tricky) - share) < 0.03


@pytest.mark.parametrize("domain", DOMAINS)
def test_harder_problems_are_worth_less_whatever_the_workflow(domain: Domain) -> None:
    for text, tree in random.Random(0).sample(catalogue(Limits()), 12):
        easy, medium, hard = (expected(tree, domain, difficulty, REWARD) for difficulty in DIFFICULTIES)
        assert easy.reward > medium.reward > hard.reward, text
        assert easy.tokens < hard.tokens, text


def test_the_best_workflow_is_no_worse_than_any_other_candidate_and_differs_between_classes() -> None:
    limits = Limits()
    best = {place: best_workflow(*place, REWARD, limits) for place in CLASSES}
    sample = random.Random(1).sample(catalogue(limits), 40)
    for place, text in best.items():
        value = expected(parse(text), *place, REWARD).reward
        assert all(value >= expected(tree, *place, REWARD).reward - 1e-9 for _, tree in sample)
    assert len(set(best.values())) >= 5
    assert {text.split()[0].strip("[,") for text in best.values()} >= {
        "Programmer",
        "CustomCodeGenerate",
        "AnswerGenerate",
    }


def test_choosing_by_problem_beats_the_best_fixed_workflow_by_a_margin() -> None:
    limits = Limits()
    items = [
        Problem("?", (("1",),), id=f"{domain}-{difficulty}", domain=domain, difficulty=difficulty)
        for domain, difficulty in CLASSES
    ]
    fixed = parse(best_fixed_workflow(items, REWARD, limits))
    by_class = statistics.fmean(
        expected(parse(best_workflow(*place, REWARD, limits)), *place, REWARD).reward for place in CLASSES
    )
    one_for_all = statistics.fmean(expected(fixed, *place, REWARD).reward for place in CLASSES)
    assert by_class - one_for_all > 0.05


def test_the_best_fixed_workflow_of_one_class_is_its_best_workflow() -> None:
    items = problems(5, "code", "medium")
    assert best_fixed_workflow(items, REWARD) == best_workflow("code", "medium", REWARD, Limits())
    with pytest.raises(ValueError, match="none was given"):
        best_fixed_workflow([], REWARD)


def test_a_reward_that_counts_nothing_but_right_answers_wants_costlier_workflows() -> None:
    blunt = ThreeLevelReward(kind="three_level")
    place: tuple[Domain, Difficulty] = ("code", "hard")
    frugal = expected(parse(best_workflow(*place, REWARD, Limits())), *place, REWARD)
    lavish = expected(parse(best_workflow(*place, blunt, Limits())), *place, blunt)
    assert lavish.right >= frugal.right


def test_candidates_and_demonstrations_keep_within_the_limits() -> None:
    tight = Limits(depth=1, loop=1, calls=3)
    for text, tree in catalogue(tight):
        check(tree, tight)
        assert to_text(tree) == text
    mix = varied_workflows(tight)
    assert mix
    assert all(extract(text, tight).tree is not None for text in mix)
    assert len(varied_workflows(Limits())) == 30
