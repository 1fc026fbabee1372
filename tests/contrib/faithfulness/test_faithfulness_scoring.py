import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrib.faithfulness.halueval_rows import DIALOGUE, QA, SUMMARY, VERDICT_NO, VERDICT_YES, parse
from levelhead.contrib.faithfulness.data import FaithfulnessItem, withhold
from levelhead.contrib.faithfulness.scoring import (
    agreement,
    closeness,
    evidence_quality,
    parse_answer,
    perfect_answer,
    score_answer,
)

ITEM = parse(QA)
OPEN = withhold(ITEM, 1.0)
YES, NO = parse(VERDICT_YES), parse(VERDICT_NO)
ALL = [ITEM, OPEN, YES, NO, parse(DIALOGUE), parse(SUMMARY)]
QUOTE = "The Marlow Clock was built in 1842 by Ida Fenn."
OTHER = "The clock stands in the town of Brill."


def total(answer: str, quote: str = f'"{QUOTE}"', item: FaithfulnessItem = ITEM) -> float:
    return score_answer(f"Answer: {answer}\nEvidence: {quote}", item).total


@pytest.mark.parametrize(
    "text",
    [
        f'Answer: Ida Fenn\nEvidence: "{QUOTE}"',
        f"  answer :Ida\n Fenn\n\nEVIDENCE:{QUOTE}  ",
        f"**Answer:** Ida Fenn\n**Evidence:** \u201c{QUOTE}\u201d",
        f'Answer: "Ida Fenn" Evidence: "{QUOTE}"',
        f'Evidence: "{QUOTE}"\nAnswer: Ida Fenn',
        f"__Evidence__: {QUOTE} __Answer:__ Ida Fenn",
    ],
)
def test_shape_and_case_do_not_matter(text):
    parsed = parse_answer(text, ITEM)
    assert parsed is not None
    assert (parsed.answer, parsed.quote) == ("Ida Fenn", QUOTE)
    assert score_answer(text, ITEM).total == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ida Fenn",
        "Answer: Ida Fenn",
        "Answer: Ida Fenn\nEvidence:",
        'Answer: Ida Fenn\nEvidence: "..."',
        f"Answer:\nEvidence: {QUOTE}",
        f"Evidence: {QUOTE}",
        f"Evidence: {QUOTE}\nAnswer: ...",
        f"Evidence: {QUOTE}\nAnswer: Hugo Stark\nAnswer: Ida Fenn",
        f"Well. Evidence: {QUOTE}\nAnswer: Ida Fenn",
        f"I think: Answer: Ida Fenn\nEvidence: {QUOTE}",
        f"Answer: Ida Fenn\nAnswer: Hugo Stark\nEvidence: {QUOTE}",
        f"Answer: Ida Fenn\nEvidence: {QUOTE}\nAnswer: Hugo Stark",
        f"Answer: Ida Fenn\nEvidence: {QUOTE}\nEvidence: {OTHER}",
    ],
)
@pytest.mark.parametrize("item", [ITEM, OPEN])
def test_anything_else_is_invalid_and_scores_the_minimum(text, item):
    score = score_answer(text, item)
    assert not score.valid
    assert score.total == -1
    assert score.parts["format"] == 0


def test_a_real_quote_may_hold_a_label():
    item = parse(VERDICT_NO, chatgpt_response="Here is the sum.\nAnswer: 42 apples in all")
    for text in (
        'Answer: no\nEvidence: "Answer: 42 apples in all"',
        'Evidence: "Answer: 42 apples in all"\nAnswer: no',
    ):
        parsed = parse_answer(text, item)
        assert parsed is not None
        assert (parsed.answer, parsed.quote) == ("no", "Answer: 42 apples in all")


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.kind)
def test_the_oracle_scores_the_maximum_of_every_kind(item):
    assert score_answer(perfect_answer(item), item).total == 1


def test_the_total_by_hand():
    # Right answer, unsupporting quote: a = 1, e = 0.4, d = 1: 2 (0.6 + 0.3 * 0.4 + 0.1) - 1.
    assert total("Ida Fenn", OTHER) == pytest.approx(0.64)
    # Right answer, no quote: 2 (0.6 + 0.1) - 1.
    assert total("Ida Fenn", "none") == pytest.approx(0.4)
    # "Ida": F1 = 2/3, squared 4/9; e = d = 1: 2 (0.6 * 4/9 + 0.3 * (1 + 4/9) / 2 + 0.1) - 1.
    assert total("Ida") == pytest.approx(2 * (0.6 * 4 / 9 + 0.3 * 13 / 18 + 0.1) - 1)
    # Grounded but wrong: a = 0, e = 1 at half worth, d = 1: 2 (0.15 + 0.1) - 1.
    assert total("Brill") == pytest.approx(-0.5)
    # Grounded, wrong and without a real quote: nothing counts.
    assert total("Brill", "none") == -1
    # The hallucination, with a real quote: d = 0.
    assert total("Hugo Stark") == pytest.approx(-0.7)
    assert total("Hugo Stark", "none") == -1


