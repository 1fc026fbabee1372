"""The report in Chinese: its own words are exchanged, in its charts as well, and what a run wrote is not touched."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import strata_summary
from levelhead.diagnosis.verdict import judge
from levelhead.report.language import Translator, own_words
from levelhead.report.page import PANELS, render, write
from levelhead.report.reading import Run, read_run
from synthetic_run import EVIL, write_run

in_chinese = Translator("zh").text
CHINESE = re.compile("[\u4e00-\u9fff]")
VERBATIM = re.compile(r"<(pre|code|style)\b.*?</\1>|<script>.*?</script>", re.DOTALL)
LATIN = re.compile(r"[A-Za-z][A-Za-z]+")
TERMS = {
    "Levelhead", "SFT", "GRPO", "KL", "SE", "token", "nat", "recipe", "yaml", "LoRA", "logit", "unknown", "events",
    "jsonl", "pareto", "json", "RLHF",
}  # fmt: skip
"""Words that a Chinese reader of the field reads in Latin letters, and names of files."""
EVENTS = [
    (
        3, "lr-too-high", "warning", "adapt",
        "4 of the last 8 updates had to be shortened",
        "最近 8 次更新中有 4 次不得不缩短",
    ),
    (
        5, "gradient-spike", "critical", "skip",
        "the gradient's norm is 9.1, 12 times the usual; the update was skipped",
        "梯度范数为 9.1，是平时的 12 倍；已跳过这次更新",
    ),
    (
        9, "update-collapse", "critical", "rollback",
        "no gradient for 8 steps; back to the weights of step 4, learning rate times 0.5",
        "连续 8 步没有梯度；回到第 4 步的权重，学习率乘以 0.5",
    ),
    (
        12, "held-out-trained", "critical", "warn",
        "item 7 of task 7 is trained on, and a held-out item asks the same",
        "任务 7 的题目 7 用于训练，而留出集中有一道题与它相同",
    ),
]  # fmt: skip


def spoken_run(folder: Path) -> Path:
    """A run whose verdicts and events are the product's own sentences."""
    write_run(folder, steps=40)
    summary = strata_summary.summary()
    for task, stages in summary["tasks"].items():
        verdict = judge(stages)
        assert verdict is not None
        summary["verdict"][task] = verdict.to_json()
    (folder / "summary.json").write_text(json.dumps(summary))
    keys = ("step", "code", "severity", "action", "message", "message_zh")
    events = [dict(zip(keys, event, strict=True)) for event in EVENTS]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(spoken_run(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def pages(run: Run) -> tuple[str, str]:
    return render(run), render(run, "zh")


def pieces(page: str) -> list[str]:
    bare = re.sub(r"<(script|style|pre|code)\b.*?</\1>", "", page, flags=re.DOTALL)
    return [html.unescape(text).strip() for text in re.findall(r">([^<]+)<", bare)]


def figures(page: str) -> list[dict[str, Any]]:
    match = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return list(json.loads(match[1]))


def own_names(run: Run) -> set[str]:
    """Every word of a name that the run gave: tasks, strata, metrics, parts, codes, its folder and its machine."""
    metrics = [name for stages in run.summary_tasks.values() for stage in stages.values() for name in stage["metrics"]]
    strata = [name for stages in run.summary_tasks.values() for stage in stages.values() for name in stage["strata"]]
    numbers = [
        name
        for stages in run.summary_tasks.values()
        for stage in stages.values()
        for stratum in stage["strata"].values()
        for name in stratum["metrics"]
    ]
    keys = [key for row in run.metrics for key in row if not key.isalpha()]
    codes = [event["code"] for event in run.events]
    texts = [run.name, *run.tasks, *metrics, *strata, *numbers, *keys, *codes]
    return {word for text in texts for word in LATIN.findall(text)}


def left_in_english(texts: list[str], run: Run) -> list[str]:
    allowed = TERMS | own_names(run)
    # What a policy answered is quoted in verdicts.
    bare = [re.sub("\u201c[^\u201d]*\u201d|'[^']*'", "", text) for text in texts]
    return [text for text in bare if set(LATIN.findall(text)) - allowed]


def test_english_is_the_page_as_it_is(run: Run, pages: tuple[str, str]) -> None:
    assert pages[0] == render(run, "en")
    assert Translator("en").page(pages[0]) == pages[0]


def test_no_word_of_the_page_stays_english_but_names_and_terms(run: Run, pages: tuple[str, str]) -> None:
    # The checks before training, the machine and what the policy was asked and wrote stand as the run has them.
    page = re.sub(r'<section id="(preflight|environment)">.*?</section>', "", pages[1], flags=re.DOTALL)
    page = re.sub(r'<span class="(prompt|muted id)">.*?</span>', "", page, flags=re.DOTALL)
    page = re.sub(r"<(title|h1)>.*?</\1>", "", page)
    assert left_in_english(pieces(page), run) == []
    assert left_in_english([html.unescape(text) for text in re.findall(r' title="([^"]*)"', page)], run) == []


def test_no_word_of_a_chart_stays_english_but_names_and_terms(run: Run, pages: tuple[str, str]) -> None:
    def words(value: Any, key: str = "") -> list[str]:
        if isinstance(value, dict):
            return [text for name, inner in value.items() for text in words(inner, name)]
        if isinstance(value, list):
            return [text for inner in value for text in words(inner, key)]
        shown = ("name", "hovertemplate", "text", "y", "x", "categoryarray", "customdata", "ticksuffix")
        return [re.sub(r"%\{[^}]*\}|<extra></extra>", "", value)] if isinstance(value, str) and key in shown else []

    drawn = words(figures(pages[1]))
    assert left_in_english(drawn, run) == []
    assert {"最小", "最大", "平均", "均衡得分", "SFT 后", "采样", "打分", "超过此线则缩小"} <= set(drawn)


def test_the_numbers_of_a_chart_and_the_groups_of_its_legend_stay(pages: tuple[str, str]) -> None:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("name", "hovertemplate", "ticksuffix", "text")
            return {key: bare(inner) for key, inner in value.items() if key not in left_out}
        if isinstance(value, list):
            return [bare(inner) for inner in value]
        return "balanced score" if value == "均衡得分" else value

    assert bare(figures(pages[1])) == bare(figures(pages[0]))
    groups = set(re.findall(r'data-group="([^"]*)"', pages[1]))
    assert groups == set(re.findall(r'data-group="([^"]*)"', pages[0]))
    assert groups <= {trace.get("legendgroup") for figure in figures(pages[1]) for trace in figure["data"]}


def test_verdicts_and_events_are_said_in_chinese(pages: tuple[str, str]) -> None:
    texts = pieces(pages[1])
    assert any(text.startswith("有提升\uff1a均衡得分") for text in texts)
    assert "梯度范数为 9.1\uff0c是平时的 12 倍\uff1b已跳过这次更新" in texts
    assert "动作\uff1a回退" in texts


def test_headings_and_hints_are_chinese(pages: tuple[str, str]) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", pages[1])
    assert len(headings) >= 12
    assert all(CHINESE.search(heading) for heading in headings), headings
    links = re.findall(r"<nav><div>(.*?)</div></nav>", pages[1])[0]
    assert "分层得分与基线" in links
    assert '<html lang="zh">' in pages[1]
    hints = re.findall(r'<article class="chart[^>]*>.*?<p class="muted">(.*?)</p>', pages[1], re.DOTALL)
    assert hints
    assert all(CHINESE.search(hint) for hint in hints), [hint for hint in hints if not CHINESE.search(hint)]


def test_what_a_run_wrote_stays_to_the_letter(pages: tuple[str, str]) -> None:
    def verbatim(page: str) -> list[str]:
        body = re.sub(r'<section class="outlook".*?</section>', "", page, flags=re.DOTALL)
        return [match.group() for match in VERBATIM.finditer(body)]

    assert verbatim(pages[1]) == verbatim(pages[0])
    assert html.escape(EVIL, quote=True) in pages[1]


def test_no_element_is_made_or_lost(pages: tuple[str, str]) -> None:
    def tags(page: str) -> list[str]:
        bare = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)
        return re.findall(r"</?[a-z][^>]*>", re.sub(r' title="[^"]*"', "", bare.replace('lang="zh"', 'lang="en"')))

    assert tags(pages[1]) == tags(pages[0])


def test_a_name_that_is_a_word_of_ours_stays() -> None:
    translator = Translator("zh", names=["score", "Policy"])
    assert translator.text("score") == "score"
    assert translator.page("<b>Policy</b><b>Updates</b>") == "<b>Policy</b><b>更新</b>"
    assert translator.figure({"name": "score", "y": ["Policy", "train"]}) == {"name": "score", "y": ["Policy", "训练"]}


def test_a_text_with_markup_in_it_is_still_text() -> None:
    page = "<p>Improved on &lt;img src=x&gt;.</p><pre>Policy</pre><b>no such words</b>"
    assert Translator("zh").page(page) == "<p>&lt;img src=x&gt; 有提升。</p><pre>Policy</pre><b>no such words</b>"


def test_numbers_and_names_stay_in_their_places() -> None:
    assert in_chinese("2 critical, 1 warning") == "2 个严重\uff0c1 个警告"
    assert (
        in_chinese("93% → 99% valid · 27 → 23 tokens · 512 items") == "有效率 93% → 99% · 长度 27 → 23 token · 512 题"
    )
    assert in_chinese("steps 10 to 15, 6 times") == "第 10 到 15 步\uff0c6 次"
    assert in_chinese("Improved on a, b and c; worse on d.") == "a, b 和 c 有提升\uff1bd 变差。"
    event = {"no gradient for 8 steps": "连续 8 步没有梯度"}
    stopped = Translator("zh", sentences=event).text("Stopped at step 12: no gradient for 8 steps")
    assert stopped == "在第 12 步停止\uff1a连续 8 步没有梯度"


def test_every_section_of_the_page_has_its_chinese() -> None:
    for title in PANELS:
        assert title in own_words().phrases


def test_a_pattern_has_as_many_groups_as_its_chinese_has_places() -> None:
    for pattern, words in own_words().patterns.items():
        assert pattern.groups == words.count("{}"), pattern.pattern
        # The live page's script reads these as well, where a group that took no part is no text.
        assert ")?" not in re.sub(r"\(\?:[^()]*\)\?", "", pattern.pattern), pattern.pattern


def test_the_page_is_written_in_the_language_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=10)
    assert "学习过程" in write(folder, "zh").read_text(encoding="utf-8")
    assert "学习过程" not in write(folder).read_text(encoding="utf-8")


