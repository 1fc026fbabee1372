from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.browser.view import SYSTEM_PROMPT, Element, Line, View, turn_messages

VIEW = View(
    goal='Enter "Myron" and press Submit.',
    lines=(
        Line(0, ("Name", Element(1, "textbox", value='a "b"', states=("focused",)))),
        Line(1, (Element(2, "combobox", value="x", options=("x", "y")),)),
        Line(0, (Element(3, "button", "Submit"), "or leave")),
    ),
)


def test_a_page_reads_as_indented_lines_of_text_and_numbered_elements() -> None:
    assert VIEW.text == (
        'Name [1] textbox value="a \\"b\\"" focused\n [2] combobox value="x" options=x|y\n[3] button "Submit" or leave'
    )
    assert [element.ref for element in VIEW.elements] == [1, 2, 3]


def test_a_turn_says_step_goal_error_and_page() -> None:
    system, user = turn_messages(VIEW, 2, "there is no element 9", 1000)
    assert system == {"role": "system", "content": SYSTEM_PROMPT}
    step, goal, error, head, *page = user["content"].splitlines()
    assert (step, goal) == ("Step 2", f"Goal: {VIEW.goal}")
    assert (error, head) == ("Error: there is no element 9", "Page:")
    assert "\n".join(page) == VIEW.text


def test_a_turn_without_error_does_not_mention_one() -> None:
    assert "Error" not in turn_messages(VIEW, 1, "", 1000)[1]["content"]


@given(st.lists(st.text("ab ", min_size=1, max_size=80), max_size=40), st.integers(100, 400))
@settings(deadline=None)
def test_the_page_never_exceeds_its_bound_and_says_where_it_was_cut(texts: list[str], limit: int) -> None:
    view = View(lines=tuple(Line(0, (text,)) for text in texts))
    shown = view.render(limit)
    assert len(shown) <= limit
    if len(view.text) <= limit:
        assert shown == view.text
    else:
        *lines, mark = shown.split("\n")
        assert mark == f"... ({len(texts) - len(lines)} more lines)"
        assert view.text.startswith("\n".join(lines))


def test_a_first_line_beyond_the_bound_is_cut_inside() -> None:
    shown = View(lines=(Line(0, ("x" * 500,)), Line(0, ("y",)))).render(100)
    assert len(shown) <= 100
    assert shown.startswith("xxx")
    assert shown.endswith("\n... (2 more lines)")
