"""What a run has come to, task by task: better, or only better paid.

"Better" is said of a task where all of this holds, each by two standard errors of the difference: its balanced score is
above that of the stage before; the policy is above the best constant answer, over all items and over strata alike; no
stratum has fallen, by score or by its rate of right answers; and what rose is not only strata in which the constant
answer is as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from levelhead.metrics import held_out

STAGES = ("start", "sft", "grpo")
"""Stages in the order of a run."""
ERRORS = 2.0
"""Standard errors of a difference that count."""
LEAST = 8
"""Items of the smallest task, and of the smallest stratum, that is spoken of."""
RATES = (held_out.SUCCESS, held_out.ACCURACY, held_out.EXACT_MATCH)
"""Rates of right answers; the first that a stratum has is its rate."""
MOVED = 0.1
"""Change of a symptom's share that is worth a word."""
SHOWN = 100
"""Characters of an answer that are shown."""

_STRATA = {
    "condition=ambig": "ambiguous questions",
    "condition=disambig": "disambiguated questions",
    "answerable=yes": "answerable questions",
    "answerable=no": "questions whose answer is 'unknown'",
    "verdict=yes": "responses with a hallucination",
    "verdict=no": "responses without a hallucination",
}
_SYMPTOMS = (
    (held_out.ABSTAINED_ANSWERABLE, 1, "abstaining on answerable questions rose"),
    (held_out.QUOTED, -1, "real quotes fell"),
    (held_out.RECALL_YES, -1, "hallucinations found fell"),
    (held_out.ACCURACY_OF.of("disambig"), -1, "right answers to disambiguated questions fell"),
)
"""Metrics of the embedded tasks, which way is bad, and how that is said."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a task got better, and one or two sentences on what happened."""

    improved: bool
    text: str

    def to_json(self) -> dict[str, Any]:
        """Dict for ``summary.json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Change:
    """What became of a stratum."""

    name: str
    scores: tuple[float, float]
    score_gap: float
    rates: tuple[float, float] | None
    rate_gap: float
    closed: bool

    @property
    def fell(self) -> bool:
        return self.score_gap < -ERRORS or self.rate_gap < -ERRORS

    @property
    def rose(self) -> bool:
        return not self.fell and (self.score_gap > ERRORS or self.rate_gap > ERRORS)

    def words(self, verb: str = "") -> str:
        by_rate = self.rates is not None and (abs(self.rate_gap) > ERRORS or abs(self.score_gap) <= ERRORS)
        before, after = self.rates if by_rate and self.rates else self.scores
        shape = _percent if by_rate else "{:+.2f}".format
        return f"{self.name}{verb} from {shape(before)} to {shape(after)}"


def judge(stages: Mapping[str, Mapping[str, Any]]) -> Verdict | None:
    """Return the verdict on a task, or ``None`` where fewer than two stages were evaluated.

    Args:
        stages: The task's results by stage, as in ``summary.json``.  Those of old runs, which know neither strata nor
            constant answers, are read as well; such a run is never called better.
    """
    there = [stages[stage] for stage in STAGES if stage in stages and stages[stage].get("n", 1)]
    if len(there) < 2:
        return None
    before, after = there[-2:]
    if after.get("n", LEAST) < LEAST:
        return Verdict(False, f"Too few held-out items to tell: {after['n']}.")
    changes = list(_changes(before, after))
    hints = list(_symptoms(before, after))
    gap, words = _overall(before, after)
    if gap < -ERRORS:
        return Verdict(False, _sentence(f"the {words} fell", _strata(changes), *hints))
    unread = _not_over(after)
    if unread:
        return Verdict(False, _sentence(unread, _strata(changes), *hints))
    if any(change.fell for change in changes):
        return Verdict(False, _sentence(_strata(changes), *hints))
    if gap <= ERRORS:
        return Verdict(False, _sentence(f"no measurable change: the {words}", *hints))
    if "over_constant" not in after:
        text = f"the {words} rose, but nobody looked what a constant answer scores: it may be no more than that"
        return Verdict(False, _sentence(text, *hints))
    rose = [change for change in changes if change.rose]
    if rose and all(change.closed for change in rose):
        still = [change.words(" went") for change in changes if not change.rose]
        text = f"better only on {_listed(c.words() for c in rose)}, where {_answer(after)} does as well"
        return Verdict(False, _sentence(text, *still, *hints))
    over = after["over_constant"]["score"]
    what = f"better: the {words} rose, and is {over:.2f} above {_answer(after)}"
    better = f"better on {_listed(c.words() for c in rose)}" if rose else ""
    return Verdict(True, _sentence(what, better, f"but {', '.join(hints)}" if hints else ""))


def short(answer: str) -> str:
    """Return an answer for a sentence: one line, quoted, at most 100 characters."""
    line = " / ".join(" ".join(line.split()) for line in answer.splitlines() if line.strip())
    return f"'{line if len(line) <= SHOWN else line[: SHOWN - 3].rstrip() + '...'}'" if line else "nothing"


def _overall(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, str]:
    """Change of the balanced score (the score, in old runs) in standard errors, and its words."""
    both = "balanced" in before and "balanced" in after
    one, two = (result["balanced"] if both else result for result in (before, after))
    name = "balanced score" if both and len(after.get("strata", {})) > 1 else "score"
    return _gap(one, two), f"{name} ({one['score']:+.2f} before, {two['score']:+.2f} now)"


def _gap(one: Mapping[str, Any], two: Mapping[str, Any]) -> float:
    """Difference of two estimates in standard errors of it."""
    return _ratio(two["score"] - one["score"], math.hypot(one["se"], two["se"]))


def _ratio(difference: float, error: float) -> float:
    return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0


def _not_over(after: Mapping[str, Any]) -> str:
    """Say that a constant answer is as good, where it is."""
    over = after.get("over_constant")
    if over is None:
        return ""
    if over["score"] <= ERRORS * over["se"]:
        theirs, mine = after["constant"]["score"], after["score"]
        return f"no better than {_answer(after)} (which scores {theirs:+.2f}, the policy {mine:+.2f})"
    fair = over.get("balanced", over)
    if fair["score"] <= ERRORS * fair["se"]:
        return "no better than a constant answer where each stratum counts alike"
    return ""


def _answer(after: Mapping[str, Any]) -> str:
    return f"always answering {short(after['constant']['answer'])}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[_Change]:
    old, new = before.get("strata", {}), after.get("strata", {})
    if len(new) < 2:
        return
    for name in new:
        if name not in old or min(old[name]["n"], new[name]["n"]) < LEAST:
            continue
        one, two = old[name], new[name]
        rate = next((r for r in RATES if r in one["metrics"] and r in two["metrics"]), None)
        rates = (one["metrics"][rate], two["metrics"][rate]) if rate else None
        over = two.get("over_constant")
        yield _Change(
            stratum_words(name),
            (one["score"], two["score"]),
            _gap(one, two),
            rates,
            _rate_gap(rates, one["n"], two["n"]) if rates else 0.0,
            over is not None and over["score"] <= ERRORS * over["se"],
        )


def stratum_words(name: str) -> str:
    """Return what the prompts of a stratum (``key=value``) are called in a sentence."""
    key, _, value = name.partition("=")
    return _STRATA.get(name) or f"prompts with {key} {value!r}"


def _rate_gap(rates: tuple[float, float], n: int, m: int) -> float:
    """Difference of two shares in standard errors; one success and one failure are added to each (Agresti-Caffo)."""
    p, q = ((rate * count + 1) / (count + 2) for rate, count in zip(rates, (n, m), strict=True))
    return (q - p) / math.sqrt(p * (1 - p) / (n + 2) + q * (1 - q) / (m + 2))


def _symptoms(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = before.get("metrics", {}), after.get("metrics", {})
    for name, bad, words in _SYMPTOMS:
        if name in old and name in new and bad * (new[name] - old[name]) > MOVED:
            yield f"{words} from {_percent(old[name])} to {_percent(new[name])}"


def _strata(changes: Sequence[_Change]) -> str:
    """Say which strata rose and which fell; nothing where none moved."""
    rose, fell = [c for c in changes if c.rose], [c for c in changes if c.fell]
    parts = [f"better only on {_listed(c.words() for c in rose)}"] if rose and len(rose) < len(changes) else []
    parts += [_listed(c.words(" fell") for c in fell)] if fell else []
    return "; ".join(parts)


def _listed(texts: Iterator[str]) -> str:
    return ", ".join(texts)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _sentence(*parts: str) -> str:
    text = "; ".join(dict.fromkeys(part for part in parts if part))
    return f"{text[:1].upper()}{text[1:]}."
