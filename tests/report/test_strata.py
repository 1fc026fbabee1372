"""Strata and constant answers on the page: a table, a chart, the answer itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strata_summary
from levelhead.report import strata
from levelhead.report.charts import Chart
from levelhead.report.page import _built, render
from levelhead.report.panels import PANELS
from levelhead.report.reading import Run


def run_with(summary: dict[str, Any], *rows: dict[str, Any]) -> Run:
    return Run("x", summary=summary, metrics=[{"stage": "grpo", "step": i, **row} for i, row in enumerate(rows, 1)])


def cells(table: str, label: str) -> list[str]:
    """The cells of the row that begins with a label."""
    row = next(row for row in table.split("<tr") if f">{label}</td>" in row)
    return [cell.split("<")[0] for cell in row.split("<td>")[2:]]


def test_the_table_holds_every_stratum_by_stage_with_errors_beside_the_constant_answer() -> None:
    table = strata.tables(run_with(strata_summary.summary()))["faithfulness"]
    assert cells(table, "answerable=<wbr>yes") == [
        "256",
        "\u22121.000 ± 0.004",
        "\u22120.658 ± 0.040",
        "\u22121.099 ± 0.030",
        "+0.500 ± 0.020",
    ]
    assert cells(table, "exact_match") == ["", "0.0%", "18.0%", "0.0%", ""]
    assert cells(table, "balanced score")[3] == "\u22120.049 ± 0.030"
    assert cells(table, "all items") == [
        "512",
        "\u22121.000 ± 0.004",
        "\u22120.519 ± 0.040",
        "\u22120.049 ± 0.030",
        "\u22120.080 ± 0.040",
    ]
    assert cells(table, "above the constant")[3] == "+0.031 (1.3 SE)"


def test_the_constant_answer_is_shown_as_text() -> None:
    summary = strata_summary.summary()
    summary["tasks"]["fairness"]["grpo"]["constant"]["answer"] = "A <script>alert(1)</script>\x1b"
    summary["tasks"]["faithfulness"]["grpo"]["constant"]["answer"] = "  "
    tables = strata.tables(run_with(summary))
    assert "<pre>A &lt;script&gt;alert(1)&lt;/script&gt;\u241b</pre>" in tables["fairness"]
    assert "(nothing at all)" in tables["faithfulness"]


def test_the_chart_draws_stages_with_errors_and_the_constant_answer_by_stratum() -> None:
    chart = strata.charts(run_with(strata_summary.summary()))["fairness"]
    *stages, constant = chart.data
    assert [trace["name"] for trace in stages] == ["before training", "after SFT", "after GRPO"]
    assert stages[-1]["y"] == ["condition=ambig", "condition=disambig", "balanced score"]
    assert stages[-1]["x"] == pytest.approx([0.82, 0.56, 0.69])
    assert stages[-1]["error_x"]["array"] == pytest.approx([0.064, 0.0768, 0.064])
    assert (constant["name"], constant["x"]) == ("best constant answer", [0.5, -0.5])


def test_a_constant_answer_that_is_not_told_by_stratum_is_a_line() -> None:
    summary = strata_summary.summary()
    for result in summary["tasks"]["fairness"].values():
        for stratum in result["strata"].values():
            del stratum["constant"]
    line = strata.charts(run_with(summary))["fairness"].data[-1]
    assert (line["mode"], line["x"]) == ("lines", [-0.02] * 3)


def test_an_older_summary_has_no_such_section() -> None:
    run = run_with(strata_summary.older())
    assert strata.tables(run) == {}
    assert strata.charts(run) == {}
    assert "Strata and baseline" not in render(run)


def test_many_strata_take_a_row_each() -> None:
    table = strata.tables(run_with(strata_summary.many_strata(30)))["browser"]
    assert table.count("page=<wbr>") == 30
    assert "success" not in table


_LEAF = st.none() | st.booleans() | st.text(max_size=5) | st.floats() | st.sampled_from([math.nan, 1e400, -1, "nan"])
_ANY = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from(["strata", "balanced", "constant", "over_constant", "metrics", "n", "se", "score"]),
    value=_ANY,
    verdict=_ANY,
)
def test_whatever_stands_in_a_summary_there_is_a_page(place: str, value: Any, verdict: Any) -> None:
    summary = strata_summary.summary()
    summary["tasks"]["fairness"]["grpo"][place] = value
    summary["tasks"]["faithfulness"]["sft"]["strata"]["answerable=yes"][place] = value
    summary["verdict"] = verdict
    assert render(run_with(summary)).startswith("<!doctype html>")


def charts_of_answers(run: Run) -> list[Chart]:
    return _built(run, PANELS["Answers and prompts"])


def test_how_answers_depend_on_prompts_is_drawn_where_it_was_measured() -> None:
    rows = [{f"answers/{name}/a": 0.1 * i for name in ("top_share", "distinct", "information")} for i in range(20)]
    charts = charts_of_answers(run_with({"tasks": {"a": {}}}, *rows))
    assert [chart.title for chart in charts] == [
        "One answer to all prompts",
        "What answers tell of prompts",
        "Different answers",
    ]
    assert charts_of_answers(run_with({"tasks": {"a": {}}}, {"reward": 1.0})) == []


def test_perfect_answers_are_drawn_beside() -> None:
    rows = [{"answers/top_share/a": 0.5, "answers/perfect_share/a": 0.3} for _ in range(20)]
    (chart,) = charts_of_answers(run_with({"tasks": {"a": {}}}, *rows))
    assert [entry.label for entry in chart.legend] == ["a, perfect answers"]
    assert chart.data[-1]["line"]["dash"] == "dash"
