"""Inputs after public reports of other trainers' users, as files: each gives its right value here.

The files are not part of the repository: ``LEVELHEAD_FIELD_REPORTS`` names their folder.  Small inputs of each kind
stand in the tests of the rooms that they concern.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.policy.load import load_tokenizer
from levelhead.preflight.run import dry_run
from levelhead.recipe import load
from levelhead.recipe.history import fingerprints
from levelhead.recipe.model import Model
from levelhead.scaffold.write import InitOptions, plan
from levelhead.text.codec import Codec
from levelhead.training.prepare import Setup, prepare

DATA = Path(os.environ.get("LEVELHEAD_FIELD_REPORTS", Path(__file__).parents[1] / ".." / "shared" / "data" / "bugs"))


BASE_TINY = str(Model(preset="base-tiny").source)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Copy the folder of a report and stand in it."""

    def copy(name: str) -> Path:
        if not (DATA / name).is_dir():
            pytest.skip("the inputs of the reports are not here: LEVELHEAD_FIELD_REPORTS names their folder")
        folder = tmp_path / name
        shutil.copytree(DATA / name, folder)
        monkeypatch.chdir(folder)
        for path in folder.glob("*.yaml"):
            path.write_text(path.read_text("utf-8").replace("BASE_TINY", BASE_TINY), encoding="utf-8")
        return folder

    return copy


def rendered(setup: Setup) -> list[str]:
    (task,) = setup.tasks.values()
    codec = setup.policy.codec
    return [codec.tokenizer.decode(codec.render(p.messages, p.chat)) for p in task.prompts("train", 0)]


@pytest.mark.parametrize("data", ["t.jsonl", "t.parquet"])
def test_tools_of_a_row_are_rendered_and_arguments_hold_no_nulls_of_arrow(
    report: Callable[[str], Path], data: str
) -> None:
    report("06-tools")
    texts = rendered(prepare(load("r2.yaml", [f"tasks.0.path={data}"])))
    assert all(("get_weather" in text.split("<|im_end|>")[0]) is ("Weather" in text) for text in texts)
    assert all(("add" in text.split("<|im_end|>")[0]) is ("Add" in text) for text in texts)
    assert not any("null" in text for text in texts)


@pytest.mark.parametrize("template", ["r1.jinja", "q35.jinja"])
def test_a_thought_that_the_prompt_has_opened_is_opened_once(report: Callable[[str], Path], template: str) -> None:
    folder = report("04-think-prompt")
    codec = Codec(load_tokenizer(BASE_TINY), chat_template=(folder / template).read_text("utf-8"))
    chat = [{"role": "user", "content": "2+3?"}]
    for answer in ("<think>\nsum\n</think>\n\nfive", "sum\n</think>\n\nfive", "five"):
        demonstration = codec.demonstration(chat, answer)
        text = codec.tokenizer.decode([*demonstration.context_ids, *demonstration.completion_ids])
        assert (text.count("<think>"), text.count("</think>")) == (1, 1), answer


@pytest.mark.parametrize("stem", ["sums", "lst"])
def test_what_init_writes_of_numbers_and_lists_is_sound(report: Callable[[str], Path], stem: str) -> None:
    report("11-init-int")
    made = plan(InitOptions(stem, "base-tiny", f"{stem}.jsonl", None, None, None, Path("new")))
    made.write()
    facts = dry_run(load(next(iter(made.files))))
    assert not [line for line in facts["checks"] if line.startswith("fail")]


def test_init_says_that_an_object_is_no_answer(report: Callable[[str], Path]) -> None:
    report("11-init-int")
    with pytest.raises(InputError, match=r"nest\.jsonl: no column of right answers; name it with --answer"):
        plan(InitOptions("nest", "base-tiny", "nest.jsonl", None, None, None, Path("new")))


def test_an_edited_helper_of_a_reward_is_a_change_of_the_recipe(report: Callable[[str], Path]) -> None:
    folder = report("12-resume-changes")
    before = fingerprints(load("r.yaml"))
    (folder / "helper.py").write_text("SCALE = 2\n", encoding="utf-8")
    after = fingerprints(load("r.yaml"))
    assert [key for key in after if after[key] != before[key]] == ["tasks.0.rewards.0.helper.py"]


def test_two_tasks_each_have_the_helper_beside_their_rewards(report: Callable[[str], Path]) -> None:
    report("03-reward-files")
    (task,) = prepare(load("sib.yaml")).tasks.values()
    words: Any = [reward.function.__globals__["WORD"] for reward in task.rewards]  # type: ignore[attr-defined]
    assert words == ["A", "B"]


@pytest.mark.parametrize(("key", "name"), [("modules_to_save", "lm_haed"), ("target_modules", "q_prj")])
def test_a_name_that_the_model_lacks_is_refused_with_the_key_and_the_nearest(
    report: Callable[[str], Path], key: str, name: str
) -> None:
    report("07-tied-lora")
    with pytest.raises(InputError, match=rf"model\.lora\.{key}: '{name}' .* there are: {name[:2]}"):
        dry_run(load("plain.yaml", [f"model.lora.{key}=[{name}]"]))
