"""What a run has come to, task by task: better, or only better paid; the terminal, the report and the export use this.

"Better" is said of a task where all of this holds, each by two standard errors of the difference: its balanced score is
above that of the stage before; the policy is above the best constant answer, over all items and over strata alike; no
stratum has fallen, by score or by its rate of right answers; and what rose is not only strata in which the constant
answer is as good.  Where the standard errors allow neither a yes nor a no, the verdict is "undecided", with the number
of held-out items that would settle it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from levelhead.diagnosis import chinese
from levelhead.diagnosis.findings import Language, Text, read_texts
from levelhead.metrics import held_out

STAGES = ("start", "sft", "grpo")
"""Stages in the order of a run."""
ERRORS = 2.0
"""Standard errors of a difference that count."""
LEAST = 8
"""Items of the smallest task, and of the smallest stratum, that is spoken of."""
FEW = 30
"""Items below which no difference is called none, and of which ``levelhead check`` warns."""
WORTH_ASKING = 20
"""A difference that would take more than so many times the items is called none."""
RATES = (held_out.SUCCESS, held_out.ACCURACY, held_out.EXACT_MATCH)
"""Rates of right answers; the first that a stratum has is its rate."""
MOVED = 0.1
"""Change of a symptom's share that is worth a word."""
SHOWN = 100
"""Characters of an answer that are shown."""

WORDS = Path(__file__).with_name("verdict.yaml")
"""The sentences in both languages."""

_SYMPTOMS = (
    (held_out.ABSTAINED_ANSWERABLE, 1, "abstaining"),
    (held_out.QUOTED, -1, "quotes"),
    (held_out.RECALL_YES, -1, "hallucinations"),
    (held_out.ACCURACY_OF.of("disambig"), -1, "disambiguated"),
)
"""Metrics of the embedded tasks, which way is bad, and the key of the words for it."""


