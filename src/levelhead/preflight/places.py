"""Where a loss comes from: the places of a trial's passes that a gradient reached, against those that should feed it.

The gradient that reaches a hidden state of the last layer is not zero exactly where that state predicts a token whose
label matters.  This is what changing labels one by one would show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from levelhead.preflight.trial import Listener

CERTAIN = -1e-5
"""Log-probability from which on a token is so likely that its gradient vanishes."""


class Pair(NamedTuple):
    """A sequence of a batch, and what each of its tokens weighs in the loss."""

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    prefix_group: int
    advantage: float = 1.0


@dataclass(frozen=True, slots=True)
class Places:
    """Counts of states of the last layer and of completion tokens, and a few examples.

    Attributes:
        tokens: Completion tokens of the batch.
        states: Distinct states that predict them.
        outside: States in the loss that predict none, with examples of the tokens at them.
        missing: States that predict one and are not in the loss, likewise.
        left_out: Completion tokens that no gradient reached, by place (``start``, ``middle``, ``end``, ``whole``).
        certain: Tokens so likely that their gradient vanishes.
    """

    tokens: int
    states: int
    outside: Counter[int]
    missing: Counter[int]
    left_out: Counter[str]
    certain: int


def places_of(pairs: Sequence[Pair], listener: Listener, *, shared: bool) -> Places:
    """Compare the places that feed a loss with the states that predict completion tokens.

    Rows may hold several sequences as a tree, so places are counted by the token that stands at them.

    Args:
        pairs: What was trained on.
        listener: Where the loss came from.
        shared: Whether sequences of a prefix group share their states.
    """
    states = _states(pairs, shared=shared)
    wanted = Counter(token for token, silent in states if not silent)
    either = Counter(token for token, silent in states if silent)
    in_loss: Counter[int] = Counter()
    for ids, marks in listener.rows():
        in_loss.update(token for token, mark in zip(ids, marks, strict=True) if mark)
    certain = sum(int((logp > CERTAIN).sum()) for _, logp in listener.scores)
    tokens = sum(len(pair.completion_ids) for pair in pairs)
    return Places(tokens, len(states), in_loss - wanted - either, wanted - in_loss, _left_out(pairs, listener), certain)


def _left_out(pairs: Sequence[Pair], listener: Listener) -> Counter[str]:
    """Count the completion tokens that no gradient reaches, by where they stand in their completions."""
    places: Counter[str] = Counter()
    pending = Counter(pair.completion_ids for pair in pairs)
    for ids, marks in listener.completions():
        pending -= Counter([tuple(ids)])
        for at, mark in enumerate(marks):
            if not mark:
                places["end" if at == len(ids) - 1 else "start" if at == 0 else "middle"] += 1
    places.update({"whole": sum(map(len, pending.elements()))})
    return +places


def _states(pairs: Sequence[Pair], *, shared: bool) -> list[tuple[int, bool]]:
    """Return the token at each distinct state that predicts a completion token; a prefix group may share states.

    With each, whether its gradient may vanish: where rollouts of opposite advantages go on with the same token.
    """
    states: dict[tuple[int, ...], dict[int, list[float]]] = {}
    for index, (context, completion, prefix_group, advantage) in enumerate(pairs):
        whole = context + completion
        for end in range(len(context), len(whole)):
            state = (prefix_group if shared else index, *whole[:end])
            states.setdefault(state, {}).setdefault(whole[end], []).append(advantage)
    return [(state[-1], all(map(_cancel, following.values()))) for state, following in states.items()]


def _cancel(advantages: Sequence[float]) -> bool:
    return abs(sum(advantages)) <= 1e-6 * sum(map(abs, advantages))
