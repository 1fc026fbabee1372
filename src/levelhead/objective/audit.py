"""The audit: what the update about to be made does to every term, and who is responsible.

For each term the gradient ``N_j`` of its *natural* value is taken by itself, through no sign and no weight.  The
gradient ``g`` that some path has left in ``p.grad`` is then explained as ``g = sum_j a_j N_j + remainder`` by least
squares.  The coefficients ``a_j`` are what that path really did with each term, whatever it meant to do: a term that is
to be maximised must enter a gradient to be descended with a negative coefficient.  Nothing here trusts, or uses, the
code that made the gradient.

In half precision the backward passes round, and what they round away is no white noise: it follows the few directions
of the tokens at hand, as the gradients themselves do.  There a coefficient is judged only where the contribution of its
term stands out of the whole remainder; the others are named in :attr:`AuditReport.unjudged`, and nobody is accused.

With the optimizer's update ``u = P g + momentum + decay`` the slope of term i is ``N_i . u``, to first order the change
of its value, and ``a_j N_i . P N_j`` is what term j contributes to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from levelhead import metrics as metric
from levelhead.message import Message
from levelhead.objective.aggregation.buffers import Buffer, combine, gramian, inner, lent
from levelhead.objective.numerics import dot, local
from levelhead.objective.terms import Sense, Term, as_loss
from levelhead.objective.updates import next_updates

MAX_ENTRIES = 1 << 26
"""Entries of a gradient that the audit keeps of each term: 256 MiB in float32."""

CERTAIN = 4.0
"""Standard errors by which a coefficient must be on the wrong side before it is called wrong."""

VISIBLE = 1e-4
"""Share of the gradient's norm that a term must make up before it is judged.  Where all groups are without contrast,
the unsigned gradient of the reward is dust of rounding, of any direction, below 1e-5."""


ALIGNED = 0.5
"""Share of the remainder's norm that counts as a standard error where passes round in half precision.  Of white noise
it would be one over the root of the entries; in sound runs in bfloat16 and float16 the errors of coefficients came to
0.42 of the whole remainder at most (``bench/audit_precision.py``)."""


SENSES = {"maximize": Message("maximize", "增大"), "minimize": Message("minimize", "减小")}
LOWERED = Message(
    "term {label!r} is to be maximised, but its own contribution lowers it: it enters the update with coefficient "
    "{coef:.3g} where its weight is {weight:.3g}; a sign is applied twice, or not at all, on the way",
    "损失项 {label!r} 本应最大化，它自己的贡献却方向相反：它以系数 {coef:.3g} 进入更新，而权重为 {weight:.3g}；"
    "途中有一个符号用了两次，或漏用了",
)
RAISED = Message(
    "term {label!r} is to be minimised, but its own contribution raises it: it enters the update with coefficient "
    "{coef:.3g} where its weight is {weight:.3g}; a sign is applied twice, or not at all, on the way",
    "损失项 {label!r} 本应最小化，它自己的贡献却方向相反：它以系数 {coef:.3g} 进入更新，而权重为 {weight:.3g}；"
    "途中有一个符号用了两次，或漏用了",
)
WRONG_WAY: Mapping[Sense, Message] = {"maximize": LOWERED, "minimize": RAISED}
OTHER_SENSE = Message(
    "term {label!r} comes with the sense to {sense} it; it is there to {expected} it",
    "损失项 {label!r} 的方向是{sense}，而它的作用应是{expected}",
)
NEGATIVE = Message(
    "term {label!r} has value {value:.3g}: an entropy is never negative",
    "损失项 {label!r} 的值为 {value:.3g}：熵不可能为负",
)


class SignError(RuntimeError):
    """A term enters the update against its sense."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the update does to every term.

    Attributes:
        metrics: Flat metric name to number, see :meth:`Auditor.finish`.
        errors: One line for each term that enters the update against its sense or carries an impossible value.
        unjudged: Terms whose coefficient could be of either sign: rounding hides it, or a term of the same gradient.
        strengths: Norm of the unsigned gradient of each term that takes part, against that of the gradient.
    """

    metrics: Mapping[str, float]
    errors: tuple[str, ...]
    unjudged: tuple[str, ...] = ()
    strengths: Mapping[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Raise if a term runs against its sense.

        Raises:
            SignError: With all errors, naming the terms.
        """
        if self.errors:
            raise SignError("; ".join(self.errors))


