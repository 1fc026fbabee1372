"""The best constant answer: found among many, scored on items that it was not chosen by."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import pytest

from levelhead.errors import InputError, RewardError
from levelhead.recipe.environments import Browser
from levelhead.recipe.tasks import Fairness, Faithfulness, Function, Math, Workflow
from levelhead.records import Prompt, Score
from levelhead.tasks import constant
from levelhead.tasks.base import Answer, Baseline, SingleTurnTask, Split, Task
from levelhead.tasks.constant import Constant, ConstantSearch, Estimate, leaves_much
from levelhead.tasks.environment import EnvironmentTask
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.judges import JudgeGrader
from levelhead.tasks.registry import make_task
from levelhead.tasks.splits import stratum_value


class Table(SingleTurnTask):
    """Answers whose scores are known: by a function of the answer and the number of the prompt."""

    name = "table"

    def __init__(self, score: object, answers: Sequence[str] = (), n: int = 200) -> None:
        self._score, self._answers, self._n = score, list(answers), n
        self.calls = 0

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i in range(self._n):
            yield Prompt(f"{split}-{i}", self.name, ({"role": "user", "content": str(i)},), facts={"i": i})

    def oracle(self, prompt: Prompt) -> list[str] | None:
        return [self._answers[prompt.facts["i"] % len(self._answers)]] if self._answers else None

    def score(self, prompt: Prompt, text: str) -> Score:
        self.calls += 1
        return Score(self._score(text, prompt.facts["i"]))  # type: ignore[operator]


def best(task: Task, n: int = 200, seen: Mapping[str, int] | None = None, **keys: object) -> Constant | None:
    prompts = list(task.prompts("eval", 0))[:n]
    return asyncio.run(search(task).best(prompts, seen, **keys))  # type: ignore[arg-type]


def search(task: Task) -> ConstantSearch:
    return ConstantSearch(task, lambda _prompt, text: tuple(text.encode()), 0)


def test_the_answer_that_pays_most_is_found_among_many() -> None:
    answers = [f"answer {i}" for i in range(80)]

    def score(text: str, i: int) -> float:
        return float(i % 3 == 0) if text == "answer 17" else float(i % 20 == 0)

    best_constant = best(Table(score, answers))
    assert best_constant is not None
    assert best_constant.answer == "answer 17"
    assert fmean(best_constant.scores) == pytest.approx(67 / 200)


def test_choosing_among_worthless_answers_does_not_flatter() -> None:
    """Every answer is worth 0 on average; the best of 64 on the items themselves would not be."""
    task = Table(lambda text, i: random.Random(f"{text}/{i}").gauss(0, 1), [f"a{i}" for i in range(200)])
    rows = [best(Table(task._score, task._answers), n, None) for n in (40, 60, 80, 100, 120, 140, 160, 200)]
    means = [fmean(row.scores) for row in rows if row is not None]
    assert abs(fmean(means)) < 0.1
    naive = max(
        fmean(task.score(prompt, text).total for prompt in list(task.prompts("eval", 0))[:40])
        for text in task._answers[:64]
    )
    assert naive > 0.3


def test_every_item_is_scored_by_an_answer_chosen_without_it() -> None:
    """Two answers, each right on what turns out to be one of the halves: neither half may choose its own."""
    task = Table(lambda _text, _i: 0.0, ["x"], n=40)
    prompts = list(task.prompts("eval", 0))
    order = sorted(prompts, key=lambda p: (constant.stable_hash(f"constant/{p.id}"), p.id))
    first = {p.facts["i"] for p in order[::2]}
    task = Table(
        lambda text, i: float((text == "one") == (i in first)) if text in ("one", "two") else -1.0, ["one", "two"]
    )
    best_constant = best(task, 40)
    assert best_constant is not None
    assert set(best_constant.scores) == {0.0}


def test_answers_that_were_seen_are_candidates_and_frequent_ones_come_first() -> None:
    seen = {f"seen {i}": 1 for i in range(500)} | {"the one": 9}
    best_constant = best(Table(lambda text, _i: float(text == "the one")), seen=seen)
    assert best_constant is not None
    assert best_constant.answer == "the one"
    assert best_constant.scores == (1.0,) * 200


def test_at_least_64_candidates_are_tried_where_there_are_that_many() -> None:
    task = Table(lambda _text, _i: 0.0, [f"answer {i}" for i in range(200)])
    assert len(search(task)._candidates({})) == 64
    assert search(task)._candidates({})[0] == ""


def test_scores_are_remembered() -> None:
    task = Table(lambda text, _i: float(len(text)), ["a", "bb"])
    looking, prompts = search(task), list(task.prompts("eval", 0))
    first = asyncio.run(looking.best(prompts))
    calls = task.calls
    assert asyncio.run(looking.best(prompts)) == first
    assert task.calls == calls


def test_weights_choose_the_answer_that_is_fair_to_strata() -> None:
    task = Table(lambda text, i: float(text == "rare") if i < 20 else 0.1 * float(text == "common"), ["rare", "common"])
    plain, fair = best(task), best(task, weights=[1 / 20 if i < 20 else 1 / 180 for i in range(200)])
    assert plain is not None
    assert fair is not None
    assert fair.answer == "rare"


class Forms(Table):
    """Even prompts ask for a verdict, odd ones a question, and the first three something else."""

    def form(self, prompt: Prompt) -> str:
        i = prompt.facts["i"]
        return "else" if i < 3 else "verdict" if i % 2 == 0 else "question"


def test_prompts_that_a_glance_tells_apart_have_a_constant_answer_each() -> None:
    def score(text: str, i: int) -> float:
        return float(text == ("no" if i % 2 == 0 else "unknown") and i % 10 < 8)

    one, each = best(Table(score, ["no", "unknown"])), best(Forms(score, ["no", "unknown"]))
    assert one is not None
    assert each is not None
    assert fmean(one.scores) == pytest.approx(0.4, abs=0.1)
    assert each.answer == "question: unknown\nverdict: no"
    # Three prompts of a third form are too few to choose by: they go with the form that has most.
    assert list(each.scores[3:]) == [float(i % 10 < 8) for i in range(3, 200)]


def test_forms_of_few_prompts_alone_are_one_form() -> None:
    best_constant = best(Forms(lambda text, _i: float(text == "no"), ["no", "unknown"]), 6)
    assert best_constant is not None
    assert best_constant.answer == "no"


def test_an_answer_that_a_reward_chokes_on_is_left_out() -> None:
    def score(text: str, _i: int) -> float:
        if not text:
            raise RewardError("empty")
        return 0.5 if text == "a" else 0.0

    best_constant = best(Table(score, ["a"]))
    assert best_constant is not None
    assert best_constant.answer == "a"


def test_a_slow_reward_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant, "BUDGET", 0.0)
    task = Table(lambda _text, _i: 0.0, [f"a{i}" for i in range(64)])
    looking = search(task)
    assert asyncio.run(looking.best(list(task.prompts("eval", 0)))) is None
    assert looking.slow
    assert not looking.possible
    assert task.calls <= constant.TIMED * constant.FIRST_ITEMS


def test_nothing_is_chosen_for_one_item() -> None:
    assert best(Table(lambda _text, _i: 0.0, ["a"]), 1) is None


class Played(EnvironmentTask):
    """An environment with two scripts."""

    asked = idled = 0

    def episode(self, prompt: Prompt) -> object:  # type: ignore[override]
        raise AssertionError(prompt)

    async def baselines(self, prompts: int) -> Sequence[Baseline]:
        return [Baseline("do nothing", self.idle), Baseline("click the first button", self.click)]

    async def idle(self, prompts: Sequence[Prompt]) -> list[float]:
        self.idled += len(prompts)
        return [0.0] * len(prompts)

    async def click(self, prompts: Sequence[Prompt]) -> list[float]:
        self.asked += len(prompts)
        return [float(p.facts["task"] == "click-test") for p in prompts]


def test_an_environment_plays_its_best_script_once_a_prompt_and_others_on_a_few() -> None:
    task = Played(Browser(kind="browser", tasks=["click-test", "enter-text"], items=40, eval_fraction=0.5), "system")
    looking, prompts = search(task), list(task.prompts("eval", 0))
    best_constant = asyncio.run(looking.best(prompts[:20]))
    assert best_constant is not None
    assert best_constant.answer == "click the first button"
    assert best_constant.scores == tuple(float(p.facts["task"] == "click-test") for p in prompts[:20])
    assert asyncio.run(looking.best(prompts)) is not None
    assert task.asked == len(prompts)
    assert task.idled <= 4 * constant.FIRST_ITEMS < len(prompts)
    assert task.strata(prompts[0]) == {"task": prompts[0].facts["task"]}


def test_a_task_that_knows_no_constant_has_none() -> None:
    class Silent(Task):
        name = "silent"

        def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
            return iter(())

        def oracle(self, prompt: Prompt) -> None:
            return None

        def episode(self, prompt: Prompt) -> Any:
            raise NotImplementedError

        def summarize(self, results: Any) -> dict[str, float]:
            return {}

    assert not search(Silent()).possible


def test_estimates_by_hand() -> None:
    assert Estimate.of([1.0, 3.0]) == Estimate(2.0, stdev([1, 3]) / 2**0.5)
    assert Estimate.of([4.0]) == Estimate(4.0, 0.0)
    assert Estimate.mean([Estimate(1.0, 0.3), Estimate(0.0, 0.4)]) == Estimate(0.5, pytest.approx(0.25))


def test_a_constant_answer_that_is_nearly_perfect_is_harmless() -> None:
    assert leaves_much(-0.08, 1.0, -1.0)
    assert not leaves_much(0.77, 0.9, -0.1)
    assert leaves_much(0.9, None, 0.0)


# What the tasks say of themselves.


def prompts_of(task: Task) -> list[Prompt]:
    return list(task.prompts("eval", 0))


def test_fairness_tells_conditions_apart_and_knows_the_policy_that_reads_options_alone() -> None:
    task = make_task(Fairness(kind="fairness", items=400))
    prompts = prompts_of(task)
    assert {tuple(task.strata(p).items()) for p in prompts} == {(("condition", "ambig"),), (("condition", "disambig"),)}
    best_constant = asyncio.run(search(task).best(prompts))
    assert best_constant is not None
    assert best_constant.answer == "the option that says it is not known"
    ambiguous = [task.strata(p)["condition"] == "ambig" for p in prompts]
    assert all(
        score > 0.9 if ambig else score == -0.3 for score, ambig in zip(best_constant.scores, ambiguous, strict=True)
    )
    assert all(task.score(prompts[0], answer).valid for answer in task.constants())  # type: ignore[attr-defined]


def test_faithfulness_tells_answerable_questions_apart_and_abstaining_is_its_best_constant() -> None:
    task = make_task(Faithfulness(kind="faithfulness", items=400))
    assert {tuple(task.strata(p).items()) for p in prompts_of(task)} == {
        (("answerable", "yes"),),
        (("answerable", "no"),),
    }
    best_constant = asyncio.run(search(task).best(prompts_of(task)))
    assert best_constant is not None
    assert best_constant.answer == "Evidence: none\nAnswer: unknown"


def test_verdicts_are_told_apart_by_the_right_one_and_kinds_where_there_are_several(tmp_path: object) -> None:
    import json
    from pathlib import Path

    rows = [
        {
            "user_query": f"q{i}",
            "chatgpt_response": f"The answer {i} is a long one.",
            "hallucination": ["yes", "no"][i % 2],
        }
        for i in range(20)
    ]
    path = Path(str(tmp_path)) / "general.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = make_task(Faithfulness(kind="faithfulness", path=str(path), eval_fraction=0.5))
    assert {tuple(task.strata(p).items()) for p in prompts_of(task)} == {(("verdict", "yes"),), (("verdict", "no"),)}
    assert list(task.constants()) == ["Evidence: none\nAnswer: yes", "Evidence: none\nAnswer: no"]
    facts = {"right_answer": "red", "hallucinated_answer": "blue"}
    more = [{"knowledge": f"The {i} is red.", "question": f"What is {i}?", **facts} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]), encoding="utf-8")
    task = make_task(Faithfulness(kind="faithfulness", path=str(path), eval_fraction=0.5))
    assert {task.strata(p)["kind"] for p in prompts_of(task)} == {"general", "qa"}


def test_function_takes_any_column_as_strata() -> None:
    rows = [{"prompt": f"Say {i}.", "level": ["easy/a", "hard"][i % 2], "n": i} for i in range(60)]
    section = Function.model_validate({"kind": "function", "strata": ["level"], "eval_fraction": 0.5})
    task = FunctionTask(section, data=rows, rewards=lambda completions, **_: [0.0] * len(completions))
    assert {task.strata(p)["level"] for p in prompts_of(task)} == {"easy.a", "hard"}
    for column, words in (("lvel", r"no column 'lvel' \(tasks\[\]\.strata\)"), ("n", "60 different values; strata")):
        bad = section.model_copy(update={"strata": [column]})
        with pytest.raises(InputError, match=words):
            FunctionTask(bad, data=rows, rewards=lambda completions, **_: [0.0] * len(completions))


def test_rewards_that_ask_somebody_are_not_asked_for_constants_and_what_others_log_stays_apart() -> None:
    rows = [{"prompt": f"Say {i}."} for i in range(12)]

    async def asks(completions: list[str], **_: object) -> list[float]:
        raise AssertionError(completions)

    def logs(completions: list[str], log_metric: object = None, **_: object) -> list[float]:
        log_metric("seen", 1.0)  # type: ignore[operator]
        return [float(len(text)) for text in completions]

    section = Function(kind="function")
    assert not search(FunctionTask(section, data=rows, rewards=asks)).possible
    task = FunctionTask(section, data=rows, rewards=logs)
    assert asyncio.run(search(task).best(list(task.prompts("train", 0)))) is not None
    assert task.drain_tally().logged == {}


def test_a_judge_is_not_asked() -> None:
    from levelhead.recipe.judge import Judge

    class Deaf(JudgeGrader):
        async def weigh(self, answers: Sequence[Answer], scores: Sequence[Score | None]) -> list[Score | None]:
            raise AssertionError(answers)

    task = make_task(Faithfulness(kind="faithfulness", items=60))
    assert isinstance(task, SingleTurnTask)
    task.grader = Deaf(task, "faithfulness", Judge(base_url="http://127.0.0.1:1/v1", model="none"))
    best_constant = asyncio.run(search(task).best(list(task.prompts("train", 0))[:20]))
    assert best_constant is not None
    assert task.strata(prompts_of(task)[0])


def test_workflow_and_math_name_constants_that_are_answers() -> None:
    math = make_task(Math(kind="math", items=40))
    assert all(math.score(prompts_of(math)[0], answer).valid for answer in math.constants())  # type: ignore[attr-defined]
    workflow = make_task(Workflow(kind="workflow", items=60))
    prompt = prompts_of(workflow)[0]
    assert set(workflow.strata(prompt)) == {"domain", "difficulty"}
    assert all(workflow.score(prompt, answer).valid for answer in workflow.constants())  # type: ignore[attr-defined]


def test_stratum_values_are_short_and_fit_a_metrics_name() -> None:
    assert stratum_value("a/b = c\n\td") == "a.b : c d"
    assert stratum_value(None) == stratum_value("") == "none"
    assert len(stratum_value("x" * 99)) == 32
    assert stratum_value("\x1b[31mred") == "[31mred"
