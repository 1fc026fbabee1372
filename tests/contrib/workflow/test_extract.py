"""Finding workflows in answers: as they stand, or after rewritings that were asked for and are named."""

from __future__ import annotations

import pytest

from levelhead.contrib.workflow.language import Limits, extract
from levelhead.contrib.workflow.language.extract import RULES, normalise


@pytest.mark.parametrize(
    ("answer", "source", "alone"),
    [
        ("Custom -> Format", "bare", True),
        ("  \nCustom -> Format\n", "bare", True),
        ("<workflow>Custom -> Format</workflow>", "tagged", True),
        ("I suggest <workflow>\nCustom ->\n  Format\n</workflow>, because.", "tagged", False),
        ("```\nCustom -> Format\n```", "fenced", True),
        ("Here it is:\n```workflow\nCustom -> Format\n```\nDone.", "fenced", False),
        ("<think>Review? [no]</think>\nCustom -> Format", "bare", True),
        ("<WORKFLOW>Custom -> Format</WORKFLOW> and again <workflow>Custom  ->  Format</workflow>", "tagged", False),
    ],
)
def test_a_workflow_is_found_in_tags_in_a_fence_or_bare(answer: str, source: str, alone: bool) -> None:
    extraction = extract(answer)
    assert (extraction.text, extraction.source, extraction.alone) == ("Custom -> Format", source, alone)
    assert extraction.error is None


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "### Step 1: Analyze the problem",
        "I would use Custom -> Format",
        "Custom -> Format.",
        "Custom -> format",
        "<workflow>Custom -></workflow>\nCustom",
        "<workflow>Custom -> Format",
        "<workflow>Custom</workflow> or <workflow>Programmer</workflow>",
        "Custom -> Revise",
        "```\nCustom -> Format\n``` or\n```\nCustom\n```",
    ],
)
def test_what_is_no_workflow_is_a_fallback_with_a_reason(answer: str) -> None:
    extraction = extract(answer)
    assert extraction.tree is None
    assert extraction.text == ""
    assert extraction.error is not None
    assert extraction.repairs == ()


@pytest.mark.parametrize(
    ("answer", "text", "repairs"),
    [
        ("Workflow: Custom -> Format", "Custom -> Format", ("label",)),
        ("`Custom -> Format`", "Custom -> Format", ("quotes",)),
        ("Custom -> Format.", "Custom -> Format", ("full-stop",)),
        ("Custom \u2192 Format", "Custom -> Format", ("arrow",)),
        ("Custom => Format", "Custom -> Format", ("arrow",)),
        ("Custom() -> Format()", "Custom -> Format", ("call-brackets",)),
        ("custom -> FORMAT", "Custom -> Format", ("spelling",)),
        ("[Custom, Custom] -> sc_ensemble", "[Custom, Custom] -> ScEnsemble", ("spelling",)),
        ("Custom -> Review \uff1f Revise \uff1a done", "Custom -> Review ? Revise : done", ("full-width",)),
        ("Custom -> (Review -> Revise) x3", "Custom -> (Review -> Revise) * 3", ("loop",)),
        ("Custom -> Format * 2", "Custom -> (Format) * 2", ("loop",)),
        ("DSL: custom \u21d2 format;", "Custom -> Format", ("label", "full-stop", "arrow", "spelling")),
    ],
)
def test_near_misses_are_rewritten_only_on_request_and_named(answer: str, text: str, repairs: tuple[str, ...]) -> None:
    assert extract(answer).tree is None
    extraction = extract(answer, near_misses=True)
    assert (extraction.text, extraction.repairs) == (text, repairs)


def test_every_rule_for_near_misses_is_tried_above() -> None:
    tried = {"label", "quotes", "full-stop", "full-width", "arrow", "call-brackets", "spelling", "loop"}
    assert set(RULES) == tried


def test_rewriting_leaves_valid_workflows_alone() -> None:
    for text in ("Custom", "[Custom, Custom] -> MdEnsemble -> (Test ? Revise : done) * 3 -> Format"):
        assert normalise(text) == (text, ())
        assert extract(text, near_misses=True).repairs == ()


@pytest.mark.parametrize("answer", ["Custom -> Revise", "I think Custom -> Format is best", "### Step 1"])
def test_rewriting_makes_no_workflow_of_what_is_none(answer: str) -> None:
    strict, lenient = extract(answer), extract(answer, near_misses=True)
    assert lenient.tree is None
    assert str(lenient.error) == str(strict.error)


def test_limits_decide_what_is_valid() -> None:
    assert extract("Custom -> (Review -> Revise) * 3").tree is not None
    assert extract("Custom -> (Review -> Revise) * 3", Limits(loop=2)).tree is None
