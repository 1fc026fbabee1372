"""Which factor of a gradient is off, and where: the other arithmetic that it equals, or what its error follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.differential import EXACT, Comparison, Told, compare
from oracle.rehearsal import Rehearsal
from oracle.textbook.records import UnprovedError
from oracle.variants import variants

ALIKE = 1e-4
"""Relative error up to which the gradient is that of another arithmetic."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an update, as the textbook and the trainer have it.

    Attributes:
        want: Slope by the textbook.
        actual: The trainer's.
        size: Of what the textbook's is made of.
        traits: What it may be told apart by.
    """

    want: float
    actual: float
    size: float
    traits: Mapping[str, object]


def explain(rehearsal: Rehearsal, compared: Sequence[Comparison], wrong: Sequence[Comparison]) -> str:
    """Return one line that names the factor which is off.

    Args:
        rehearsal: What the trainer did.
        compared: All of its updates.
        wrong: Those that are not as they should be.
    """
    slopes, doubts = any(c.error > EXACT for c in wrong), any(c.doubt > EXACT for c in wrong)
    if doubts and not slopes:
        if _over_padding(wrong):
            return "the entropy bonus is a mean over padding too"
        return "the entropy bonus: " + _factors([t for c in wrong for t in _tokens(c, entropy=True)])
    for variant in variants(rehearsal):
        try:
            made = compare(rehearsal, variant)
        except (UnprovedError, KeyError, ValueError, ZeroDivisionError, IndexError):
            continue  # an estimator that lacks what it needs explains nothing
        if all(c.error < ALIKE and (doubts or c.doubt < ALIKE) for c in made):
            return variant.says
    if line := _of_terms(wrong) or _not_computed(compared):
        return line
    return _factors([t for c in wrong for t in _tokens(c)])


def dealt(rehearsal: Rehearsal, compared: Sequence[Comparison]) -> str:
    """Return what is wrong with who takes part: groups left out, divided or taken twice; empty where nothing is."""
    whole = {row.problem for row in rehearsal.rows}
    by_pass: dict[tuple[int, int], list[Comparison]] = {}
    for c in compared:
        by_pass.setdefault((c.update.batch, c.update.index // 2), []).append(c)
    for (batch, epoch), updates in by_pass.items():
        dealt = [{t.answer.problem for t in c.told} for c in updates]
        count = sum(len(c.told) for c in updates)
        place = f"pass {epoch + 1} over batch {batch + 1}"
        if missing := whole - set().union(*dealt):
            return f"groups {_listed(missing)} are in no mini-batch of {place}"
        if len(updates) > 1 and (both := set.intersection(*dealt)):
            return f"groups {_listed(both)} are divided between the mini-batches of {place}"
        if count != len(rehearsal.rows):
            return f"the mini-batches of {place} hold {count} completions, and the batch {len(rehearsal.rows)}"
    return ""


def _not_computed(compared: Sequence[Comparison]) -> str:
    """Which completions are not computed that should be, or more than once."""
    for c in compared:
        if lost := [t for t in c.told if t.row not in c.update.passes and bool((t.size > 0).any())]:
            return f"{len(lost)} completions of {_where(c)} are never computed ({_shared(lost, c)})"
        if twice := [row for row, passes in c.update.passes.items() if len(passes) > 1]:
            return f"{len(twice)} completions of {_where(c)} are computed more than once"
    return ""


def _over_padding(wrong: Sequence[Comparison]) -> bool:
    """Whether the entropy of each micro-batch is divided by the places of its table, not by its tokens."""
    for c in wrong:
        for micro in {t.answer.micro for t in c.told if t.answer.micro >= 0}:
            own = [t for t in c.told if t.answer.micro == micro]
            share = sum(t.answer.length for t in own) / sum(t.answer.width for t in own)
            gaps = [np.abs(t.doubt - share * t.want.entropy).max() for t in own]
            if max(gaps) > ALIKE * max(np.abs(t.want.entropy).max() for t in own):
                return False
    return True


def _where(c: Comparison) -> str:
    return f"update {c.update.index + 1} of batch {c.update.batch + 1}"


def _listed(numbers: set[int]) -> str:
    return ", ".join(str(number + 1) for number in sorted(numbers))


def _shared(lost: Sequence[Told], c: Comparison) -> str:
    """What completions have in common that the others do not have."""
    rows = {t.row for t in lost}
    names: list[tuple[str, Callable[[Told], object]]] = [
        ("task", lambda t: t.answer.task),
        ("group", lambda t: t.answer.problem + 1),
        ("truncated", lambda t: t.answer.truncated),
        ("turn", lambda t: t.answer.turn + 1),
        ("length", lambda t: t.answer.length),
    ]
    for name, of in names:
        own = {of(t) for t in c.told if t.row in rows}
        if own.isdisjoint({of(t) for t in c.told if t.row not in rows}):
            return f"{name} {', '.join(map(str, sorted(own, key=str)))}"
    return "of no one kind"


def _of_terms(wrong: Sequence[Comparison]) -> str:
    """Factors with which surrogate and KL enter, where these two explain everything."""
    told = [t for c in wrong for t in c.told]
    policy, kl = (np.concatenate(column) for column in zip(*((t.policy, t.want.kl) for t in told), strict=True))
    actual = np.concatenate([t.actual for t in told])
    columns = [column for column in (policy, kl) if np.abs(column).max() > 0]
    if len(columns) < 2:
        return ""
    system = np.stack(columns, axis=1)
    factors = np.linalg.lstsq(system, actual, rcond=None)[0]
    if np.abs(system @ factors - actual).max() > ALIKE * np.abs(actual).max():
        return ""
    parts = [("the reward", float(factors[0])), ("the KL", float(factors[1]))]
    off = [f"{name} enters with {factor:.4g} times its weight" for name, factor in parts if abs(factor - 1) > EXACT]
    return "; ".join(off)


def _tokens(c: Comparison, *, entropy: bool = False) -> Iterator[Token]:
    for t in c.told:
        a = t.answer
        ratio = a.new - a.old
        for i in range(a.length):
            want, actual, size = t.total[i], t.actual[i], t.size[i]
            if entropy:
                want, actual, size = t.want.entropy[i], t.doubt[i], abs(t.want.entropy[i])
            traits: dict[str, object] = {
                "side of the clip": {-1: "below", 0: "within", 1: "above"}[int(t.want.side[i])],
                "sign of the advantage": "+" if a.advantage[i] > 0 else "-" if a.advantage[i] < 0 else "0",
                "truncated": a.truncated,
                "task": a.task,
                "update": c.update.index + 1,
                "batch": c.update.batch + 1,
                "number of turns": a.turns,
                "turn": a.turn + 1,
                "last token": i == a.length - 1,
                "first token": i == 0,
                "ratio": "at most 1" if ratio[i] <= 0 else "above 1",
                "length": a.length,
                "rollout": a.attempt + 1,
                "group": f"{a.problem + 1} (batch {c.update.batch + 1})",
                "position": i + 1,
                "advantage, rollout by rollout": f"{a.problem + 1}.{a.attempt + 1} of batch {c.update.batch + 1}",
                "micro-batch": f"{a.micro + 1} of {_where(c)}",
                "answer": f"{a.problem + 1}.{a.attempt + 1}.{a.turn + 1} of {_where(c)}",
            }
            yield Token(float(want), float(actual), float(size), traits)


def _factors(tokens: Sequence[Token]) -> str:
    """What the error follows: a constant, or one trait of the tokens."""
    sizes = np.array([t.size for t in tokens])
    floor = 1e-3 * float(sizes.max(initial=0.0))
    strays = [t for t in tokens if abs(t.want) <= EXACT * floor and abs(t.actual) > 1e-3 * floor]
    if strays:
        rest = [t for t in tokens if abs(t.want) <= EXACT * floor and abs(t.actual) <= 1e-3 * floor]
        return f"{len(strays)} tokens have a gradient and should have none{_in_common(strays, rest)}"
    judged = [t for t in tokens if abs(t.want) > floor]
    silent = [t for t in judged if abs(t.actual) < ALIKE * abs(t.want)]
    if silent and len(silent) < len(judged):
        rest = [t for t in judged if abs(t.actual) >= ALIKE * abs(t.want)]
        return f"{len(silent)} tokens have no gradient and should have one{_in_common(silent, rest)}"
    if not judged:
        return "no token has a gradient by the textbook, and some have one here"
    ratios = np.array([t.actual / t.want for t in judged])
    if np.ptp(ratios) < ALIKE * max(np.abs(ratios).max(), 1e-30):
        return f"every token's gradient is {float(ratios.mean()):.5g} times what it should be"
    for trait in judged[0].traits:
        levels: dict[object, list[float]] = {}
        for t, ratio in zip(judged, ratios, strict=True):
            levels.setdefault(t.traits[trait], []).append(float(ratio))
        if len(levels) > 1 and all(np.ptp(r) < ALIKE * max(abs(x) for x in r) + 1e-9 for r in levels.values()):
            return _by_trait(trait, {level: float(np.mean(r)) for level, r in levels.items()})
    worst = max(judged, key=lambda t: abs(t.actual - t.want))
    place = ", ".join(f"{name} {worst.traits[name]}" for name in ("task", "group", "rollout", "position", "update"))
    return (
        f"no single factor explains it; the largest error is at {place}: "
        f"{worst.actual:.4g} where the textbook has {worst.want:.4g}"
    )


def _in_common(some: Sequence[Token], rest: Sequence[Token]) -> str:
    """What some tokens share that no other token has, as the end of a sentence."""
    for trait in some[0].traits:
        own = {t.traits[trait] for t in some}
        if own.isdisjoint({t.traits[trait] for t in rest}) and rest:
            return f": those of {trait} {', '.join(map(str, sorted(own, key=str)[:4]))}"
    return ""


_ENDS = {
    "length": ("of short answers", "of long answers"),
    "position": ("at early positions", "at late positions"),
}


def _by_trait(trait: str, factors: Mapping[object, float]) -> str:
    """One line on factors that follow a trait."""
    off = {level: factor for level, factor in factors.items() if abs(factor - 1) > ALIKE}
    if trait in _ENDS and len(factors) > 2:
        ends = [min(factors, key=_number), max(factors, key=_number)]
        low, high = (factors[end] for end in ends)
        more, than = (1, high / low) if abs(high) > abs(low) else (0, low / high)
        return (
            f"tokens {_ENDS[trait][more]} weigh {than:.3g} times too much against the others: the factor goes from "
            f"{low:.3g} at {trait} {ends[0]} to {high:.3g} at {ends[1]}"
        )
    first = sorted(off.items(), key=lambda pair: -abs(np.log(abs(pair[1]) + 1e-30)))[:4]
    listed = ", ".join(f"{factor:.4g} times at {trait} {level}" for level, factor in first)
    return f"the gradient is off by a factor that follows the {trait}: {listed}" + (", ..." if len(off) > 4 else "")


def _number(level: object) -> float:
    return float(level) if isinstance(level, int | float) else 0.0
