from __future__ import annotations

import pytest

from levelhead.contrib.browser.actions import parse_action
from levelhead.contrib.browser.baselines import SCRIPTS, random_script
from levelhead.contrib.browser.view import Element, Line, View

FORM = View(
    'Enter "Ann" into the field.',
    (
        Line(0, ("Name:", Element(1, "textbox"), Element(2, "button", "Reset"))),
        Line(0, (Element(3, "combobox", options=("red", "green")), Element(4, "button", "Submit"))),
    ),
)
EMPTY = View("Wait.", (Line(0, ("nothing here",)),))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("click(1)", ["click(1)", "click(1)"]),
        ("click(4)", ["click(4)", "click(4)"]),
        ("click the first button", ["click(2)", "click(2)"]),
        ("click the last button", ["click(4)", "click(4)"]),
        ("click the last element", ["click(4)", "click(4)"]),
        ("click each element in turn", ["click(1)", "click(2)"]),
        ("focus the first field", ["focus(1)", "focus(1)"]),
        ("focus the first field, click the last button", ["focus(1)", "click(4)"]),
        ("press('Enter')", ["press('Enter')", "press('Enter')"]),
    ],
)
def test_a_script_does_what_its_name_says(name: str, taken: list[str]) -> None:
    assert [str(SCRIPTS[name](FORM, step)) for step in (1, 2)] == taken


def test_a_script_with_nothing_to_do_gives_up() -> None:
    assert [name for name, script in SCRIPTS.items() if script(EMPTY, 1) is not None] == ["press('Enter')"]
    assert SCRIPTS["click each element in turn"](FORM, 5) is None


def test_random_actions_are_valid_and_reach_everything_on_the_page() -> None:
    script = random_script("a")
    drawn = {str(script(FORM, step)) for step in range(1, 1001)}
    assert drawn == {str(parse_action(text)) for text in drawn}
    expected = {f"{verb}({n})" for verb in ("click", "focus") for n in range(1, 5)} | {"press('Enter')"}
    expected |= {f"fill(1, '{word}')" for word in ("Enter", "Ann", "into", "the", "field")}
    expected |= {"select(3, 'red')", "select(3, 'green')"}
    assert drawn == expected


def test_verbs_are_drawn_evenly() -> None:
    script = random_script("b")
    drawn = [str(script(FORM, step)).partition("(")[0] for step in range(4000)]
    for verb in ("click", "focus", "fill", "select", "press"):
        assert drawn.count(verb) / 4000 == pytest.approx(1 / 5, abs=0.03)


def test_random_actions_follow_from_their_seed() -> None:
    def draw(seed: str) -> list[str]:
        script = random_script(seed)
        return [str(script(FORM, step)) for step in range(20)]

    assert draw("a") == draw("a")
    assert draw("a") != draw("b")


def test_a_page_without_anything_on_it_leaves_a_key_to_press() -> None:
    assert str(random_script("c")(EMPTY, 1)) == "press('Enter')"
