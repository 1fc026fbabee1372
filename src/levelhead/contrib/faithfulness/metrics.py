"""What a faithful policy is measured by: right answers, real quotes, abstaining where it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from levelhead.contrib.faithfulness.data import FaithfulnessItem
from levelhead.metrics import held_out
from levelhead.records import Score

Outcome = tuple[FaithfulnessItem, Score]


def summarize_outcomes(outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    """Return every metric that exists for these outcomes; what cannot be parsed counts as wrong.

    Keys, each also with ``/<kind>``: ``exact_match`` and ``f1`` (abstaining being the right answer where the text holds
    none), ``quoted`` (share with a real quote, of the items that have something to quote), ``hallucinated`` (share
    nearer to the hallucinated answer, or answered where there is no answer).  Where there are questions:
    ``abstained/answerable`` and ``abstained/unanswerable``.  Where there are verdicts: ``recall/yes``, ``recall/no``
    and their mean ``balanced_accuracy``.
    """
    metrics: dict[str, float | None] = {}
    kinds = sorted({item.kind for item, _ in outcomes})
    metrics |= _shares(list(outcomes), held_out.EXACT_MATCH, held_out.F1, held_out.QUOTED, held_out.HALLUCINATED)
    for kind in kinds:
        names = (held_out.EXACT_MATCH_OF, held_out.F1_OF, held_out.QUOTED_OF, held_out.HALLUCINATED_OF)
        metrics |= _shares([row for row in outcomes if row[0].kind == kind], *(name.of(kind) for name in names))
    open_ended = [row for row in outcomes if row[0].kind != "general"]
    for answerable, name in ((True, held_out.ABSTAINED_ANSWERABLE), (False, held_out.ABSTAINED_UNANSWERABLE)):
        metrics[name] = _mean([row for row in open_ended if row[0].answerable == answerable], "abstained")
    verdicts = [row for row in outcomes if row[0].kind == "general"]
    recalls = [_mean([row for row in verdicts if row[0].right == label], "exact") for label in ("yes", "no")]
    metrics[held_out.RECALL_YES], metrics[held_out.RECALL_NO] = recalls
    if recalls[0] is not None and recalls[1] is not None:
        metrics[held_out.BALANCED_ACCURACY] = (recalls[0] + recalls[1]) / 2
    return {key: value for key, value in metrics.items() if value is not None}


def _shares(rows: Sequence[Outcome], exact: str, f1: str, quoted: str, hallucinated: str) -> dict[str, float | None]:
    """The four shares of some outcomes, under the names that are given."""
    return {
        exact: _mean(rows, "exact"),
        f1: _mean(rows, "f1"),
        quoted: _mean([row for row in rows if row[0].answerable], "quoted"),
        hallucinated: _mean(rows, "hallucinated"),
    }


def _mean(rows: Sequence[Outcome], key: str) -> float | None:
    return sum(float(score.info.get(key, 0.0)) for _, score in rows) / len(rows) if rows else None
