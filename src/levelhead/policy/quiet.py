"""What transformers and peft say while they load and save, and nobody who trains can use: kept off the terminal."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

from transformers.utils import logging as transformers_logging

T = TypeVar("T")


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Inside, transformers shows no progress bars."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def without_renaming_notices(call: Callable[[], T]) -> T:
    """Return what a call returns, and let it use names of checkpointing that transformers is about to drop in silence.

    Peft asks a model for ``is_gradient_checkpointing``, and nobody who trains can do anything about it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`[a-z_]*gradient_checkpointing", FutureWarning)
        return call()
