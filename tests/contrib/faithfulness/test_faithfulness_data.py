import json

import pytest

from contrib.faithfulness.halueval_rows import DIALOGUE, QA, SUMMARY, VERDICT_NO, VERDICT_YES, parse, write
from levelhead.contrib.faithfulness.data import FaithfulnessItem, read_items, withhold
from levelhead.errors import InputError

SCHEMAS = {"qa": QA, "dialogue": DIALOGUE, "summarization": SUMMARY, "general": VERDICT_YES}
NEEDED = [(kind, field) for kind, row in SCHEMAS.items() for field in row if field not in ("ID", "hallucination_spans")]


@pytest.mark.parametrize(("kind", "row"), SCHEMAS.items(), ids=SCHEMAS.keys())
def test_a_schema_is_recognised_by_its_keys(kind, row):
    assert parse(row).kind == kind


def test_one_file_may_mix_the_schemas(tmp_path):
    items = read_items(write(tmp_path / "mixed.json", *SCHEMAS.values()))
    assert [item.kind for item in items] == list(SCHEMAS)


@pytest.mark.parametrize(("kind", "field"), NEEDED)
def test_a_missing_field_is_named_with_file_and_line(tmp_path, kind, field):
    row = {key: value for key, value in SCHEMAS[kind].items() if key != field}
    path = write(tmp_path / "data.json", SCHEMAS[kind], row)
    with pytest.raises(InputError, match=rf"line 2.*'{field}'"):
        read_items(path)


def test_a_row_of_no_schema_is_told_which_there_are(tmp_path):
    with pytest.raises(InputError, match=r"line 1.*right_answer.*right_response.*right_summary.*chatgpt_response"):
        read_items(write(tmp_path / "data.json", {"prompt": "x"}))


@pytest.mark.parametrize(
    ("row", "changes", "says"),
    [
        (QA, {"knowledge": ""}, "knowledge"),
        (QA, {"right_answer": 5}, "right_answer"),
        (QA, {"hallucinated_answer": None}, "hallucinated_answer"),
        (VERDICT_YES, {"hallucination": "perhaps"}, "hallucination"),
        (VERDICT_YES, {"hallucination_spans": "the Loire"}, "hallucination_spans"),
    ],
)
def test_a_bad_value_is_named_with_file_and_line(tmp_path, row, changes, says):
    with pytest.raises(InputError, match=rf"line 1.*'{says}'"):
        read_items(write(tmp_path / "data.json", row | changes))


def test_a_verdict_may_be_labelled_either_way():
    row = {"user_query": "q", "chatgpt_response": "Some words.", "hallucination_label": "Yes"}
    assert parse(row).right == "yes"
    assert parse(row).hallucinated == "no"


def test_only_spans_that_stand_in_the_response_are_kept():
    item = parse(VERDICT_YES, hallucination_spans=["The Loire and  the danube", "Incomplete answer"])
    assert item.spans == ("The Loire and  the danube",)


def test_items_survive_a_trip_through_json():
    item = parse(VERDICT_YES)
    assert FaithfulnessItem.from_facts(json.loads(json.dumps(item.to_facts()))) == item


def test_rows_about_one_text_share_a_group_and_keys_differ():
    one, other = parse(QA), parse(QA, question="When was it built?", right_answer="1842")
    assert one.group == other.group
    assert one.key != other.key


def test_a_right_answer_of_unknown_means_that_there_is_none():
    assert not parse(QA, right_answer="Unknown.").answerable
    # Where the knowledge itself says "unknown", it is an answer like any other.
    assert parse(QA, right_answer="unknown", knowledge="Its maker is unknown.").answerable


def test_withholding_takes_the_answering_sentences_out():
    item = withhold(parse(QA), 1.0)
    assert item.text == "The clock stands in the town of Brill."
    assert not item.answerable
    assert item.right == "unknown"
    assert item.key == parse(QA).key


@pytest.mark.parametrize(
    "item",
    [
        parse(QA, right_answer="Yes"),
        parse(QA, knowledge="Ida Fenn built the clock. Ida Fenn lived in Brill."),
        parse(QA, knowledge="Ida Fenn built the clock of Brill."),
        parse(DIALOGUE),
        parse(VERDICT_NO),
    ],
)
def test_what_cannot_be_withheld_stays_as_it_is(item):
    assert withhold(item, 1.0) == item


def test_about_the_asked_share_is_withheld_and_always_the_same():
    items = [parse(QA, question=f"Who built clock {i}?") for i in range(4000)]
    withheld = [item.key for item in items if not withhold(item, 0.2).answerable]
    assert len(withheld) == pytest.approx(800, abs=100)
    assert set(withheld) <= {item.key for item in items if not withhold(item, 0.4).answerable}
    assert withhold(items[0], 0.0) == items[0]