Outcome = Literal["improved", "worse", "not improved", "undecided"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a task, and one or two sentences on how."""

    outcome: Outcome
    text: str

    @property
    def improved(self) -> bool:
        """Whether the task got better."""
        return self.outcome == "improved"

    def to_json(self) -> dict[str, Any]:
        """The verdict as a dict for ``summary.json``."""
        return {"improved": self.improved, "outcome": self.outcome, "text": self.text}


def compare(difference: float, error: float | None, n: int | None) -> Literal["above", "below", "level", "undecided"]:
    """Return what a difference of two means shows.

    Args:
        difference: Of the means.
        error: Its standard error; ``None`` and 0 where there is none.
        n: Items that it was measured on; taken for enough where ``None``.

    Returns:
        ``above`` or ``below`` where it is beyond two standard errors, ``level`` where more than 20 times the items
        would be needed to see it, and otherwise ``undecided``.
    """
    if n is not None and n < LEAST:
        return "undecided"
    errors = _ratio(difference, error or 0.0)
    if abs(errors) > ERRORS:
        return "above" if errors > 0 else "below"
    if not error:
        return "level"
    few = n is not None and n < FEW
    return "undecided" if few or WORTH_ASKING * errors**2 >= ERRORS**2 else "level"


def items_needed(errors: float, n: int) -> int:
    """Return about how many items would bring a difference to two standard errors: their number squared, times n.

    Args:
        errors: The difference in standard errors, measured on ``n`` items.
        n: Items.
    """
    times = min((ERRORS / errors) ** 2, WORTH_ASKING) if errors else 0.0
    return max(FEW, math.ceil(n * times / 10 - 1e-9) * 10)


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

    def words(self, say: _Say, key: str = "from-to") -> str:
        by_rate = self.rates is not None and (abs(self.rate_gap) > ERRORS or abs(self.score_gap) <= ERRORS)
        before, after = self.rates if by_rate and self.rates else self.scores
        shape = _percent if by_rate else "{:+.2f}".format
        return say(key, name=say.stratum(self.name), before=shape(before), after=shape(after))


class _Say:
    """Words of a verdict in one language."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def __call__(self, key: str, /, **values: object) -> str:
        return _words()[key].get(self.language).format(**values)

    def stratum(self, name: str) -> str:
        key, _, value = name.partition("=")
        return self(name) if name in _words() and value else self("stratum", key=key, value=value)

    def listed(self, texts: Iterator[str]) -> str:
        return (", " if self.language == "en" else "、").join(texts)

    def sentence(self, *parts: str) -> str:
        mark, end = ("; ", ".") if self.language == "en" else ("\uff1b", "。")
        text = mark.join(dict.fromkeys(part for part in parts if part))
        return f"{text[:1].upper()}{text[1:]}{end}"


@functools.cache
def _words() -> Mapping[str, Text]:
    return read_texts(WORDS, "words")


def judge(stages: Mapping[str, Mapping[str, Any]], language: Language = "en") -> Verdict | None:
    """Return the verdict on a task, or ``None`` where fewer than two stages were evaluated.

    Args:
        stages: The task's results by stage, as in ``summary.json``.  Those of old runs, which know neither strata nor
            constant answers, are read as well; such a run is never called better.
        language: Of the sentences.
    """
    say = _Say(language)
    there = [stages[stage] for stage in STAGES if stage in stages and stages[stage].get("n", 1)]
    if len(there) < 2:
        return None
    before, after = there[-2:]
    if after.get("n", LEAST) < LEAST:
        return Verdict("undecided", say.sentence(say("too-few", n=after["n"], needed=FEW)))
    changes = list(_changes(before, after))
    hints = list(_symptoms(before, after, say))
    change, errors, what = _overall(before, after, say)
    if change == "below":
        return Verdict("worse", say.sentence(say("fell", what=what), _strata(changes, say), *hints))
    if cheap := after.get("shortcut"):
        paid = say(
            "paid", share=_percent(cheap["share"]), text=short(cheap["answer"], language), how=say(cheap["kind"])
        )
        return Verdict("not improved", say.sentence(paid, _strata(changes, say), *hints))
    over, unread = _over_constant(after, say)
    if over == "below":
        return Verdict("not improved", say.sentence(unread, _strata(changes, say), *hints))
    if any(one.fell for one in changes):
        return Verdict("not improved", say.sentence(_strata(changes, say), *hints))
    if over == "undecided":
        return Verdict("undecided", say.sentence(unread, _strata(changes, say), *hints))
    if change == "undecided":
        needed = items_needed(errors, after.get("n", FEW))
        unclear = say("unclear-change", what=what, errors=abs(errors), needed=needed)
        return Verdict("undecided", say.sentence(unclear, *hints))
    if change == "level":
        return Verdict("not improved", say.sentence(say("no-change", what=what), *hints))
    if "over_constant" not in after:
        return Verdict("not improved", say.sentence(say("unmeasured", what=what), *hints))
    return _risen(after, changes, hints, what, say)


def _risen(after: Mapping[str, Any], changes: Sequence[_Change], hints: Sequence[str], what: str, say: _Say) -> Verdict:
    """Judge a task whose score has risen above every constant answer's, no stratum having fallen."""
    rose = [change for change in changes if change.rose]
    strata = say.listed(c.words(say) for c in rose)
    if rose and all(change.closed for change in rose):
        still = [change.words(say, "went-from-to") for change in changes if not change.rose]
        return Verdict(
            "not improved", say.sentence(say("closed", strata=strata, answer=_answer(after, say)), *still, *hints)
        )
    better = say("better", what=what, over=after["over_constant"]["score"], answer=_answer(after, say))
    where = say("better-on", strata=strata) if rose else ""
    return Verdict("improved", say.sentence(better, where, say("but", hints=say.listed(iter(hints))) if hints else ""))


def said(text: str, stages: Mapping[str, Mapping[str, Any]], language: Language) -> str:
    """Return the text of a verdict in a language.

    Args:
        text: As ``summary.json`` has it, in English.
        stages: The task's results by stage.
        language: Of the reader; a text that these results do not give (another version judged) stays as it is.
    """
    try:
        own, other = judge(stages), judge(stages, language)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # a damaged summary, or one made by hand
        return text
    return other.text if own is not None and other is not None and own.text == text else text


def short(answer: str, language: Language = "en") -> str:
    """Return an answer for a sentence: one line, quoted, at most 100 characters."""
    say = _Say(language)
    line = " / ".join(" ".join(line.split()) for line in answer.splitlines() if line.strip())
    if " " in line:  # words for what a policy does, and no answer of one word
        line = chinese.said(line, language)
    return (
        say("quoted", text=line if len(line) <= SHOWN else line[: SHOWN - 3].rstrip() + "...")
        if line
        else say("nothing")
    )


def _overall(before: Mapping[str, Any], after: Mapping[str, Any], say: _Say) -> tuple[str, float, str]:
    """What became of the balanced score (the score, in old runs), in standard errors, and its words."""
    both = "balanced" in before and "balanced" in after
    one, two = (result["balanced"] if both else result for result in (before, after))
    name = "balanced" if both and len(after.get("strata", {})) > 1 else "score"
    change = compare(two["score"] - one["score"], math.hypot(one["se"], two["se"]), after.get("n"))
    return change, _gap(one, two), say(name, before=one["score"], after=two["score"])


def _gap(one: Mapping[str, Any], two: Mapping[str, Any]) -> float:
    """Difference of two estimates in standard errors of it."""
    return _ratio(two["score"] - one["score"], math.hypot(one["se"], two["se"]))


def _ratio(difference: float, error: float) -> float:
    return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0


def _over_constant(after: Mapping[str, Any], say: _Say) -> tuple[str, str]:
    """Whether the policy is above the best constant answer: above, below (or level), undecided; and why it is not."""
    over = after.get("over_constant")
    if over is None:
        return "above", ""
    theirs, n = {"theirs": after["constant"]["score"], "mine": after["score"]}, after.get("n")
    even = over.get("balanced", over)
    for gap, level, unclear in ((over, "not-over", "unclear-over"), (even, "not-over-evenly", "unclear-over-evenly")):
        side, errors = compare(gap["score"], gap["se"], n), _ratio(gap["score"], gap["se"])
        if side == "undecided" and (errors > 0 or (n is not None and n < FEW)):
            shown = {"errors": errors, "needed": items_needed(errors, n or FEW)}
            return "undecided", say(unclear, answer=_answer(after, say), **theirs, **shown)
        if side != "above":
            return "below", say(level, answer=_answer(after, say), **theirs)
    return "above", ""


def _answer(after: Mapping[str, Any], say: _Say) -> str:
    return say("always", text=short(after["constant"]["answer"], say.language))


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
            name,
            (one["score"], two["score"]),
            _gap(one, two),
            rates,
            _rate_gap(rates, one["n"], two["n"]) if rates else 0.0,
            over is not None and over["score"] <= ERRORS * over["se"],
        )


