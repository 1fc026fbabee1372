"""What the page about rewards shows is so: its reward scores as it says, and the checks that it names are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from levelhead.preflight.checks import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "good-reward.md").read_text(encoding="utf-8")


def test_its_reward_pays_for_the_right_last_number_alone() -> None:
    (code,) = re.findall(r"(?s)```python\n(.*?)```", PAGE)
    names: dict[str, Any] = {}
    exec(code, names)  # a page of ours
    texts = ["17 + 25 is 42", "42 or 43", "", "1 2 3", "4,200", "42.0"]
    gold = ["42", "42", "42", "42", "4200", "42"]
    assert names["accuracy"](completions=texts, answer=gold) == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert names["accuracy"](completions=["42"], answer=["forty-two"]) == [None]


def test_the_checks_that_it_names_are_checks() -> None:
    known = {check.name.removesuffix("/TASK") for check in CHECKS}
    named = set(re.findall(r"`((?:rewards|pairs|data)/[a-z-]+)`", PAGE))
    assert len(named) > 6
    assert named <= known


def test_every_key_of_verl_that_a_recipe_answers_stands_on_its_page() -> None:
    words = yaml.safe_load(Path(DOCS.parent, "src/levelhead/recipe/trainers.yaml").read_text(encoding="utf-8"))["verl"]
    page = (DOCS / "from-verl.md").read_text(encoding="utf-8")
    missing = [name for name in words if not re.search(rf"\b{name}\b", page)]
    assert not missing
