"""Why two sides disagree about log-probabilities: what they may differ in is exchanged, one thing at a time.

One side (the sampler, or the trainer) has said what some tokens' log-probabilities are.  The policy, computed the plain
way, says something else.  Each cause below has a function that lets the plain computation make one mistake: other
tokens, another context, another temperature, and so on.  The mistake after which both say the same is the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from levelhead.recipe.sampling import Sampling
from levelhead.text.evidence import read
from oracle import plain
from oracle.dispute import LABELS, Account, Dispute, Gap, gap_of, logits, logprobs
from oracle.mistakes import (
    all_shifted,
    behind,
    completion_shifted,
    cut,
    cut_end,
    numbers_moved,
    padded,
    relabelled,
    without_first,
)
from oracle.parts import candidates, swapped, words

LOOKED_AT = 64
"""Completions among which those are chosen that disagree."""
ACCOUNTS = 8
"""Completions that are computed again for each guess, at most."""
SHIFTS = 64
"""Tokens by which a context may have been cut, or positions shifted, unless padding says otherwise."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One thing that explains a disagreement.

    Attributes:
        cause: Its name, as ``temperature``.
        says: What is the matter, as a sentence without its full stop.
        gap: What is left of the disagreement once that thing is exchanged.
    """

    cause: str
    says: str
    gap: Gap


@torch.no_grad()
def find_cause(dispute: Dispute) -> Explanation | None:
    """Return the one thing that explains a disagreement; ``None`` where nothing here does, or where there is none."""
    contexts = tuple(dict.fromkeys(account.context_ids for account in dispute.accounts))
    case = replace(dispute, accounts=[a.beginning() for a in dispute.accounts[:LOOKED_AT]], contexts=contexts)
    strange = [account for account in case.accounts if _drawn_as(case, account) is not None]
    wrong = strange or case.off()
    if not wrong:
        return None
    others = [account for account in case.accounts if account not in wrong]
    case = replace(case, accounts=[*wrong, *others][:ACCOUNTS])
    before, same_ids = case.apart(), not strange
    close: list[Explanation] = []
    for name, cause in CAUSES.items():
        explanation = cause(case) if same_ids or name in ("tokens", "context") else None
        if explanation is not None and (
            explanation.cause in _JUDGED_THEMSELVES or _explains(case, explanation.gap, before)
        ):
            close.append(explanation)
            if explanation.gap.mean <= case.allowed.mean / 10:
                break
    return min(close, key=lambda explanation: explanation.gap.mean, default=None)


def says(explanation: Explanation | None) -> str:
    """Return a clause that names the cause, or says that none of those that are known explains it."""
    if explanation is None:
        return f"none of {', '.join(CAUSES)} alone explains it"
    return f"the cause is the {explanation.cause}: {explanation.says}"


def _explains(case: Dispute, gap: Gap, before: Gap) -> bool:
    """Whether what is left is rounding, and clearly less than before, where rounding is coarse."""
    return gap.within(case.allowed) and (before.within(case.allowed) or gap.mean <= before.mean / 2)


def tokens(case: Dispute) -> Explanation | None:
    """Other tokens were told of than those sampled, or the numbers belong to their neighbours."""
    others = [(a, drawn) for a in case.accounts if (drawn := _drawn_as(case, a)) and drawn[1][:LABELS] != a.labels]
    if others:
        account, drawn = others[0]
        wrong, right = _quoted(case, account.labels, drawn[1]), _quoted(case, drawn[1], account.labels)
        scores = f"{case.who} scores {wrong} where {right}"
        return Explanation(
            "tokens", f"{scores} was drawn ({len(others)} of {len(case.accounts)} completions)", case.apart()
        )
    guesses: list[tuple[str, Callable[[Account], Account]]] = [
        ("the numbers stand one token late", lambda a: numbers_moved(a, 1)),
        ("the numbers stand one token early", lambda a: numbers_moved(a, -1)),
        ("each label is the token before", lambda a: relabelled(a, 1)),
        ("each label is the token behind", lambda a: relabelled(a, -1)),
    ]
    best = None
    for line, change in guesses:
        changed = [change(a) for a in case.accounts if len(a.labels) > 2]
        best = _better(best, "tokens", line, case.apart(changed) if changed else None)
    return best if best is not None and best.gap.within(case.allowed) else _added_tokens(case)


def _added_tokens(case: Dispute) -> Explanation | None:
    """The first tokens of completions were never sampled: the end of the prompt, in most cases."""
    counts, changed = [], []
    for account in case.accounts:
        most = max(0, len(account.labels) - 3)
        gone = next((n for n in range(most + 1) if case.apart([without_first(account, n)]).within(case.allowed)), None)
        if gone is None:
            return None
        counts.append(gone)
        changed.append(without_first(account, gone))
    line = f"the first {_range(counts)} tokens of completions were not drawn from the policy"
    return Explanation("tokens", line, case.apart(changed)) if any(counts) else None


def _drawn_as(case: Dispute, account: Account) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What was sampled instead of what an account is of: the nearest of all completions; ``None`` where it is one."""
    if not case.drawn:
        return None
    whole = account.read_ids + account.labels[-1:]

    def near(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[bool, bool, int]:
        context, completion = pair
        same = completion[: len(account.labels)] == account.labels
        return same and context == account.context_ids, same, _common(context + completion, whole)

    best = max(case.drawn, key=near)
    return None if near(best)[0] else best


def context(case: Dispute) -> Explanation | None:
    """Something else was read before the completion: a cut prompt, another one, or padding."""
    others = [(a, d) for a in case.accounts if (d := _drawn_as(case, a)) and d[1][: len(a.labels)] == a.labels]
    if others:
        account, drawn = others[0]
        at = _common(account.context_ids, drawn[0])
        line = (
            f"{case.who} scores behind {len(account.context_ids)} tokens where the sampler read {len(drawn[0])}; they "
            f"part at token {at}: {_spelled(case, account.context_ids[at : at + 4])} against "
            f"{_spelled(case, drawn[0][at : at + 4])}"
        )
        return Explanation("context", line, case.apart())
    best: Explanation | None = None
    for line, change in _contexts(case):
        changed = [change(a) for a in case.accounts]
        best = _better(best, "context", line, case.apart(changed))
    return best


def _contexts(case: Dispute) -> Iterator[tuple[str, Callable[[Account], Account]]]:
    """What each account may have been read behind instead; guesses that do not fit the first one are not followed."""
    off = case.off()
    if not off:
        return
    probe = min(off, key=lambda a: a.places[0])
    size, longest = probe.places[0], max(map(len, case.contexts))
    cuts = [n for n in range(1, size) if n <= SHIFTS or size - n <= SHIFTS]

    def fits(change: Callable[[Account], Account]) -> bool:
        return case.apart([change(probe)]).within(case.allowed)

    for n in cuts:
        if fits(cut(drop=n)):
            yield f"{case.who} reads prompts without their first {n} tokens", cut(drop=n)
            yield f"{case.who} reads the last {size - n} tokens of a prompt alone", cut(keep=size - n)
        if fits(cut_end(n)):
            yield f"{case.who} reads prompts without their last {n} tokens", cut_end(n)
    for counted in (True, False):
        pads = padded(case.policy.codec.pad_id, longest, counted=counted)
        if fits(pads):
            yield f"{case.who} attends to the padding on the left of prompts", pads
    if _other_context(case, probe) is not None:
        others = {
            account.context_ids: _other_context(case, account) or account.context_ids for account in case.accounts
        }
        yield f"{case.who} reads another prompt of the batch than its own", behind(others)


def _other_context(case: Dispute, account: Account) -> tuple[int, ...] | None:
    """The other prompt of the batch that an account was read behind; ``None`` where there is none."""
    for ids in case.contexts:
        if ids != account.context_ids:
            changed = behind({account.context_ids: ids})(account)
            if case.apart([changed]).within(case.allowed):
                return ids
    return None


def temperature(case: Dispute) -> Explanation | None:
    """The logits were divided by another number."""
    tables = case.tables()

    def at(heat: float) -> Gap:
        return gap_of(case.accounts, [logprobs(t, a.labels, heat) for t, a in zip(tables, case.accounts, strict=True)])

    heat = math.exp(_search(lambda x: at(math.exp(x)).mean, math.log(0.05), math.log(20.0)))
    right = case.temperature
    likely = [t for t in (1.0, right**2, 1 / right) if abs(t - heat) < 1e-2 * t and t != right]
    best = min([*likely, heat], key=lambda t: (not at(t).within(case.allowed), t not in likely))
    why = {right**2: ": it is applied twice", 1 / right: ": it multiplies", 1.0: ": it is not applied"}.get(best, "")
    line = f"both agree if {case.who} computes at temperature {best:.4g}, and the recipe's is {right:g}{why}"
    return Explanation("temperature", line, at(best))


def controls(case: Dispute) -> Explanation | None:
    """The numbers are those after penalties and truncation, which the policy that is trained does not have."""
    asked = case.controls
    if asked.model_copy(update={"temperature": 1.0}) == Sampling(max_new_tokens=asked.max_new_tokens):
        return None
    stops, said = case.policy.codec.stop_ids, []
    for table, account in zip(case.tables(), case.accounts, strict=True):
        after = plain.truncated(plain.shaped(table, account.labels, asked, stops) / case.temperature, asked)
        said.append(logprobs(after, account.labels, 1.0))
    line = f"{case.who} tells of the distribution after the sampling controls (penalties, truncation), not the policy's"
    return Explanation("controls", line, gap_of(case.accounts, said))


def weights(case: Dispute) -> Explanation | None:
    """Other weights computed it: the side's own copy, or those before an update."""
    if case.own is not None and case.own.base is not case.policy.base:
        theirs = dict(case.own.base.named_parameters())
        mine = dict(case.policy.base.named_parameters())
        differ = {n for n in mine.keys() & theirs.keys() if not torch.equal(mine[n].to(theirs[n].dtype), theirs[n])}
        if differ:
            line = f"{case.who}'s copy of {words(differ, mine)} is not what the trainer has"
            return Explanation("weights", line, case.apart(policy=case.own))
        return None
    names = {id(p): n for n, p in case.policy.base.named_parameters()}
    old = {names[id(p)]: (p, value) for p, value in case.old if id(p) in names}
    best: Explanation | None = None
    for part in candidates(old) if old else ():
        with swapped([old[name] for name in part]):
            gap = case.apart()
        line = f"{case.who} still computes with old weights of {words(part, old)}"
        best = _better(best, "weights", line, gap)
    return best


def adapter(case: Dispute) -> Explanation | None:
    """The adapter is applied at another scale, twice, or not at all."""
    layers: list[Any] = [m for m in case.policy.base.modules() if isinstance(getattr(m, "scaling", None), dict)]
    if not case.policy.lora or not layers:
        return None

    def at(factor: float, accounts: Sequence[Account] | None = None) -> Gap:
        before = [dict(layer.scaling) for layer in layers]
        try:
            for layer in layers:
                layer.scaling.update({name: value * factor for name, value in layer.scaling.items()})
            return case.apart(accounts)
        finally:
            for layer, scaling in zip(layers, before, strict=True):
                layer.scaling.update(scaling)

    probe = case.off()[:1]
    factor = 2 ** _search(lambda x: at(2**x, probe).mean, -6.0, 6.0, points=13)
    round_ones = [f for f in (0.0, 2.0, 0.5) if not f or abs(factor / f - 1) < 0.02]
    best = min([*round_ones, factor], key=lambda f: (not at(f).within(case.allowed), f not in round_ones))
    line = f"both agree if {case.who} applies the adapter at {best:.4g} times its scale"
    line += {0.0: ": it is left out", 2.0: ": it is applied twice"}.get(best, "")
    return Explanation("adapter", line, at(best))


def position(case: Dispute) -> Explanation | None:
    """The tokens of completions, or all tokens, stand at positions that are shifted."""
    off, longest = case.off(), max(map(len, case.contexts))
    if not off:
        return None
    probe = min(off, key=lambda a: a.places[0])
    padding = longest - probe.places[0]
    best: Explanation | None = None
    for where, shift in (("completions", completion_shifted), ("all tokens", all_shifted)):
        for by in dict.fromkeys([padding, *range(1, SHIFTS + 1), *range(-8, 0)]):
            if not by or not case.apart([shift(probe, by)]).within(case.allowed):
                continue
            line = f"the positions of {where} are shifted by {by}"
            best = _better(best, "position", line, case.apart([shift(a, by) for a in case.accounts]))
            if by == padding:
                pads = [longest - a.places[0] for a in case.accounts]
                changed = [shift(a, n) for a, n in zip(case.accounts, pads, strict=True)]
                line = f"the positions of {where} count the padding, and are shifted by {_range(pads)}"
                best = _better(best, "position", line, case.apart(changed))
    return best


def precision(case: Dispute) -> Explanation | None:
    """The same computation, rounded: of the numbers that are told, or of all that leads to them."""
    said = [logprobs(t, a.labels, case.temperature) for t, a in zip(case.tables(), case.accounts, strict=True)]
    gap, flat = gap_of(case.accounts, said), torch.cat([torch.tensor(a.logprobs) for a in case.accounts])
    exact = torch.cat(said)
    for kind in (torch.bfloat16, torch.float16):
        name = str(kind).removeprefix("torch.")
        step = exact.abs() * torch.finfo(kind).eps
        if torch.equal(flat.to(kind).float(), flat) and bool(((flat - exact).abs() <= step + case.allowed.mean).all()):
            return Explanation("precision", f"{case.who} rounds its log-probabilities to {name}", gap)
    before = case.policy.compute_dtype
    if before != torch.float32 or case.policy.base.dtype != torch.float32:
        return None
    for kind in (torch.bfloat16, torch.float16):
        case.policy.compute_dtype = kind
        try:
            coarse = torch.cat([logprobs(logits(case.policy, a), a.labels, case.temperature) for a in case.accounts])
        except RuntimeError:  # a type that this device has no products in
            continue
        finally:
            case.policy.compute_dtype = before
        rounding = float((coarse - exact).square().mean().sqrt())
        if 0 < float((flat - exact).square().mean().sqrt()) <= 2 * rounding:
            name = str(kind).removeprefix("torch.")
            line = f"they are no further apart than {name} rounds ({rounding:.2g} nats): {case.who} computes in {name}"
            return Explanation("precision", line, gap)
    return None


_JUDGED_THEMSELVES = ("precision",)
"""Causes that have compared sizes, where the numbers themselves cannot be made equal."""

CAUSES: Mapping[str, Callable[[Dispute], Explanation | None]] = {
    "tokens": tokens,
    "weights": weights,
    "temperature": temperature,
    "controls": controls,
    "context": context,
    "adapter": adapter,
    "position": position,
    "precision": precision,
}
"""What may explain a disagreement, by name, in the order in which it is tried."""


def _better(best: Explanation | None, cause: str, line: str, gap: Gap | None) -> Explanation | None:
    """The closer of two explanations, the earlier one where they are as close."""
    if gap is None or math.isnan(gap.mean) or (best is not None and best.gap.mean <= gap.mean):
        return best
    return Explanation(cause, line, gap)


def _search(cost: Callable[[float], float], low: float, high: float, points: int = 61) -> float:
    """Return where a function of one number is least: a grid, then golden sections about its best point."""
    step = (high - low) / (points - 1)
    centre = min((low + i * step for i in range(points)), key=cost)
    a, b, ratio = centre - step, centre + step, (math.sqrt(5) - 1) / 2
    left, right = b - ratio * (b - a), a + ratio * (b - a)
    at_left, at_right = cost(left), cost(right)
    for _ in range(28):
        if at_left < at_right:
            b, right, at_right = right, left, at_left
            left = b - ratio * (b - a)
            at_left = cost(left)
        else:
            a, left, at_left = left, right, at_right
            right = a + ratio * (b - a)
            at_right = cost(right)
    return (a + b) / 2


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _spelled(case: Dispute, ids: Sequence[int]) -> str:
    return " ".join(repr(token.text) for token in read(case.policy.codec, ids)) or "nothing"


def _quoted(case: Dispute, ids: Sequence[int], other: Sequence[int]) -> str:
    """Some tokens from where they part from others."""
    at = _common(ids, other)
    return _spelled(case, ids[at : at + 4])
