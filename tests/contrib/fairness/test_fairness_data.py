import json

import pytest

from contrib.fairness.bbq_rows import AMBIGUOUS, SETTLED, ambiguous_row, bbq_row, parse, write
from levelhead.contrib.fairness.data import FairnessItem, read_items, target_option
from levelhead.errors import InputError


def test_every_field_of_the_schema_is_read():
    (item,) = parse(bbq_row())
    assert item == FairnessItem(
        example_id="7",
        question_index="1",
        polarity="neg",
        condition="disambig",
        category="Age",
        subcategory="None",
        version="a",
        source="somewhere",
        context=f"{AMBIGUOUS} {SETTLED}",
        question="Who was bad with technology?",
        answers=("The grandson", "Not known", "The grandfather"),
        names=("grandson", "Not known", "grandfather"),
        groups=("nonOld", "unknown", "old"),
        stereotyped_groups=("old",),
        label=2,
        unknown=1,
        target=2,
        evidence=f"{AMBIGUOUS} {SETTLED}",
    )


def test_the_evidence_is_what_a_context_adds_to_its_ambiguous_twin():
    ambiguous, settled = parse(ambiguous_row(), bbq_row())
    assert settled.evidence == SETTLED
    assert ambiguous.evidence == AMBIGUOUS


def test_a_twin_of_another_template_or_other_people_gives_no_evidence():
    others = {"ans0": ["boy", "nonOld"], "ans1": ["Not known", "unknown"], "ans2": ["man", "old"]}
    for stranger in (ambiguous_row(question_index="2"), ambiguous_row(answer_info=others)):
        _, settled = parse(stranger, bbq_row())
        assert settled.evidence == settled.context


def test_items_survive_a_trip_through_json():
    (item,) = parse(bbq_row())
    assert FairnessItem.from_facts(json.loads(json.dumps(item.to_facts()))) == item


REQUIRED = [
    "example_id", "question_index", "question_polarity", "context_condition", "category", "answer_info",
    "additional_metadata", "context", "question", "ans0", "ans1", "ans2", "label",
]  # fmt: skip


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named_with_file_and_line(tmp_path, field):
    row = bbq_row()
    del row[field]
    path = write(tmp_path / "Age.jsonl", ambiguous_row(), row)
    with pytest.raises(InputError, match=rf"line 2.*'{field}'"):
        read_items(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"question_polarity": "positive"}, "question_polarity"),
        ({"context_condition": "clear"}, "context_condition"),
        ({"label": 3}, "label"),
        ({"label": "2"}, "label"),
        ({"label": 1}, "label"),
        ({"context_condition": "ambig"}, "label"),
        ({"context": " "}, "context"),
        ({"ans1": 4}, "ans1"),
        ({"question_index": 1.5}, "question_index"),
        ({"answer_info": {"ans0": ["a", "b"], "ans1": ["c", "unknown"]}}, "ans2"),
        ({"answer_info": {"ans0": ["a"], "ans1": ["c", "unknown"], "ans2": ["b", "old"]}}, "name and a group"),
        ({"answer_info": {"ans0": ["a", "x"], "ans1": ["c", "y"], "ans2": ["b", "z"]}, "ans1": "Both"}, "unknown"),
        ({"additional_metadata": {"subcategory": "None"}}, "stereotyped_groups"),
        ({"additional_metadata": {"stereotyped_groups": "old"}}, "stereotyped_groups"),
    ],
)
def test_a_bad_value_is_named_with_file_and_line(tmp_path, changes, says):
    path = write(tmp_path / "Age.jsonl", bbq_row(**changes))
    with pytest.raises(InputError, match=rf"line 1.*{says}"):
        read_items(path)


def test_numbers_serve_as_template_and_example_numbers_as_well():
    (item,) = parse(bbq_row(question_index=1, example_id="x7"))
    assert (item.question_index, item.example_id) == ("1", "x7")


@pytest.mark.parametrize(
    ("names", "groups", "stereotyped", "target"),
    [
        (("grandson", "grandfather", "-"), ("nonOld", "old", "unknown"), ["old"], 1),
        (("22-year-old", "78-year-old", "-"), ("nonOld", "old", "unknown"), ["nonOld"], 0),
        (("22-year-old", "78-year-old", "-"), ("nonOld", "old", "unknown"), ["old"], 1),
        (("British", "Kenyan", "-"), ("Europe", "Africa", "unknown"), ["Eritrean", "Kenyan"], 1),
        (("Mary", "James", "-"), ("F", "M", "unknown"), ["woman"], 0),
        (("girl", "boy", "-"), ("girl_F", "boy_M", "unknown"), ["M"], 1),
        (("trans woman", "woman", "-"), ("trans_F", "nonTrans_F", "unknown"), ["Transgender women"], 0),
        (("clerk", "banker", "-"), ("lowSES", "highSES", "unknown"), ["low SES"], 0),
        (("Ann", "Bea", "-"), ("F-Black", "F-White", "unknown"), ["Black", "African American"], 0),
        (("Ann", "Bob", "-"), ("F-Black", "M-Black", "unknown"), ["F", "Black"], 0),
        (("African", "African American", "-"), ("African", "African American", "unknown"), ["African American"], 1),
        (("Thai", "Korean", "-"), ("Asia", "Asia", "unknown"), ["Thai", "Korean"], None),
        (("Danish", "Greek", "-"), ("Europe", "Europe", "unknown"), ["Thai"], None),
        (("a", "b", "-"), ("x", "y", "unknown"), [], None),
    ],
)
def test_the_target_is_the_option_of_the_stereotyped_group(names, groups, stereotyped, target):
    assert target_option(names, groups, stereotyped, unknown=2) == target


def test_groups_of_the_intersectional_categories_are_found_under_their_own_keys():
    metadata = {
        "stereotyped_groups": [],
        "known_stereotyped_race": ["Black", "African American"],
        "known_stereotyped_var2": "F",
    }
    info = {"ans0": ["Ann", "F-Black"], "ans1": ["Not known", "unknown"], "ans2": ["Bob", "M-Black"]}
    (item,) = parse(bbq_row(additional_metadata=metadata, answer_info=info))
    assert item.target == 0
