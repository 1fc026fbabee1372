"""Imports and set-up go on without the garbage collector, which is back afterwards."""

from __future__ import annotations

import gc

import pytest

from levelhead.startup import one_command, uncollected


def test_the_collector_rests_inside_and_is_back_afterwards() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="broken"), uncollected():
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_one_command_holds_what_the_set_up_makes_and_lets_go_of_it_at_its_end() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        pass
    assert gc.get_freeze_count() == before
    with one_command():
        with uncollected():
            pass
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