def stratum_words(name: str, language: Language = "en") -> str:
    """Return what the prompts of a stratum (``key=value``) are called in a sentence."""
    return _Say(language).stratum(name)


def _rate_gap(rates: tuple[float, float], n: int, m: int) -> float:
    """Difference of two shares in standard errors; one success and one failure are added to each (Agresti-Caffo)."""
    p, q = ((rate * count + 1) / (count + 2) for rate, count in zip(rates, (n, m), strict=True))
    return (q - p) / math.sqrt(p * (1 - p) / (n + 2) + q * (1 - q) / (m + 2))


def _symptoms(before: Mapping[str, Any], after: Mapping[str, Any], say: _Say) -> Iterator[str]:
    old, new = before.get("metrics", {}), after.get("metrics", {})
    for name, bad, key in _SYMPTOMS:
        if name in old and name in new and bad * (new[name] - old[name]) > MOVED:
            yield say("symptom", name=say(key), before=_percent(old[name]), after=_percent(new[name]))


def _strata(changes: Sequence[_Change], say: _Say) -> str:
    """Say which strata rose and which fell; nothing where none moved."""
    rose, fell = [c for c in changes if c.rose], [c for c in changes if c.fell]
    some = rose and len(rose) < len(changes)
    parts = [say("better-only-on", strata=say.listed(c.words(say) for c in rose))] if some else []
    parts += [say.listed(c.words(say, "fell-from-to") for c in fell)] if fell else []
    return ("; " if say.language == "en" else "\uff1b").join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
