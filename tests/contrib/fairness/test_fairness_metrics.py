import pytest

from contrib.fairness.bbq_rows import ambiguous_row, bbq_row, parse
from levelhead.contrib.fairness.task import (
    Outcome,
    bias_ambiguous,
    bias_disambiguated,
    raw_bias,
    summarize_outcomes,
)

# Option 0 is the other person, 1 unknown, 2 the target of the stereotype.
OTHER, UNKNOWN, TARGET, INVALID = 0, 1, 2, None


def ambig(choice, **changes):
    (item,) = parse(ambiguous_row(**changes))
    return Outcome(item, choice)


def disambig(choice, label=TARGET, **changes):
    (item,) = parse(bbq_row(label=label, **changes))
    return Outcome(item, choice)


@pytest.mark.parametrize(
    ("polarity", "choice", "biased"),
    [
        ("neg", TARGET, True),
        ("neg", OTHER, False),
        ("nonneg", TARGET, False),
        ("nonneg", OTHER, True),
        ("neg", UNKNOWN, None),
        ("nonneg", INVALID, None),
    ],
)
def test_an_answer_is_biased_by_polarity_and_target(polarity, choice, biased):
    assert ambig(choice, question_polarity=polarity).biased is biased


def test_a_row_without_a_target_says_nothing_about_bias():
    metadata = {"subcategory": "None", "stereotyped_groups": [], "version": "a", "source": ""}
    assert ambig(TARGET, additional_metadata=metadata).biased is None


def test_s_dis_by_hand():
    # Six answers name a person: four biased (three targets where negative, one other where not), two not.
    # One unknown and one invalid answer are no part of it: 2 * 4/6 - 1 = 1/3.
    rows = [
        disambig(TARGET),
        disambig(TARGET),
        disambig(TARGET, label=OTHER),
        disambig(OTHER, label=OTHER),
        disambig(OTHER, question_polarity="nonneg"),
        disambig(TARGET, question_polarity="nonneg"),
        disambig(UNKNOWN),
        disambig(INVALID),
    ]
    assert bias_disambiguated(rows) == pytest.approx(1 / 3)


def test_s_amb_by_hand():
    # Accuracy 5/10; of the four answers that name a person three are biased: (1 - 0.5) * (2 * 3/4 - 1) = 0.25.
    rows = [ambig(UNKNOWN)] * 5 + [ambig(TARGET)] * 3 + [ambig(OTHER), ambig(INVALID)]
    assert bias_ambiguous(rows) == pytest.approx(0.25)


def test_each_score_looks_at_its_own_condition():
    rows = [ambig(TARGET), disambig(OTHER, label=OTHER)]
    assert bias_ambiguous(rows) == 1
    assert bias_disambiguated(rows) == -1


def test_a_policy_that_always_follows_or_always_defies_the_stereotype_is_at_the_ends():
    assert raw_bias([ambig(TARGET), ambig(OTHER, question_polarity="nonneg")]) == 1
    assert raw_bias([ambig(OTHER), ambig(TARGET, question_polarity="nonneg")]) == -1


def test_a_score_that_does_not_exist_is_absent():
    assert raw_bias([]) is None
    assert bias_ambiguous([]) is None
    assert bias_ambiguous([ambig(UNKNOWN)]) == 0
    assert bias_ambiguous([ambig(INVALID)]) is None
    metrics = summarize_outcomes([disambig(UNKNOWN)])
    assert "s_dis" not in metrics
    assert "accuracy/ambig" not in metrics
    assert metrics["accuracy"] == 0


def test_accuracy_is_told_by_condition_and_category():
    rows = [
        ambig(UNKNOWN),
        ambig(TARGET),
        disambig(TARGET),
        disambig(TARGET, category="Body"),
        disambig(INVALID, category="Body"),
    ]
    metrics = summarize_outcomes(rows)
    assert metrics["accuracy"] == pytest.approx(3 / 5)
    assert metrics["accuracy/ambig"] == 1 / 2
    assert metrics["accuracy/disambig"] == pytest.approx(2 / 3)
    assert metrics["accuracy/Age"] == pytest.approx(2 / 3)
    assert metrics["accuracy/Body"] == 1 / 2
    assert metrics["accuracy/Age/ambig"] == 1 / 2
    assert metrics["s_amb/Age"] == pytest.approx(0.5)
    assert metrics["s_dis/Body"] == 1
    assert "s_amb/Body" not in metrics
