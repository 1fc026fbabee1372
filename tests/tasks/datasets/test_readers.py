"""Every data set is read from the files that its authors, or the hub, publish."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.tasks.datasets.load import NAMES, _examples, dataset_named, load, names_by_fields
from levelhead.tasks.files import Row
from tasks.datasets import samples

PUBLIC = Path(__file__).resolve().parents[4] / "shared" / "data"

SHAPES: dict[str, tuple[str, samples.Rows]] = {
    "gsm8k": ("gsm8k", samples.GSM8K),
    "MATH": ("math", samples.MATH),
    "MATH-500": ("math", samples.MATH_500),
    "AIME of the hub": ("aime", samples.AIME),
    "AIME in capitals": ("aime", samples.AIME_CAPITALS),
    "humaneval": ("humaneval", samples.HUMANEVAL),
    "mbpp": ("mbpp", samples.MBPP),
    "mbpp sanitized": ("mbpp", samples.MBPP_SANITIZED),
    "hotpotqa": ("hotpotqa", samples.HOTPOTQA),
    "hotpotqa of the hub": ("hotpotqa", samples.HOTPOTQA_HUB),
    "drop of the hub": ("drop", samples.DROP_HUB),
    "bbq": ("bbq", samples.BBQ),
    "halueval": ("halueval", samples.HALUEVAL),
    "halueval general": ("halueval", samples.HALUEVAL_GENERAL),
    "truthfulqa mc_task": ("truthfulqa", samples.TRUTHFULQA_MC),
    "truthfulqa multiple_choice": ("truthfulqa", samples.TRUTHFULQA_HUB),
    "truthfulqa generation": ("truthfulqa", samples.TRUTHFULQA_GENERATION),
}

parquet = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_read_from_json_lines_gzip_and_a_json_array_alike(shape: str, tmp_path: Path) -> None:
    name, rows = SHAPES[shape]
    array = tmp_path / "data.json"
    array.write_text(json.dumps(rows, indent=2))
    plain = load(name, samples.write_lines(tmp_path / "data.jsonl", rows))
    assert len(plain) == len(rows)
    assert all(example.question and example.answers and example.answers[0][0] for example in plain)
    packed = load(name, samples.write_gzip(tmp_path / "data.jsonl.gz", rows))
    assert [example.question for example in packed] == [example.question for example in plain]
    assert [example.answers for example in load(name, str(array))] == [example.answers for example in plain]


@parquet
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_read_from_parquet(shape: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    name, rows = SHAPES[shape]
    if shape in ("hotpotqa", "bbq", "halueval general", "truthfulqa mc_task"):
        pytest.skip("these shapes are JSON's own: lists of mixed types, or objects whose keys are texts")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    jsonl = load(name, samples.write_lines(tmp_path / "data.jsonl", rows))
    assert load(name, str(tmp_path / "data.parquet")) == jsonl


@pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")
def test_a_data_set_that_datasets_can_load_is_read_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    samples.write_lines(folder / "train.jsonl", samples.GSM8K)
    read = load("gsm8k", f"hf:{folder}@train")
    assert [example.answers for example in read] == [(("7",),), (("1,080",),)]


def test_a_missing_package_for_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"^openai/gsm8k: .*pip install datasets$"):
        load("gsm8k", "hf:openai/gsm8k")


def test_truthfulqa_is_read_from_the_authors_csv(tmp_path: Path) -> None:
    first, second = load("truthfulqa", samples.write_csv(tmp_path / "TruthfulQA.csv", samples.TRUTHFULQA))
    assert set(first.options) == {"Nothing happens", "They ring", "They turn green", "It snows"}
    assert first.answers == (("Nothing happens",),)
    assert first.strata == {"type": "Adversarial", "category": "Weather"}
    assert first.options != second.options, "the place of the true option would tell the answer"


def test_math_is_read_from_a_folder_of_one_problem_a_file(tmp_path: Path) -> None:
    for subject, number, row in (("algebra", 1, samples.MATH[1]), ("prealgebra", 1, samples.MATH[0])):
        (tmp_path / "train" / subject).mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / subject / f"{number}.json").write_text(json.dumps(row, indent=4))
    hard, easy = load("math", str(tmp_path / "train"))
    assert (hard.id, hard.difficulty, hard.strata) == ("algebra/1-1", "hard", {"subject": "Algebra"})
    assert easy.answers == ((r"\frac{1}{2}",),)
    assert easy.difficulty == "easy"


@pytest.mark.parametrize("indent", [None, 2])
def test_drop_is_read_from_the_authors_file(indent: int | None, tmp_path: Path) -> None:
    (tmp_path / "drop_dataset_dev.json").write_text(json.dumps(samples.DROP, indent=indent))
    count, names, date = load("drop", str(tmp_path / "drop_dataset_dev.json"))
    assert count.answers == (("8",), ("eight",))
    assert names.answers == (("Ann", "Bob"),)
    assert names.solution == "#### Ann; Bob"
    assert date.answers == (("9 May 1999",),)
    assert date.key == "q3"


def test_the_hubs_flattened_answers_of_drop_are_told_apart_again(tmp_path: Path) -> None:
    spans, number, repeated, several = load("drop", samples.write_lines(tmp_path / "d.jsonl", samples.DROP_HUB))
    assert spans.answers == (("Ann", "Bob"),)
    assert number.answers == (("8",), ("9",))
    assert repeated.answers == (("Ann", "Bob"),)
    assert several.answers == (("Ann",), ("Ann B",))


def test_hotpotqas_context_reads_the_same_in_both_shapes(tmp_path: Path) -> None:
    (ours,) = load("hotpotqa", samples.write_lines(tmp_path / "a.jsonl", samples.HOTPOTQA[:1]))
    assert ours.question.startswith("Book 1: It is a book. Una May wrote it.\nUna May: She was born there.\n\nIn which")
    (hub,) = load("hotpotqa", samples.write_lines(tmp_path / "b.jsonl", samples.HOTPOTQA_HUB))
    assert hub.question == "A: One. Two.\nB: Three.\n\nIs it so?"
    assert (hub.difficulty, hub.strata) == ("easy", {"type": "comparison"})


def test_the_function_that_mbpp_asks_for_is_the_one_its_tests_call(tmp_path: Path) -> None:
    double, area = load("mbpp", samples.write_lines(tmp_path / "mbpp.jsonl", samples.MBPP))
    assert (double.entry_point, area.entry_point) == ("double", "area")
    assert "\r" not in double.solution


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    file = tmp_path / "bom.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + samples.lines(samples.GSM8K).encode())
    assert len(load("gsm8k", str(file))) == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_says_where_it_comes_from_and_under_which_licence(name: str) -> None:
    dataset = dataset_named(name)
    assert dataset.name == name
    assert dataset.origin.startswith("https://")
    assert dataset.licence
    page = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"`{name}`" in page
    assert dataset.licence.split(" ")[0] in page
    assert dataset.hub in page


@pytest.mark.parametrize("name", [name for name in NAMES if name != "drop"])
def test_a_file_is_recognised_by_its_fields(name: str) -> None:
    assert name in names_by_fields(samples.SAMPLES[name][0])


def test_an_unknown_data_set_is_named_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match=r"no data set is called 'gsm9k'; there are gsm8k, math, "):
        load("gsm9k", "x.jsonl")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "path", "count"),
    [
        ("gsm8k", "gsm8k/train.jsonl", 7473),
        ("halueval", "halueval/qa_data.json", 400),
        ("halueval", "halueval/general_data.json", 4000),
        ("bbq", "bbq/Age.jsonl", 3680),
        ("bbq", "bbq", 9892),
    ],
)
def test_the_public_files_are_read_whole(name: str, path: str, count: int) -> None:
    if not (PUBLIC / path).exists():
        pytest.skip(f"{PUBLIC / path} is not there")
    examples = load(name, str(PUBLIC / path))
    assert len(examples) == count
    assert len({example.id for example in examples}) == count


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(NAMES), data=st.data())
def test_no_value_of_any_field_ends_in_anything_but_examples_or_one_line(name: str, data: st.DataObject) -> None:
    row = dict(samples.SAMPLES[name][0])
    for key in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        row[key] = data.draw(VALUES)
    message = "x.jsonl, line 1: "
    try:
        list(_examples(dataset_named(name), "x", [Row(Path("x.jsonl"), 1, row)]))
    except InputError as error:
        message = str(error)
    assert message.startswith("x.jsonl, line 1: ")
    assert "\n" not in message
    assert len(message) < 1000
