from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from levelhead.contrib.browser.oracles import ORACLES
from levelhead.contrib.browser.pages import (
    CARRIES_STATE,
    STEP_LIMITS,
    check_pages,
    page_images,
    page_names,
    page_url,
    step_limit,
)
from levelhead.errors import InputError


def path_of(url: str) -> Path:
    return Path(unquote(urlparse(url).path))


def test_there_are_130_pages_and_each_has_a_file() -> None:
    assert len(page_names()) == 130
    assert all(path_of(page_url(page)).is_file() for page in page_names())


def test_every_table_names_pages_that_exist() -> None:
    check_pages([*ORACLES, *STEP_LIMITS, *CARRIES_STATE])


def test_an_unknown_page_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"tasks\[\]\.tasks: there is no MiniWoB\+\+ page 'click-tset'; .*click-test"):
        check_pages(["click-tset"])


def test_the_images_of_a_page_and_of_its_style_sheets_are_found() -> None:
    names = {path_of(url).name for url in page_images("email-inbox")}
    assert {"delete.png", "star.png"} <= names
    assert all(path_of(url).is_file() for page in page_names() for url in page_images(page))


def test_pages_without_a_limit_of_their_own_take_ten_steps() -> None:
    assert step_limit("click-test") == 2
    assert step_limit("tic-tac-toe") == 10
