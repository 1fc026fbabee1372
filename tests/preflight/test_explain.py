"""Every check that the preflight can make is explained, and the explanation reaches whoever asks for it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from levelhead.cli.main import app
from levelhead.errors import InputError
from levelhead.preflight.explain import CATALOGUE, explain


@pytest.mark.parametrize(
    ("asked", "entry"),
    [
        ("loss/demonstrations", "loss/demonstrations"),
        ("rewards/order/my-task", "rewards/order/TASK"),
        ("rewards/order", "rewards/order/TASK"),
        ("rewards/finite", "rewards/finite"),
        ("tokens/error", "FAMILY/error"),
    ],
)
def test_a_check_is_found_by_the_name_that_a_report_gives_it(asked: str, entry: str) -> None:
    assert explain(asked).name == entry


def test_a_name_that_is_no_check_is_answered_with_the_nearest_and_with_all() -> None:
    with pytest.raises(InputError, match=r"did you mean loss/demonstrations\?\nThe checks are .*signs/audit"):
        explain("loss/demonstration")
    with pytest.raises(InputError, match="did you mean signs/descent"):
        explain("descent")


def test_the_command_explains_without_a_recipe() -> None:
    result = CliRunner().invoke(app, ["check", "--explain", "tokens/vocabulary"])
    assert result.exit_code == 0
    assert [line.split(":")[0].strip() for line in result.stdout.splitlines() if ":" in line] == [
        "proves",
        "how",
        "cannot",
    ]
    listed = CliRunner().invoke(app, ["check", "--explain", "list"])
    assert listed.stdout.split() == list(CATALOGUE)
    (document,) = json.loads(CliRunner().invoke(app, ["check", "--explain", "tokens/vocabulary", "--json"]).stdout)
    assert set(document) == {"name", "proves", "how", "cannot"}


def test_the_command_asks_for_a_recipe_where_nothing_is_to_be_explained() -> None:
    result = CliRunner().invoke(app, ["check"])
    assert isinstance(result.exception, InputError)
