"""The report in Chinese: its own words are exchanged, and what a run wrote is not touched."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from levelhead.report.language import in_chinese, own_words, translated
from levelhead.report.page import PANELS, render, write
from levelhead.report.reading import read_run
from synthetic_run import EVIL, write_run

CHINESE = re.compile("[\u4e00-\u9fff]")
VERBATIM = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    page = render(read_run(write_run(tmp_path_factory.mktemp("runs") / "run", steps=40)))
    return page, translated(page, "zh")


def pieces(page: str) -> list[str]:
    bare = re.sub(r"<(script|style|pre|code)\b.*?</\1>", "", page, flags=re.DOTALL)
    return [html.unescape(text).strip() for text in re.findall(r">([^<]+)<", bare)]


def test_english_is_the_page_as_it_is(pages: tuple[str, str]) -> None:
    assert translated(pages[0], "en") == pages[0]


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
        return [match.group() for match in VERBATIM.finditer(page)]

    assert verbatim(pages[1]) == verbatim(pages[0])
    assert html.escape(EVIL, quote=True) in pages[1]
    assert re.findall(r"<[a-z][^>]*>", re.sub('lang="zh"', 'lang="en"', pages[1])) == re.findall(
        r"<[a-z][^>]*>", pages[0]
    )


def test_a_text_with_markup_in_it_is_still_text() -> None:
    page = "<p>Improved on &lt;img src=x&gt;.</p><pre>Policy</pre><b>no such words</b>"
    assert translated(page, "zh") == "<p>&lt;img src=x&gt; 有提升。</p><pre>Policy</pre><b>no such words</b>"


def test_numbers_and_names_stay_in_their_places() -> None:
    assert in_chinese("2 critical, 1 warning") == "2 个严重\uff0c1 个警告"
    assert (
        in_chinese("93% → 99% valid · 27 → 23 tokens · 512 items") == "有效率 93% → 99% · 长度 27 → 23 token · 512 题"
    )
    assert in_chinese("steps 10 to 15, 6 times") == "第 10 到 15 步\uff0c6 次"


def test_every_section_of_the_page_has_its_chinese() -> None:
    phrases, _ = own_words()
    for title in PANELS:
        assert title in phrases


def test_the_page_is_written_in_the_language_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=10)
    assert "学习过程" in write(folder, "zh").read_text(encoding="utf-8")
    assert "学习过程" not in write(folder).read_text(encoding="utf-8")
