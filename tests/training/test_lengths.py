"""Prompts that the context has no room for: refused, left out or cut on the left, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import small_run
from levelhead.diagnosis.chinese import IDEOGRAPH
from levelhead.errors import InputError
from levelhead.recipe import validate
from levelhead.training.prepare import Setup, describe, prepare

LONG = "one two three four five six seven eight nine ten " * 12


def setup(folder: Path, data: list[dict[str, Any]], **keys: Any) -> Setup:
    rows = small_run.write_rows(folder / "rows.jsonl", data)
    rewards = folder / "rewards.py"
    rewards.write_text(small_run.REWARDS)
    task = {"kind": "function", "path": str(rows), "rewards": [f"{rewards}:same"], "eval_fraction": 0.2, **keys}
    model = {"preset": "tiny", "tiny": small_run.TINY, "dtype": "float32"}
    stages = {"sft": {"steps": 1}} if "oracle" in keys else {}
    limits = {"sampling": {"max_new_tokens": 16}}
    stages |= {"grpo": {"steps": 1, **limits}, "eval": limits}
    return prepare(validate({"name": "x", "model": model, "tasks": [task], **stages}))


def prompts_of(made: Setup) -> dict[str, Any]:
    (task,) = made.tasks.values()
    return {prompt.id: prompt for split in ("train", "eval") for prompt in task.prompts(split, 0)}


def rows(long: str = LONG) -> list[dict[str, Any]]:
    data = small_run.rows(20)
    return [{**row, "prompt": f"{long}end {i}?"} if i in (3, 7) else row for i, row in enumerate(data)]


def test_an_overlong_prompt_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tasks: function: prompt 'row-\d' .* tasks\[\]\.overlong to drop or "):
        setup(tmp_path, rows())


@pytest.mark.parametrize("kind", ["error", "truncate_left"])
def test_a_demonstration_longer_than_the_context_is_named_however_prompts_are_cut(tmp_path: Path, kind: str) -> None:
    data = [{**row, "answer": LONG} if i == 3 else row for i, row in enumerate(small_run.rows(20))]
    with pytest.raises(InputError, match=r"the demonstration for prompt 'row-4' has \d+ tokens"):
        setup(tmp_path, data, overlong=kind, oracle="answer")


def test_it_is_left_out_and_counted(tmp_path: Path) -> None:
    made = setup(tmp_path, rows(), overlong="drop")
    assert sorted(set(range(1, 21)) - {int(name.removeprefix("row-")) for name in prompts_of(made)}) == [4, 8]
    (counts,) = made.overlong.values()
    assert (counts.train + counts.eval, counts.prompts) == (2, 20)
    (event,) = made.events()
    assert (event.code, event.evidence["prompts"]) == ("overlong-prompts", 20)
    assert IDEOGRAPH.search(str(event.to_json()["message_zh"]))
    assert "2 of 20 prompts" in describe(made)["overlong"]["function"]


def test_it_is_cut_on_the_left_to_the_last_token_that_has_room(tmp_path: Path) -> None:
    made = setup(tmp_path, rows(), overlong="truncate_left")
    cut = prompts_of(made)["row-4"]
    text = cut.messages[-1]["content"]
    assert text.endswith("end 3?")
    assert (LONG + "end 3?").endswith(text)
    room = made.policy.context - 16
    assert room - 4 <= len(made.policy.codec.render(cut.messages)) <= room
    assert cut.facts["prompt"] == text, "rewards see what the policy saw"


def test_of_a_chat_the_oldest_turns_go_first_and_the_system_message_stays(tmp_path: Path) -> None:
    turns = [{"role": role, "content": "some words of old"} for _ in range(8) for role in ("user", "assistant")]
    chat = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Now?"}]
    data: list[dict[str, Any]] = [*small_run.rows(8), {"prompt": chat, "answer": "yes"}]
    made = setup(tmp_path, data, overlong="truncate_left")
    messages = prompts_of(made)["row-9"].messages
    assert messages[0] == chat[0]
    assert messages[1:] == tuple(chat[-len(messages) + 1 :])
    assert messages[1]["role"] == "user"
    assert 3 < len(messages) < len(chat)


def test_a_demonstration_that_is_too_long_counts_as_well(tmp_path: Path) -> None:
    data = [{**row, "answer": "7x9q " * 40 if i < 3 else row["answer"]} for i, row in enumerate(small_run.rows(12))]
    with pytest.raises(InputError, match=r"the demonstration for prompt .*tasks\[\]\.overlong"):
        setup(tmp_path, data, oracle="answer")
    made = setup(tmp_path, data, oracle="answer", overlong="drop")
    assert made.overlong["function"].train > 0


def test_nothing_left_and_a_system_message_without_room_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is left"):
        setup(tmp_path, [{"prompt": f"{LONG}{i}"} for i in range(6)], overlong="drop")
    with pytest.raises(InputError, match="cannot be cut to the"):
        setup(tmp_path, small_run.rows(6), overlong="truncate_left", system=LONG)
