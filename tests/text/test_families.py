"""What the codec finds out about the usual families, and what it makes of their multi-turn chats."""

from __future__ import annotations

import json

import pytest

from levelhead.errors import InputError
from levelhead.records import ChatOptions
from levelhead.text.codec import Codec
from levelhead.text.evidence import boundary, count
from levelhead.text.spans import locate
from levelhead.text.traits import probe
from text.families import FAMILIES, LAST_LINE_APART, codec_of, tokenizer_of

SYSTEM = {"role": "system", "content": "Be fair and careful."}
QUESTION = {"role": "user", "content": "Who was late?\nA. The nurse\nB. Unknown"}
ANSWER = "B because nobody tells."
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Find a name.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}


def call(arguments: object) -> dict[str, object]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "abc123def", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        ],
    }


every_family = pytest.mark.parametrize("name", FAMILIES)
with_tools = pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.tools])
without_tools = pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.tools])


@every_family
def test_the_stop_set_is_complete(name: str):
    codec, family = codec_of(name), FAMILIES[name]
    assert {stop.text for stop in codec.stops} == family.stops
    assert codec.stops[0].text == family.closing
    assert codec.tokenizer.convert_tokens_to_ids(family.closing) == codec.stop_id
    assert [stop.id for stop in codec.stops if "template" in stop.sources] == [codec.stop_id]


@every_family
def test_collisions_of_special_tokens_are_judged(name: str):
    codec, family = codec_of(name), FAMILIES[name]
    assert codec.judgements == family.judged
    assert codec.pad_collides == (family.pad is None or family.pad in family.stops)


@every_family
def test_the_prompt_is_the_templates_text_with_one_first_token(name: str):
    codec, family = codec_of(name), FAMILIES[name]
    ids = codec.render([SYSTEM, QUESTION])
    date = {"date_string": "26 Jul 2024"} if name == "llama3" else {}
    expected = codec.tokenizer.apply_chat_template([SYSTEM, QUESTION], add_generation_prompt=True, **date)
    assert list(ids) == expected["input_ids"]
    if family.bos:
        bos = codec.tokenizer.convert_tokens_to_ids(family.bos)
        assert ids[0] == bos
        assert ids.count(bos) == 1


@every_family
def test_a_demonstration_continues_the_prompt_and_stops_once(name: str):
    codec = codec_of(name)
    demo = codec.demonstration([SYSTEM, QUESTION], ANSWER)
    assert demo.context_ids == codec.render([SYSTEM, QUESTION])
    assert [i for i in demo.completion_ids if i in codec.stop_ids] == [codec.stop_id]
    assert demo.completion_ids[-1] == codec.stop_id
    # What the template puts before an answer without a thought, or what closes the one that its prompt opens.
    lead = {"qwen3": "<think>\n\n</think>\n\n", "deepseek": "\n</think>\n\n"}.get(name, "")
    assert codec.decode(demo.completion_ids) == lead + ANSWER


@with_tools
@pytest.mark.parametrize("arguments", [{"name": "Anna"}, json.dumps({"name": "Anna"})], ids=["object", "json"])
def test_tool_calls_and_results_are_turns_like_others(name: str, arguments: object):
    codec = codec_of(name)
    result = {"role": "tool", "tool_call_id": "abc123def", "content": "Anna Berg"}
    chat = [QUESTION, call(arguments), result, {"role": "assistant", "content": ANSWER}]
    asked, answered = codec.demonstrations(chat, ChatOptions(tools=(TOOL,)))
    assert asked.context_ids == codec.render([QUESTION], ChatOptions(tools=(TOOL,)))
    assert answered.context_ids == codec.render(chat[:3], ChatOptions(tools=(TOOL,)))
    text = codec.tokenizer.decode(asked.completion_ids)
    assert "look_up" in text
    assert "Anna" in text
    assert "\\" not in text, "the arguments were quoted twice"
    assert [i for i in asked.completion_ids if i in codec.stop_ids] == [asked.completion_ids[-1]]
    assert codec.decode(answered.completion_ids).endswith(ANSWER)
    assert "Anna Berg" in codec.tokenizer.decode(answered.context_ids)


@without_tools
def test_a_template_that_would_swallow_tools_is_refused(name: str):
    codec = codec_of(name)
    with pytest.raises(InputError, match="does not show the tool 'look_up'"):
        codec.render([QUESTION], ChatOptions(tools=(TOOL,)))
    with pytest.raises(InputError, match=r"leaves an assistant's tool call out|refuses"):
        codec.demonstration([QUESTION], call({"name": "Anna"}))


@without_tools
def test_a_tool_whose_name_stands_in_the_chat_already_is_missed_too(name: str):
    tool = {"type": "function", "function": {"name": "late", "parameters": {}}}
    with pytest.raises(InputError, match="does not show the tool 'late'"):
        codec_of(name).render([QUESTION], ChatOptions(tools=(tool,)))


def test_a_template_that_is_no_jinja_is_named_with_its_line():
    codec = Codec(tokenizer_of("qwen25"), chat_template="{% for m in messages %}\n{{ m.content }}<|im_end|>")
    with pytest.raises(InputError, match=r"model\.chat_template: not valid Jinja, line 2"):
        codec.render([QUESTION])


