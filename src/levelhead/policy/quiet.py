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


def without_library_notices(call: Callable[[], T]) -> T:
    """Return what a call returns, without notices of transformers and peft that nobody who trains can act on.

    Peft asks a model for names that transformers is about to drop (``is_gradient_checkpointing``), and warns of tied
    embeddings, which are told apart here where an adapter is merged.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`[a-z_]*gradient_checkpointing", FutureWarning)
        warnings.filterwarnings("ignore", "Model (has|with) `tie_word_embeddings=True`", UserWarning)
        warnings.filterwarnings("ignore", "Input and output embeddings are no longer tied", UserWarning)
        return call()