@dataclass(slots=True)
class _Audited:
    """A term over the micro-batches of a step."""

    name: str
    sense: Sense
    weight: float
    value: float = 0.0
    gradient: Buffer = field(default_factory=list)


class Auditor:
    """Collects the unsigned gradients of the terms of one step, and compares them with the gradient that was made.

    Call :meth:`add` with the terms of each micro-batch before their graph is freed, make the gradient by any path, clip
    it, and call :meth:`finish` before the optimizer steps.  Costs one backward a term, the memory of one gradient while
    it runs, and ``max_entries`` numbers a term.  Of a larger model every n-th entry of each parameter is kept, and
    slopes are scaled up accordingly; coefficients need no scaling.

    Args:
        params: Leaves that are trained.
        max_entries: Entries of a gradient that are kept.
        reduce: Called on what is kept of each gradient, to reduce it over data-parallel ranks in place.
        total: Called on sums over entries, to add them up in place over processes that hold a piece of each gradient.
        expected_senses: Sense that a term of a name must come with; one that comes with the other is an error.
        dtype: Coarsest type in which passes compute; that of the parameters unless given.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        *,
        max_entries: int = MAX_ENTRIES,
        reduce: Callable[[Tensor], object] | None = None,
        total: Callable[[Tensor], object] | None = None,
        expected_senses: Mapping[str, Sense] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._expected_senses = expected_senses or {}
        dtypes = {dtype} if dtype else {param.dtype for param in params if param.dtype.is_floating_point}
        self._unit = max((torch.finfo(kind).eps for kind in dtypes), default=0.0) / 2
        self.params = list(params)
        self._stride = _stride(sum(param.numel() for param in params), max_entries)
        self._reduce, self._total = reduce, total
        self._terms: dict[str, _Audited] = {}

    def add(self, terms: Sequence[Term]) -> None:
        """Take the gradient of every term's natural value; graphs are kept.

        A term of weight 0 is watched: its slope is reported, and it is held responsible for nothing.

        Raises:
            ValueError: If a term changes its sense or weight between micro-batches.
        """
        for term in terms:
            fresh = _Audited(term.name, term.sense, term.weight, gradient=[None] * len(self.params))
            seen = self._terms.setdefault(term.label, fresh)
            if (seen.sense, seen.weight) != (term.sense, term.weight):
                raise ValueError(f"term {term.label!r} changes its sense or weight within a step")
            seen.value += float(term.value.detach())
            if term.value.requires_grad:
                whole: Buffer = [None] * len(self.params)
                with lent(self.params, whole):
                    term.value.backward(retain_graph=True)
                for index, grad in enumerate(whole):
                    seen.gradient[index] = combine([(1.0, seen.gradient[index]), (1.0, _thin(grad, self._stride))])

    def finish(self, optimizer: Optimizer | None = None, *, slopes: bool = True) -> AuditReport:
        """Explain the gradient in ``p.grad`` and the update that follows from it, and start over.

        Metrics, for each term (``name`` or ``name/task``):
            - ``audit/<term>/slope``: first-order change of its natural value by the update;
            - ``audit/<term>/from_<name>``: share of each kind of term in that slope (``from_reward`` for ``policy``),
              and ``from_momentum``, ``from_decay``, ``from_other``; the shares add up to the slope;
            - ``audit/<term>/coef``: coefficient with which the term really enters, positive with its sense; compare
              with its weight times the factor of gradient clipping.  Absent where another term has the same gradient;
            - ``audit/<term>/coef_error``: its standard error, that of rounding in the type of the passes included;
        and ``audit/unexplained``: part of the gradient's norm that no term explains, and ``audit/unjudged``: number of
        terms whose coefficient could be of either sign.

        Args:
            optimizer: The optimizer about to step (SGD, Adam, AdamW); without one, a gradient step of learning rate 1.
            slopes: Whether slopes are wanted; coefficients alone cost less.

        Raises:
            ValueError: If no term was added.
        """
        if not self._terms:
            raise ValueError("audit: no term was added since the last step")
        terms, self._terms = self._terms, {}
        if self._reduce is not None:
            self._reduce_all(list(terms.values()), self._reduce)
        gradient = [_thin(param.grad, self._stride) for param in self.params]
        fitted = _fit([t for t in terms.values() if t.weight > 0], gradient, self._unit, self._total)
        metrics, errors, unjudged = {metric.AUDIT_UNEXPLAINED: fitted.unexplained}, [], []
        along = self._slopes(list(terms.values()), fitted, optimizer) if slopes else []
        for label, shares in zip(terms, along, strict=slopes):
            metrics[metric.AUDIT_SLOPE.of(label)] = math.fsum(shares.values())
            metrics |= {metric.AUDIT_FROM.of(label, name): share for name, share in shares.items()}
        judged = zip((label for label, t in terms.items() if t.weight > 0), fitted.terms, strict=True)
        for index, (label, term) in enumerate(judged):
            coef, error = fitted.effective(index), fitted.errors[index]
            if math.isfinite(error):
                metrics |= {metric.AUDIT_COEF.of(label): coef, metric.AUDIT_COEF_ERROR.of(label): error}
            if abs(coef) <= CERTAIN * error and error > 0:
                unjudged.append(label)
            elif coef < 0 and fitted.shares[index] > VISIBLE:
                errors.append(WRONG_WAY[term.sense](label=label, coef=coef, weight=term.weight))
        strengths = dict(zip((label for label, t in terms.items() if t.weight > 0), fitted.strengths, strict=True))
        for label, term in terms.items():
            expected = self._expected_senses.get(term.name, term.sense)
            if term.weight > 0 and term.sense != expected:
                errors.append(OTHER_SENSE(label=label, sense=SENSES[term.sense](), expected=SENSES[expected]()))
            if term.name == "entropy" and term.value < 0:
                errors.append(NEGATIVE(label=label, value=term.value))
        metrics[metric.AUDIT_UNJUDGED] = float(len(unjudged))
        return AuditReport(metrics, tuple(errors), tuple(unjudged), strengths)

    def _slopes(self, targets: Sequence[_Audited], fitted: _Fit, optimizer: Optimizer | None) -> list[dict[str, float]]:
        """Contribution of every source to the slope of every target along the next update."""
        slopes = [dict.fromkeys([_source(term.name) for term in fitted.terms], 0.0) for _ in targets]
        for index, (param, update) in enumerate(zip(self.params, next_updates(self.params, optimizer), strict=True)):
            if update is None:
                continue
            scale = update.scale if isinstance(update.scale, float) else _thinned(update.scale, self._stride)
            parts: list[tuple[str, float, Tensor | None]] = [
                (_source(term.name), coef, term.gradient[index])
                for term, coef in zip(fitted.terms, fitted.coefs, strict=True)
            ]
            parts.append(("other", 1.0, fitted.remainder[index]))
            for target, shares in zip(targets, slopes, strict=True):
                natural = target.gradient[index]
                if natural is None:
                    continue
                if not natural.numel():
                    continue
                up = local(param).numel() / natural.numel()
                along = natural * scale
                for name, coef, piece in parts:
                    shares[name] = shares.get(name, 0.0) + (0.0 if piece is None else up * coef * dot(along, piece))
                for name, rest in update.rest.items():
                    shares[name] = shares.get(name, 0.0) + up * dot(natural, _thinned(rest, self._stride))
        return slopes if self._total is None else [_added_up(shares, self._total) for shares in slopes]

    def _reduce_all(self, terms: Sequence[_Audited], reduce: Callable[[Tensor], object]) -> None:
        for term in terms:
            for index, param in enumerate(self.params):
                grad = term.gradient[index]
                whole = torch.zeros_like(_thinned(param.detach(), self._stride)) if grad is None else grad
                reduce(whole)
                term.gradient[index] = whole


@dataclass(frozen=True, slots=True)
class _Fit:
    """The gradient in terms of the unsigned gradients.

    Attributes:
        terms: The k terms that may take part.
        coefs: Coefficient of each in the gradient that is descended.
        errors: Standard error of each; infinite where a term cannot be told from others.
        shares: Norm of what each contributes, against that of the gradient.
        strengths: Norm of each unsigned gradient, against that of the gradient.
        remainder: What they leave unexplained.
        unexplained: Its norm against that of the gradient.
    """

    terms: Sequence[_Audited]
    coefs: Sequence[float]
    errors: Sequence[float]
    shares: Sequence[float]
    strengths: Sequence[float]
    remainder: Buffer
    unexplained: float

    def effective(self, index: int) -> float:
        """Coefficient of a term, positive where it enters with its sense."""
        return float(as_loss(torch.tensor(self.coefs[index], dtype=torch.float64), self.terms[index].sense))


def _added_up(shares: Mapping[str, float], total: Callable[[Tensor], object]) -> dict[str, float]:
    """Shares of a slope, of which each process has those of its entries, over all of them."""
    names = sorted({*shares, "other", "momentum", "decay"})  # the same everywhere, whoever has which
    values_n = torch.tensor([shares.get(name, 0.0) for name in names], dtype=torch.float64)
    counts_n = torch.tensor([float(name in shares) for name in names], dtype=torch.float64)
    total(values_n)
    total(counts_n)
    rows = zip(names, values_n.tolist(), counts_n.tolist(), strict=True)
    return {name: value for name, value, count in rows if count}


def _fit(
    terms: Sequence[_Audited], gradient: Buffer, unit: float, total: Callable[[Tensor], object] | None = None
) -> _Fit:
    """Least squares of the gradient on the unsigned gradients, scaled to unit length, in float64.

    Directions in which the unsigned gradients do not differ are left out, and a term that needs one of them cannot be
    judged.  The standard error treats the remainder as noise spread over all entries, of float32's rounding at least;
    of passes coarser than that, whose unit roundoff is ``unit``, as noise that may lie along any one direction.
    """

    def whole(sums: Tensor) -> Tensor:
        if total is not None:
            total(sums)
        return sums

    def norm_of(buffer: Buffer) -> float:
        return math.sqrt(float(whole(torch.tensor(inner(buffer, buffer), dtype=torch.float64))))

    norms = [norm_of(term.gradient) for term in terms]
    live = [index for index, norm in enumerate(norms) if norm > 0]
    length = norm_of(gradient)
    coefs, errors = [0.0] * len(terms), [0.0] * len(terms)
    variance_k: list[float] = []
    if live:
        norms_k = torch.tensor([norms[index] for index in live], dtype=torch.float64)
        products_kk = whole(gramian([terms[index].gradient for index in live])) / torch.outer(norms_k, norms_k)
        inverse_kk = torch.linalg.pinv(products_kk, rtol=1e-10, hermitian=True)
        told_apart_k = (inverse_kk @ products_kk).diagonal() > 1 - 1e-6
        variance_k = torch.where(told_apart_k, inverse_kk.diagonal().clamp(min=0), torch.inf).tolist()
        target_k = whole(torch.tensor([inner(terms[i].gradient, gradient) for i in live], dtype=torch.float64))
        for index, coef in zip(live, (inverse_kk @ (target_k / norms_k) / norms_k).tolist(), strict=True):
            coefs[index] = coef
    pieces = [(-coef, term.gradient) for coef, term in zip(coefs, terms, strict=True)]
    remainder = [
        combine([(1.0, grad), *((weight, piece[index]) for weight, piece in pieces)])
        for index, grad in enumerate(gradient)
    ]
    residual = norm_of(remainder)
    entries = int(whole(torch.tensor(sum(grad.numel() for grad in gradient if grad is not None))))
    noise = max(residual / math.sqrt(max(entries - len(live), 1)), torch.finfo(torch.float32).eps * length)
    if unit > torch.finfo(torch.float32).eps:
        noise = max(noise, ALIGNED * max(residual, unit * length))
    for index, variance in zip(live, variance_k, strict=True):
        errors[index] = noise * math.sqrt(variance) / norms[index]
    strengths = [norm / length if length > 0 else 0.0 for norm in norms]
    shares = [abs(coef) * strength for coef, strength in zip(coefs, strengths, strict=True)]
    return _Fit(terms, coefs, errors, shares, strengths, remainder, residual / length if length > 0 else 0.0)


def _source(name: str) -> str:
    return "reward" if name == "policy" else name


def _stride(entries: int, most: int) -> int:
    """Smallest prime step that keeps at most ``most`` of ``entries``: it samples no matrix column by column."""
    if most < 1:
        raise ValueError(f"max_entries must be at least 1, got {most}")
    step = -(-entries // most)
    while step > 2 and any(step % d == 0 for d in range(2, math.isqrt(step) + 1)):
        step += 1
    return max(step, 1)


def _thinned(tensor: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th entry of what is held here, flat, in float32 or better."""
    tensor = local(tensor)
    return tensor.reshape(-1)[::stride].to(torch.promote_types(tensor.dtype, torch.float32))


def _thin(tensor: Tensor | None, stride: int) -> Tensor | None:
    return None if tensor is None else _thinned(tensor.detach(), stride)
