"""Templates that open thoughts, tags that are special tokens, tools and long prompts: named before the first step.

The checks ``rewards/opened-thought``, ``tokens/lost-text``, ``tokens/spelled-tags`` and ``data/overlong`` on what turns
them red.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from levelhead.errors import InputError
from levelhead.preflight.check import Check, Outcome
from levelhead.preflight.checks.data import OverlongPrompts
from levelhead.preflight.checks.prompts import RenderedPrompts, SamePrompt
from levelhead.preflight.checks.rewards import RewardsAttached, RewardsRoundTrip
from levelhead.preflight.checks.thoughts_and_tags import LostText, OpenedThought, SpelledTags
from levelhead.preflight.context import Context
from levelhead.recipe import validate
from levelhead.scaffold.model import preset_folder
from levelhead.training.prepare import prepare

TEMPLATES = Path(__file__).parents[1] / "text" / "templates"
REWARDS = """
import re


def tagged(completions, answer, **columns):
    return [float(bool(re.match(r"^<think>.*?</think>\\s*" + a, t, re.S))) for t, a in zip(completions, answer)]


def behind(completions, answer, **columns):
    return [float(t.split("</think>")[-1].strip() == a) for t, a in zip(completions, answer)]


def some(completions, **columns):
    return [float(len(str(c)) % 2) for c in completions]
"""
TAGS = ("<think>", "</think>")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def rows(full: str = "<think>\n{n} and 1\n</think>\n\n{m}", **more: Any) -> list[dict[str, Any]]:
    sums = [{"prompt": f"What is {n} + 1?", "answer": f"{n + 1}", "full": full.format(n=n, m=n + 1)} for n in range(12)]
    return [{**row, **more} for row in sums]


@contextmanager
def context(folder: Path, data: Sequence[dict[str, Any]], **keys: Any) -> Iterator[Context]:
    """What checks look at, for a small model, some rows and keys of the task; model and sft are the recipe's."""
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    model = {"dtype": "float32", **({} if "name" in keys.get("model", {}) else {"preset": "base-tiny"})}
    model |= keys.pop("model", {})
    stages = {"sft": {"steps": 1}} if keys.pop("sft", False) else {}
    task = {"kind": "function", "path": str(folder / "rows.jsonl"), **keys}
    task["rewards"] = [f"{folder / 'rewards.py'}:{task.pop('reward', 'some')}"]
    limits = {"sampling": {"max_new_tokens": 16}}
    grpo = {"steps": 1, "batch_size": 4, "group_size": 2, **limits}
    recipe = validate({"name": "x", "model": model, "tasks": [task], "grpo": grpo, "eval": limits, **stages})
    made = Context(prepare(recipe))
    try:
        yield made
    finally:
        made.close()


def outcome(check: type[Check], made: Context) -> Outcome:
    (only,) = check().run(made)
    return only


def template(name: str) -> dict[str, Any]:
    return {"chat_template": str(TEMPLATES / f"{name}.jinja")}


@pytest.mark.parametrize("name", ["prefilled", "nemotron", "qwen35"])
def test_a_reward_that_wants_the_tag_that_the_prompt_holds_is_named(tmp_path: Path, name: str) -> None:
    with context(tmp_path, rows(), model=template(name), oracle="full", reward="tagged", sft=True) as made:
        told = outcome(OpenedThought, made)
        assert (told.status, told.said.key) == ("fail", "wanted")
        assert told.fields["tag"] == "<think>"
        assert outcome(RewardsRoundTrip, made).status == "fail"
    with context(tmp_path, rows(), model=template(name), oracle="full", reward="behind", sft=True) as made:
        for check in (OpenedThought, RewardsRoundTrip, SamePrompt, LostText):
            assert outcome(check, made).status == "pass", check.name


def test_such_a_reward_is_named_without_an_oracle_too_and_nothing_is_said_of_other_templates(tmp_path: Path) -> None:
    data = [{"prompt": f"What is {n} + 6?", "answer": "7"} for n in range(12)]
    with context(tmp_path, data, model=template("prefilled"), reward="tagged") as made:
        assert outcome(OpenedThought, made).status == "warn"
    with context(tmp_path, data, reward="tagged") as made:
        assert list(OpenedThought().run(made)) == []


def test_answers_without_a_thought_behind_an_opened_one_are_told_of(tmp_path: Path) -> None:
    with context(tmp_path, rows(full="{m}"), model=template("prefilled"), oracle="full", sft=True) as made:
        told = outcome(LostText, made)
        assert (told.status, told.said.key) == ("warn", "thoughtless")


