"""docs/metrics.md is what the declarations make."""

from pathlib import Path

from levelhead.metrics.catalogue import METRICS, page

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_written_page_is_in_step() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_metric_has_a_row_and_a_sentence() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(METRICS) == len({metric.name for metric in METRICS})
    assert [metric.name for metric in METRICS if not metric.meaning.endswith(".") or "|" in metric.meaning] == []
