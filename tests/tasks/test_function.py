"""The function task: TRL's reward functions move over unchanged, and a faulty one is named with row and completion."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from levelhead.errors import InputError, RewardError
from levelhead.recipe.tasks import Function
from levelhead.records import Prompt, Rollout, Score, Turn
from levelhead.tasks.base import Answer, Task
from levelhead.tasks.function import FunctionTask, TrainerState
from levelhead.tasks.registry import make_task

ROWS = [{"prompt": f"Say {word}.", "solution": word, "level": n} for n, word in enumerate("abcdefghijkl")]
CHATS = [{"prompt": [{"role": "user", "content": row["prompt"]}], "solution": row["solution"]} for row in ROWS]


def section(**keys: object) -> Function:
    return Function.model_validate({"kind": "function", **keys})


def exact(completions: list[Any], solution: list[str], **_: Any) -> list[float]:
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [float(text == wanted) for text, wanted in zip(texts, solution, strict=True)]


def brevity(completions: list[Any], **_: Any) -> list[float]:
    return [1.0 / (1 + len(completion)) for completion in completions]


def task(rows: Any = ROWS, rewards: Any = exact, **keys: object) -> FunctionTask:
    return FunctionTask(section(**keys), data=rows, rewards=rewards)


def all_prompts(made: FunctionTask) -> dict[str, Prompt]:
    prompts = [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]  # type: ignore[arg-type]
    return {prompt.id: prompt for prompt in prompts}


def batch(made: FunctionTask, *texts: str) -> list[Score | None]:
    prompts = list(all_prompts(made).values())
    answers = [Answer(prompt, text, (1, 2)) for prompt, text in zip(prompts, texts, strict=False)]
    return asyncio.run(made.score_batch(answers))


class Recorder:
    """A reward that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **arguments: Any) -> list[float]:
        self.calls.append(arguments)
        return [0.0] * len(arguments["completions"])


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
        await asyncio.sleep(0.01)
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


@pytest.mark.parametrize("result", [(0.5, True), [1, 0], {0.25, 0.75}, (value for value in (1.0, 2.0))])
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


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


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


# Where rows come from


def test_a_task_is_made_from_a_recipe_alone(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", "\n".join(json.dumps(row) for row in ROWS))
    rewards = write(tmp_path / "r.py", "def one(completions, **kwargs): return [1.0] * len(completions)\n")
    made = make_task(section(path=str(data), rewards=[f"{rewards}:one"], name="mine", oracle="solution"))
    assert isinstance(made, Task)
    assert made.name == "mine"
    prompt = next(made.prompts("train", 0))
    assert made.oracle(prompt) == [prompt.facts["columns"]["solution"]]


def test_csv_rows_may_span_lines_and_hold_commas(tmp_path: Path) -> None:
    data = write(tmp_path / "data.csv", 'question,solution\n"a, or\nb?",a\n\nplain?,b\nthird?,c\n')
    made = FunctionTask(section(path=str(data), prompt="question"), rewards=exact)
    prompts = all_prompts(made)
    assert prompts["row-1"].messages[-1]["content"] == "a, or\nb?"
    assert [prompts[f"row-{n}"].facts["where"] for n in (1, 2, 3)] == [f"{data}, line {n}" for n in (2, 5, 6)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prompt,solution\na,b\nc,d,e\n", r"line 3: 3 fields where the header has 2"),
        ("prompt,prompt\na,b\n", "line 1: every column needs a name of its own"),
        ("prompt,solution\n", "not a single row"),
        ('prompt,solution\n"a,b\n', "not valid CSV"),
        ("", "not a single row"),
        ("prompt,solution\na,b\n ,d\n", r"line 3: the prompt \(column 'prompt'\) is empty"),
        ("frage,solution\na,b\n", r"no column 'prompt' \(tasks\[\]\.prompt\); the columns are: frage, solution"),
        ("prompt,completions\na,b\n", "rename the column 'completions'"),
    ],
)
def test_a_bad_csv_file_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    data = write(tmp_path / "data.csv", text)
    with pytest.raises(InputError, match=rf"(?s)data\.csv.*{says}"):
        FunctionTask(section(path=str(data)), rewards=brevity)


def test_parquet_rows_with_chat_prompts_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [dict(row) for row in CHATS]
    rows[0] = {**rows[0], "prompt": [{"role": "system", "content": "s", "name": "n"}, *CHATS[0]["prompt"]]}
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    made = FunctionTask(section(path=str(tmp_path / "data.parquet")), rewards=exact)
    prompts = all_prompts(made)
    assert dict(prompts["row-2"].messages[0]) == {"role": "user", "content": "Say b."}
    assert made.score(prompts["row-2"], "b").total == 1.0
    broken = write(tmp_path / "broken.parquet", "nothing")
    with pytest.raises(InputError, match=r"broken\.parquet: not a readable Parquet file"):
        FunctionTask(section(path=str(broken)), rewards=exact)


@pytest.mark.parametrize(
    ("name", "package", "says"),
    [("data.parquet", "pyarrow", "pip install pyarrow"), ("someone/data", "datasets", "pip install datasets")],
)
def test_a_missing_package_is_named_with_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, says: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    path = str(write(tmp_path / name, "")) if "." in name else name
    with pytest.raises(InputError, match=says):
        FunctionTask(section(path=path), rewards=exact)


