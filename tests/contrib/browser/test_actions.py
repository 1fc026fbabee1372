from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.browser.actions import ACTION_HELP, MAX_LENGTH, Action, ActionError, parse_action

refs = st.integers(0, 999_999)
# str.splitlines knows more line ends than the grammar escapes; those cannot be typed into a page anyway.
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=60) | st.just("a\nb\tc\\'\"")
actions = st.one_of(
    st.builds(Action, st.sampled_from(["click", "focus", "hover"]), refs),
    st.builds(Action, st.sampled_from(["fill", "type", "select"]), refs, texts),
    st.builds(Action, st.just("press"), st.none() | refs, st.sampled_from(["Enter", "Control+a", "x", "'", "+"])),
    st.builds(Action, st.just("scroll"), st.none() | refs, st.sampled_from(["up", "down"])),
    st.builds(Action, st.just("drag"), refs, to=refs),
    st.builds(Action, st.just("drag"), refs, offset=st.tuples(st.integers(-999, 999), st.integers(-999, 999))),
    st.just(Action("noop")),
)


@given(actions)
@settings(deadline=None)
def test_a_written_action_reads_as_itself(action: Action) -> None:
    assert parse_action(str(action)) == action


@given(st.text(max_size=200))
@settings(deadline=None)
def test_any_text_is_an_action_or_an_action_error(text: str) -> None:
    with contextlib.suppress(ActionError):
        assert isinstance(parse_action(text), Action)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click(3)", Action("click", 3)),
        ("  click( 3 ) ", Action("click", 3)),
        ("click('3')", Action("click", 3)),
        ("fill(1, 'Myron')", Action("fill", 1, "Myron")),
        ('fill(1, "it\'s")', Action("fill", 1, "it's")),
        (r"fill(1, 'it\'s (here), now')", Action("fill", 1, "it's (here), now")),
        ("fill(1, '')", Action("fill", 1, "")),
        ("press('Control+a')", Action("press", None, "Control+a")),
        ("scroll(2, 'down')", Action("scroll", 2, "down")),
        ("drag(1, 10, -5)", Action("drag", 1, offset=(10, -5))),
        ("\n\nclick(1)\nBecause it is the button.", Action("click", 1)),
    ],
)
def test_reads(text: str, action: Action) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n ",
        "I would click(3)",
        "click",
        "click(",
        "click()",
        "click(1, 2)",
        "click(-1)",
        "click(one)",
        "click(__import__('os'))",
        "click('1' + '2')",
        "fill(1)",
        "fill(1, text)",
        "fill(1, 'a' 'b')",
        "fill(1, 'a',)",
        "press('Launch')",
        "press('Control')",
        "press('Meta+q')",
        "scroll('left')",
        "drag(1)",
        "drag(1, 'x', 2)",
        "noop(1)",
        "goto('https://example.org')",
        "eval('1')",
        "click(1); click(2)",
        "fill(1, '" + "x" * MAX_LENGTH + "')",
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(ActionError):
        parse_action(text)


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(ActionError, match=r"unknown action clik; use one of click, fill"):
        parse_action("clik(1)")
    with pytest.raises(ActionError, match=r"fill is written fill\(n, 'text'\)"):
        parse_action("fill(1)")


def test_every_action_of_the_system_prompt_parses() -> None:
    for line in ACTION_HELP.splitlines():
        assert str(parse_action(line.replace("n", "1", 1).replace("m", "2") if "(n" in line else line))
