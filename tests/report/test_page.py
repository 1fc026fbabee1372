"""The report: one page, nothing from elsewhere, model text as text, and whatever is missing left out with a word."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import strata_summary
from levelhead.cli.report import report
from levelhead.contrib.browser.host import find_chromium
from levelhead.errors import InputError
from levelhead.report import page as page_module
from levelhead.report import write
from levelhead.report.page import render
from levelhead.report.reading import Run, read_run
from synthetic_run import EVIL, STEPS, write_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "dual")


@pytest.fixture
def whole_library() -> None:
    """Ask for pages with the drawing library in them."""


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Leave the drawing library (1 MB) out of pages that no browser opens."""
    if "whole_library" not in request.fixturenames:
        monkeypatch.setattr(page_module, "plotly_script", lambda: "")


def figures(text: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return {figure["id"]: figure for figure in json.loads(found[1])} if found else {}


class Outline(HTMLParser):
    """Tags and links of a page, and whether its elements are closed in order."""

    VOID = ("meta", "link", "img", "br", "wbr", "input")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_every_panel_of_a_full_run_is_there(run_folder: Path) -> None:
    text = render(read_run(run_folder))
    assert set(figures(text)) == {
        "held-out", "reward", "validity", "parts-fairness", "parts-faithfulness", "sft-loss",
        "own-fairness", "own-faithfulness", "entropy", "kl", "dead-groups",
        "strata-fairness", "strata-faithfulness", "answers-top_share", "answers-information", "answers-distinct",
        "cosines", "lengths", "truncation", "clipping", "gradient", "learning-rate", "timing", "event-strip",
    }  # fmt: skip
    for title in ("Before and after", "While training", "Events", "Preflight", "Recipe", "Environment"):
        assert f"<h2>{title}</h2>" in text
    assert "Improved on fairness; not improved on faithfulness." in text
    assert "Strata and baseline" in text
    assert strata_summary.ABSTAIN in text
    assert "AMD EPYC 7763" in text
    assert "merge:" in text
    outline(text)


def test_every_chart_has_a_place_and_is_a_figure_that_plotly_accepts(run_folder: Path) -> None:
    text = render(read_run(run_folder))

    def paint(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: paint(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [paint(inner) for inner in value]
        return "#123456" if isinstance(value, str) and value.startswith("$") else value

    for name, figure in figures(text).items():
        assert f'id="plot-{name}"' in text
        drawn = go.Figure(data=paint(figure["data"]), layout=paint(figure["layout"]))
        assert len(drawn.data) > 0
        for trace in figure["data"]:
            assert len(trace["x"]) == len(trace["y"]) > 0


def test_colours_are_named_in_the_palette_of_both_themes(run_folder: Path) -> None:
    text = render(read_run(run_folder))
    used = {name.split("/")[0] for name in re.findall(r'"\$([a-z0-9/.-]+)"', text)} | set(
        re.findall(r"var\(--([a-z0-9-]+)\)", text)
    )
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)[:2]
    for palette in (light, dark):
        assert used - {"own", "tone"} <= set(re.findall(r"--([a-z0-9-]+):", palette))


@pytest.mark.parametrize(
    "where", ["completion", "prompt", "prompt_id", "task", "event", "recipe", "environment", "metric"]
)
def test_hostile_text_stays_text(run_folder: Path, where: str) -> None:
    run = read_run(run_folder)
    before = outline(render(run))
    rows = [row for rows in (*run.samples.values(), *run.rollouts.values()) for row in rows]
    if where in ("completion", "prompt", "prompt_id", "task"):
        for row in rows:
            row[where] = EVIL
    elif where == "event":
        run.events = [dict.fromkeys(("code", "severity", "message", "action"), EVIL) | {"step": n} for n in range(3)]
    elif where == "recipe":
        run.name, run.recipe_text, run.recipe = EVIL, EVIL, {"model": {"name": EVIL}, "seed": EVIL}
    elif where == "environment":
        run.environment = {EVIL: EVIL, "nested": {EVIL: [EVIL]}}
    else:
        run.summary["tasks"][EVIL] = run.summary["tasks"]["fairness"]
        for row in run.metrics:
            row[f"reward/{EVIL}"], row[EVIL] = 1.0, float(row["step"])
    text = render(run)
    after = outline(text)
    assert after.tags.count("script") == before.tags.count("script")
    assert after.tags.count("img") == 0
    assert EVIL not in text
    assert html.escape(EVIL, quote=True)[:20] in text or where == "metric"


def test_nothing_is_fetched_from_elsewhere(run_folder: Path) -> None:
    text = render(read_run(run_folder))
    assert all(link.startswith(("#", "data:,")) for link in outline(text).fetched)
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.usefixtures("whole_library")
def test_the_written_page_holds_the_library_and_replaces_the_old_one_whole(run_folder: Path) -> None:
    target = write(run_folder)
    assert target == run_folder / "report.html"
    assert 1.1e6 < target.stat().st_size < 1.5e6
    assert write(run_folder).read_text() == target.read_text()
    assert list(run_folder.glob("*.part")) == []
    assert target.read_text().count("</script") == 3


FILES = ["recipe.yaml", "environment.json", "check.json", "metrics.jsonl", "events.jsonl", "summary.json", "rollouts"]


@pytest.mark.parametrize("gone", FILES)
def test_a_missing_file_leaves_only_its_part_out(tmp_path: Path, gone: str) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    path = folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = render(read_run(folder))
    outline(text)
    assert ("entropy" in figures(text)) == (gone != "metrics.jsonl")
    assert ("<h2>Before and after</h2>" in text) == (gone != "rollouts")
    if gone in ("recipe.yaml", "metrics.jsonl", "summary.json", "environment.json"):
        assert f"{gone} is missing" in text


@pytest.mark.parametrize("name", [name for name in FILES if name != "rollouts"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2", b"null", b"\xff\xfe\x00", b'{"a": {"b": []}}', b"[[[[", b"3"])
def test_a_broken_file_never_breaks_the_page(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path / "run", steps=12)
    (folder / name).write_bytes(content)
    outline(render(read_run(folder)))


def test_a_cut_off_last_line_is_left_out_with_a_word(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=12)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "stage": "grpo", "rew')
    samples = folder / "rollouts" / "eval-grpo.jsonl.gz"
    samples.write_bytes(samples.read_bytes()[:-60])
    run = read_run(folder)
    assert len(run.lines("grpo")) == 12
    assert "the last line of metrics.jsonl is incomplete and was left out" in render(run)
    assert any("eval-grpo.jsonl.gz is cut off" in note for note in run.notes)
    assert render(run)


def test_steps_that_are_not_finite_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["stage"] == "grpo" and line["step"] in (7, 9):
            line["grad_norm"] = "inf" if line["step"] == 7 else float("nan")
            line["loss"] = "nan"
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    text = render(read_run(folder))
    assert "grad_norm is not finite at step 7, 9" in text
    assert figures(text)["gradient"]["data"][0]["y"].count(None) == 2


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_without_a_run_is_an_input_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=f"{folder}: (no such folder|the folder holds no run)"):
        write(tmp_path / folder)


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", steps=12)

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"report\.html: cannot be written \(No space left on device\)"):
        write(folder)


@pytest.mark.parametrize(
    ("completion", "shown"),
    [
        ("", "(nothing)"),
        ("\n \n", "(3 characters of white space)"),
        ("a\n\n\n\n\nb", "(5 line breaks)"),
        (None, "(nothing)"),
    ],
)
def test_a_completion_of_white_space_is_said_in_words(completion: str | None, shown: str) -> None:
    rows = [{"task": "a", "prompt_id": "1", "prompt": "p", "completion": completion}]
    assert shown in render(Run("x", samples={"grpo": rows}))


def test_many_metrics_of_one_family_are_folded(run_folder: Path) -> None:
    run = read_run(run_folder)
    for row in run.lines("grpo"):
        row.update({f"audit/{n}": float(row["step"]) for n in range(9)})
    more = render(run).split("<h2>More metrics</h2>")[1]
    assert "9 under audit/" in more.split("</details>")[0]
    assert more.index("memory/peak_gib") < more.index("<details")


def test_guard_actions_are_marked_on_the_curves(run_folder: Path) -> None:
    drawn = figures(render(read_run(run_folder)))
    assert [shape["x0"] for shape in drawn["entropy"]["layout"]["shapes"]] == [67, 68]
    assert "shapes" not in drawn["sft-loss"]["layout"]


def test_dead_groups_are_stacked_by_side(run_folder: Path) -> None:
    chart = figures(render(read_run(run_folder)))["dead-groups"]
    assert [trace["name"] for trace in chart["data"]] == ["all failed", "otherwise alike", "all solved"]
    assert {trace["stackgroup"] for trace in chart["data"]} == {"all"}
    for index in range(STEPS):
        assert sum(trace["y"][index] for trace in chart["data"]) <= 1.0 + 1e-6


def test_before_and_after_shows_the_same_prompt_at_every_stage(run_folder: Path) -> None:
    text = render(read_run(run_folder))
    section = text.split("<h2>Before and after</h2>")[1].split("<h2>")[0]
    card = section.split('class="sample"')[1]
    assert "largest gain" in card
    places = [card.index(stage) for stage in ("before training", "after SFT", "after GRPO")]
    assert places == sorted(places)
    assert card.count('class="answer"') == 3


def test_a_run_without_sft_begins_its_curve_before_training(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["stage"] != "sft" and line.get("eval_stage") != "sft"]
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in kept))
    trace = figures(render(read_run(folder)))["held-out"]["data"][0]
    assert trace["x"] == [0, 20]
    assert trace["y"][0] == pytest.approx(-0.98, abs=0.05)


def test_a_run_of_sft_alone_draws_its_own_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["stage"] != "grpo" and line.get("eval_stage") in (None, "start", "sft")]
    kept = [line for line in kept if line["stage"] == "sft" or "eval_stage" in line]
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in kept))
    drawn = figures(render(read_run(folder)))
    assert drawn["held-out"]["data"][0]["x"] == [0, 60]
    assert {"sft-loss", "gradient", "timing"} <= set(drawn)


def test_a_step_that_a_resumed_run_wrote_twice_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    again = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if '"grpo"' in line][-5:]
    with (folder / "metrics.jsonl").open("a") as file:
        for line in again:
            file.write(json.dumps({**line, "entropy": 9.0}) + "\n")
    entropies = [row["entropy"] for row in read_run(folder).lines("grpo")]
    assert len(entropies) == 20
    assert entropies.count(9.0) == len([line for line in again if line["stage"] == "grpo"])


