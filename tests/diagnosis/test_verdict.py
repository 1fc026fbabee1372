"""The verdict on a run: "better" is said of reading, never of one sentence or of a base rate."""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

import pytest

from levelhead.diagnosis.findings import read_texts
from levelhead.diagnosis.verdict import WORDS, judge, said, short, stratum_words

ABSTAIN = "Evidence: none\nAnswer: unknown"


def estimate(score: float, se: float = 0.02) -> dict[str, float]:
    return {"score": score, "se": se}


def stratum(score: float, over: float, n: int = 200, se: float = 0.02, **metrics: float) -> dict[str, Any]:
    return {**estimate(score, se), "n": n, "metrics": metrics, "over_constant": estimate(over)}


def result(
    score: float, over: float, balanced: float, strata: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    return {
        **estimate(score),
        "n": 512,
        "metrics": {},
        "balanced": estimate(balanced),
        "constant": {"answer": ABSTAIN, **estimate(score - over)},
        "over_constant": {**estimate(over), "balanced": estimate(over)},
        "strata": strata or {},
        **keys,
    }


def old_faithfulness() -> dict[str, Any]:
    """The first demo: 99% abstaining, and a reward that quadrupled."""
    before = result(
        -0.614,
        -0.534,
        -0.34,
        {
            "answerable=yes": stratum(-0.68, -0.28, 407, exact_match=0.18, abstained=0.18),
            "answerable=no": stratum(-0.3, -1.3, 105, se=0.07, exact_match=0.3, abstained=0.3),
        },
        metrics={"abstained/answerable": 0.18, "quoted": 0.16},
    )
    after = result(
        -0.122,
        -0.042,
        0.29,
        {
            "answerable=yes": stratum(-0.4, 0.0, 407, se=0.001, exact_match=0.0, abstained=0.99),
            "answerable=no": stratum(0.98, -0.02, 105, exact_match=0.99, abstained=0.99),
        },
        metrics={"abstained/answerable": 0.99, "quoted": 0.0},
    )
    return {"sft": before, "grpo": after}


def old_fairness() -> dict[str, Any]:
    """The same demo: what rose is where the constant answer is right as well."""
    before = result(
        0.238,
        -0.08,
        0.24,
        {
            "condition=ambig": stratum(0.6, -0.4, 244, accuracy=0.81),
            "condition=disambig": stratum(-0.12, 0.18, 268, se=0.05, accuracy=0.36),
        },
    )
    after = result(
        0.416,
        0.096,
        0.43,
        {
            "condition=ambig": stratum(0.98, -0.02, 244, accuracy=0.99),
            "condition=disambig": stratum(-0.1, 0.2, 268, se=0.05, accuracy=0.375),
        },
    )
    return {"sft": before, "grpo": after}


def test_a_policy_that_abstains_on_everything_is_not_better() -> None:
    verdict = judge(old_faithfulness())
    assert verdict is not None
    assert not verdict.improved
    assert "no better than always answering 'Evidence: none / Answer: unknown'" in verdict.text.replace("No", "no")
    assert "better only on questions whose answer is 'unknown' from 30% to 99%" in verdict.text
    assert "answerable questions fell from 18% to 0%" in verdict.text
    assert "real quotes fell from 16% to 0%" in verdict.text


def test_a_gain_where_the_constant_answer_is_right_as_well_is_not_reading() -> None:
    verdict = judge(old_fairness())
    assert verdict is not None
    assert not verdict.improved
    assert "Better only on ambiguous questions from 81% to 99%" in verdict.text
    assert "disambiguated questions went from 36% to 37.5%" in verdict.text


@pytest.mark.parametrize("stages", [old_faithfulness, old_fairness])
def test_old_summaries_are_read_and_never_called_better(stages: Any) -> None:
    plain = {stage: {key: found[key] for key in ("score", "se", "n", "metrics")} for stage, found in stages().items()}
    verdict = judge(plain)
    assert verdict is not None
    assert not verdict.improved
    assert "nobody looked what a constant answer scores" in verdict.text


def reader() -> dict[str, Any]:
    before = result(
        0.1,
        0.1,
        0.15,
        {
            "answerable=yes": stratum(-0.1, 0.3, exact_match=0.45),
            "answerable=no": stratum(0.4, -0.6, exact_match=0.7),
        },
    )
    after = result(
        0.4,
        0.4,
        0.45,
        {
            "answerable=yes": stratum(0.4, 0.8, exact_match=0.7),
            "answerable=no": stratum(0.5, -0.5, exact_match=0.75),
        },
    )
    return {"start": before, "sft": before, "grpo": after}


def test_a_policy_that_reads_better_is_better() -> None:
    verdict = judge(reader())
    assert verdict is not None
    assert verdict.improved
    assert verdict.text.startswith("Better: the balanced score (+0.15 before, +0.45 now) rose")


def test_what_went_wrong_beside_a_gain_is_said_too() -> None:
    before = result(-0.2, 0.1, -0.2, metrics={"abstained/answerable": 0.17, "recall/yes": 0.4})
    after = result(0.2, 0.3, 0.2, metrics={"abstained/answerable": 0.97, "recall/yes": 0.1})
    verdict = judge({"sft": before, "grpo": after})
    assert verdict is not None
    assert verdict.improved
    assert "but abstaining on answerable questions rose from 17% to 97%" in verdict.text
    assert "hallucinations found fell from 40% to 10%" in verdict.text


def test_a_stratum_that_falls_spoils_it() -> None:
    stages = reader()
    stages["grpo"]["strata"]["answerable=no"] = stratum(0.2, -0.8, exact_match=0.5)
    verdict = judge(stages)
    assert verdict is not None
    assert not verdict.improved
    assert "'unknown' fell from" in verdict.text


def test_right_answers_that_fall_count_where_the_price_of_abstaining_hides_it() -> None:
    stages = reader()
    stages["grpo"]["strata"]["answerable=yes"] = stratum(0.4, 0.8, exact_match=0.2)
    verdict = judge(stages)
    assert verdict is not None
    assert not verdict.improved
    assert "answerable questions fell from 45% to 20%" in verdict.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"balanced": estimate(0.16)}, "No measurable change"),
        ({"balanced": estimate(0.18)}, "Undecided whether the balanced score (+0.15 before, +0.18 now) changed"),
        ({"balanced": estimate(-0.2)}, "The balanced score (+0.15 before, -0.20 now) fell"),
        ({"over_constant": {**estimate(0.003), "balanced": estimate(0.3)}}, "No better than always answering"),
        ({"over_constant": {**estimate(-0.03), "balanced": estimate(0.3)}}, "No better than always answering"),
        ({"over_constant": {**estimate(0.03), "balanced": estimate(0.3)}}, "Undecided whether better than always"),
        ({"over_constant": {**estimate(0.3), "balanced": estimate(-0.03)}}, "No better than a constant answer where"),
        ({"over_constant": {**estimate(0.3), "balanced": estimate(0.03)}}, "Undecided whether better than a constant"),
        ({"n": 3}, "Too few held-out items to tell: 3, and 30 or more are wanted"),
    ],
)
def test_what_is_not_better_is_said_in_plain_words(change: dict[str, Any], words: str) -> None:
    stages = reader()
    stages["grpo"] |= change
    verdict = judge(stages)
    assert verdict is not None
    assert not verdict.improved
    assert words in verdict.text