def test_each_turn_of_a_reasoning_model_is_trained_on_what_it_saw():
    for name in ("qwen3", "deepseek"):
        codec = codec_of(name)
        # DeepSeek's generation prompt already holds the opening tag.
        opening = "<think>\n" if name == "qwen3" else ""
        first = opening + "one reason\n</think>\n\nB"
        second = opening + "another reason\n</think>\n\nA"
        chat = [
            QUESTION,
            {"role": "assistant", "content": first},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": second},
        ]
        one, two = codec.demonstrations(chat)
        assert codec.decode(one.completion_ids) == first
        assert codec.decode(two.completion_ids) == second
        assert "one reason" not in codec.tokenizer.decode(two.context_ids)
        assert two.context_ids == codec.render(chat[:3])
        written = one.context_ids + one.completion_ids
        assert two.context_ids[: len(written)] != written
        assert probe(codec).drops_reasoning
        assert probe(codec).rewrites_turns


def test_a_multi_turn_chat_that_nothing_rewrites_is_one_growing_sequence():
    for name in ("llama3", "qwen25", "gemma", "phi", "lfm2", "smollm"):
        codec = codec_of(name)
        chat = [QUESTION, {"role": "assistant", "content": "B"}, QUESTION, {"role": "assistant", "content": "A"}]
        one, two = codec.demonstrations(chat)
        written = one.context_ids + one.completion_ids
        assert two.context_ids[: len(written)] == written
        assert not probe(codec).rewrites_turns


def test_a_tokenizer_that_joins_prompt_and_answer_leaves_the_context_alone():
    # The prompt ends with one token for two line breaks; with an answer behind it, they would be two tokens.
    codec = Codec(tokenizer_of("llama3", LAST_LINE_APART))
    chat = [QUESTION, {"role": "assistant", "content": "B"}, QUESTION]
    demo = codec.demonstration([QUESTION], "B")
    assert demo.context_ids == codec.render([QUESTION])
    assert [codec.tokenizer.decode([i]) for i in demo.completion_ids] == ["B", "<|eot_id|>"]
    written = demo.context_ids + demo.completion_ids
    assert codec.render(chat)[: len(written)] != written
    assert probe(codec).rewrites_turns


def test_a_conversation_cannot_begin_with_the_assistant():
    with pytest.raises(InputError, match="at least one message"):
        codec_of("qwen25").demonstrations([{"role": "assistant", "content": "Hello"}])


def test_traits_tell_the_families_apart():
    traits = {name: probe(codec_of(name)) for name in FAMILIES}
    assert {name for name, t in traits.items() if t.rewrites_turns} == {"qwen3", "deepseek", "mistral"}
    assert {name for name, t in traits.items() if t.drops_reasoning} == {"qwen3", "deepseek"}
    assert traits["qwen25"].after_stop == "\n"
    assert traits["phi"].after_stop == "\n<|endoftext|>"


def test_the_last_messages_text_is_located_though_it_was_trimmed_escaped_or_left_out():
    def text_of(name: str, *messages: dict[str, object]) -> str | None:
        codec = codec_of(name)
        options = ChatOptions(tools=(TOOL,) if any(m["role"] == "tool" for m in messages) else ())

        def render(chat: list[dict[str, object]]) -> str:
            return codec.template.render(chat, generation_prompt=True, options=options).text

        place = locate(messages, render(messages), render)
        return None if place is None else render(messages)[slice(*place)]

    user = {"role": "user", "content": "\n Who? \n"}
    assert text_of("mistral", SYSTEM, user) == "Who?"
    assert text_of("llama3", user) == "Who?"
    assert text_of("mistral", QUESTION) == QUESTION["content"]
    assert text_of("qwen25", SYSTEM, {"role": "user", "content": " "}) is None
    result = {"role": "tool", "tool_call_id": "abc123def", "content": 'She said "no"'}
    assert text_of("mistral", QUESTION, call({"name": "Anna"}), result) == 'She said \\"no\\"'


def test_text_that_cannot_be_followed_through_a_template_has_no_place_rather_than_a_wrong_one():
    template = (
        "{% for m in messages %}{{ 'gogogo: ' if m.content == 'go' else '' }}{{ m.content }}<|im_end|>{% endfor %}"
    )
    codec = Codec(tokenizer_of("qwen25"), chat_template=template)

    def render(chat: list[dict[str, str]]) -> str:
        return codec.template.render(chat, generation_prompt=False).text

    chat = [SYSTEM, {"role": "user", "content": "go"}]
    assert locate(chat, render(chat), render) is None
    assert locate([SYSTEM], render([SYSTEM]), render) == (0, len(SYSTEM["content"]))


def test_the_boundary_shows_both_sides_and_counts_tell_padding_from_stops():
    codec = codec_of("qwen25")
    demo = codec.demonstration([QUESTION], "B")
    shown = boundary(codec, demo.context_ids, demo.completion_ids, width=3)
    assert [token.text for token in shown.context_end][-1] == "\n"
    assert [token.text for token in shown.completion_start] == ["B", "<|im_end|>"]
    assert shown.completion_end[-1].id == codec.stop_id
    padded = (*demo.completion_ids, codec.pad_id, codec.pad_id)
    counts = count(codec, padded)
    assert (counts.total, counts.stop, counts.padding, counts.special) == (4, 3, 2, 3)
    part_of_a_character = codec.tokenizer.encode("\U0001f3b2")[0]
    assert "\ufffd" not in boundary(codec, [part_of_a_character], [], width=1).context_end[0].text
