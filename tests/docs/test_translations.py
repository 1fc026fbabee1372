"""A Chinese page names the English text that it was held against; where that changes it is red until it is read again.

After reading both pages: ``python tests/docs/test_translations.py docs/zh/PAGE.md`` writes the mark anew;
``README.zh.md`` likewise.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.zh.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))]
MARK = re.compile(r"\n<!-- held against the English page: (\w{12}) -->\n$")


def source(page: Path) -> Path:
    """The English page of a Chinese one."""
    return ROOT / "README.md" if page.name == "README.zh.md" else ROOT / "docs" / page.name


def digest(page: Path) -> str:
    """The first twelve digits of the hash of a Chinese page's English source."""
    return hashlib.sha256(source(page).read_bytes()).hexdigest()[:12]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_chinese_page_was_held_against_the_english_page_as_it_is(page: Path) -> None:
    mark = MARK.search(page.read_text(encoding="utf-8"))
    assert mark is not None
    assert mark[1] == digest(page), (
        f"{source(page).relative_to(ROOT)} has changed: read {page.relative_to(ROOT)} beside it, then mark it"
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument).resolve()
        text = MARK.sub("\n", path.read_text(encoding="utf-8"))
        path.write_text(
            f"{text.rstrip()}\n\n<!-- held against the English page: {digest(path)} -->\n", encoding="utf-8"
        )
