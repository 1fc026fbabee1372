"""What a prompt and a rollout say of themselves."""

from __future__ import annotations

from dataclasses import replace

from levelhead.records import Prompt, Rollout, Score


def test_a_prompt_is_where_its_task_found_its_row_or_has_its_id() -> None:
    prompt = Prompt("a1", "task", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}))
    assert prompt.where == "a1"
    assert replace(prompt, facts={"where": "rows.jsonl, line 3"}).where == "rows.jsonl, line 3"


def test_the_texts_of_a_prompt_are_those_of_its_messages_in_order() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}, {"role": "tool"})
    assert Prompt("a1", "task", messages).texts == ["Be brief.", "Why?", ""]


def test_the_parts_of_a_rollout_are_those_of_its_score() -> None:
    rollout = Rollout("a1", ())
    assert rollout.parts == {}
    assert rollout.scored(Score(1.0, {"format": 0.5})).parts == {"format": 0.5}