def test_what_a_text_holds_pays_in_the_right_order():
    ladder = [
        total("Ida Fenn"),
        total("Ida Fenn", OTHER),
        total("Ida Fenn", '"Ida Fenn made this clock in 1842."'),
        total("unknown", "none"),
        total("Brill"),
        total("Hugo Stark"),
        total("Hugo Stark", "none"),
    ]
    assert ladder == sorted(ladder, reverse=True)
    assert len(set(ladder)) == len(ladder)


def test_abstaining_is_a_mild_loss_where_the_text_holds_the_answer():
    for phrase in ("unknown", "Unknown.", "Not stated", "the text does not say"):
        assert total(phrase, "none") == -0.4


def test_only_abstaining_is_right_where_the_text_holds_none():
    assert total("unknown", "none", OPEN) == 1
    assert total("unknown", f'"{OTHER}"', OPEN) == pytest.approx(0.7)
    assert total("unknown", '"Nobody knows who built it."', OPEN) == pytest.approx(0.4)
    for answer in ("Ida Fenn", "Hugo Stark", "Brill"):
        assert total(answer, f'"{OTHER}"', OPEN) == -1


def test_a_right_verdict_pays_by_its_quote_and_a_wrong_one_loses():
    assert total("yes", '"are the Loire and the Danube"', YES) == 1
    assert total("yes", '"Both are long and well known."', YES) == pytest.approx(0.64)
    assert total("no", '"are the Loire and the Danube"', YES) == pytest.approx(-0.7)
    assert total("no", '"Red is a colour."', NO) == 1
    for both in ("yes or no", "yes no", "no, that is, yes"):
        assert agreement(both, NO) == agreement(both, YES) == 0


def test_parts_are_kept_apart():
    score = score_answer(f'Answer: Ida Fenn\nEvidence: "{QUOTE}"', ITEM)
    assert score.parts == {"answer": 1.0, "evidence": 1.0, "distance": 1.0, "format": 1.0}
    assert score.info == {"exact": True, "f1": 1.0, "abstained": False, "quoted": True, "hallucinated": False}
    score = score_answer(f'Answer: Hugo Stark\nEvidence: "{QUOTE}"', ITEM)
    assert score.parts == {"answer": 0.0, "evidence": 1.0, "distance": 0.0, "format": 1.0}
    assert score.info["hallucinated"]


@pytest.mark.parametrize(
    ("answer", "near"),
    [
        ("Hugo Stark", 1.0),
        ("The clock was built by Hugo Stark, a famous engineer.", 1.0),
        ("Ida Fenn", 0.0),
        ("Brill", 0.0),
        # "clock", "was", "built", "by" are 4 of 6 tokens; F1 with the right answer is 2 * 2 / 8 = 1/2.
        ("The clock was built by Ida Fenn", 4 / 6 - 0.5),
    ],
)
def test_closeness_to_the_hallucination_by_hand(answer, near):
    assert closeness(answer, ITEM) == pytest.approx(near)


def test_offering_alternatives_is_no_answer():
    for hedge in ("Ida Fenn or Hugo Stark", "Ida Fenn / Hugo Stark", "either Ida Fenn, or Brill"):
        assert agreement(hedge, ITEM) == 0
    guess = (total("Ida Fenn") + total("Hugo Stark")) / 2
    for hedge in ("Ida Fenn and Hugo Stark", "Ida Fenn, Hugo Stark", "Ida Fenn Hugo Stark"):
        assert total(hedge) < guess


def test_an_or_that_belongs_to_the_right_answer_is_none_of_that():
    item = parse(QA, right_answer="either Brill or Marlow")
    assert agreement("Brill or Marlow", item) > 0.5


