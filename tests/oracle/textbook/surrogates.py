"""Slope of every policy loss along the log-probabilities, in closed form, and the importance weights before it.

With ``r = exp(new - old)`` the slope of ``r A`` along ``new`` is ``r A``; where a clip is in force it is 0.  A
surrogate is maximised here: :mod:`.book` turns it into a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from levelhead.recipe.objective import LossSection
from oracle.textbook.records import Answer, Floats, UnprovedError

CLIPS = {
    "ppo_clip": (0.2, 0.2),
    "clip_cov": (0.2, 0.2),
    "gspo": (3e-4, 4e-4),
    "gspo_token": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "gmpo": (0.4, 0.4),
}
"""Clip range below and above where a recipe gives none, from each method's paper."""


@dataclass(slots=True)
class Rise:
    """Slope of the surrogate of one answer.

    Attributes:
        slope: (t,) along the log-probabilities.
        side: (t,) -1 or 1 where the ratio is clipped, else 0.
        optional: (t,) whether the token may be one of those that a loss by covariance treats otherwise.
        other: (t,) slope of such a token.
        special: How many of the optional tokens of its micro-batch are treated otherwise.
    """

    slope: Floats
    side: Floats
    optional: NDArray[np.bool_]
    other: Floats
    special: int = 0


def clip_range(loss: LossSection) -> tuple[float, float]:
    """Return how far the ratio may fall below 1 and rise above it."""
    if loss.kind == "custom":
        return 0.0, 0.0
    low, high = CLIPS.get(loss.kind, (0.0, 0.0))
    return low if loss.clip_low is None else loss.clip_low, high if loss.clip_high is None else loss.clip_high


CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask")
"""Importance corrections whose formulas are written down here."""


def importance(loss: LossSection, answer: Answer) -> Floats:
    """Return ``old / behaviour`` of each token, or of the whole answer, cut as the recipe says, shape (t,).

    Truncated (Yao et al. 2025) it stays at the bound, masked (IcePop 2025) it is 0 outside.  The geometric mask leaves
    each token its own ratio, or 0 to all of an answer whose ratios have a geometric mean outside (GSPO's ratio, 2025).

    Raises:
        UnprovedError: No formula is written down here for this correction.
    """
    if loss.importance is None:
        return np.ones(answer.length)
    if loss.importance not in CORRECTIONS:
        raise UnprovedError(f"grpo.loss.importance: {loss.importance}")
    gap = answer.old - answer.behaviour
    low, high = loss.importance_low, loss.importance_high
    if loss.importance == "geometric_mask":
        return np.exp(gap) if low <= np.exp(gap.mean()) <= high else np.zeros(answer.length)
    weight = np.exp(gap) if loss.importance.startswith("token") else np.full(answer.length, np.exp(gap.sum()))
    if loss.importance.endswith("truncate"):
        return np.minimum(np.maximum(weight, low), high)
    return np.where((weight < low) | (weight > high), 0.0, weight)


def rises(loss: LossSection, answers: Sequence[Answer], shares: Sequence[Floats]) -> list[Rise]:
    """Return the slope of the surrogate of the answers of one micro-batch.

    Args:
        loss: The ``grpo.loss`` section.
        answers: Those that are learnt from.
        shares: (t,) of each, with what each token's value enters the objective.

    Raises:
        UnprovedError: No formula is written down here for this loss.
    """
    if loss.kind in ("clip_cov", "kl_cov"):
        return _by_covariance(loss, answers, shares)
    if loss.kind not in _ALONE:
        raise UnprovedError(f"grpo.loss.kind: {loss.kind}")
    return [_ALONE[loss.kind](loss, answer, share) for answer, share in zip(answers, shares, strict=True)]


def _rise(slope: Floats, side: Floats | None = None) -> Rise:
    zeros = np.zeros(len(slope))
    return Rise(slope, zeros if side is None else side, zeros > 0, zeros)


def _sides(ratio: Floats, advantage: Floats, low: float, high: float) -> Floats:
    """Where ``min(r A, clip(r) A)`` is the clipped one (Schulman et al. 2017, eq. 7): 1 above, -1 below."""
    above = (ratio > 1 + high) & (advantage > 0)
    below = (ratio < 1 - low) & (advantage < 0)
    return above * 1.0 - below * 1.0


