"""Whoever wants transformers' progress bars has them again after we loaded or saved."""

from __future__ import annotations

import pytest
from transformers.utils import logging as transformers_logging

from levelhead.policy.quiet import without_progress_bars


@pytest.mark.parametrize("wanted", [True, False])
def test_progress_bars_are_as_they_were_even_after_an_error(wanted: bool) -> None:
    before = transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar() if wanted else transformers_logging.disable_progress_bar()
    try:
        with pytest.raises(OSError, match="broken"):
            _break_off()
        assert transformers_logging.is_progress_bar_enabled() == wanted
    finally:
        transformers_logging.enable_progress_bar() if before else transformers_logging.disable_progress_bar()


@without_progress_bars()
def _break_off() -> None:
    assert not transformers_logging.is_progress_bar_enabled()
    raise OSError("broken")
