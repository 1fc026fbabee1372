"""The function task: TRL's reward functions move over unchanged, and a faulty one is named with row and completion."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from pathlib import Path
from typing import Any

import pytest

from function_task import CHATS, ROWS, Recorder, all_prompts, batch, brevity, exact, section, task, write
from levelhead.errors import InputError, RewardError
from levelhead.tasks.function import FunctionTask, TrainerState

# What a reward function gets


def test_text_prompts_give_text_completions_as_in_trl() -> None:
    recorder = Recorder()
    made = task(rewards=recorder, system="Be kind.")
    batch(made, "x", "y")
    (call,) = recorder.calls
    assert call["completions"] == ["x", "y"]
    assert [type(prompt) for prompt in call["prompts"]] == [str, str]
    assert call["completion_ids"] == [[1, 2], [1, 2]]
    first = next(made.prompts("train", 0))
    assert [message["role"] for message in first.messages] == ["system", "user"]


def test_chat_prompts_give_chat_completions_as_in_trl() -> None:
    recorder = Recorder()
    batch(task(CHATS, recorder, system="Be kind."), "x")
    (call,) = recorder.calls
    assert call["completions"] == [[{"role": "assistant", "content": "x"}]]
    assert call["prompts"][0][0] == {"role": "system", "content": "Be kind."}
    assert call["prompts"][0][1]["role"] == "user"


def test_every_column_but_the_prompt_arrives_as_a_list_of_the_batch() -> None:
    recorder = Recorder()
    rows = [{**row, "completion": "no", "completion_ids": [3]} for row in ROWS]
    batch(task(rows, recorder), "x", "y", "z")
    (call,) = recorder.calls
    standard = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    assert set(call) == standard | {"solution", "level"}
    assert len(call["solution"]) == len(call["level"]) == 3
    assert call["completion_ids"] == [[1, 2]] * 3


def test_a_function_without_catch_all_gets_what_it_names() -> None:
    def strict(completions: list[str], level: list[int]) -> list[float]:
        return [float(one) for one in level]

    made = task(rewards=strict)
    prompts = all_prompts(made)
    scores = batch(made, "a", "b")
    assert [score and score.total for score in scores] == [
        float(prompt.facts["columns"]["level"]) for prompt in list(prompts.values())[:2]
    ]


def test_a_function_that_asks_for_a_missing_column_is_refused_before_the_run() -> None:
    def needs(completions: list[str], ground_truth: list[str]) -> list[float]:
        return []

    with pytest.raises(InputError, match=r"asks for 'ground_truth'.*columns are: solution, level"):
        task(rewards=needs)


def test_a_reward_cannot_change_the_prompts_of_later_calls() -> None:
    def vandal(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        seen.append(prompts[0][0]["content"])
        prompts[0][0]["content"] = "broken"
        return [0.0]

    seen: list[str] = []
    made = task(CHATS, vandal)
    batch(made, "x")
    batch(made, "x")
    assert seen[0] == seen[1]


# What becomes of the values


def test_the_total_is_the_weighted_sum_and_parts_stay_unweighted() -> None:
    made = task(rewards=[exact, brevity], reward_weights=[2.0, -0.5])
    prompt = next(made.prompts("train", 0))
    score = made.score(prompt, prompt.facts["columns"]["solution"])
    assert score.parts == {"exact": 1.0, "brevity": 0.5}
    assert score.total == pytest.approx(2.0 - 0.25)
    assert score.valid
    assert not made.score(prompt, " ").valid


def test_async_functions_run_side_by_side() -> None:
    running = 0
    most = 0

    async def slow(completions: list[str], **_: Any) -> list[float]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        end = time.monotonic() + 60
        while most < 2 and time.monotonic() < end:
            await asyncio.sleep(0.001)
        running -= 1
        return [1.0] * len(completions)

    async def other(**arguments: Any) -> list[float]:
        return await slow(**arguments)

    scores = batch(task(rewards=[slow, exact, other]), "a", "b")
    assert most == 2
    assert all(score is not None and score.parts["slow"] == score.parts["other"] == 1.0 for score in scores)


async def test_one_answer_is_scored_inside_a_running_loop_too() -> None:
    async def reward(completions: list[str], **_: Any) -> list[float]:
        return [3.0] * len(completions)

    made = task(rewards=reward)
    assert made.score(next(made.prompts("train", 0)), "x").total == 3.0


@pytest.mark.parametrize("result", [(0.5, True), [1, 0], (value for value in (1.0, 2.0))])
def test_any_iterable_of_numbers_will_do(result: Any) -> None:
    assert all(score is not None for score in batch(task(rewards=lambda **_: result), "a", "b"))


def test_arrays_and_tensors_of_numbers_will_do() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    for result in (numpy.array([0.5, 1.5]), torch.tensor([0.5, 1.5])):
        scores = batch(task(rewards=lambda result=result, **_: result), "a", "b")
        assert [score and score.total for score in scores] == [0.5, 1.5]


def test_log_extra_stays_with_the_sample_and_log_metric_reaches_the_metrics() -> None:
    def chatty(completions: list[str], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        log_extra("upper", [text.upper() for text in completions])
        log_metric("chars", sum(map(len, completions)))
        return [0.0] * len(completions)

    made = task(rewards=chatty)
    first, second = batch(made, "a", "bcd")
    batch(made, "ab")
    assert first is not None
    assert second is not None
    assert (first.info["upper"], second.info["upper"]) == ("A", "BCD")
    assert made.drain_tally().means() == {"chars": 3.0}
    assert made.drain_tally().means() == {}


def test_the_trainer_state_says_how_far_the_run_is() -> None:
    recorder = Recorder()
    made = task(rewards=recorder)
    batch(made, "x")
    made.at_step(5, 20)
    batch(made, "x")
    assert [call["trainer_state"] for call in recorder.calls] == [TrainerState(), TrainerState(5, 20, 0.25)]


def test_names_of_parts_never_collide() -> None:
    double = functools.partial(exact)
    made = task(rewards=[exact, double, lambda **_: [1.0], lambda **_: [2.0], Recorder()])
    prompt = next(made.prompts("train", 0))
    assert list(made.score(prompt, "x").parts) == ["exact", "exact_2", "reward", "reward_2", "Recorder"]


# A reward that misbehaves


def on(culprit: str, act: Any) -> Any:
    """A reward that does something odd to one completion and gives 1 to the others."""

    def odd(completions: list[str], **_: Any) -> list[Any]:
        values: list[Any] = []
        for text in completions:
            values += act() if text == culprit else [1.0]
        return values

    return odd


def boom() -> list[Any]:
    raise KeyError("no such thing")


FAULTS = [
    (boom, r"raised KeyError: 'no such thing' \(.*test_function\.py, line \d+\)"),
    (list, "returned 0 values for 1 completions"),
    (lambda: [1.0, 2.0], "returned 2 values for 1 completions"),
    (lambda: [math.nan], "returned nan"),
    (lambda: [1e308], r"returned 1e\+308, and a reward is at most 1e\+12 in size"),
    (lambda: [-3e38], r"returned -3e\+38, and a reward is at most 1e\+12 in size"),
    (lambda: [-math.inf], "returned -inf"),
    (lambda: ["7"], "returned the text '7'"),
    (lambda: [[1.0]], "returned list"),
]


@pytest.mark.parametrize(("act", "says"), FAULTS)
def test_a_faulty_reward_stops_the_run_with_function_row_and_completion(act: Any, says: str) -> None:
    made = task(rewards=on("culprit", act))
    with pytest.raises(RewardError, match=r"(?s)reward function odd " + says) as caught:
        batch(made, "fine", "also fine", "culprit", "fine")
    third = list(all_prompts(made).values())[2]
    row = third.facts["row"]
    assert f"data, row {row} (row {row}, id 'row-{row}'), completion 'culprit'" in str(caught.value)


@pytest.mark.parametrize(("act", "says"), FAULTS)
def test_dropping_keeps_the_other_answers_and_counts(act: Any, says: str) -> None:
    made = task(rewards=[exact, on("culprit", act)], on_reward_error="drop")
    scores = batch(made, "fine", "culprit", "fine", "culprit")
    assert [score is None for score in scores] == [False, True, False, True]
    assert made.drain_tally().by == {"odd": 2}


def test_after_dropping_a_batchwise_reward_still_sees_the_rest_as_a_batch() -> None:
    def rank(completions: list[str], log_extra: Any, **_: Any) -> list[float]:
        order = sorted(completions, key=len)
        places = [float(order.index(text)) if text != "bad" else 1 // 0 for text in completions]
        log_extra("place", places)
        return places

    scores = batch(task(rewards=rank, on_reward_error="drop"), "xxx", "bad", "x", "xx")
    assert [score and score.total for score in scores] == [2.0, None, 0.0, 1.0]
    assert [score and score.info["place"] for score in scores] == [2.0, None, 0.0, 1.0]


def test_a_batch_that_only_fails_together_is_dropped_or_named_whole() -> None:
    def alone(completions: list[str], **_: Any) -> list[float]:
        if len(completions) > 1:
            raise RuntimeError("one at a time")
        return [1.0]

    with pytest.raises(RewardError, match="but on none of the 2 answers alone"):
        batch(task(rewards=alone), "a", "b")
    assert batch(task(rewards=alone, on_reward_error="drop"), "a", "b") == [None, None]


@pytest.mark.parametrize("result", [None, 1.0, "ab", {"a": 1.0, "b": 2.0}])
def test_something_else_than_a_list_is_refused(result: Any) -> None:
    with pytest.raises(RewardError, match="list of 1 numbers was wanted"):
        batch(task(rewards=lambda **_: result), "a", "b")


def test_a_long_completion_is_shortened_in_the_message() -> None:
    with pytest.raises(RewardError) as caught:
        batch(task(rewards=lambda **_: [None]), "x" * 10_000)
    assert len(str(caught.value)) < 600


def test_an_async_reward_that_raises_is_named_too() -> None:
    async def judge(completions: list[str], **_: Any) -> list[float]:
        raise TimeoutError("the judge is away")

    with pytest.raises(RewardError, match="judge raised TimeoutError: the judge is away"):
        batch(task(rewards=[judge, exact]), "a", "b")


def test_weights_that_overflow_are_caught() -> None:
    with pytest.raises(RewardError, match="weighted sum"):
        batch(task(rewards=lambda **_: [1e11], reward_weights=[1e6]), "a")


# Where functions come from


def test_functions_are_loaded_from_a_file_with_its_helper_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "helper_of_rewards.py", "WORTH = 4.0\n")
    file = write(
        tmp_path / "my_rewards.py",
        "from helper_of_rewards import WORTH\ncalls = []\n"
        "def worth(completions, **kwargs):\n    calls.append(1)\n    return [WORTH] * len(completions)\n"
        "async def count(completions, **kwargs):\n    return [float(len(calls))] * len(completions)\n",
    )
    made = FunctionTask(section(rewards=[f"{file}:worth", f"{file}:count"]), data=ROWS)
    score = made.score(next(made.prompts("train", 0)), "x")
    assert score.parts == {"worth": 4.0, "count": 1.0}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{file}:nothing", r"no function 'nothing'; it defines: good"),
        ("{file}", "must read file.py:name"),
        ("{file}:", "must read file.py:name"),
        ("elsewhere.py:f", r"elsewhere\.py: no such file"),
        ("{broken}:f", r"importing it raised ZeroDivisionError"),
        ("{leaving}:f", r"importing it raised SystemExit"),
        ("{file}:VALUE", "must be a function"),
        ("{file}:Kind", "must be a function"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_an_input_error(tmp_path: Path, entry: str, says: str) -> None:
    file = write(tmp_path / "good.py", "VALUE = 3\nclass Kind: pass\ndef good(completions, **k): return []\n")
    broken = write(tmp_path / "broken.py", "1 / 0\n")
    leaving = write(tmp_path / "leaving.py", "raise SystemExit(3)\n")
    with pytest.raises(InputError, match=says):
        FunctionTask(section(rewards=[entry.format(file=file, broken=broken, leaving=leaving)]), data=ROWS)


@pytest.mark.parametrize(
    ("keys", "rewards", "says"),
    [
        ({}, [], "rewards is empty"),
        ({"reward_weights": [1.0]}, [exact, brevity], "1 weights for 2 reward functions"),
        ({}, [exact, exact], "twice"),
        ({"rewards": ["x.py:f"]}, [exact], "give one of them"),
    ],
)
def test_rewards_and_weights_must_fit(keys: dict[str, Any], rewards: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        FunctionTask(section(**keys), data=ROWS, rewards=rewards)
