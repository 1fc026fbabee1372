"""What a faithful policy is measured by: right answers, real quotes, abstaining where it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levelhead.records import Score
from levelhead.tasks.faithfulness.data import FaithfulnessItem

Outcome = tuple[FaithfulnessItem, Score]


def summarize_outcomes(outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    """Return every metric that exists for these outcomes; what cannot be parsed counts as wrong.

    Keys, each also with ``/<kind>``: ``exact_match`` and ``f1`` (abstaining being the right answer where the text holds
    none), ``quoted`` (share with a real quote, of the items that have something to quote), ``hallucinated`` (share
    nearer to the hallucinated answer, or answered where there is no answer).  Where there are questions:
    ``abstained/answerable`` and ``abstained/unanswerable``.  Where there are verdicts: ``recall/yes``, ``recall/no``
    and their mean ``balanced_accuracy``.
    """
    found: dict[str, float | None] = {}
    kinds = sorted({item.kind for item, _ in outcomes})
    for suffix, rows in (
        ("", list(outcomes)),
        *((f"/{kind}", [row for row in outcomes if row[0].kind == kind]) for kind in kinds),
    ):
        found[f"exact_match{suffix}"] = _mean(rows, "exact")
        found[f"f1{suffix}"] = _mean(rows, "f1")
        found[f"quoted{suffix}"] = _mean([row for row in rows if row[0].answerable], "quoted")
        found[f"hallucinated{suffix}"] = _mean(rows, "hallucinated")
    open_ended = [row for row in outcomes if row[0].kind != "general"]
    for answerable, name in ((True, "answerable"), (False, "unanswerable")):
        found[f"abstained/{name}"] = _mean([row for row in open_ended if row[0].answerable == answerable], "abstained")
    verdicts = [row for row in outcomes if row[0].kind == "general"]
    recalls = [_mean([row for row in verdicts if row[0].right == label], "exact") for label in ("yes", "no")]
    found["recall/yes"], found["recall/no"] = recalls
    if recalls[0] is not None and recalls[1] is not None:
        found["balanced_accuracy"] = (recalls[0] + recalls[1]) / 2
    return {key: value for key, value in found.items() if value is not None}


def _mean(rows: Sequence[Outcome], key: str) -> float | None:
    return sum(float(score.info.get(key, 0.0)) for _, score in rows) / len(rows) if rows else None