def test_a_hub_data_set_is_asked_for_by_name_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("datasets")
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        if config == "none":
            raise ValueError("BuilderConfig 'none' not found.\nlong text")
        return ROWS

    hub.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    made = FunctionTask(section(path="openai/gsm8k", dataset_config="main", dataset_split="test"), rewards=exact)
    assert asked == [("openai/gsm8k", "main", "test")]
    assert all_prompts(made)["row-1"].facts["where"] == "data set openai/gsm8k [test], row 1"
    with pytest.raises(InputError, match=r"config none, split train\): BuilderConfig 'none' not found\.$"):
        FunctionTask(section(path="openai/gsm8k", dataset_config="none"), rewards=exact)


def test_a_datasets_dataset_is_taken_as_it_is() -> None:
    datasets = pytest.importorskip("datasets")
    made = task(datasets.Dataset.from_list(CHATS))
    assert made.score(all_prompts(made)["row-3"], "c").total == 1.0
    with pytest.raises(InputError, match="pass one split"):
        task(datasets.DatasetDict({"train": datasets.Dataset.from_list(CHATS)}))


def test_an_endless_iterable_is_read_up_to_the_limit() -> None:
    def forever() -> Any:
        n = 0
        while True:
            n += 1
            yield {"prompt": f"Number {n}?", "solution": str(n)}

    assert len(all_prompts(task(forever(), limit=20))) == 20


@pytest.mark.parametrize(
    ("data", "path", "says"),
    [
        ({"prompt": ["a"]}, None, "pass one split, or a list of dicts"),
        ("data.jsonl", None, "iterable of dicts, not str"),
        (3, None, "iterable of dicts, not int"),
        ([{"prompt": "a"}, 5], None, "data, row 2: a dict is wanted, not int"),
        ([], None, "not a single row"),
        ([{"prompt": "a"}], None, "fewer than two independent items"),
        (ROWS, "data.jsonl", "give one of them"),
        (None, None, r"tasks\[\]\.path is missing"),
        (None, "no/such.jsonl", "no such file"),
    ],
)
def test_bad_data_are_named(data: Any, path: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        FunctionTask(section(path=path), data=data, rewards=brevity)


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in one of \.csv, \.json"):
        FunctionTask(section(path=str(write(tmp_path / "data.xlsx", ""))), rewards=exact)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (None, "must be text or a list of chat messages, not nothing"),
        (7, "not int '7'"),
        ([], "must be text or a list"),
        (["hi"], "message 1 of the prompt must be a dict"),
        ([{"role": "human", "content": "x"}], "role 'human'; known are system"),
        ([{"role": "user", "content": ["x"]}], "message 1 of the prompt needs a text as content"),
        ([{"role": "user"}], "needs a text as content, not nothing"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "last message is from 'assistant'"),
    ],
)
def test_every_prompt_is_validated_and_its_row_named(prompt: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"data, row 3: .*{says}"):
        task([*ROWS[:2], {**ROWS[2], "prompt": prompt}])


def test_two_system_messages_are_refused() -> None:
    rows = [{"prompt": [{"role": "system", "content": "s"}, *row["prompt"]]} for row in CHATS]
    with pytest.raises(InputError, match=r"a system message of its own"):
        task(rows, brevity, system="t")


def test_tool_turns_pass_through_without_null_fields() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}, call, {"role": "tool", "content": "42"}]}
        for row in ROWS
    ]
    assert "content" not in next(task(rows, brevity).prompts("train", 0)).messages[1]


@pytest.mark.parametrize("oracle", ["fine", [{"role": "assistant", "content": "fine"}], None])
def test_an_oracle_is_text_or_one_assistant_message(oracle: Any) -> None:
    made = task([{**row, "best": oracle} for row in ROWS], oracle="best")
    prompt = next(made.prompts("train", 0))
    assert made.oracle(prompt) == (None if oracle is None else ["fine"])
    with pytest.raises(InputError, match=r"data, row 1: the oracle \(column 'best'\) must be text"):
        task([{**row, "best": 4} for row in ROWS], oracle="best")


# The split


def test_the_seed_alone_decides_the_order_and_equal_prompts_stay_together() -> None:
    rows = [{**row, "level": n} for row in ROWS for n in range(3)]
    first, again = (list(task(rows).prompts("train", 4)) for _ in range(2))
    assert first == again
    assert [p.id for p in first] != [p.id for p in task(rows).prompts("train", 5)]
    held_out = {p.messages[-1]["content"] for p in task(rows).prompts("eval", 4)}
    assert held_out
    assert not held_out & {p.messages[-1]["content"] for p in first}


def test_an_id_column_is_used_where_it_tells_rows_apart() -> None:
    assert "q7" in all_prompts(task([{**row, "id": f"q{n}"} for n, row in enumerate(ROWS)]))
    assert "row-7" in all_prompts(task([{**row, "id": 1} for row in ROWS]))


def test_the_summary_holds_the_mean_of_every_reward() -> None:
    made = task(rewards=[exact, brevity])
    prompt = next(made.prompts("train", 0))
    turn = Turn((), (), (), (), "stop")
    results = [(prompt, Rollout(prompt.id, (turn,), made.score(prompt, text))) for text in ("xyz", "!")]
    assert made.summarize(results) == {"rewards/exact": 0.0, "rewards/brevity": pytest.approx(0.375)}
