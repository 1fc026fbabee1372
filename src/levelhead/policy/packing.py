"""Token sequences packed as prefix trees, so that a shared prefix is computed once.

The K rollouts of a prompt share its tokens, and the turns of an episode share their history.  A *row* holds the
trie of some sequences in depth-first order: every distinct prefix once.  A token attends to its own ancestors
only and sits at its depth, so that the computation equals that of the sequences one by one, gradients included.

Two layouts carry the same rows: *flat*, all of them one behind the other without any padding, for backends that compute
trees as such; and *padded*, one row a tree under a dense mask, for models and devices that need one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens without a branch: ``[start, stop)``, and its descendants ``[stop, end)``."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A (context, completion) pair and the prefix group it shares prefixes with.

    Attributes:
        context_ids: What the policy saw.
        completion_ids: What it wrote; at least one token.
        prefix_group: Sequences with the same prefix group id are packed into the same row.
    """

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    prefix_group: int = 0

    def __post_init__(self) -> None:
        if not self.context_ids or not self.completion_ids:
            raise ValueError(
                f"a sequence needs context and completion tokens, got {len(self.context_ids)} and "
                f"{len(self.completion_ids)}"
            )

    @property
    def input_ids(self) -> tuple[int, ...]:
        """Tokens that are read: all but the last, which is only predicted."""
        return self.context_ids + self.completion_ids[:-1]


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: list[int]
    depths: list[int]
    paths: list[tuple[int, Tensor]]
    """For each sequence its index in the caller's list and the row position of each of its tokens."""
    fresh: list[tuple[int, int]]
    """For each sequence how many tokens it shares with the one before it, and where the others start in the row."""

    @property
    def chain(self) -> bool:
        """Whether the row is one plain sequence."""
        return len(self.paths) == 1


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded to one length, and where each completion token is predicted.

    Attributes:
        indices: Position in the caller's list of each of the n sequences, in order.
        input_ids: (rows, length) tokens, right padded.
        position_ids: (rows, length) depth of each token, or ``None`` where every row is one plain sequence.
        attention_mask: (rows, 1, length, length) boolean, true where a query may look; ``None`` for plain causal, and
            where there are nodes.
        gather: (m,) flat row position whose hidden state predicts each completion token.
        targets: (m,) the completion tokens, sequence after sequence.
        lengths: Completion tokens of each sequence; they sum to m.
        nodes: Of the only row, in the flat layout; empty in the padded one.
    """

    indices: tuple[int, ...]
    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    gather: Tensor
    targets: Tensor
    lengths: tuple[int, ...]
    nodes: tuple[Node, ...] = ()

    def to(self, device: torch.device) -> MicroBatch:
        """Return this micro-batch on a device, without waiting for a GPU to finish what it does."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        on_gpu = device.type == "cuda"
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=on_gpu) for name, value in values.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def pad(self, flat: Tensor) -> Tensor:
        """Lay m flat values out as (n, t), zero where a sequence is shorter than the longest."""
        return torch.nn.utils.rnn.pad_sequence(list(torch.split(flat, list(self.lengths))), batch_first=True)

    def mask(self) -> Tensor:
        """(n, t) mask of the laid-out values: 1 on completion tokens, 0 on padding."""
        lengths = torch.tensor(self.lengths, device=self.targets.device)
        return (torch.arange(max(self.lengths), device=lengths.device) < lengths[:, None]).float()


def pack(
    sequences: Sequence[TokenSequence], *, tokens: int, pad_id: int = 0, share: bool = True, flat: bool = False
) -> list[MicroBatch]:
    """Pack sequences into micro-batches of at most ``tokens`` computed tokens.

    A prefix group whose tree is larger than the budget is split; a longer sequence gets a micro-batch of its own.

    Args:
        sequences: What to pack.
        tokens: Budget of tokens that pass through the model at once, padding included.
        pad_id: Any valid token id; padding is never looked at.
        share: Whether prefixes are shared; without, every sequence is a row (models with recurrent or
            convolution layers, whose state cannot branch).
        flat: Whether rows are laid out one behind the other; needs a model that computes attention over nodes.

    Returns:
        Micro-batches that together hold each sequence exactly once.
    """
    if tokens < 1:
        raise ValueError(f"a micro-batch needs a budget of at least one token, got {tokens}")
    rows = _rows(sequences, tokens, share)
    if flat:
        return _flat_batches(rows, sequences, tokens)
    rows.sort(key=lambda row: (row.chain, -len(row.tokens)))
    batches: list[MicroBatch] = []
    pending: list[_Row] = []
    for row in rows:
        longest = max(len(r.tokens) for r in [*pending, row])
        if pending and (longest * (len(pending) + 1) > tokens or pending[-1].chain != row.chain):
            batches.append(_batch(pending, sequences, pad_id))
            pending = []
        pending.append(row)
    if pending:
        batches.append(_batch(pending, sequences, pad_id))
    return batches


def _rows(sequences: Sequence[TokenSequence], budget: int, share: bool) -> list[_Row]:
    prefix_groups: dict[int, list[int]] = {}
    for index, sequence in enumerate(sequences):
        prefix_groups.setdefault(sequence.prefix_group if share else index, []).append(index)
    return [row for members in prefix_groups.values() for row in _trees(sequences, members, budget)]


def _trees(sequences: Sequence[TokenSequence], members: list[int], budget: int) -> list[_Row]:
    """Merge sequences in lexicographic order: what each shares with the one before it is its place in the trie."""
    rows: list[_Row] = []
    row: _Row | None = None
    previous: tuple[int, ...] = ()
    for ids, index in sorted((sequences[i].input_ids, i) for i in members):
        shared = _common(previous, ids) if row is not None else 0
        if row is None or len(row.tokens) + len(ids) - shared > budget:
            row = _Row([], [], [], [])
            rows.append(row)
            shared = 0
        _append(row, index, ids, shared)
        previous = ids
    return rows


