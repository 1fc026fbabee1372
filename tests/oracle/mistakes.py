"""Mistakes in reading: an account of log-probabilities as it would be had its side read something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from oracle.dispute import Account


def without_first(account: Account, count: int) -> Account:
    """Return the account of the labels behind the first ones, as if these did not exist."""
    start = account.places[0]
    ids = account.read_ids[:start] + account.read_ids[start + count :]
    places = tuple(place - count for place in account.places[count:])
    return replace(
        account, read_ids=ids, places=places, labels=account.labels[count:], logprobs=account.logprobs[count:]
    )


def numbers_moved(account: Account, by: int) -> Account:
    """Return the account as it is once its numbers are moved back by a token; the token that has none is left out."""
    inner, numbers = (slice(0, -1), slice(1, None)) if by > 0 else (slice(1, None), slice(0, -1))
    return replace(
        account, places=account.places[inner], labels=account.labels[inner], logprobs=account.logprobs[numbers]
    )


def relabelled(account: Account, by: int) -> Account:
    """Return the account whose states were asked for a neighbour of each label."""
    asked = account.labels[:-1] if by > 0 else account.labels[1:]
    window = slice(1, None) if by > 0 else slice(0, -1)
    return replace(account, places=account.places[window], labels=asked, logprobs=account.logprobs[window])


def _read_behind(account: Account, ids: tuple[int, ...], positions: Iterable[int] = ()) -> Account:
    """The account with another context."""
    rest = account.read_ids[account.places[0] :]
    move = len(ids) - account.places[0]
    return replace(
        account, read_ids=ids + rest, places=tuple(p + move for p in account.places), positions=tuple(positions)
    )


def cut(*, drop: int = 0, keep: int = 0) -> Callable[[Account], Account]:
    """Return what cuts contexts on the left: by so many tokens, or down to so many."""

    def change(account: Account) -> Account:
        ids = account.context_ids[-keep:] if keep else account.context_ids[drop:]
        return _read_behind(account, ids or account.context_ids[-1:])

    return change


def cut_end(count: int) -> Callable[[Account], Account]:
    """Return what cuts contexts on the right by so many tokens."""
    return lambda account: _read_behind(account, account.context_ids[:-count] or account.context_ids[:1])


def padded(pad_id: int, longest: int, *, counted: bool) -> Callable[[Account], Account]:
    """Return what puts padding in front, up to the longest prompt, and lets the rest look at it.

    Args:
        pad_id: Token of the padding.
        longest: Tokens of the longest prompt.
        counted: Whether positions count the padding, or begin behind it.
    """

    def pad(account: Account) -> Account:
        pads = longest - account.places[0]
        inner = len(account.read_ids)
        positions = range(pads + inner) if counted else [0] * pads + list(range(inner))
        return _read_behind(account, (pad_id,) * pads + account.context_ids, positions)

    return pad


def behind(other: Mapping[tuple[int, ...], tuple[int, ...]]) -> Callable[[Account], Account]:
    """Return what exchanges contexts."""
    return lambda account: _read_behind(account, other[account.context_ids])


def completion_shifted(account: Account, by: int) -> Account:
    """Return the account whose completion stands at positions further on; none is below 0."""
    start, end = account.places[0], len(account.read_ids)
    return replace(account, positions=(*range(start), *(max(0, i + by) for i in range(start, end))))


def all_shifted(account: Account, by: int) -> Account:
    """Return the account all of whose tokens stand at positions further on; none is below 0."""
    return replace(account, positions=tuple(max(0, i + by) for i in range(len(account.read_ids))))
