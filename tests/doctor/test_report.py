from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.doctor.live import follow
from levelhead.doctor.page import page
from levelhead.doctor.render import headline, text
from levelhead.doctor.report import Report, examine, examine_rows
from levelhead.errors import InputError

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "doctor"


def write_trl(path: Path, rows: list[scenarios.Row]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def unhealthy(tmp_path: Path) -> Report:
    return examine(write_trl(tmp_path / "log.txt", scenarios.rows(scenarios.UNHEALTHY["kl-runs"][0], 0, 60)))


@pytest.fixture
def healthy(tmp_path: Path) -> Report:
    return examine(write_trl(tmp_path / "log.txt", scenarios.rows(scenarios.HEALTHY["learning"], 0, 60)))


def test_the_json_document_has_exactly_the_promised_shape(unhealthy: Report, healthy: Report) -> None:
    for report in (unhealthy, healthy):
        document = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert set(document) - {"questions"} == {"format", "rows", "verdict", "findings", "unread"}
        assert (document["format"], document["rows"]) == ("trl", 60)
        assert document["verdict"] in ("learns", "critical")
        for finding in document["findings"]:
            assert set(finding) == {"code", "severity", "confidence", "first_step", "evidence", "remedies"}
            assert finding["code"] in CATALOGUE
            assert finding["severity"] in ("info", "warning", "critical")
            assert 0 <= finding["confidence"] <= 1
            assert all(set(e) == {"metric", "step", "value"} for e in finding["evidence"])
            assert all(set(r) == {"set", "why", "source"} for r in finding["remedies"])
    assert unhealthy.to_json()["verdict"] == "critical"
    assert healthy.to_json()["findings"][0]["code"] == "learns"


def test_evidence_stands_in_the_log(unhealthy: Report) -> None:
    for finding in unhealthy.diagnosis.findings:
        for reading in finding.readings:
            series = unhealthy.history.series(reading.metric)
            assert (reading.step, reading.value) in set(zip(series.steps, series.values, strict=True))


def test_remedies_are_in_the_trainers_words_with_numbers_from_the_log(unhealthy: Report) -> None:
    document = unhealthy.to_json()
    settings = {key: value for f in document["findings"] for r in f["remedies"] for key, value in r["set"].items()}
    assert settings["learning_rate"] == pytest.approx(2e-7)
    assert "beta" in settings
    ours = examine_rows(scenarios.rows(scenarios.UNHEALTHY["kl-runs"][0], 0, 60)).to_json()
    assert any("grpo.kl.coef" in r["set"] for f in ours["findings"] for r in f["remedies"])


def test_what_is_not_finite_is_text_in_json(tmp_path: Path) -> None:
    report = examine(write_trl(tmp_path / "x.txt", scenarios.rows(scenarios.UNHEALTHY["nan-for-good"][0], 0, 30)))
    document = json.dumps(report.to_json(), allow_nan=False)
    assert '"value": "nan"' in document


def test_severities_gate(unhealthy: Report, healthy: Report) -> None:
    assert unhealthy.fails("critical")
    assert unhealthy.fails("warning")
    assert not healthy.fails("warning")
    assert not healthy.fails("info")


def test_the_text_says_what_since_when_why_and_what_to_change(unhealthy: Report) -> None:
    shown = text(unhealthy)
    first = unhealthy.diagnosis.findings[0]
    assert shown.splitlines()[1].startswith("critical: KL blow-up")
    assert f"since step {first.first_step:.0f}" in shown
    for heading in ("for:", "rows that show it:", "would confirm it:", "change:"):
        assert heading in shown
    assert "beta=0.05" in shown
    assert max(len(line) for line in shown.splitlines()) <= 130


@pytest.mark.parametrize("columns", [50, 80])
def test_the_text_is_as_wide_as_the_terminal(unhealthy: Report, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = text(unhealthy).splitlines()[1:]
    assert columns - 20 < max(map(len, lines)) <= columns
    assert "would confirm it:" in " ".join(lines)


def test_the_text_in_chinese(unhealthy: Report) -> None:
    shown = text(unhealthy, "zh")
    assert "严重" in shown
    assert "KL 失控" in shown
    assert "建议修改" in shown
    assert not re.search(r"\b(since step|would confirm)\b", shown)


def test_colour_is_only_used_when_asked_for(unhealthy: Report) -> None:
    assert "\x1b[" not in text(unhealthy)
    assert "\x1b[" in text(unhealthy, colour=True)


def test_a_healthy_run_is_reported_in_few_lines(healthy: Report) -> None:
    assert len(text(healthy).splitlines()) < 20
    assert headline(healthy).startswith("learns: entropy falls from")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.figures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.figures += tag == "figure"
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_no_network_and_shows_the_curves(unhealthy: Report) -> None:
    shown = page(unhealthy)
    parser = _Page()
    parser.feed(shown)
    assert all(link.startswith("#") for link in parser.links)
    assert parser.figures >= 6
    assert "kl-blowup" in shown
    assert "<script" not in shown
    assert page(unhealthy, "zh").count("失控") >= 1


def test_the_page_says_what_its_scales_and_lines_are_and_links_findings_with_curves(unhealthy: Report) -> None:
    shown = page(unhealthy)
    parser = _Page()
    parser.feed(shown)
    assert parser.links
    assert all(f"id='{link[1:]}'" in shown for link in parser.links)
    kl = next(part for part in shown.split("<figure") if "<figcaption>kl " in part)
    assert "logarithmic scale" in kl
    first = unhealthy.diagnosis.findings[0]
    assert f"dashed line: <a href='#{first.code}'>{first.code}</a> since step {first.first_step:.0f}" in kl
    assert "对数刻度" in page(unhealthy, "zh")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(unhealthy: Report, tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium is installed")
    target = tmp_path / "page.html"
    target.write_text(
        page(replace(unhealthy, source="a/folder/" * 20 + "and_a_name_without_an_end" * 5)), encoding="utf-8"
    )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        tab.goto(target.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        # An axis is labelled in letters that can be read, which do not lie in the curve.
        labels = "[...document.querySelectorAll('svg text[x=\"4\"]')].map(e => e.getBoundingClientRect())"
        axis = "document.querySelector('svg line').getBoundingClientRect().left"
        assert tab.evaluate(f"Math.min(...{labels}.map(b => b.height))") >= 9
        assert tab.evaluate(f"Math.max(...{labels}.map(b => b.right)) <= {axis}")
        browser.close()


def test_the_page_escapes_what_a_log_contains(tmp_path: Path) -> None:
    path = tmp_path / "<b>x.jsonl"
    part = "rewards/<script>alert(1)</script>/mean"
    lines = [json.dumps({"step": i, "loss": 0.1, "reward": 0.1, part: 0.1 * i}) for i in range(9)]
    path.write_text("\n".join(lines), encoding="utf-8")
    report = examine(path)
    assert "<script>alert" not in page(report)
    assert "<b>x" not in page(report)


def test_long_runs_make_no_long_pages() -> None:
    rows = scenarios.rows(scenarios.HEALTHY["learning"], 0, 3000)
    assert len(page(examine_rows(rows))) < 200_000


def test_no_rows_are_no_diagnosis() -> None:
    with pytest.raises(ValueError, match="no rows"):
        examine_rows([])


def test_a_growing_log_is_followed_and_reported_when_the_verdict_changes(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    rows = scenarios.rows(scenarios.UNHEALTHY["breaks"][0], 1, 80)
    written = iter([rows[:20], rows[20:38], rows[38:60], rows[60:]])

    def grow() -> bool:
        more = next(written, None)
        if more is None:
            return False
        with path.open("a", encoding="utf-8") as file:
            text = "".join(f"{row}\n" for row in more)
            # The writer is caught in the middle of a line.
            file.write(text[:-30])
            file.flush()
            file.write(text[-30:])
        return True

    grow()
    reports = list(follow(path, every=0, idle=grow))
    assert [r.diagnosis.verdict for r in reports][:1] == ["undecided"]
    assert reports[-1].diagnosis.findings[0].code == "catastrophic-update"
    assert len(reports) <= 4


def test_a_rewritten_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"

    def state(n: int, reward: float) -> str:
        rows = [{"step": i, "loss": 0.0, "reward": reward, "reward_std": 0.0} for i in range(n)]
        return json.dumps({"log_history": rows})

    path.write_text(state(40, 0.0), encoding="utf-8")
    contents = iter([state(10, 1.0)])

    def rewrite() -> bool:
        content = next(contents, None)
        if content is not None:
            path.write_text(content, encoding="utf-8")
        return content is not None

    codes = [r.diagnosis.findings[0].code for r in follow(path, every=0, idle=rewrite)]
    assert codes == ["no-learning-signal-all-zero-reward", "saturated-all-one-reward"]


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "later.txt"
    looks = iter([True, True, False])

    def idle() -> bool:
        write_trl(path, scenarios.rows(scenarios.HEALTHY["learning"], 0, 20))
        return next(looks)

    assert [r.diagnosis.verdict for r in follow(path, every=0, idle=idle)] == ["learns"]


def test_a_folder_without_a_log_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="to follow"):
        next(follow(tmp_path, every=0, idle=lambda: False))


DEVELOPED_ON = (3, 7, 8, 9, 12, 13, 20, 21, 22, 25, 26, 27, 28, 33, 34, 35, 42, 45, 46, 65, 67, 70)
"""Numbers of the labelled logs that the rules were made with; `bench/doctor_accuracy.py` measures the others too."""


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="the labelled logs are not at ../shared/data/doctor")
def test_real_logs_of_known_cause() -> None:
    """On the logs it was developed on the doctor finds what was established, and calls no healthy run unhealthy."""
    wrong = []
    for folder in sorted(p.parent for p in DATA.glob("*/label.json")):
        if int(folder.name.partition("-")[0]) not in DEVELOPED_ON:
            continue
        label = json.loads((folder / "label.json").read_text(encoding="utf-8"))
        report = examine(next(p for p in folder.iterdir() if p.name.startswith("log")))
        grave = [f.code for f in report.diagnosis.findings if f.severity != "info"]
        right = {label["root_cause"], *label["expected_findings"]}
        if label["root_cause"] == "healthy":
            good = not grave or grave[0] in label.get("acceptable_findings", ())
        else:
            good = bool(grave) and grave[0] in right
        if not good:
            wrong.append((folder.name, grave))
    assert len(wrong) <= 1, wrong
