"""Train and eval sides that never leak into each other.

The side of an item depends on a hash of its group's key and on nothing else: not on the seed of the run, the order
of the file or (but for the one exception below) what else is in it.  Rows that are variants of one item share a key.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from levelhead.errors import InputError
from levelhead.tasks.base import Split

T = TypeVar("T")


def stable_hash(key: str) -> float:
    """Map a key to [0, 1), evenly, and equally on every machine and in every Python (SHA-256, first 52 bits)."""
    return (int.from_bytes(hashlib.sha256(key.encode(errors="surrogatepass")).digest()[:8]) >> 12) / 2**52


def split_by_group(
    items: Sequence[T],
    group: Callable[[T], str],
    eval_fraction: float,
    *,
    stratum: Callable[[T], str] = lambda _: "",
) -> Mapping[Split, list[T]]:
    """Put every item on the train or the eval side, all items of a group on the same one.

    A group is held out where the hash of its key lies below ``eval_fraction``.  One exception keeps both sides of every
    stratum alive: in a stratum of two groups or more, the group of lowest hash is always held out and the one of
    highest hash is always trained on.

    Args:
        items: What to split; their order is kept on either side.
        group: Key of an item's group.
        eval_fraction: Share of the groups to hold out, in expectation.
        stratum: A part of the data (a category) that must show up on both sides; all of it unless given.

    Raises:
        InputError: There are fewer than two groups, so that one side would be empty.
    """
    groups = [group(item) for item in items]
    strata: dict[str, set[str]] = {}
    for item, key in zip(items, groups, strict=True):
        strata.setdefault(stratum(item), set()).add(key)
    if len(set().union(*strata.values())) < 2:
        raise InputError(
            "the data hold fewer than two independent items, too few for a train and an eval side; give more data, or "
            "in Python held-out rows of their own (eval_data; eval_dataset of a TRL script)"
        )
    held_out: set[str] = set()
    trained: set[str] = set()
    for keys in strata.values():
        ranked = sorted(keys, key=lambda key: (stable_hash(key), key))
        held_out.update(key for key in ranked if stable_hash(key) < eval_fraction)
        if len(ranked) > 1:
            held_out.add(ranked[0])
            trained.add(ranked[-1])
    held_out -= trained
    if not held_out:  # every stratum is a single group, and none fell below the threshold
        held_out.add(min(set().union(*strata.values()), key=stable_hash))
    sides: dict[Split, list[T]] = {"train": [], "eval": []}
    for item, key in zip(items, groups, strict=True):
        sides["eval" if key in held_out else "train"].append(item)
    if not sides["train"]:
        last = max(held_out, key=stable_hash)
        sides["train"] = [item for item, key in zip(items, groups, strict=True) if key == last]
        sides["eval"] = [item for item, key in zip(items, groups, strict=True) if key != last]
    return sides


def limit_sides(
    sides: Mapping[Split, Sequence[T]], limit: int | None, eval_fraction: float, key: Callable[[T], str]
) -> Mapping[Split, list[T]]:
    """Keep at most ``limit`` items over both sides, about ``eval_fraction`` of them held out and at least one a side.

    Which items stay is decided by the hash of their own key, so that a small sample is spread over the whole data, and
    a larger limit keeps all that a smaller one kept.

    Raises:
        InputError: The limit is below 2.
    """
    if limit is None:
        return {side: list(items) for side, items in sides.items()}
    if limit < 2:
        raise InputError(f"tasks[].limit is {limit}; at least 2 items are needed, one to train on and one held out")
    n_eval = min(len(sides["eval"]), limit - 1, max(1, round(limit * eval_fraction)))
    sizes: dict[Split, int] = {"eval": n_eval, "train": limit - n_eval}

    def keep(items: Sequence[T], size: int) -> list[T]:
        indices = sorted(range(len(items)), key=lambda i: stable_hash("keep/" + key(items[i])))[:size]
        return [items[i] for i in sorted(indices)]

    return {side: keep(sides[side], size) for side, size in sizes.items()}


def in_seed_order(items: Sequence[T], seed: int, *names: str) -> list[T]:
    """Shuffle a copy of ``items`` by a seed and names (of the task, of the split) that keep orders independent."""
    order = list(items)
    random.Random("/".join((str(seed), *names))).shuffle(order)
    return order


MAX_CHARS = 32
"""Longest value of a stratum; a longer one is cut."""
MAX_VALUES = 50
"""Most values of one key: scores of more strata than this, each of a few items, say nothing."""


def stratum_value(value: Any) -> str:
    """Return what a stratum is called that is made of a value from data.

    White space becomes single blanks, what cannot be printed is left out, and ``/`` and ``=``, which separate the parts
    of a metric's name, become ``.`` and ``:``.  ``None`` and empty text are ``none``.

    >>> stratum_value("hard/two  steps")
    'hard.two steps'
    """
    text = "" if value is None else str(value)
    text = "".join(c for c in " ".join(text.split()) if c.isprintable()).replace("/", ".").replace("=", ":")
    return text[:MAX_CHARS].strip() or "none"
