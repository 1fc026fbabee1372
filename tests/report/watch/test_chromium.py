"""The live page in a browser: curves, rollouts and their filters; what a model wrote stays text."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from levelhead.report.watch import WatchServer
from levelhead.report.watch.run import find_runs
from synthetic_run import write_run


@pytest.mark.browser
def test_a_browser_shows_curves_and_filters_rollouts_and_runs_nothing_of_the_models(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    server = WatchServer(find_runs([write_run(tmp_path / "run", steps=40)]))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    trouble: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 390, "height": 900}).new_page()
        page.set_default_timeout(0)  # a busy machine is no failure; the test's own limit holds
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith((server.url, "data:")) else trouble.append(r.url))
        page.goto(server.url)
        page.wait_for_selector("#chart-reward .main-svg .trace")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click("#to-rollouts")
        page.wait_for_selector(".entry")
        page.select_option("[name=kind]", "eval")
        page.fill("[name=text]", "onerror")
        page.wait_for_selector(".entry:has-text('onerror')")
        page.locator(".entry:not(:has-text('onerror'))").first.wait_for(state="detached")
        page.locator(".entry").first.click()
        page.wait_for_selector("#group pre:has-text('<img src=x onerror')")
        assert page.locator("#group img, #list img, main script").count() == 0
        page.click("#to-events")
        page.wait_for_selector("#findings .row")
        assert page.title() == "Levelhead"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
    server.shutdown()
    server.server_close()
    assert trouble == []
