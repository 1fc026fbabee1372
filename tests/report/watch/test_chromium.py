"""The live page in a browser: curves, rollouts and their filters; what a model wrote stays text."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from levelhead.contrib.browser import replay as room
from levelhead.contrib.browser.host import find_chromium
from levelhead.diagnosis.findings import Language
from levelhead.report.watch import WatchServer
from levelhead.report.watch.run import find_runs
from synthetic_run import EVIL, write_run

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
)


@contextmanager
def page_of(folder: Path, width: int = 390, language: Language = "en") -> Iterator[Any]:
    """The live page of a run, open in Chromium; it must load nothing from elsewhere and run into no error."""
    playwright = pytest.importorskip("playwright.sync_api")
    server = WatchServer(find_runs([folder]), language=language)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    trouble: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=find_chromium(None, p.chromium.executable_path), args=["--no-sandbox"]
        )
        page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(0)  # a busy machine is no failure; the test's own limit holds
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith((server.url, "data:")) else trouble.append(r.url))
        page.goto(server.url)
        yield page
        assert page.title() == "Levelhead"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    server.shutdown()
    server.server_close()
    assert trouble == []


@pytest.mark.browser
def test_a_browser_shows_curves_and_filters_rollouts_and_runs_nothing_of_the_models(tmp_path: Path) -> None:
    with page_of(write_run(tmp_path / "run", steps=40)) as page:
        page.wait_for_selector("#chart-reward .main-svg .trace")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click("#to-rollouts")
        page.wait_for_selector(".entry .prompt:not(:empty)")
        page.select_option("[name=kind]", "eval")
        page.fill("[name=text]", "onerror")
        page.wait_for_selector(".entry:has-text('onerror')")
        page.locator(".entry:not(:has-text('onerror'))").first.wait_for(state="detached")
        page.locator(".entry").first.click()
        page.wait_for_selector("#group pre:has-text('<img src=x onerror')")
        assert page.locator("#group img, #list img, main script").count() == 0
        page.click("#to-events")
        page.wait_for_selector("#findings .row")


def write_special(folder: Path) -> Path:
    """A run with a workflow and a browser episode among its rollouts, each with strata."""
    write_run(folder, steps=20)
    shared = {
        "step": 30,
        "stage": "grpo",
        "reward": 1.0,
        "advantage": 0.5,
        "valid": True,
        "finish": "stop",
        "length": 9,
    }
    workflow = "Custom -> (Review ? Revise : done) * 3 -> Format"
    rows = [
        {**shared, "task": "workflow", "prompt_id": "w", "prompt": "Solve.", "completion": f"{workflow}{EVIL}",
         "strata": {"domain": "math"}, "info": {"workflow": workflow}},
        {**shared, "task": "browser", "prompt_id": "b", "prompt": "Click.", "completion": "click(1)\n\nclick(2)",
         "turns": [8, 8], "strata": {"page": "click-test"},
         "info": {"page": "click-test", "seed": 3, "raw_reward": 1.0}},
    ]  # fmt: skip
    with gzip.open(folder / "rollouts" / "grpo-000030.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


@pytest.mark.browser
def test_a_workflow_is_drawn_and_an_episode_shows_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [
        {"image": PIXEL, "action": "click(1)", "error": EVIL},
        {"image": 'javascript:"', "action": "click(2)", "error": ""},
        {"image": PIXEL, "action": None, "error": ""},
    ]
    monkeypatch.setattr(room, "replay", lambda _row: {"frames": frames, "goal": "", "reward": 1.0, "same": True})
    with page_of(write_special(tmp_path / "run")) as page:
        page.click("#to-rollouts")
        page.wait_for_selector(".entry")
        page.select_option("[name=stratum]", "domain=math")
        page.locator(".entry:not(:has-text('domain=math'))").first.wait_for(state="detached")
        assert page.locator(".entry").count() == 1
        page.locator(".entry").first.click()
        page.wait_for_selector("#group .workflow svg")
        labels = page.locator("#group .workflow .step text").all_text_contents()
        assert sorted(labels) == ["Custom", "Format", "Review", "Revise", "done"]
        assert page.locator("#group .workflow .loop text").text_content() == "at most 3 times"
        page.select_option("[name=stratum]", "page=click-test")
        page.wait_for_selector(".entry:has-text('page=click-test')")
        page.locator(".entry:not(:has-text('page=click-test'))").first.wait_for(state="detached")
        page.locator(".entry").first.click()
        page.click("#group button:has-text('Show the pages')")
        page.wait_for_selector("#group .film figure")
        assert page.locator("#group .film figure").count() == 3
        assert page.locator("#group .film img").count() == 2
        assert page.locator("#group img[alt='the page before action 1']").count() == 1
        assert EVIL in page.locator("#group .film .refused").first.inner_text()
        page.wait_for_selector("#group p:has-text('as in the run')")


@pytest.mark.browser
def test_a_single_task_has_one_curve_and_a_constant_number_is_level(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if not k.endswith("/fairness")} for line in lines]
    for number, row in enumerate(rows):
        row |= {name: -0.1 - 1e-17 * (number % 3) for name in row if name.startswith("reward")}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with page_of(folder) as page:
        page.wait_for_selector("#chart-reward .ytick text")  # a level line has no height, so no eye for it
        assert page.locator("#chart-reward .legend button").all_text_contents() == ["reward"]
        ticks = page.locator("#chart-reward .ytick text").all_text_contents()
        assert max(map(len, ticks)) < 8, ticks


@pytest.mark.browser
def test_the_page_is_chinese_but_for_what_the_run_wrote(tmp_path: Path) -> None:
    folder = write_special(tmp_path / "run")
    row = {
        "step": 31,
        "stage": "grpo",
        "task": "Policy",
        "prompt_id": "Curves",
        "prompt": "More",
        "completion": "Reward",
    }
    with gzip.open(folder / "rollouts" / "grpo-000031.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({**row, "reward": 1.0, "strata": {"kind": "verbatim"}}) + "\n")
    with page_of(folder, language="zh") as page:
        page.wait_for_selector("#chart-reward .main-svg .trace")
        chinese = "[\u4e00-\u9fff]"
        for text in (*page.locator("[role=tab]").all_inner_texts(), *page.locator(".chart h3").all_inner_texts()):
            assert re.search(chinese, text) or text == "KL", text
        page.click("#to-rollouts")
        page.select_option("[name=stratum]", "kind=verbatim")
        page.wait_for_selector(".entry:has-text('kind=verbatim')")
        page.locator(".entry:not(:has-text('kind=verbatim'))").first.wait_for(state="detached")
        assert page.locator(".entry .text").first.inner_text() == "Reward"
        assert "\u5956\u52b1 1" in page.locator(".entry").first.inner_text()
        page.locator(".entry").first.click()
        page.wait_for_selector("#group .members pre")
        assert page.locator("#group .members pre").first.inner_text() == "Reward"
        assert page.locator("#group pre").first.inner_text() == "More"
        page.click("#to-events")
        page.wait_for_selector("#findings .row h3")
        assert re.search(chinese, page.locator("#findings .row h3").first.inner_text())


LATIN = re.compile("[A-Za-z][A-Za-z]+")
AS_IT_IS = {
    "Levelhead", "GRPO", "SFT", "KL", "token", "nat", "yaml", "recipe", "events", "jsonl", "grpo", "fairness",
    "faithfulness", "dual", "tiny", "run", "gz", "TRL", "Custom", "Format", "Review", "Revise", "done",
}  # fmt: skip
"""Terms, files, and names that the run gave."""


@pytest.mark.browser
def test_no_word_of_the_live_page_stays_english(tmp_path: Path) -> None:
    folder = write_special(tmp_path / "run")
    event = {"step": 12, "code": "gradient-spike", "severity": "critical", "action": "skip"}
    message = "the gradient's norm is 9.1, 12 times the usual; the update was skipped"
    chinese = "梯度范数为 9.1，是平时的 12 倍；已跳过这次更新"
    (folder / "events.jsonl").write_text(json.dumps({**event, "message": message, "message_zh": chinese}) + "\n")
    # What quotes a run (its texts, codes, numbers by name, recipe) is left out; so are its curves' names.
    texts = "pre, code, .text, .prompt, .name, .num, .row p.muted"
    quotes = f"{texts}, script, style, noscript, .legend, .plot, option, datalist, table"
    own_words = f"""() => {{
        const page = document.body.cloneNode(true);
        page.querySelectorAll("{quotes}").forEach((one) => one.remove());
        const spoken = [...page.querySelectorAll("[title], [placeholder], [aria-label], [alt]")].flatMap((one) =>
            ["title", "placeholder", "aria-label", "alt"].map((name) => one.getAttribute(name) || ""));
        const walk = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
        const texts = [];
        while (walk.nextNode()) texts.push(walk.currentNode.data);
        return [...texts, ...spoken];
    }}"""
    with page_of(folder, language="zh") as page:
        page.wait_for_selector("#chart-reward .main-svg .trace")
        for tab, there in (("rollouts", ".entry"), ("events", "#findings .row h3"), ("recipe", "#recipes pre")):
            page.click(f"#to-{tab}")
            page.wait_for_selector(there)
            if tab == "rollouts":
                page.locator(".entry").first.click()
                page.wait_for_selector("#group .members pre")
        texts = page.evaluate(own_words)
        bare = [re.sub(r"\S*[._/\"]\S*", "", text) for text in texts]  # names of metrics, keys of recipes, files
        assert [text for text in bare if set(LATIN.findall(text)) - AS_IT_IS] == []
        assert "梯度范数为 9.1" in page.locator("#log").inner_text()
        stages = page.locator("#stage option").all_inner_texts()
        assert stages == ["GRPO", "SFT"] or "训练前" in stages