EVIDENCE_HACKS = {
    "stopword": "the",
    "two stopwords and a word": "in the town",
    "the answer alone": "Ida Fenn",
    "the question": QA["question"],
    "the whole text": QA["knowledge"],
    "made up": "Ida Fenn built the clock of Brill.",
    "one word changed": "The Marlow Clock was built in 1843 by Ida Fenn.",
    "word cut": "he Marlow Clock was built in 1842 by Ida Fen",
    "quote and comment": f"{QUOTE} This proves it.",
    "two quotes": f'{QUOTE}" and "{OTHER}',
    "repeated quote": f"{QUOTE} {QUOTE}",
    "the other sentence": OTHER,
}


@pytest.mark.parametrize("hack", EVIDENCE_HACKS.values(), ids=EVIDENCE_HACKS.keys())
def test_a_hacked_quote_pays_less_than_half_of_a_real_one(hack):
    assert evidence_quality(QUOTE, ITEM) == 1
    assert evidence_quality(hack, ITEM) < 0.5


@pytest.mark.parametrize(
    "name", ["stopword", "two stopwords and a word", "the question", "made up", "one word changed"]
)
def test_a_quote_that_is_none_or_tells_nothing_is_worth_nothing(name):
    assert evidence_quality(EVIDENCE_HACKS[name], ITEM) == 0


def test_a_quote_must_hold_more_than_the_answer():
    item = parse(QA, knowledge="In Brill stands the old stone bridge. It is long.", right_answer="the old stone bridge")
    assert evidence_quality("the old stone bridge", item) == pytest.approx(0.4)
    assert evidence_quality("In Brill stands the old stone bridge.", item) == 1


def test_copying_a_long_text_is_worth_nothing():
    sentence = "The Marlow Clock was built in 1842 by Ida Fenn"
    item = parse(QA, knowledge=" ".join(f"{sentence} {i}." for i in range(30)))
    assert evidence_quality(item.text, item) == 0
    assert evidence_quality(f"{sentence} 3.", item) == 1


@pytest.mark.parametrize(
    "answer",
    [QA["knowledge"], QA["question"], "Ida Ida Ida Ida Fenn Fenn Fenn Fenn", "the", "clock Brill Marlow 1842"],
    ids=["copies the text", "copies the question", "repeats words", "a stopword", "word salad"],
)
def test_a_hacked_answer_pays_less_than_abstaining_or_little_more(answer):
    assert total(answer) < 0 < total("Ida Fenn", "none")


GIBBERISH = st.one_of(
    st.text(max_size=120),
    st.lists(st.sampled_from(["Answer:", "Evidence:", '"', "zork", "blim", "\n", "none", "the"])).map(" ".join),
    st.text("zqxjkvw ", min_size=1, max_size=30).map(lambda text: f"Answer: {text}\nEvidence: {text}"),
)


SALAD = st.lists(st.sampled_from(f"{QA['knowledge']} {QA['hallucinated_answer']} or".split()), min_size=1).map(" ".join)


@settings(deadline=None, max_examples=200)
@given(text=GIBBERISH)
def test_gibberish_never_beats_an_honest_try(text):
    honest = [
        (ITEM, f'Answer: Hugo Stark\nEvidence: "{QUOTE}"'),
        (ITEM, 'Answer: unknown\nEvidence: none'),
        (YES, 'Answer: no\nEvidence: "Both are long and well known."'),
    ]  # fmt: skip
    for item, answer in honest:
        score = score_answer(text, item)
        assert score.valid or score.total == -1
        if not score.info["abstained"]:
            assert score.total <= score_answer(answer, item).total


@settings(deadline=None, max_examples=200)
@given(
    answer=st.lists(st.sampled_from(f"{QA['knowledge']} {QA['hallucinated_answer']} or".split()), min_size=1).map(
        " ".join
    ),
    quote=st.lists(st.sampled_from(QA["knowledge"].split()), min_size=1).map(" ".join),
)
def test_no_salad_of_the_texts_own_words_beats_the_oracle(answer, quote):
    for item in ALL:
        score = score_answer(f"Answer: {answer}\nEvidence: {quote}", item)
        assert -1 <= score.total <= 1
        assert all(0 <= part <= 1 for part in score.parts.values())
    if agreement(answer, ITEM) < 0.9:
        assert total(answer, quote) < 0.9


def test_a_very_long_answer_is_scored_in_no_time():
    assert total("Ida Fenn " * 20_000) < 0
    assert total("Ida Fenn", QUOTE * 2_000) == pytest.approx(0.4)
    assert not score_answer("Answer:" * 20_000, ITEM).valid
    for scrap in ("*", "_", "Answer", "\n", '"', "A) ", "a. "):
        assert score_answer(f"Answer: {scrap * 20_000}", ITEM).total == -1
        assert score_answer(scrap * 20_000, ITEM).total == -1
