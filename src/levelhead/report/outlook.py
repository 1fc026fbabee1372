"""The first screen of the page: what was learnt by stratum against the baseline, what was not, what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.verdict import stratum_words
from levelhead.report.language import say
from levelhead.report.markup import esc, signed, tag
from levelhead.report.nextsteps import next_steps
from levelhead.report.reading import Run
from levelhead.report.standings import Standing, errors_of, standings

MOST = 5
"""Strata of a column."""


def outlook(run: Run, language: Language = "en") -> str:
    """Return three columns as markup: learnt, not learnt, what to do next; empty for a run without a held-out score."""
    rows = standings(run)
    steps = next_steps(run, language)
    if not rows and not steps:
        return ""
    learnt = sorted((row for row in rows if row.learnt), key=lambda row: -errors_of(row.over) if row.over else 0.0)
    rest = sorted((row for row in rows if not row.learnt), key=lambda row: row.over.value if row.over else 0.0)
    ways = [tag("li", esc(step.text), tag("code", esc(step.code)) if step.code else "", cls="way") for step in steps]
    columns = [
        _column("learnt", learnt, "none-learnt", language),
        _column("not-learnt", rest, "none-left", language),
        tag("div", tag("h2", esc(say("next", language))), tag("ol", *ways), cls="next"),
    ]
    return tag("section", *(columns if rows else columns[2:]), cls="outlook", id="outlook")


def _column(kind: str, rows: Sequence[Standing], nothing: str, language: Language) -> str:
    head = tag("h2", esc(say(kind, language)), tag("span", esc(say(f"{kind}-hint", language)), cls="muted"))
    shown = [_row(row, language) for row in rows[:MOST]]
    more = say("more", language, n=len(rows) - MOST) if len(rows) > MOST else ""
    body = tag("ul", *shown) if shown else tag("p", esc(say(nothing, language)), cls="muted")
    return tag("div", head, body, tag("p", esc(more), cls="muted") if more else "", cls=kind)


def _row(row: Standing, language: Language) -> str:
    name = stratum_words(row.stratum, language) if row.stratum else say("all-items", language)
    if row.constant is None:
        beside = say("unmeasured", language)
    else:
        as_well = not (row.learnt or row.fell or row.at_chance)
        words = "undecided" if row.side == "undecided" else "as-well" if as_well else "constant"
        beside = say(words, language, constant=signed(row.constant.value))
    if row.fell and row.before is not None:
        beside += ", " if language == "en" else "\uff0c"
        beside += say("was", language, before=signed(row.before.value))
    return tag(
        "li",
        tag("span", tag("b", esc(row.task)), " ", esc(name)),
        tag("span", tag("b", esc(signed(row.score.value))), tag("span", esc(beside), cls="muted"), cls="figures"),
    )
