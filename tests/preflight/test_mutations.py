"""Every check turns red where what it guards is broken, in three different ways, and is green where nothing is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from levelhead.preflight.check import Status
from levelhead.preflight.explain import CATALOGUE
from preflight.mutations.base import Mutation
from preflight.mutations.table import (
    ELSEWHERE,
    MUTATIONS,
    PROVED_ELSEWHERE,
    WITHOUT,
    as_markdown,
    checks_as_markdown,
    is_elsewhere,
)

DOCS = Path(__file__).parents[2] / "docs"
RANK: dict[Status, int] = {"pass": 0, "warn": 1, "fail": 2}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_mutation_turns_its_check_red(mutation: Mutation) -> None:
    assert mutation.status in mutation.statuses()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_check_is_green_without_the_mutation(mutation: Mutation) -> None:
    assert all(RANK[status] < RANK[mutation.status] for status in mutation.sound())


def test_every_check_has_a_mutation_or_a_reason_why_not() -> None:
    counts = Counter(mutation.check for mutation in MUTATIONS)
    here = {name for name in CATALOGUE if not is_elsewhere(name)}
    assert not {name for name in here - set(WITHOUT) if not counts[name]}
    assert not set(counts) & set(WITHOUT)
    assert set(WITHOUT) <= here


def test_modules_with_mutations_of_their_own_speak_of_their_checks() -> None:
    root = Path(__file__).parents[2]
    for check, module in {**ELSEWHERE, **PROVED_ELSEWHERE}.items():
        assert (root / module).read_text(encoding="utf-8").count(check.removesuffix("/")) >= 1, check


def test_mutations_differ() -> None:
    assert len({mutation.id for mutation in MUTATIONS}) == len(MUTATIONS)


def test_documentation_lists_every_check_with_what_it_proves() -> None:
    page = (DOCS / "preflight.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- table of checks -->\n")
    assert rest.partition("\n<!-- end of table of checks -->")[0] == checks_as_markdown()


def test_documentation_lists_the_mutations() -> None:
    page = (DOCS / "experiments" / "preflight.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- mutation table -->\n")
    assert rest.partition("\n<!-- end of mutation table -->")[0] == as_markdown()