def other_sections() -> Run:
    """A run with what the first one lacks: kinds of page, judges, workflows, a front, and a guard that stopped it."""
    run = Run("flows", recipe={"tasks": [{"kind": "browser"}, {"kind": "workflow"}], "model": {"preset": "tiny"}})
    kinds = {"success": 0.5, "click-test/success": 0.25, "click-test/steps": 1.5, "enter-text/success": 0.75}
    stage = {"score": 0.5, "se": 0.1, "n": 64, "metrics": kinds, "strata": {}}
    run.summary = {"tasks": {"browser": {"sft": stage, "grpo": {**stage, "score": 0.9}}}}
    judged = {f"judges/one/{name}": 1.0 for name in ("calls", "grade", "drift", "down", "cost", "latency_median")}
    curriculum = {f"curriculum/{what}/browser/click-test": 0.5 for what in ("share", "success")}
    run.metrics = [
        {"step": step, "stage": "grpo", "reward": 0.5, "validity/workflow": 1.0, **judged, **curriculum}
        for step in (1, 2)
    ]
    info = {"domain": "qa", "difficulty": "hard", "workflow": "Custom", "tokens": 300, "calls": 1}
    row = {"task": "workflow", "step": 5, "valid": True, "reward": 0.5, "parts": {"correctness": 1.0}, "info": info}
    run.rollouts = {"grpo-000005": [row]}
    run.samples = {"sft": [], "grpo": [{**row, "prompt_id": "p"}]}
    point = {"values": [0.1, 0.2], "errors": [0.1, 0.1], "front": True, "chance": 0.9, "hypervolume": 3.0}
    run.pareto = {
        "objectives": ["one", "two"],
        "reference": [0.0, 0.0],
        "hypervolume": 5.0,
        "hypervolume_se": 0.25,
        "knee": 4,
        "points": [{**point, "step": 0, "stage": "start"}, {**point, "step": 4, "stage": "sft"}],
    }
    stop = {"step": 9, "code": "deadlock", "severity": "critical", "action": "stop"}
    run.events = [{**stop, "message": "no gradient for 8 steps", "message_zh": "连续 8 步没有梯度"}]
    ends = {f"{name}_{at}": 0.5 for name in ("entropy", "top_probability", "gap") for at in ("first", "mean")}
    sample = {"prompt_id": "p", "finish": "stop", "reward": 1.0, **ends}
    run.diagnostics = [{"step": 1, "tasks": {"workflow": {"turns": 2, "samples": [sample]}}}]
    run.notes = ["check.json is missing"]
    return run