def _append(row: _Row, index: int, ids: tuple[int, ...], shared: int) -> None:
    """Put a sequence into a row behind one that it shares its first tokens with."""
    start = len(row.tokens)
    row.tokens.extend(ids[shared:])
    row.depths.extend(range(shared, len(ids)))
    row.fresh.append((shared, start))
    fresh = torch.arange(start, len(row.tokens))
    row.paths.append((index, torch.cat([row.paths[-1][1][:shared], fresh]) if shared else fresh))


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common prefix, by bisection on slice equality."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def trie(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[Tensor], list[Node]]:
    """Lay out token sequences as one forest, every distinct prefix once.

    Returns:
        Tokens and depths of the flat row, the row position of each token of each sequence, and the nodes.
    """
    row = _Row([], [], [], [])
    previous: Sequence[int] = ()
    for ids, index in sorted((tuple(ids), i) for i, ids in enumerate(sequences)):
        _append(row, index, ids, _common(tuple(previous), ids))
        previous = ids
    paths = dict(row.paths)
    return row.tokens, row.depths, [paths[i] for i in range(len(sequences))], _nodes(row, 0)


def _nodes(row: _Row, offset: int) -> list[Node]:
    """Cut a row into runs without a branch; positions count from ``offset``.

    Sequences come in lexicographic order.  One that shares d tokens with its predecessor closes every open run below
    depth d: the part of a run above d stays open, and gets descendants.
    """
    done: list[Node] = []
    runs: list[tuple[int, int, int]] = []  # open ones: position of the first token, its depth, depth behind the last
    total = len(row.tokens)

    def close(depth: int, end: int) -> None:
        while runs and runs[-1][2] > depth:
            position, first, last = runs.pop()
            cut = max(depth, first)
            done.append(Node(offset + position + cut - first, offset + position + last - first, offset + end))
            if cut > first:
                runs.append((position, first, cut))

    starts = [start for _, start in row.fresh] + [total]
    for (shared, start), stop in zip(row.fresh, starts[1:], strict=True):
        close(shared, start)
        if stop > start:
            runs.append((start, shared, shared + stop - start))
    close(0, total)
    return sorted(done, key=lambda node: node.start)


def _flat_batches(rows: list[_Row], sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
    """Fill micro-batches with whole rows, in order."""
    batches: list[list[_Row]] = []
    room = 0
    for row in rows:
        if not batches or len(row.tokens) > room:
            batches.append([])
            room = tokens
        batches[-1].append(row)
        room -= len(row.tokens)
    return [_flat(batch, sequences) for batch in batches]


def _flat(rows: list[_Row], sequences: Sequence[TokenSequence]) -> MicroBatch:
    starts = list(itertools.accumulate((len(row.tokens) for row in rows[:-1]), initial=0))
    indices, gather, targets, lengths = _completions(rows, starts, sequences)
    input_ids = torch.tensor([[token for row in rows for token in row.tokens]])
    position_ids = torch.tensor([[depth for row in rows for depth in row.depths]])
    nodes = tuple(node for row, start in zip(rows, starts, strict=True) for node in _nodes(row, start))
    return MicroBatch(indices, input_ids, position_ids, None, gather, targets, lengths, nodes)


def _completions(
    rows: Sequence[_Row], starts: Sequence[int], sequences: Sequence[TokenSequence]
) -> tuple[tuple[int, ...], Tensor, Tensor, tuple[int, ...]]:
    """Indices, places, tokens and lengths of the completions in rows that begin at these flat positions."""
    paths = [(index, path + start) for row, start in zip(rows, starts, strict=True) for index, path in row.paths]
    gather = torch.cat([path[len(sequences[index].context_ids) - 1 :] for index, path in paths])
    completions = [sequences[index].completion_ids for index, _ in paths]
    targets = torch.tensor([token for ids in completions for token in ids])
    return tuple(index for index, _ in paths), gather, targets, tuple(map(len, completions))


def _batch(rows: list[_Row], sequences: Sequence[TokenSequence], pad_id: int) -> MicroBatch:
    length = max(len(row.tokens) for row in rows)
    plain = all(row.chain for row in rows)
    input_ids = torch.full((len(rows), length), pad_id)
    position_ids = None if plain else torch.zeros((len(rows), length), dtype=torch.long)
    attention_mask = None if plain else torch.zeros((len(rows), 1, length, length), dtype=torch.bool)
    for r, row in enumerate(rows):
        input_ids[r, : len(row.tokens)] = torch.tensor(row.tokens)
        if position_ids is not None and attention_mask is not None:
            position_ids[r, : len(row.depths)] = torch.tensor(row.depths)
            _fill(attention_mask[r, 0], row)
    indices, gather, targets, lengths = _completions(rows, range(0, len(rows) * length, length), sequences)
    return MicroBatch(indices, input_ids, position_ids, attention_mask, gather, targets, lengths)


def _fill(mask: Tensor, row: _Row) -> None:
    """Let every token of a row look at its ancestors and itself; padding looks at itself, so that no row is empty."""
    mask.fill_diagonal_(True)
    written = 0
    for _, path in row.paths:
        start = int((path < written).sum())
        fresh = path[start:]
        if len(fresh):
            block = slice(int(fresh[0]), int(fresh[-1]) + 1)
            mask[block, path[:start]] = True
            mask[block, block] = torch.ones((len(fresh), len(fresh)), dtype=torch.bool).tril()
            written = block.stop
