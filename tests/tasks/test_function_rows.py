"""Where the rows of a function task come from: files, hub data sets and Python, each row named when it is faulty."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from function_task import CHATS, ROWS, all_prompts, brevity, exact, section, task, write
from levelhead.errors import InputError
from levelhead.records import Rollout, Turn
from levelhead.tasks import tables
from levelhead.tasks.base import Task
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.registry import make_task


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


def test_a_folder_of_everything_is_refused_before_each_file_of_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = ModuleType("datasets")
    hub.load_dataset = lambda *_, **__: ROWS  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.setattr(tables, "MOST_FILES", 3)
    for number in range(3):
        (tmp_path / f"{number}.txt").touch()
    FunctionTask(section(path=str(tmp_path)), rewards=exact)
    (tmp_path / "one more").touch()
    with pytest.raises(InputError, match="a folder of more than 3 files is no data set"):
        FunctionTask(section(path=str(tmp_path)), rewards=exact)


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


@pytest.mark.parametrize(
    ("oracle", "shown"),
    [
        ("fine", "fine"),
        ([{"role": "assistant", "content": "fine"}], "fine"),
        (None, None),
        (4, "4"),
        (2.5, "2.5"),
        (True, "True"),
        (["4", "four"], "4"),
        ([4], "4"),
        ([], None),
    ],
)
def test_an_oracle_is_a_text_a_number_a_truth_a_message_or_a_list_of_right_answers(oracle: Any, shown: Any) -> None:
    made = task([{**row, "best": oracle} for row in ROWS], oracle="best")
    prompt = next(made.prompts("train", 0))
    assert made.oracle(prompt) == (None if shown is None else [shown])


@pytest.mark.parametrize(
    ("oracle", "says"),
    [
        ({"value": 4}, "must be a text, a number"),
        ([{"role": "user", "content": "4"}], "must be a text, a number"),
        (
            [{"role": "assistant", "content": "4", "thinking": "2 + 2"}],
            "'thinking', which is not shown",
        ),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}], "'tool_calls', which is not shown"),
    ],
)
def test_an_oracle_of_which_a_part_would_be_lost_is_refused(oracle: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"data, row 1: the oracle \(column 'best'\) .*{says}"):
        task([{**row, "best": oracle} for row in ROWS], oracle="best")


# Tools, variables of the template, and chats as text

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("value", [[LOOK], json.dumps([LOOK])], ids=["list", "JSON text"])
def test_tools_and_variables_of_a_row_go_to_its_rendering(value: Any) -> None:
    rows = [{**row, "tools": value, "chat_template_kwargs": {"enable_thinking": False}} for row in ROWS]
    prompt = next(task(rows, brevity).prompts("train", 0))
    assert prompt.chat.tools == (LOOK,)
    assert prompt.chat.template_kwargs == {"enable_thinking": False}
    assert prompt.facts["columns"]["tools"] == value, "rewards get the column as well"
    alone = next(task(rows, brevity, tools=None, chat_template_kwargs=None).prompts("train", 0))
    assert (alone.chat.tools, alone.chat.template_kwargs) == ((), {})


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("tools", ["hammer"], r"must be a list of JSON schemas .* tasks\[\]\.tools: null leaves"),
        ("tools", "hammer", "text that is no JSON"),
        ("chat_template_kwargs", {"tools": []}, "chat template's own variables"),
        ("chat_template_kwargs", ["x"], "chat template's own variables"),
    ],
)
def test_tools_and_variables_that_cannot_be_rendered_are_refused(column: str, value: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"data, row 1: .*{says}"):
        task([{**row, column: value} for row in ROWS], brevity)


def test_what_arrow_fills_in_is_taken_out_and_what_a_row_says_stays() -> None:
    class Dataset(list):  # a table of columns, as far as its origin can be told
        __module__ = "datasets.arrow_dataset"

    call = {"name": "look", "arguments": {"city": "Bonn", "a": None}}
    chat = [
        {"role": "user", "content": "Weather?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "rain", "tool_calls": None},
    ]
    rows = [{"prompt": chat, "tools": [{**LOOK, "strict": None}], "want": {"a": None}} for _ in range(3)]
    rows = [{**row, "prompt": [{**chat[0], "content": f"Weather {n}?"}, *chat[1:]]} for n, row in enumerate(rows)]
    arrow = next(task(Dataset(rows), brevity).prompts("train", 0))
    assert arrow.messages[1]["tool_calls"] == [{"function": {"name": "look", "arguments": {"city": "Bonn"}}}]
    assert arrow.chat.tools == (LOOK,)
    assert arrow.facts["columns"]["tools"] == [LOOK]
    assert arrow.facts["columns"]["want"] == {"a": None}, "a column of the rewards' own is theirs"
    said = next(task(rows, brevity).prompts("train", 0))
    assert said.messages[1]["tool_calls"][0]["function"]["arguments"] == call["arguments"], "a null that was written"


def test_a_chat_given_as_json_text_is_a_chat() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rows = [{"prompt": json.dumps([*chat[:1], {**chat[1], "content": f"Hi {n}"}])} for n in range(3)]
    prompt = next(task(rows, brevity).prompts("train", 0))
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert isinstance(prompt.facts["prompt"], list)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[{'role': 'user', 'content': 'Hi'}]", "looks like a chat, but is no JSON list"),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', "looks like a chat, but is no JSON list"),
        ('[{"role": "user", "content": "Hi"', "text that is no JSON"),
        ('[{"role": "usr", "content": "Hi"}]', "has role 'usr'"),
    ],
)
def test_text_that_is_almost_a_chat_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=rf"data, row 1: .*{says}"):
        task([{"prompt": text}], brevity)


@pytest.mark.parametrize("text", ["[1] and {role}", '["a", "b"]', "{not a chat}", '[{"a": 1}]'])
def test_other_text_with_brackets_stays_text(text: str) -> None:
    prompt = next(task([{"prompt": f"{text}{' ' * n}"} for n in range(3)], brevity).prompts("train", 0))
    assert prompt.messages[-1]["content"].startswith(text)


def test_a_csv_field_may_be_long(tmp_path: Path) -> None:
    field = "word " * 40_000
    data = write(tmp_path / "data.csv", f"prompt,solution\n{field},a\nshort?,b\n")
    prompts = all_prompts(FunctionTask(section(path=str(data)), rewards=exact))
    assert prompts["row-1"].messages[-1]["content"] == field


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
