"""Sampling controls: from a model's logits to the distribution that a token is sampled from.

Shapes: ``b`` rows of a batch, ``v`` the vocabulary, ``t`` completion tokens so far.  The prompt is not an
argument anywhere here: penalties count the completion, and nothing else can reach them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from levelhead.recipe.sampling import Sampling

# The nucleus is looked for among this many top tokens first; the whole vocabulary is sorted only where it is larger.
_NUCLEUS_GUESS = 256
# Above this mass of stop tokens, what they leave is normalised from the logits: 1 - mass has lost its precision.
_MOST_SUPPRESSED = 0.9
# Tokens whose mass is summed as one before a draw looks inside.
_BLOCK = 512


class Distribution(NamedTuple):
    """What the next token is sampled from.

    Attributes:
        policy_bv: Log-probabilities at the sampling temperature, before every other control: what a trainer
            recomputes.  At temperature 0, those at temperature 1.
        behaviour_bv: Log-probabilities of the draw, after every control; the same tensor as ``policy_bv`` where
            no control acts.  At temperature 0, all mass is on the likeliest token.
    """

    policy_bv: Tensor
    behaviour_bv: Tensor


class Drawn(NamedTuple):
    """A token a row, and what :class:`Distribution` says of it.

    Attributes:
        tokens_b: Token ids.
        policy_b: Their log-probabilities at the sampling temperature alone.
        behaviour_b: Their log-probabilities in the draw.
    """

    tokens_b: Tensor
    policy_b: Tensor
    behaviour_b: Tensor


class LogitsPipeline:
    """The controls of a recipe as one function of logits and completion.

    The order is: penalties (repetition, frequency, presence), no-repeat n-gram, stop suppression, temperature,
    top-k, top-p, min-p; each of the last three sees what the one before it left.  A ban (no-repeat n-gram, stop
    suppression) that would leave a row no token at all is lifted for that row.

    Args:
        controls: Sampling section of a recipe.
        stop_ids: Ids that end a completion.
        vocab_size: Width of the logits.

    Raises:
        ValueError: A stop id lies outside the vocabulary, or every token is a stop token.
    """

    def __init__(self, controls: Sampling, stop_ids: Iterable[int], vocab_size: int) -> None:
        stops = sorted(set(stop_ids))
        if stops and not 0 <= stops[0] <= stops[-1] < vocab_size:
            raise ValueError(f"stop ids {stops} do not fit a vocabulary of {vocab_size}")
        if len(stops) >= vocab_size:
            raise ValueError(f"every one of the {vocab_size} tokens is a stop token")
        self.controls = controls
        self._stops = torch.tensor(stops, dtype=torch.long)
        self._top_k = controls.top_k if controls.top_k < vocab_size else 0
        self._penalties = (
            controls.presence_penalty != 0 or controls.frequency_penalty != 0 or controls.repetition_penalty != 1
        )
        self._truncates = bool(self._top_k) or controls.top_p < 1 or controls.min_p > 0

    @property
    def needs_history(self) -> bool:
        """Whether the completion so far matters."""
        return self._penalties or self.controls.no_repeat_ngram > 0

    def __call__(self, logits_bv: Tensor, history_bt: Tensor, lengths_b: Tensor | int) -> Distribution:
        """Return the distribution of the next token of each row.

        Args:
            logits_bv: Logits of the last position; never written to.
            history_bt: Completion ids, left-aligned; what lies past a row's length is not read.
            lengths_b: Completion tokens of each row, one number where all have the same.
        """
        c = self.controls
        logits_bv = logits_bv.float()
        policy_bv = torch.log_softmax(logits_bv if c.temperature in (0, 1) else logits_bv / c.temperature, dim=-1)
        suppresses = (
            len(self._stops) > 0 and c.min_new_tokens > 0 and bool(torch.as_tensor(lengths_b < c.min_new_tokens).any())
        )
        if not (self.needs_history or suppresses or self._truncates or c.temperature == 0):
            return Distribution(policy_bv, policy_bv)

        lengths_b = torch.as_tensor(lengths_b, device=logits_bv.device).expand(len(logits_bv))
        shaped_bv = logits_bv
        if self._penalties and history_bt.shape[1]:
            shaped_bv = penalize(
                shaped_bv,
                history_bt,
                lengths_b,
                presence=c.presence_penalty,
                frequency=c.frequency_penalty,
                repetition=c.repetition_penalty,
            )
        if c.no_repeat_ngram:
            shaped_bv = forbid_repeats(shaped_bv, history_bt, lengths_b, c.no_repeat_ngram)
        if not suppresses:
            return Distribution(policy_bv, self._finish(shaped_bv))
        stops = self._stops.to(logits_bv.device)
        free_bv = self._finish(shaped_bv)
        early_b = lengths_b < c.min_new_tokens
        bound_bv = self._finish(_unless_empty(shaped_bv, shaped_bv.index_fill(1, stops, -math.inf)))
        return Distribution(policy_bv, torch.where(early_b[:, None], bound_bv, free_bv))

    def draw(self, logits_bv: Tensor, history_bt: Tensor, lengths_b: Tensor | int, uniform_b: Tensor) -> Drawn:
        """Draw the next token of each row.

        Args:
            logits_bv: Logits of the last position; never written to.
            history_bt: Completion ids, left-aligned; what lies past a row's length is not read.
            lengths_b: Completion tokens of each row, one number where all have the same.
            uniform_b: Numbers in [0, 1), float64; see :func:`draw`.
        """
        if isinstance(lengths_b, int):
            drawn = self._draw_plainly(logits_bv, lengths_b, uniform_b)
            if drawn is not None:
                return drawn
        policy_bv, behaviour_bv = self(logits_bv, history_bt, lengths_b)
        greedy = self.controls.temperature == 0
        tokens_b = behaviour_bv.argmax(-1) if greedy else draw(behaviour_bv.exp(), uniform_b)
        index_b1 = tokens_b[:, None]
        return Drawn(tokens_b, policy_bv.gather(1, index_b1)[:, 0], behaviour_bv.gather(1, index_b1)[:, 0])

    def _draw_plainly(self, logits_bv: Tensor, length: int, uniform_b: Tensor) -> Drawn | None:
        """Draw in one pass over the vocabulary, where nothing acts but temperature and minimum length.

        ``None`` where something else acts, or stop tokens leave too little.
        """
        c = self.controls
        if self.needs_history or self._truncates or c.temperature == 0:
            return None
        logits_bv = logits_bv.float()
        odds_bv = torch.softmax(logits_bv if c.temperature == 1 else logits_bv / c.temperature, dim=-1)
        suppressed_b = None
        if len(self._stops) and length < c.min_new_tokens:
            stops = self._stops.to(odds_bv.device)
            suppressed_b = odds_bv.index_select(1, stops).sum(-1)
            if not bool((suppressed_b < _MOST_SUPPRESSED).all()):
                return None
            odds_bv.index_fill_(1, stops, 0.0)
        tokens_b = draw(odds_bv, uniform_b)
        policy_b = odds_bv.gather(1, tokens_b[:, None])[:, 0].log()
        behaviour_b = policy_b if suppressed_b is None else policy_b - torch.log1p(-suppressed_b)
        return Drawn(tokens_b, policy_b, behaviour_b)

    def _finish(self, logits_bv: Tensor) -> Tensor:
        """Apply temperature and truncation; returns log-probabilities."""
        c = self.controls
        if c.temperature == 0:
            best_b1 = logits_bv.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits_bv, -math.inf).scatter(1, best_b1, 0.0)
        if c.temperature != 1:
            logits_bv = logits_bv / c.temperature
        if self._truncates:
            logits_bv = truncate(logits_bv, top_k=self._top_k, top_p=c.top_p, min_p=c.min_p)
        return torch.log_softmax(logits_bv, dim=-1)


def penalize(
    logits_bv: Tensor,
    history_bt: Tensor,
    lengths_b: Tensor,
    *,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
) -> Tensor:
    """Lower the logits of tokens that the completion already holds.

    For a token with logit z that occurs n > 0 times:
    ``z / repetition`` if z > 0 else ``z * repetition`` (Keskar et al. 2019, section 4.1), then
    ``- frequency * n - presence`` (the OpenAI API's definition).  Tokens with n = 0 keep their logits.

    Args:
        logits_bv: Raw logits.
        history_bt: Completion ids, left-aligned.
        lengths_b: Completion tokens of each row.
        presence: Subtracted once from a token that occurs.
        frequency: Subtracted once for each occurrence.
        repetition: Divides positive logits and multiplies negative ones.
    """
    real_bt = torch.arange(history_bt.shape[1], device=logits_bv.device) < lengths_b[:, None]
    # Slots past a row's length repeat its first token, whose new value is written again; an empty row keeps its own.
    ids_bt = torch.where(real_bt, history_bt, history_bt[:, :1].clamp(0, logits_bv.shape[1] - 1))
    old_bt = logits_bv.gather(1, ids_bt)
    new_bt = torch.where(old_bt > 0, old_bt / repetition, old_bt * repetition) - presence
    penalized_bv = logits_bv.scatter(1, ids_bt, torch.where(lengths_b[:, None] > 0, new_bt, old_bt))
    if frequency:
        penalized_bv = penalized_bv.scatter_add(1, ids_bt, real_bt * -frequency)
    return penalized_bv


def forbid_repeats(logits_bv: Tensor, history_bt: Tensor, lengths_b: Tensor, n: int) -> Tensor:
    """Set the logit of every token to -inf that would complete an n-gram which the completion already holds.

    A row that would be left without any token keeps its logits.

    Args:
        logits_bv: Logits.
        history_bt: Completion ids, left-aligned.
        lengths_b: Completion tokens of each row.
        n: Length of the runs that may not repeat, at least 1.
    """
    if history_bt.shape[1] < n:
        return logits_bv
    windows_bwn = history_bt.unfold(1, n, 1)
    last_bn = (lengths_b[:, None] - n + 1 + torch.arange(n - 1, device=logits_bv.device)).clamp(min=0)
    suffix_bn = history_bt.gather(1, last_bn)
    inside_bw = torch.arange(windows_bwn.shape[1], device=logits_bv.device) + n <= lengths_b[:, None]
    hit_bw = (windows_bwn[:, :, :-1] == suffix_bn[:, None]).all(-1) & inside_bw
    rows, windows = hit_bw.nonzero(as_tuple=True)
    banned_bv = logits_bv.index_put((rows, windows_bwn[rows, windows, -1]), logits_bv.new_tensor(-math.inf))
    return _unless_empty(logits_bv, banned_bv)


def truncate(logits_bv: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Set logits outside the top-k, then the nucleus (Holtzman et al. 2020), then min-p (Nguyen et al. 2024) to -inf.

    Each rule is a threshold on the logit: tokens that tie with the last kept one stay, so that the outcome does
    not depend on the order of a sort.  The likeliest token always stays.

    Args:
        logits_bv: Logits at the sampling temperature.
        top_k: Tokens kept; 0 keeps all.
        top_p: Mass kept: the smallest set of likeliest tokens that reaches it.
        min_p: Least probability kept, relative to the likeliest token.
    """
    if 0 < top_k < logits_bv.shape[1]:
        least_b1 = logits_bv.topk(top_k, dim=-1).values[:, -1:]
        logits_bv = logits_bv.masked_fill(logits_bv < least_b1, -math.inf)
    if top_p < 1:
        logits_bv = logits_bv.masked_fill(logits_bv < _nucleus_threshold(logits_bv, top_p), -math.inf)
    if min_p > 0:
        least_b1 = logits_bv.max(dim=-1, keepdim=True).values + math.log(min_p)
        logits_bv = logits_bv.masked_fill(logits_bv < least_b1, -math.inf)
    return logits_bv


def _nucleus_threshold(logits_bv: Tensor, top_p: float) -> Tensor:
    """Return the least logit of each row's nucleus, (b, 1)."""
    total_b1 = logits_bv.logsumexp(dim=-1, keepdim=True)
    width = min(_NUCLEUS_GUESS, logits_bv.shape[1])
    sorted_bk = logits_bv.topk(width, dim=-1).values
    mass_bk = (sorted_bk - total_b1).exp().cumsum(dim=-1)
    last_b1 = (mass_bk < top_p).sum(dim=-1, keepdim=True).clamp(max=width - 1)
    threshold_b1 = sorted_bk.gather(1, last_b1)
    if width == logits_bv.shape[1]:
        return threshold_b1
    # Only rows that need the whole sort get it, so that no row's outcome depends on its neighbours.
    wide = (mass_bk[:, -1] < top_p).nonzero().squeeze(1)
    if len(wide):
        sorted_wv = logits_bv[wide].sort(dim=-1, descending=True).values
        mass_wv = (sorted_wv - total_b1[wide]).exp().cumsum(dim=-1)
        last_w1 = (mass_wv < top_p).sum(dim=-1, keepdim=True).clamp(max=logits_bv.shape[1] - 1)
        threshold_b1 = threshold_b1.index_copy(0, wide, sorted_wv.gather(1, last_w1))
    return threshold_b1


def _unless_empty(before_bv: Tensor, after_bv: Tensor) -> Tensor:
    """Return ``after_bv``, but ``before_bv`` in rows where it leaves no token."""
    return torch.where(after_bv.isneginf().all(dim=-1, keepdim=True), before_bv, after_bv)


def draw(odds_bv: Tensor, uniform_b: Tensor) -> Tensor:
    """Draw one token a row by inverting the cumulative distribution.

    Row i depends on row i's probabilities and number alone, so that a row samples the same token in any batch.
    A token of probability 0 is never sampled.  The mass is summed over blocks of the vocabulary, in float32, whose
    error is that of the probabilities; then, in float64, over the blocks and inside the one that the number falls
    into, which spares a cumulative sum over all of it.

    Args:
        odds_bv: Probabilities, or what is proportional to them.
        uniform_b: Numbers in [0, 1), float64.

    Returns:
        Token ids, (b,).
    """
    pad = -odds_bv.shape[1] % _BLOCK
    blocks_bnw = (torch.nn.functional.pad(odds_bv, (0, pad)) if pad else odds_bv).unflatten(1, (-1, _BLOCK))
    mass_bn = blocks_bnw.sum(dim=-1).double()
    block_b, rest_b = _invert(mass_bn, uniform_b.double() * mass_bn.sum(dim=-1))
    blocks = mass_bn.shape[1]
    place_b = torch.arange(len(mass_bn), device=mass_bn.device) * blocks + block_b
    inside_bw = blocks_bnw.reshape(-1, _BLOCK).index_select(0, place_b).double()
    return block_b * _BLOCK + _invert(inside_bw, rest_b)[0]


def _invert(mass_bn: Tensor, target_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index whose mass holds the target, and how far into that mass it lies."""
    cdf_bn = mass_bn.cumsum(dim=-1)
    total_b1 = cdf_bn[:, -1:]
    target_b1 = torch.minimum(target_b[:, None], torch.nextafter(total_b1, -total_b1))
    index_b1 = torch.searchsorted(cdf_bn, target_b1, right=True)
    before_b1 = torch.where(index_b1 > 0, cdf_bn.gather(1, (index_b1 - 1).clamp(min=0)), 0.0)
    return index_b1.squeeze(1), (target_b1 - before_b1).squeeze(1)
