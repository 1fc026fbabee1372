"""Properties of the codec over random chats, the families' templates and random templates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from levelhead.text.codec import Codec
from levelhead.text.spans import locate
from text.families import FAMILIES, codec_of, tokenizer_of

CONTROLS = sorted({t for f in FAMILIES.values() for t in (f.bos, f.pad, f.eos, *f.special) if t})
words = st.one_of(
    st.sampled_from(["Who", "A.", "nurse", "assistant", "user\n", "42", "...", "\n", " ", "  ", "\n\n", "\t", "'s"]),
    st.sampled_from(["Zoë", "東京", "\U0001f3b2", "\ue000", "\ufdd0", "{{ x }}", "\\n", '"', "[", "<"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
)
calm = st.lists(words, min_size=1, max_size=8).map(lambda parts: " ".join(["x", *parts, "y"]))
wild = st.lists(st.one_of(words, st.sampled_from(CONTROLS)), max_size=8).map("".join)


@st.composite
def chats(draw: st.DrawFn, texts: st.SearchStrategy[str] = wild) -> list[dict[str, str]]:
    """A chat that ends with a question: system text or none, then questions and answers in turn."""
    chat = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        chat += [{"role": "user", "content": draw(texts)}, {"role": "assistant", "content": draw(texts)}]
    return [*chat, {"role": "user", "content": draw(texts)}]


def squeezed(text: str) -> str:
    """Without white space, and without the character that SentencePiece writes for a space."""
    return "".join(text.replace("\u2581", " ").split())


every_family = pytest.mark.parametrize("name", FAMILIES)
fair = settings(deadline=None, max_examples=25, derandomize=True)


@every_family
@fair
@given(chats())
def test_ids_read_back_as_the_templates_text(name: str, chat: list[dict[str, str]]):
    codec = codec_of(name)
    text = codec.template.render(chat, generation_prompt=True).text
    ids = codec.render(chat)
    back = codec.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if FAMILIES[name].sentencepiece:
        assert squeezed(back) == squeezed(text)
    else:
        assert back == text


@every_family
@fair
@given(chats())
def test_only_the_template_writes_control_tokens(name: str, chat: list[dict[str, str]]):
    codec = codec_of(name)
    harmless = [{**message, "content": message["content"] and "x"} for message in chat]
    special = set(codec.tokenizer.all_special_ids)
    written = [i for i in codec.render(chat) if i in special]
    assert written == [i for i in codec.render(harmless) if i in special]


@every_family
@fair
@given(chats(), wild)
def test_a_demonstration_is_prompt_answer_and_one_stop(name: str, chat: list[dict[str, str]], answer: str):
    codec = codec_of(name)
    demo = codec.demonstration(chat, answer)
    assert demo.context_ids == codec.render(chat)
    assert [i for i in demo.completion_ids if i in codec.stop_ids] == [demo.completion_ids[-1]]
    lead = {"qwen3": "<think></think>", "deepseek": "</think>"}.get(name, "") if "</think>" not in answer else ""
    assert squeezed(codec.decode(demo.completion_ids)) in (lead + squeezed(answer), squeezed(answer))


@pytest.mark.parametrize("name", ["qwen25", "phi", "lfm2", "smollm"])
@fair
@given(chats(), wild)
def test_an_answer_survives_to_the_last_space_where_the_template_keeps_it(name: str, chat, answer: str):
    codec = codec_of(name)
    assert codec.decode(codec.demonstration(chat, answer).completion_ids) == answer


@every_family
@fair
@given(chats())
def test_the_question_is_located_where_it_stands(name: str, chat: list[dict[str, str]]):
    codec = codec_of(name)

    def render(messages: list[dict[str, str]]) -> str:
        return codec.template.render(messages, generation_prompt=True).text

    text, own = render(chat), chat[-1]["content"].strip()
    place = locate(chat, text, render)
    assert (place is not None) == bool(own)
    if place is not None:
        assert text[slice(*place)] == own


@pytest.mark.parametrize("name", ["llama3", "qwen25", "gemma", "phi", "lfm2", "smollm"])
@fair
@given(chats(calm), calm, calm)
def test_the_next_prompt_is_this_prompt_this_answer_and_more(name: str, chat, answer: str, question: str):
    codec = codec_of(name)
    demo = codec.demonstration(chat, answer)
    later = codec.render([*chat, {"role": "assistant", "content": answer}, {"role": "user", "content": question}])
    written = demo.context_ids + demo.completion_ids
    assert later[: len(written)] == written


@every_family
@fair
@given(chats(), wild)
def test_a_conversation_is_its_turns_each_as_it_was(name: str, chat: list[dict[str, str]], answer: str):
    codec = codec_of(name)
    whole = [*chat, {"role": "assistant", "content": answer}]
    turns = [i for i, message in enumerate(whole) if message["role"] == "assistant"]
    for index, demo in zip(turns, codec.demonstrations(whole), strict=True):
        if whole[index]["content"]:  # nothing at all is the stop token alone, where a message's thought is closed
            assert demo == codec.demonstration(whole[:index], whole[index]["content"])
        assert demo.context_ids == codec.render(whole[:index])


@dataclass(frozen=True)
class Scheme:
    """A random chat template, as Jinja and, independently, as Python."""

    bos: bool
    header: tuple[str, str]
    closing: str
    behind: str
    trims: bool
    default_system: str
    prompts: bool
    assistant: str
    keeps: int

    def jinja(self) -> str:
        """Write it as Jinja."""
        content = "m['content'] | trim" if self.trims else "m['content']"
        first = f"{self.header[0]}system{self.header[1]}{self.default_system}{self.closing}{self.behind}"
        return (
            ("{{- bos_token -}}" if self.bos else "")
            + "{%- set chat = messages[-keeps:] if keeps else messages -%}".replace("keeps", str(self.keeps))
            + (
                f"{{%- if chat[0].role != 'system' -%}}{{{{- {first!r} -}}}}{{%- endif -%}}"
                if self.default_system
                else ""
            )
            + "{%- for m in chat -%}"
            + f"{{%- set role = {self.assistant!r} if m.role == 'assistant' else m.role -%}}"
            + f"{{{{- {self.header[0]!r} + role + {self.header[1]!r} + {content} + {self.closing + self.behind!r} -}}}}"
            + "{%- endfor -%}"
            + f"{{%- if add_generation_prompt -%}}{{{{- {self.prompt!r} -}}}}{{%- endif -%}}"
        )

    @property
    def prompt(self) -> str:
        """The generation prompt."""
        return f"{self.header[0]}{self.assistant}{self.header[1]}" if self.prompts else ""

    def text(self, chat: list[dict[str, str]]) -> str:
        """Write a chat with it, generation prompt included."""
        chat = chat[-self.keeps :] if self.keeps else chat
        if self.default_system and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": self.default_system}, *chat]
        body = "".join(
            self.header[0]
            + (self.assistant if message["role"] == "assistant" else message["role"])
            + self.header[1]
            + (message["content"].strip() if self.trims else message["content"])
            + self.closing
            + self.behind
            for message in chat
        )
        return ("<|startoftext|>" if self.bos else "") + body + self.prompt


schemes = st.builds(
    Scheme,
    bos=st.booleans(),
    header=st.sampled_from([("<|im_start|>", "\n"), ("<|im_start|>", "<|tool_list_start|>\n\n"), ("### ", ":\n")]),
    closing=st.sampled_from(["<|im_end|>", "\n<|im_end|>", "<|tool_list_end|>"]),
    behind=st.sampled_from(["", "\n", "\n\n"]),
    trims=st.booleans(),
    default_system=st.sampled_from(["", "Help."]),
    prompts=st.booleans(),
    assistant=st.sampled_from(["assistant", "model", "Assistant bot"]),
    keeps=st.sampled_from([0, 0, 3]),
)


@cache
def scheme_codec(scheme: Scheme) -> Codec:
    return Codec(scheme_tokenizer(), chat_template=scheme.jinja())


@cache
def scheme_tokenizer():
    return tokenizer_of("lfm2")


@settings(deadline=None, max_examples=100, derandomize=True)
@given(schemes, chats(calm), calm)
def test_a_random_template_is_rendered_stopped_and_continued_as_written(scheme: Scheme, chat, answer: str):
    codec = scheme_codec(scheme)
    codec.tokenizer.chat_template = scheme.jinja()
    closing = codec.tokenizer.convert_tokens_to_ids(scheme.closing.strip())
    assert codec.stop_id == closing
    ids = codec.render(chat)
    text = scheme.text(chat)
    assume(not any(control in message["content"] for message in chat for control in CONTROLS))
    assert list(ids) == codec.tokenizer.encode(text, add_special_tokens=False)

    demo = codec.demonstration(chat, answer)
    assert demo.context_ids == ids
    assert demo.completion_ids[-1] == closing
    decoded = codec.decode(demo.completion_ids).rstrip()
    assert decoded.endswith(answer.rstrip())
