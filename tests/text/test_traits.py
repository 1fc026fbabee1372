"""What a chat template leaves out of a chat is found, whatever it trims or escapes."""

from __future__ import annotations

import pytest

from levelhead.records import ChatOptions
from levelhead.text.traits import left_out
from text.families import codec_of
from text.test_families import TOOL, call

QUESTION = {"role": "user", "content": "Who was late?\n"}
THOUGHT = {"role": "assistant", "content": "<think>\none reason\n</think>\n\nAnna"}


@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
def test_a_thought_of_an_earlier_turn_is_missed(name: str) -> None:
    ((role, text),) = left_out(codec_of(name), [QUESTION, THOUGHT, QUESTION])
    assert (role, text) == ("assistant", THOUGHT["content"])


@pytest.mark.parametrize("name", ["llama3", "qwen25", "gemma", "phi", "lfm2", "smollm"])
def test_nothing_is_missed_where_templates_keep_turns(name: str) -> None:
    assert left_out(codec_of(name), [QUESTION, THOUGHT, QUESTION]) == []


@pytest.mark.parametrize("name", ["llama3", "qwen25", "qwen3", "mistral", "lfm2"])
def test_tool_calls_and_results_are_found_though_they_are_escaped(name: str) -> None:
    result = {"role": "tool", "tool_call_id": "abc123def", "content": 'Anna "A" Berg'}
    chat = [QUESTION, call({"name": 'An"na'}), result]
    assert left_out(codec_of(name), chat, ChatOptions(tools=(TOOL,))) == []


def test_reasoning_that_no_template_reads_is_missed() -> None:
    answer = {"role": "assistant", "content": "Anna", "reasoning_content": "a long thought"}
    assert left_out(codec_of("qwen25"), [QUESTION, answer, QUESTION]) == [("assistant", "a long thought")]
