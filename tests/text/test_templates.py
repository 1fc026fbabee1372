"""SFT and RL speak the same language, by every chat template: a demonstration goes on where the prompt ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.text.codec import Codec, Demonstration
from text.templates_found import OURS, ROOT, TAG, codec_for, originals, page, row

every_template = pytest.mark.parametrize("file", sorted(OURS.glob("*.jinja")), ids=lambda file: file.stem)
word = st.sampled_from(
    ["late", "Anna", "B", "because nobody tells", "7", "3 + 4", "Zo\u00eb", "\u6771\u4eac", "a.b", "it's"]
)
texts = st.lists(word, min_size=1, max_size=4).map(" ".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, str]]:
    """Questions and answers in turn, ending with a question."""
    chat: list[dict[str, str]] = []
    for _ in range(draw(st.integers(0, 2))):
        chat += [{"role": "user", "content": draw(texts)}, {"role": "assistant", "content": draw(texts)}]
    return [*chat, {"role": "user", "content": draw(texts)}]


def tags_of(prompt: str) -> tuple[str, str, bool]:
    """What opens and closes a thought, and whether the prompt has opened one."""
    found = [match for match in TAG.finditer(prompt) if not prompt[match.end() :].strip()]
    tag = found[-1][0] if found else "<think>"
    closer = tag.replace("START_", "END_") if tag.startswith("<|") else f"{tag[0]}/{tag[1:]}"
    return tag, closer, bool(found)


def read(codec: Codec, demo: Demonstration) -> str:
    """The text of a completion, its stop token aside."""
    return str(codec.tokenizer.decode(demo.completion_ids[:-1]))


def rendered(codec: Codec, chat: list[dict[str, str]], *, prompt: bool) -> str:
    return codec.template.render(chat, generation_prompt=prompt).text


def hold_promise_two(codec: Codec, chat: list[dict[str, str]], thought: str, answer: str) -> None:
    """Hold a plain answer, one with its thought, and one that goes on behind an opened thought against the template."""
    prompt = rendered(codec, chat, prompt=True)
    tag, closer, opened = tags_of(prompt)
    answers = [answer, f"{tag}\n{thought}\n{closer}\n\n{answer}"]
    answers += [f"{thought}\n{closer}\n\n{answer}"] if opened else []
    for given_answer in answers:
        demo = codec.demonstration(chat, given_answer)
        assert demo.context_ids == codec.render(chat)
        assert [i for i in demo.completion_ids if i in codec.stop_ids] == [demo.completion_ids[-1]]
        text = read(codec, demo)
        whole = rendered(codec, [*chat, {"role": "assistant", "content": given_answer}], prompt=False)
        if given_answer == answer and whole.startswith(prompt):
            assert whole[len(prompt) :].startswith(text), "a completion is what follows the generation prompt"
        assert answer in text
        thinks = given_answer != answer
        assert text.count(thought) == thinks or thought in answer
        written = (tag if opened else "") + text
        if thinks:
            start, end = written.index(tag), written.index(closer)
            assert written[start + len(tag) : end].strip() == thought, "the thought stands between its tags"
            assert written.count(tag) == written.count(closer) == 1, "and no tag is written twice"
            assert answer in written[end:]
        elif opened and not whole.startswith(prompt):
            assert written.count(closer) == 1, "an answer without a thought closes the one that the prompt opens"


@every_template
@settings(deadline=None, max_examples=12, derandomize=True)
@given(conversations(), texts, texts)
def test_a_demonstration_goes_on_where_the_prompt_ends(
    file: Path, chat: list[dict[str, str]], thought: str, answer: str
) -> None:
    codec = codec_for(file)
    assert isinstance(codec, Codec), codec
    hold_promise_two(codec, chat, f"one reason: {thought}", f"so: {answer}")


@every_template
def test_an_empty_answer_is_the_stop_token_alone(file: Path) -> None:
    codec = codec_for(file)
    assert isinstance(codec, Codec), codec
    demo = codec.demonstration([{"role": "user", "content": "Who?"}], "")
    assert codec.decode(demo.completion_ids).strip() == ""


public = pytest.mark.skipif(not originals(), reason="no public templates: python tests/text/public_templates.py FOLDER")
every_original = pytest.mark.parametrize("file", originals(), ids=lambda file: f"{file.parent.name}/{file.stem}")


@public
@every_original
@settings(deadline=None, max_examples=6, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(conversations(), texts, texts)
def test_it_does_by_a_public_template(file: Path, chat: list[dict[str, str]], thought: str, answer: str) -> None:
    codec = codec_for(file)
    if isinstance(codec, str) or row(file)[2].startswith("refused"):
        return  # by name, as the page says
    hold_promise_two(codec, chat, f"one reason: {thought}", f"so: {answer}")


@public
def test_the_page_says_what_a_codec_makes_of_each() -> None:
    assert (ROOT / "docs" / "chat-templates.md").read_text(encoding="utf-8") == page()


@every_template
def test_a_thought_in_a_field_stands_before_its_answer_or_is_refused(file: Path) -> None:
    hold_field(file)


@public
@every_original
def test_so_it_does_by_a_public_template(file: Path) -> None:
    if row(file)[2].startswith("refused"):
        return
    hold_field(file)


def hold_field(file: Path) -> None:
    codec = codec_for(file)
    assert isinstance(codec, Codec), codec
    message = {"role": "assistant", "content": "ANSWER", "reasoning_content": "REASON"}
    try:
        text = read(codec, codec.demonstration([{"role": "user", "content": "Who?"}], message))
    except InputError as error:
        assert "leaves an assistant's reasoning_content out" in str(error)  # noqa: PT017
        return
    assert (text.count("REASON"), text.count("ANSWER")) == (1, 1)
    assert text.index("REASON") < text.index("ANSWER")


@every_template
def test_a_thought_that_is_never_closed_is_opened_once_and_not_closed_before(file: Path) -> None:
    codec = codec_for(file)
    assert isinstance(codec, Codec), codec
    chat = [{"role": "user", "content": "Who?"}]
    tag, closer, opened = tags_of(rendered(codec, chat, prompt=True))
    text = read(codec, codec.demonstration(chat, f"{tag}\nREASON"))
    assert text.count(tag) == (not opened)
    assert closer not in text


def test_what_stands_between_a_thought_and_its_answer_ends_no_turn() -> None:
    codec = codec_for(OURS / "harmony.jinja")
    assert isinstance(codec, Codec), codec
    assert "<|end|>" not in {stop.text for stop in codec.stops}
    assert codec.stops[0].text == "<|return|>"


def test_a_demonstration_whose_answer_would_be_cut_off_is_refused() -> None:
    tokenizer = codec_for(OURS / "harmony.jinja").tokenizer  # type: ignore[union-attr]
    codec = Codec(tokenizer, generation_eos=[tokenizer.convert_tokens_to_ids("<|end|>")])
    with pytest.raises(InputError, match=r"writes <\|end\|> between its generation prompt and an answer"):
        codec.demonstration(
            [{"role": "user", "content": "Who?"}], {"role": "assistant", "content": "B", "thinking": "C"}
        )
