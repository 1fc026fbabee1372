"""Prompts are rendered and tokenized while a run is prepared only where they might not fit."""

from __future__ import annotations

from typing import Any

import pytest

from faults.known.registry import replaced
from levelhead.errors import InputError
from levelhead.text.codec import Codec
from preflight_setup import ROWS, setup_of


def renderings(rows: Any) -> int:
    """How many prompts are rendered to ids while a set-up is made."""
    counted: list[Any] = []

    def make(real: Any) -> Any:
        def render(self: Codec, messages: Any, **options: Any) -> Any:
            counted.append(messages)
            return real(self, messages, **options)

        return render

    with replaced(Codec, "render", make):
        setup_of(rows=rows)
    return len(counted)


def test_short_prompts_are_known_to_fit_without_being_tokenized() -> None:
    assert renderings(ROWS) < len(ROWS)


def test_a_prompt_whose_bytes_exceed_the_room_is_tokenized_and_fits_where_its_tokens_do() -> None:
    words = "Say the number 3. " * 40
    assert len(words.encode()) > 512
    assert renderings([*ROWS, {"prompt": words, "answer": "It is 3."}]) >= 1


def test_a_prompt_that_does_not_fit_is_refused_all_the_same() -> None:
    with pytest.raises(InputError, match="context of 512"):
        setup_of(rows=[*ROWS, {"prompt": "xyzzy " * 600, "answer": "It is 3."}])
