"""The Hugging Face Hub, asked once whether it is there: without a network, nobody waits for a minute of retries."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from levelhead.errors import InputError, first_line

T = TypeVar("T")

PATIENCE_S = 3.0
"""Longest wait for a sign of life from the hub, unless ``HF_HUB_ETAG_TIMEOUT`` allows more."""

_reached: dict[str, bool] = {}


def reachable() -> bool:
    """Return whether the hub (or the mirror in ``HF_ENDPOINT``) answers; it is asked once a process.

    It is asked through the hub's own client, so that proxies and certificates are those of the downloads.  Any
    response counts, an error page too.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    endpoint = constants.ENDPOINT
    if endpoint not in _reached:
        _reached[endpoint] = _answers(endpoint, float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or PATIENCE_S))
    return _reached[endpoint]


@contextlib.contextmanager
def without_waiting(source: str) -> Iterator[None]:
    """Inside, what would be fetched from an unreachable hub is looked for in the cache alone, at once.

    Args:
        source: What is loaded: a folder needs no hub, and nothing is asked for it.
    """
    from huggingface_hub import constants

    if Path(source).expanduser().is_dir() or reachable():
        yield
        return
    # `datasets` keeps a copy of the flag; it is there only where a data set of the hub is loaded.
    flags: list[Any] = [constants, getattr(sys.modules.get("datasets"), "config", None)]
    before = [(flag, flag.HF_HUB_OFFLINE) for flag in flags if hasattr(flag, "HF_HUB_OFFLINE")]
    try:
        for flag, _ in before:
            flag.HF_HUB_OFFLINE = True
        yield
    finally:
        for flag, value in before:
            flag.HF_HUB_OFFLINE = value


def load(key: str, name: str, build: Callable[[], T]) -> T:
    """Load something from a folder, the cache or the hub.

    Args:
        key: The recipe's key that names it.
        name: The folder or the name on the hub.
        build: Loads it.

    Raises:
        InputError: It cannot be loaded; the message names the ways to get it.
    """
    from huggingface_hub import constants

    with without_waiting(name):
        try:
            return build()
        except (OSError, ValueError, KeyError) as error:
            reason = first_line(error)
    if (folder := Path(name).expanduser()).is_dir():
        reason = reason if (folder / "config.json").is_file() else "the folder holds no config.json"
        raise InputError(f"{key}: cannot load {name!r}: {reason}")
    if reachable():
        raise InputError(
            f"{key}: cannot load {name!r}: {reason}\n"
            f"Check the name at {constants.ENDPOINT}; for a gated model accept its licence there, then `hf auth login`."
        )
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached from here"
    raise InputError(
        f"{key}: {name!r} is neither a folder nor complete in the cache {constants.HF_HUB_CACHE}, and {why}\n"
        f"Set {key} to a local folder, or HF_HOME to a cache filled elsewhere (`hf download {name}`), or connect "
        "(HF_ENDPOINT for a mirror) and, if it is gated, `hf auth login`."
    )


def _answers(endpoint: str, patience_s: float) -> bool:
    """Whether one request gets any response; in a thread, because looking up a name knows no time limit."""
    from huggingface_hub import get_session

    replies: list[object] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # which errors there are depends on the HTTP library of the day
            replies.append(get_session().head(endpoint, timeout=patience_s))

    thread = threading.Thread(target=ask, name="levelhead-hub", daemon=True)
    thread.start()
    thread.join(patience_s)
    return bool(replies)
