from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from levelhead.errors import InputError
from levelhead.recipe import dump, load, parse, schema

SMALL = """
model: {preset: tiny}
tasks:
  - kind: math
grpo:
  batch_size: 8
  group_size: 4
"""


SHIPPED = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.yaml")), ids=lambda path: path.relative_to(SHIPPED).as_posix())
def test_every_recipe_that_ships_is_valid_and_survives_being_written_out(path: Path) -> None:
    recipe = load(path)
    assert parse(dump(recipe), source="again") == recipe


def test_the_recipe_for_llama_has_every_part_of_the_main_job() -> None:
    recipe = load(SHIPPED / "dual-llama3-8b.yaml")
    assert recipe.sft is not None
    assert recipe.grpo is not None
    assert [(task.kind, task.judge is not None) for task in recipe.tasks] == [
        ("fairness", True),
        ("faithfulness", True),
    ]
    assert all(task.kl for task in recipe.tasks)
    assert (recipe.grpo.merge.kind, recipe.grpo.kl.controller.kind) == ("cagrad", "band")
    assert recipe.grpo.entropy.coef > 0
    assert recipe.model.lora is not None


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("grpo: {learning_rat: 1}", "grpo.learning_rat", ""),
        ("grpo: {group_sizes: 4}", "grpo.group_sizes", "grpo.group_size"),
        ("grpo: {optimizer: {learning_rat: 1.0}}", "grpo.optimizer.learning_rat", "grpo.optimizer.learning_rate"),
        ("grpo: {kl: {controller: {kind: band, low: 0.1, hihg: 1}}}", "hihg", "high"),
        ("grop: {steps: 3}", "grop", "grpo"),
        ("grpo: {asynch: 1}", "grpo.asynch", "grpo.async"),
        ("sft: {batchsize: 3}", "sft.batchsize", "sft.batch_size"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_known_one(text: str, key: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse("model: {preset: tiny}\ntasks: [{kind: math}]\n" + text, source="my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert f"{key!r}" in message or f".{key}'" in message
    assert "unknown key" in message
    if hint:
        assert f"did you mean '{hint}'" in message or f".{hint}'?" in message


def test_a_misspelt_key_of_a_task_is_looked_for_among_that_kind_of_task() -> None:
    with pytest.raises(InputError, match=r"unknown key 'tasks\.0\.item'; did you mean 'tasks\.0\.items'\?"):
        parse("model: {preset: tiny}\ntasks: [{kind: math, item: 30}]")


def test_overrides_reach_every_depth() -> None:
    recipe = parse(SMALL, ["grpo.steps=7", "tasks.0.weight=2", "sft.steps=3", "grpo.optimizer.learning_rate=1e-6"])
    assert (recipe.grpo.steps, recipe.tasks[0].weight, recipe.sft.steps) == (7, 2.0, 3)
    assert recipe.grpo.optimizer.learning_rate == 1e-6
    assert parse(SMALL, ["grpo=null"]).grpo is None
    assert parse(SMALL, ["grpo.loss={kind: gspo}"]).grpo.loss.kind == "gspo"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.steps", "expected key=value"),
        ("=3", "expected key=value"),
        ("grpo.stpes=3", "unknown key 'grpo.stpes'; did you mean 'grpo.steps'"),
        ("tasks.1.weight=2", "tasks is a list of 1"),
        ("tasks.weight=2", "tasks is a list of 1"),
        ("grpo.steps.more=2", "grpo.steps"),
        ("grpo.steps=[1", "not valid YAML"),
        ("grpo.steps=many", "grpo.steps"),
    ],
)
def test_a_bad_override_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(SMALL + "  steps: 3\n", [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.stpes=3", "--set grpo.stpes=3: unknown key 'grpo.stpes'; did you mean 'grpo.steps'?"),
        ("grpo.steps=many", "--set grpo.steps=many: grpo.steps: "),
        ("grpo.loss={kind: gspo, clp: 1}", "--set grpo.loss={kind: gspo, clp: 1}: unknown key 'grpo.loss.clp'"),
        ("tasks.0.itms=3", "--set tasks.0.itms=3: unknown key 'tasks.0.itms'"),
    ],
)
def test_what_is_wrong_with_an_override_is_not_told_of_the_file(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(SMALL, ["seed=4", override], source="my.yaml")
    assert str(caught.value).startswith(message)
    with pytest.raises(InputError, match=r"^my\.yaml: unknown key 'grpo\.stpes'"):
        parse(SMALL + "  stpes: 3\n", ["grpo.steps=3"], source="my.yaml")


def test_a_key_given_twice_is_an_error_with_its_line() -> None:
    with pytest.raises(InputError, match=r"recipe:8: .*'batch_size' is given twice"):
        parse(SMALL + "  batch_size: 16\n")


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.e-6", "1.0e-06", "0.000001"])
def test_exponents_are_numbers_without_a_dot_too(text: str) -> None:
    recipe = parse(SMALL + f"  optimizer: {{learning_rate: {text}}}\n")
    assert recipe.grpo.optimizer.learning_rate == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["grpo.batch_size=10"], r"grpo: batch_size \(10\) must be a multiple of group_size \(4\)"),
        (["grpo.group_size=1"], r"grpo\.group_size"),
        (["grpo.updates_per_batch=3"], r"updates_per_batch \(3\) must divide the 2 groups of a batch"),
        (["grpo.async=17"], r"grpo\.async: Input should be less than or equal to 16"),
        (["grpo.async=1", "grpo.loss.kind=reinforce"], r"reinforce has no ratio .* set loss\.importance"),
    ],
)
def test_settings_that_do_not_fit_each_other_say_what_would(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(SMALL, overrides)


def test_two_tasks_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two tasks are called 'math'"):
        parse("model: {preset: tiny}\ntasks: [{kind: math}, {kind: math}]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "a recipe is a mapping"),
        ("model: {preset: tiny", "not valid YAML"),
        ("model: {preset: tiny}", "tasks: missing"),
        ("model: {}\ntasks: [{kind: math}]", "model.name"),
        ("model: {preset: tiny, name: x}\ntasks: [{kind: math}]", "either model.name"),
        ("model: {preset: tiny}\ntasks: [{kind: maths}]", "math"),
        ("model: {preset: tiny}\ntasks: []", "tasks"),
    ],
)
def test_what_is_no_recipe_says_why(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: no such recipe"):
        load(tmp_path / "gone.yaml")


def test_a_run_folder_in_place_of_a_recipe_is_told_how_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    with pytest.raises(InputError, match=r"folder of a run; .* train .*recipe.yaml --out .* --resume"):
        load(tmp_path)


def test_a_recipe_survives_being_written_and_read() -> None:
    recipe = parse(SMALL, ["grpo.kl.controller={kind: band, low: 0.01, high: 0.1}", "grpo.kl.coef=0.1"])
    assert parse(dump(recipe)) == recipe
    ahead = parse(SMALL, ["grpo.async=1", "grpo.loss={kind: reinforce, importance: token_truncate}"])
    assert yaml.safe_load(dump(ahead))["grpo"]["async"] == 1
    assert parse(dump(ahead)) == ahead
    assert yaml.safe_load(schema())["title"] == "Recipe"