def few(n: int, mine: float, theirs: float, se: float, before: float = 0.1) -> dict[str, Any]:
    """A task without strata: the policy and the best constant answer on so many items."""

    def stage(score: float) -> dict[str, Any]:
        over = estimate(score - theirs, se)
        return {
            **estimate(score, se),
            "n": n,
            "metrics": {},
            "balanced": estimate(score, se),
            "constant": {"answer": "Sam", **estimate(theirs, se)},
            "over_constant": {**over, "balanced": over},
        }

    return {"sft": stage(before), "grpo": stage(mine)}


@pytest.mark.parametrize(
    ("stages", "outcome"),
    [
        (few(2, -1.0, 0.0, 0.0), "undecided"),  # fell, without any error, on two items
        (few(2, 1.0, 0.0, 0.0), "undecided"),
        (few(100, 0.44, 0.33, 0.11), "undecided"),  # one standard error above
        (few(9, 0.44, 0.33, 0.11), "undecided"),
        (few(20, 0.30, 0.33, 0.11), "undecided"),  # below, on few items
        (few(100, 0.30, 0.33, 0.11), "not improved"),
        (few(100, 0.34, 0.33, 0.11), "not improved"),  # 484 times the items would be needed
        (few(100, 0.60, 0.33, 0.11, before=0.55), "not improved"),
        (few(100, 0.60, 0.33, 0.11, before=0.45), "undecided"),
        (few(100, 0.60, 0.33, 0.11, before=0.10), "improved"),
        (few(9, 0.90, 0.33, 0.11, before=0.10), "improved"),
        (few(100, -0.5, 0.33, 0.11, before=0.10), "worse"),
    ],
)
def test_a_yes_or_no_is_said_only_where_the_errors_allow_one(stages: dict[str, Any], outcome: str) -> None:
    verdict = judge(stages)
    assert verdict is not None
    assert verdict.outcome == outcome
    assert verdict.to_json()["improved"] is (outcome == "improved")
    assert verdict.text.startswith(("Undecided", "Too few")) is (outcome == "undecided")