def test_the_sections_of_other_tasks_are_chinese_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.page.plotly_script", lambda: "")
    run = other_sections()
    page = render(run, "zh")
    for heading in ("题目类别", "工作流", "评判模型", "帕累托前沿", "最初几步"):
        assert f"<h2>{heading}</h2>" in page
    names = "tiny browser workflow click test enter text one two qa hard Custom check json stop correctness"
    bare = re.sub(r"<(title|h1)>.*?</\1>", "", page)
    words = {word for text in left_in_english(pieces(bare), run) for word in LATIN.findall(text)}
    assert words - TERMS - own_names(run) - set(names.split()) == set()
    drawn = json.dumps(figures(page), ensure_ascii=False)
    for words_of_a_chart in ("前沿", "拐点", "超体积", "回退", "第 4 步\uff0cSFT"):
        assert words_of_a_chart in drawn
    assert "在第 9 步停止\uff1a连续 8 步没有梯度" in page


def test_what_a_check_said_is_in_chinese_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    check = {
        "name": "sampling/min-length",
        "status": "warn",
        "id": "sampling/min-length:too-long",
        "fields": {"short": 1.0, "least": 9, "shortest": 6},
        "message": "an answer of no token",
        "fix": "set min_new_tokens to at most 6",
    }
    (folder / "check.json").write_text(json.dumps({"checks": [check]}), encoding="utf-8")
    page = render(read_run(folder), "zh")
    assert "set min_new_tokens" not in page
    assert "min_new_tokens 设为不超过 6" in page