def test_evaluations_within_two_stages_at_one_step_stay_apart(tmp_path: Path) -> None:
    lines = [
        {"step": 5, "stage": "sft"},
        {"step": 5, "stage": "eval", "eval/a/score": 0.1},
        {"step": 9, "stage": "eval", "eval_stage": "sft", "eval/a/score": 0.2},
        {"step": 5, "stage": "grpo"},
        {"step": 5, "stage": "eval", "eval/a/score": 0.3},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = read_run(tmp_path)
    assert len(run.lines("eval")) == 3
    assert run.tasks == ["a"]
    (trace,) = figures(render(run))["held-out"]["data"]
    assert (trace["x"], trace["y"]) == ([0, 5], [0.2, 0.3])


def test_a_long_run_makes_no_long_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2000)
    text = render(read_run(folder))
    assert len(text) < 3e6
    for figure in figures(text).values():
        assert all(len(trace["x"]) <= 1500 for trace in figure["data"])


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = """
step stage eval_stage reward reward/a kl/a entropy grad_norm learning_rate time/train step_time eval/a/score
dead_groups/all_failed dead_groups/all_solved frac_reward_zero_std code severity message action evidence name status fix
task prompt_id prompt completion parts valid length finish advantage tasks a start sft grpo score se metrics seconds
model lora preset merge/cosine/a/b rewards/x/mean
"""
keys = st.sampled_from(KEYS.split())
stages = st.sampled_from(["sft", "grpo", "eval", "start", None])
rows = st.lists(
    st.builds(
        lambda values, given: {**values, **given},
        st.dictionaries(keys, st.floats() | anything, max_size=8),
        st.just({}) | st.fixed_dictionaries({"stage": stages, "step": st.integers(0, 9)}),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, rows, rows, rows, st.dictionaries(keys, anything, max_size=6), st.dictionaries(keys, anything, max_size=6))
def test_no_values_whatever_break_the_page(
    metrics: list[Any], events: list[Any], checks: list[Any], samples: list[Any], recipe: Any, summary: Any
) -> None:
    run = Run(
        "x", recipe=recipe, recipe_text="x", environment=summary, metrics=metrics, events=events,
        summary={"tasks": {"a": summary, "b": recipe}, **summary}, checks=checks,
        samples={"start": samples, "grpo": samples}, rollouts={"grpo-000010": samples},
    )  # fmt: skip
    outline(render(run))


def test_the_command_prints_the_page_or_one_json_document(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(report)
    folder = write_run(tmp_path / "run", steps=12)
    plain = CliRunner().invoke(app, [str(folder)])
    assert plain.exit_code == 0
    assert plain.output.startswith(str(folder / "report.html"))
    said = json.loads(CliRunner().invoke(app, [str(folder), "--json"]).output)
    assert said == {"report": str(folder / "report.html"), "bytes": (folder / "report.html").stat().st_size}


def test_the_report_needs_no_torch(run_folder: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'numpy', 'pandas'): sys.modules[name] = None\n"
        "from pathlib import Path\nfrom levelhead.report.page import render\n"
        "from levelhead.report.reading import read_run\n"
        f"print(len(render(read_run(Path({str(run_folder)!r})))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1.1e6


@pytest.mark.browser
@pytest.mark.usefixtures("whole_library")
def test_a_browser_draws_every_chart_and_runs_nothing_of_the_models(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    target = write(write_run(tmp_path / "run"))
    trouble: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=find_chromium(None, p.chromium.executable_path), args=["--no-sandbox"]
        )
        context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
        context.set_offline(True)
        page = context.new_page()
        page.set_default_timeout(0)  # a busy machine is no failure; the test's own limit holds
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: trouble.append(request.url) if request.url != target.as_uri() else None)
        page.goto(target.as_uri())
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": 390, "height": height})
        while page.evaluate("document.querySelectorAll('.plot .main-svg').length") < 24:
            page.wait_for_timeout(100)  # wait_for_function evaluates text, which the page's own policy forbids
        assert page.evaluate("document.querySelectorAll('.plot').length") == 24
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.title() == "dual-tiny \u00b7 Levelhead"
        first = page.locator("#chart-kl .legend button").first
        first.click()
        assert first.get_attribute("aria-pressed") == "false"
        browser.close()
    assert trouble == []


def test_samples_in_a_plain_gzip_file_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=12)
    with gzip.open(folder / "rollouts" / "eval-grpo.jsonl.gz", "rt") as file:
        assert len(file.readlines()) == len(read_run(folder).samples["grpo"]) == 16