def _reinforce(_loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Williams 1992: ``A logp``."""
    return _rise(share * answer.advantage)


def _ppo(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Schulman et al. 2017, eq. 7; with ``dual_clip`` Ye et al. 2020, eq. 5."""
    ratio = np.exp(answer.new - answer.old)
    side = _sides(ratio, answer.advantage, *clip_range(loss))
    if loss.dual_clip is not None:
        side = np.where((answer.advantage < 0) & (ratio > loss.dual_clip), 1.0, side)
    return _rise(np.where(side == 0, share * ratio * answer.advantage, 0.0), side)


def _cispo(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """MiniMax-M1 2025, arXiv:2506.13585: ``sg[clip(r)] A logp``."""
    low, high = clip_range(loss)
    ratio = np.exp(answer.new - answer.old)
    bounded = np.minimum(np.maximum(ratio, max(1 - low, 0.0)), 1 + high)
    side = (ratio > 1 + high) * 1.0 - (ratio < max(1 - low, 0.0)) * 1.0
    return _rise(share * bounded * answer.advantage, side)


def _sapo(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Gao et al. 2025, arXiv:2511.20347: ``4 / tau sigmoid(tau (r - 1)) A``."""
    ratio = np.exp(answer.new - answer.old)
    tau = np.where(answer.advantage > 0, loss.tau_pos, loss.tau_neg)
    gate = 1 / (1 + np.exp(-tau * (ratio - 1)))
    return _rise(share * 4 * gate * (1 - gate) * ratio * answer.advantage)


def _gspo(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Zheng et al. 2025, arXiv:2507.18071, eq. 5: every token has the geometric mean of the ratios."""
    ratio = np.full(answer.length, np.exp((answer.new - answer.old).mean()))
    side = _sides(ratio, answer.advantage, *clip_range(loss))
    value = np.where(side == 0, ratio * answer.advantage, 0.0)
    return _rise(value * share.sum() / answer.length, side)


def _gspo_token(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Zheng et al. 2025, arXiv:2507.18071, eq. 13: the sequence's ratio, each token's own gradient."""
    ratio = np.full(answer.length, np.exp((answer.new - answer.old).mean()))
    side = _sides(ratio, answer.advantage, *clip_range(loss))
    return _rise(np.where(side == 0, share * ratio * answer.advantage, 0.0), side)


def _gmpo(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """Zhao et al. 2025, arXiv:2507.20673: the geometric mean of token ratios, each clipped in its logarithm."""
    low, high = clip_range(loss)
    gap, sign = answer.new - answer.old, np.sign(answer.advantage)
    side = ((gap > high) & (sign > 0)) * 1.0 - ((gap < -low) & (sign < 0)) * 1.0
    held = np.where(side == 0, gap, np.where(side > 0, high, -low)) * (sign != 0)
    value = answer.advantage * np.exp(held.mean())
    return _rise(np.where(side == 0, value * share.sum() / answer.length, 0.0), side)


_ALONE: Mapping[str, Callable[[LossSection, Answer, Floats], Rise]] = {
    "reinforce": _reinforce,
    "ppo_clip": _ppo,
    "cispo": _cispo,
    "sapo": _sapo,
    "gspo": _gspo,
    "gspo_token": _gspo_token,
    "gmpo": _gmpo,
}
"""Losses that look at one answer at a time."""


def _by_covariance(loss: LossSection, answers: Sequence[Answer], shares: Sequence[Floats]) -> list[Rise]:
    """Cui et al. 2025, arXiv:2505.22617: tokens by ``(A - mean A)(logp - mean logp)`` within the micro-batch.

    Clip-Cov leaves ``cov_fraction`` of the tokens out, sampled among those between two bounds; KL-Cov takes
    ``cov_kl |log r|`` from those of largest covariance, any of them where rounding decides which is larger.
    """
    if not answers:
        return []
    advantage = np.concatenate([a.advantage for a in answers])
    new = np.concatenate([a.new for a in answers])
    covariance = (advantage - advantage.mean()) * (new - new.mean())
    many = max(int(loss.cov_fraction * len(new)), 1)
    ends = np.cumsum([a.length for a in answers])[:-1]
    if loss.kind == "kl_cov":
        rounding = 1e-6 * float(np.abs(advantage).max() * np.abs(new).max())
        least = np.sort(covariance)[-many]
        made = [_kl_cov(loss, *pair) for pair in zip(answers, shares, strict=True)]
        certain = np.split(covariance > least + rounding, ends)
        either = np.split(np.abs(covariance - least) <= rounding, ends)
        for rise, sure, maybe in zip(made, certain, either, strict=True):
            rise.slope, rise.other = np.where(sure, (rise.other, rise.slope), (rise.slope, rise.other))
            rise.optional = maybe
        special = many - sum(int(sure.sum()) for sure in certain)
    else:
        made = [_ppo(loss, answer, share) for answer, share in zip(answers, shares, strict=True)]
        between = np.split((covariance > loss.cov_low) & (covariance < loss.cov_high), ends)
        for rise, answer, own in zip(made, answers, between, strict=True):
            ratio = np.exp(answer.new - answer.old)
            rise.optional = own & (_sides(ratio, answer.advantage, *clip_range(loss)) == 0)
        special = min(many, sum(int(rise.optional.sum()) for rise in made))
    for rise in made:
        rise.special = special
    return made


def _kl_cov(loss: LossSection, answer: Answer, share: Floats) -> Rise:
    """``r A``, and what it is for a token that is penalised."""
    gap = answer.new - answer.old
    rise = _rise(share * np.exp(gap) * answer.advantage)
    rise.other = rise.slope - share * loss.cov_kl * np.sign(gap)
    return rise
