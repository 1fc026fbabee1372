import pytest

from contrib.faithfulness.halueval_rows import QA, VERDICT_NO, VERDICT_YES, parse
from levelhead.contrib.faithfulness.data import withhold
from levelhead.contrib.faithfulness.scoring import score_answer
from levelhead.contrib.faithfulness.task import summarize_outcomes

ITEM = parse(QA)
OPEN = withhold(ITEM, 1.0)
YES, NO = parse(VERDICT_YES), parse(VERDICT_NO)
QUOTE = '"The clock stands in the town of Brill."'


def outcome(item, answer, quote=QUOTE):
    return item, score_answer(f"Answer: {answer}\nEvidence: {quote}", item)


def test_question_metrics_by_hand():
    rows = [
        outcome(ITEM, "Ida Fenn"),
        outcome(ITEM, "Ida"),
        outcome(ITEM, "Hugo Stark", '"made up"'),
        outcome(ITEM, "unknown", "none"),
        (ITEM, score_answer("gibberish", ITEM)),
        outcome(OPEN, "unknown", "none"),
        outcome(OPEN, "unknown", "none"),
        outcome(OPEN, "Ida Fenn"),
    ]
    metrics = summarize_outcomes(rows)
    assert metrics["exact_match"] == 3 / 8
    assert metrics["f1"] == pytest.approx((1 + 2 / 3 + 1 + 1) / 8)
    assert metrics["quoted"] == 2 / 5
    assert metrics["hallucinated"] == 2 / 8
    assert metrics["abstained/answerable"] == 1 / 5
    assert metrics["abstained/unanswerable"] == 2 / 3
    assert metrics["exact_match/qa"] == metrics["exact_match"]
    assert "recall/yes" not in metrics


def test_verdict_metrics_by_hand():
    quote = '"Both are long and well known."'
    rows = [outcome(YES, "yes", quote), *[outcome(NO, "no")] * 3, outcome(NO, "yes"), outcome(YES, "no", quote)]
    metrics = summarize_outcomes(rows)
    assert metrics["recall/yes"] == 1 / 2
    assert metrics["recall/no"] == 3 / 4
    assert metrics["balanced_accuracy"] == 5 / 8
    assert metrics["exact_match/general"] == 4 / 6
    assert "abstained/answerable" not in metrics


def test_a_number_that_does_not_exist_is_absent():
    assert summarize_outcomes([]) == {}
    metrics = summarize_outcomes([outcome(OPEN, "unknown", "none")])
    assert "quoted" not in metrics
    assert "abstained/answerable" not in metrics
    assert "balanced_accuracy" not in summarize_outcomes([outcome(YES, "yes")])
