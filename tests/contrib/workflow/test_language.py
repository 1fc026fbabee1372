"""The language: printing and parsing are inverse, errors say where and what, and checks let only runnable ones pass."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.contrib.workflow.language import (
    Call,
    Chain,
    Conditional,
    Done,
    Limits,
    Loop,
    Node,
    Parallel,
    WorkflowError,
    calls,
    chain,
    check,
    depth,
    most_calls,
    parse,
    to_text,
)
from levelhead.contrib.workflow.language.parser import DEEPEST, LONGEST
from levelhead.contrib.workflow.operators import OPERATORS

operators = st.sampled_from(sorted(OPERATORS)).map(Call)


def grow(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.lists(below, min_size=2, max_size=4).map(lambda steps: chain(*steps)),
        st.lists(below, min_size=1, max_size=4).map(lambda branches: Parallel(tuple(branches))),
        st.builds(Loop, below, st.integers(0, 99)),
        st.builds(Conditional, operators, below, below),
    )


trees: st.SearchStrategy[Node] = st.recursive(st.one_of(operators, st.just(Done())), grow, max_leaves=25)


@given(trees)
@settings(deadline=None, max_examples=300)
def test_parsing_what_was_printed_gives_the_same_tree(tree: Node) -> None:
    assert parse(to_text(tree)) == tree


@given(trees, st.sampled_from(["", " ", "\n", "\t  "]), st.integers(0, 3))
@settings(deadline=None)
def test_white_space_and_needless_brackets_change_nothing(tree: Node, space: str, brackets: int) -> None:
    tight = to_text(tree).replace(" ", space or "")
    assert parse("(" * brackets + tight + ")" * brackets) == tree


def attempt(text: str) -> Node | WorkflowError:
    try:
        return parse(text)
    except WorkflowError as error:
        return error


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=300)
def test_any_other_text_is_an_error_within_the_text(text: str) -> None:
    got = attempt(text)
    if isinstance(got, WorkflowError):
        assert got.kind == "syntax"
        assert 1 <= got.column <= len(text) + 1
    else:
        assert parse(to_text(got)) == got


@given(
    st.lists(
        st.sampled_from(["Custom", "Review", "done", "->", "[", "]", "(", ")", "?", ":", "*", "3", ","]), max_size=14
    )
)
@settings(deadline=None, max_examples=300)
def test_any_row_of_the_languages_own_tokens_parses_or_is_explained(tokens: list[str]) -> None:
    text = " ".join(tokens)
    got = attempt(text)
    if isinstance(got, WorkflowError):
        assert got.expected
        assert 1 <= got.column <= len(text) + 1
    else:
        assert parse(to_text(got)) == got


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("Custom->Review", "Custom -> Review"),
        ("Custom -> (Review -> Revise)", "Custom -> Review -> Revise"),
        ("Custom -> Review ? Revise : done", "Custom -> Review ? Revise : done"),
        ("Custom -> Review ? Revise : done -> Format", "Custom -> (Review ? Revise : done) -> Format"),
        ("[Custom,Custom , Programmer]->ScEnsemble", "[Custom, Custom, Programmer] -> ScEnsemble"),
        ("((Custom))", "Custom"),
        ("Custom -> ( Review->Revise )*3", "Custom -> (Review -> Revise) * 3"),
        ("Custom -> Review ? (Revise -> Format) : (Test ? Revise : done)", None),
    ],
)
def test_the_printer_has_one_spelling_for_each_meaning(text: str, canonical: str | None) -> None:
    assert to_text(parse(text)) == (canonical or text)


def test_a_conditional_binds_tighter_than_an_arrow() -> None:
    tree = parse("Custom -> Review ? Revise : done")
    assert tree == Chain((Call("Custom"), Conditional(Call("Review"), Call("Revise"), Done())))


@pytest.mark.parametrize(
    ("text", "column", "given", "expected"),
    [
        ("", 1, "empty", "a workflow"),
        ("### Step 1: think", 1, "'#'", "an operator"),
        ("Custom ->", 10, "ends here", "an operator"),
        ("Custom -> ", 10, "ends here", "an operator"),
        ("Custom Review", 8, "'Review'", "'->'"),
        ("Custom -> (Review", 18, "ends here", "')'"),
        ("Custom -> Review ? Revise", 26, "ends here", "':'"),
        ("Custom → Review", 8, "'→'", "'->'"),
        ("[Custom, Custom", 16, "ends here", "']'"),
        ("(Custom) * many", 12, "'many'", "a number"),
        ("Custom -> Reviewer", 11, "'Reviewer'", "'Review'"),
        ("custom", 1, "'custom'", "'Custom'"),
        ("Wibble", 1, "'Wibble'", "one of Custom, AnswerGenerate"),
    ],
)
def test_a_syntax_error_names_the_column_and_what_was_expected(
    text: str, column: int, given: str, expected: str
) -> None:
    with pytest.raises(WorkflowError) as caught:
        parse(text)
    error = caught.value
    assert (error.kind, error.column) == ("syntax", column)
    assert given in error.problem
    assert expected in " ".join(error.expected)
    assert str(error).startswith(f"column {column}: ")


def test_texts_of_absurd_length_and_depth_are_refused_unread() -> None:
    with pytest.raises(WorkflowError, match="longer than"):
        parse("Custom -> " * LONGEST + "Custom")
    with pytest.raises(WorkflowError, match="nested deeper"):
        parse("(" * (DEEPEST + 1) + "Custom" + ")" * (DEEPEST + 1))


@pytest.mark.parametrize(
    "text",
    [
        "Custom",
        "Custom -> Programmer -> Review ? Revise : done",
        "[Custom, Custom] -> ScEnsemble",
        "Custom -> [Programmer -> Format, AnswerGenerate] -> MdEnsemble -> Test -> Revise",
        "Custom -> (Review ? Revise : done) * 3 -> Format",
        "Custom -> Review ? (Programmer -> Test ? Revise : done) : done",
        "[Custom -> (Review ? Revise : done) * 2, Custom] -> ScEnsemble",
        "Custom -> Review ? [Custom, Programmer] : [Custom, Custom] -> ScEnsemble",
        "Custom -> (Review -> Revise) * 5",
        "Custom -> done",
    ],
)
def test_workflows_whose_operators_get_their_inputs_pass(text: str) -> None:
    check(parse(text))


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("done", 1, "needs a draft"),
        ("Review", 1, "needs a draft"),
        ("Format -> Custom", 1, "needs a draft"),
        ("Custom -> Revise", 11, "no verdict"),
        ("Custom -> Review -> Revise -> Revise", 31, "no verdict"),
        ("Custom -> Review -> Format -> Revise", 31, "no verdict"),
        ("Custom -> Review -> (Revise) * 2", 22, "no verdict"),
        ("Custom -> (Review ? Revise : done) * 2 -> Revise", 43, "no verdict"),
        ("Custom -> Review ? done : Revise", 27, "no fault was found"),
        ("Custom -> ScEnsemble", 11, "several drafts"),
        ("[Custom] -> ScEnsemble", 1, "two or more"),
        ("[Custom, Custom]", 1, "ends with several drafts"),
        ("[Custom, Custom] -> Review", 21, "takes one draft"),
        ("[Custom, Custom] -> Custom", 21, "several drafts"),
        ("[Custom, [Custom, Custom]] -> ScEnsemble", 10, "exactly one draft"),
        ("Custom -> [Review, Custom] -> ScEnsemble", 12, "no draft of its own"),
        ("Custom -> Custom ? Revise : done", 11, "gives no verdict"),
        ("Custom -> done -> Format", 19, "ever run"),
        ("Custom -> Review ? [Custom, Custom] : Custom -> ScEnsemble", 11, "another"),
        ("Custom -> (Review -> Revise) * 6", 11, "1 to 5 times"),
        ("Custom -> (Review) * 0", 11, "1 to 5 times"),
        ("([Custom, Custom]) * 1 -> ScEnsemble", 1, "a loop takes one draft"),
        ("([Custom, Custom]) * 2 -> ScEnsemble", 3, "several drafts"),
    ],
)
def test_a_workflow_that_cannot_run_is_named_with_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        check(parse(text))
    assert (caught.value.kind, caught.value.column) == ("static", column)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(depth=1), "Custom -> Review ? (Test ? Revise : done) : done"),
        (Limits(loop=2), "Custom -> (Review -> Revise) * 3"),
        (Limits(calls=4), "Custom -> (Review -> Revise) * 2"),
    ],
)
def test_bounds_on_depth_passes_and_calls_hold(limits: Limits, text: str) -> None:
    check(parse(text))
    with pytest.raises(WorkflowError, match=r"bound|times"):
        check(parse(text), limits)


def test_measures_of_a_workflow_are_those_counted_by_hand() -> None:
    tree = parse("[Custom, Programmer] -> ScEnsemble -> (Review ? (Revise -> Format) : done) * 3")
    assert [call.operator for call in calls(tree)] == [
        "Custom",
        "Programmer",
        "ScEnsemble",
        "Review",
        "Revise",
        "Format",
    ]
    assert depth(tree) == 2
    assert most_calls(tree) == 3 + 3 * 3


def test_trees_that_mean_nothing_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="two or more"):
        Chain((Call("Custom"),))
    with pytest.raises(ValueError, match="one chain"):
        Chain((Call("Custom"), Chain((Call("Review"), Call("Revise")))))
    with pytest.raises(ValueError, match="at least one branch"):
        Parallel(())
    with pytest.raises(ValueError, match="cannot run"):
        Loop(Call("Custom"), -1)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ([], "column 2: odd"),
        (["a"], "column 2: odd; expected a"),
        (["a", "b", "c"], "column 2: odd; expected a, b or c"),
    ],
)
def test_an_error_names_all_that_could_have_stood_there(expected: list[str], message: str) -> None:
    assert str(WorkflowError("syntax", 2, "odd", expected)) == message