def test_an_undecided_verdict_names_the_items_that_would_settle_it() -> None:
    verdict = judge(few(100, 0.44, 0.33, 0.11))
    assert verdict is not None
    assert "(which scores +0.33, the policy +0.44): the difference is 1.0 standard errors" in verdict.text
    assert "about 400 held-out items would tell" in verdict.text  # 2 errors: four times the items


def test_one_stage_is_no_change() -> None:
    assert judge({"start": reader()["sft"]}) is None


def test_words() -> None:
    assert short(ABSTAIN) == "'Evidence: none / Answer: unknown'"
    assert short(" \n") == "nothing"
    assert len(short("word " * 40)) == 102
    assert stratum_words("domain=math") == "prompts with domain 'math'"


CHINESE = re.compile("[\u4e00-\u9fff]")
QUOTED = re.compile("\u201c.*?\u201d")


@pytest.mark.parametrize(
    "stages",
    [
        {"sft": reader()["sft"], "grpo": reader()["grpo"]},
        old_faithfulness(),
        old_fairness(),
        {"sft": old_fairness()["grpo"], "grpo": old_fairness()["sft"]},
        {stage: {"score": score, "se": 0.01, "n": 99} for stage, score in (("sft", 0.1), ("grpo", 0.5))},
        {stage: {"score": 0.1, "se": 0.01, "n": 99} for stage in ("sft", "grpo")},
        {stage: {"score": 0.1, "se": 0.01, "n": 3} for stage in ("sft", "grpo")},
    ],
)
def test_a_verdict_is_said_in_chinese_with_no_english_word(stages: dict[str, Any]) -> None:
    english, chinese = judge(stages), judge(stages, "zh")
    assert english is not None
    assert chinese is not None
    assert chinese.improved == english.improved
    assert said(english.text, stages, "zh") == chinese.text
    bare = QUOTED.sub("", chinese.text)
    assert CHINESE.search(bare)
    assert not re.search("[A-Za-z]{2,}", bare.replace("unknown", "")), bare
    assert re.findall(r"\d+(?:\.\d+)?", bare) == re.findall(r"\d+(?:\.\d+)?", re.sub("'.*?'", "", english.text))


def test_a_verdict_of_another_version_stays_as_it_was_written() -> None:
    assert said("Something else.", old_fairness(), "zh") == "Something else."
    assert said("Something else.", {"sft": {"score": "x"}, "grpo": {}}, "zh") == "Something else."


def test_every_sentence_of_a_verdict_has_the_same_places_in_both_languages() -> None:
    def places(words: str) -> set[str]:
        return {name for _, name, _, _ in Formatter().parse(words) if name}

    for key, text in read_texts(WORDS, "words").items():
        assert places(text.en) == places(text.zh), key