def test_answers_with_a_thought_behind_a_closed_one_are_refused(tmp_path: Path) -> None:
    model = template("qwen35") | {"chat_template_kwargs": {"enable_thinking": False}}
    with (
        pytest.raises(InputError, match="closes an empty thought, and the perfect answer to prompt"),
        context(tmp_path, rows(), model=model, oracle="full", sft=True),
    ):
        pass


def test_thoughts_that_the_template_drops_from_earlier_turns_are_told_of(tmp_path: Path) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHello"}]
    data = [{"prompt": [*before, {"role": "user", "content": f"And {n}?"}], "answer": "7"} for n in range(12)]
    with context(tmp_path, data, model=template("minimax")) as made:
        told = outcome(LostText, made)
        assert (told.status, told.said.key, told.fields["count"]) == ("warn", "dropped", told.fields["prompts"])
    with context(tmp_path, data, model=template("prefilled")) as made:
        assert outcome(LostText, made).status == "pass"


@pytest.fixture(scope="module")
def tagged_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base model with two tags as special tokens."""
    folder = tmp_path_factory.mktemp("tagged")
    tokenizer = AutoTokenizer.from_pretrained(preset_folder("base-tiny"))
    model = AutoModelForCausalLM.from_pretrained(preset_folder("base-tiny"))
    tokenizer.add_special_tokens({"extra_special_tokens": list(TAGS)})
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("data", "keys", "counts"),
    [
        (rows(), {"oracle": "full"}, {"answers": True, "asked": False, "files": True}),
        (rows(), {"reward": "behind"}, {"answers": False, "asked": False, "files": True}),
        (
            rows(full="{m}"),
            {"system": "Write <think>...</think>.", "oracle": "full"},
            {"answers": False, "asked": True},
        ),
    ],
    ids=["answers", "rewards", "prompts"],
)
def test_special_tokens_in_answers_rewards_and_prompts_are_told_of_until_they_are_kept(
    tmp_path: Path, tagged_model: str, data: list[dict[str, Any]], keys: dict[str, Any], counts: dict[str, bool]
) -> None:
    with context(tmp_path, data, model={"name": tagged_model}, **keys) as made:
        told = outcome(SpelledTags, made)
        assert told.status == "warn"
        assert set(told.evidence["tokens"]) == set(TAGS)
        assert {name: bool(told.fields[name]) for name in counts} == counts
    with context(tmp_path, data, model={"name": tagged_model}, keep_special_tokens=list(TAGS), **keys) as made:
        for check in (SpelledTags, RenderedPrompts, RewardsRoundTrip, RewardsAttached):
            assert outcome(check, made).status == "pass", check.name


def test_they_are_seen_in_a_helper_of_the_rewards_too(
    tmp_path: Path, tagged_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped = "from tags import PATTERN\ndef some(completions, **columns): return [1.0 for _ in completions]\n"
    monkeypatch.setattr(f"{__name__}.REWARDS", helped)
    (tmp_path / "tags.py").write_text(r"PATTERN = r'\<think\>'", encoding="utf-8")
    data = [{"prompt": f"What is {n} + 1?", "answer": "7"} for n in range(12)]
    with context(tmp_path, data, model={"name": tagged_model}) as made:
        told = outcome(SpelledTags, made)
        assert (told.status, told.fields["files"]) == ("warn", 1)


def test_prompts_with_tools_are_their_rendering(tmp_path: Path) -> None:
    data = [{**row, "tools": [TOOL], "chat_template_kwargs": {"loud": True}} for row in rows()]
    source = "{{ tools | tojson if tools }}{{ '!' if loud }}" + (TEMPLATES / "prefilled.jinja").read_text()
    (tmp_path / "tools.jinja").write_text(source, encoding="utf-8")
    with context(
        tmp_path, data, model={"chat_template": str(tmp_path / "tools.jinja")}, oracle="full", sft=True
    ) as made:
        for check in (RenderedPrompts, SamePrompt, LostText):
            assert outcome(check, made).status == "pass", check.name
    with pytest.raises(InputError, match="does not show the tool 'look'"), context(tmp_path, data):
        pass


def test_prompts_that_were_left_out_are_counted(tmp_path: Path) -> None:
    data = [{**row, "prompt": "word " * 3000} if n == 3 else row for n, row in enumerate(rows() * 2)]
    data = [{**row, "prompt": f"{row['prompt']} {n}"} for n, row in enumerate(data)]
    with context(tmp_path, data, overlong="drop") as made:
        told = outcome(OverlongPrompts, made)
        assert (told.status, told.fields["count"], told.fields["prompts"]) == ("pass", 1, 24)
    with context(tmp_path, rows()) as made:
        assert outcome(OverlongPrompts, made).said.key == "right"
