"""The MiniWoB++ pages: where they lie, how long an episode may be, which must be loaded afresh, and how one is lost."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from levelhead.errors import InputError
from levelhead.installation import install_command

DEFAULT_STEP_LIMIT = 10

STEP_LIMITS = {
    "click-button": 2,
    "click-dialog": 2,
    "click-link": 2,
    "click-option": 4,
    "click-test": 2,
    "click-test-2": 2,
    "enter-text": 4,
    "focus-text": 2,
    "focus-text-2": 2,
    "choose-date": 16,
    "choose-date-nodelay": 16,
    "choose-list": 4,
    "login-user": 6,
    "use-autocomplete": 4,
    "click-checkboxes-large": 16,
}
"""Most actions an episode of a page may take: about twice what it needs; :data:`DEFAULT_STEP_LIMIT` elsewhere."""

CARRIES_STATE = frozenset(
    {"book-flight", "book-flight-nodelay", "choose-date", "choose-date-easy", "choose-date-medium"}
    | {"choose-date-nodelay", "use-colorwheel", "use-colorwheel-2"}
)
"""Pages on which an earlier episode shows in a later one (a calendar left open); they are loaded for every episode."""

_STYLESHEET = re.compile(r"""<link[^>]+href=["']([^"']+\.css)["']""")
_IMAGE = re.compile(r"""(?:url\(|src=)["']?([^"')\s>]+\.(?:png|jpe?g|gif|svg))""", re.IGNORECASE)


@cache
def html_folder() -> Path:
    """Return the folder of the pages.

    Raises:
        InputError: The package ``miniwob`` is not installed.
    """
    # The package's own import asks for selenium and gymnasium; only its files are needed.
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the browser task needs the package miniwob: {install_command('browser')}")
    return Path(spec.submodule_search_locations[0]) / "html" / "miniwob"


@cache
def page_names() -> tuple[str, ...]:
    """Return the names of all pages, in order of the alphabet."""
    return tuple(sorted(path.stem for path in html_folder().glob("*.html")))


def page_url(page: str) -> str:
    """Return the address of a page."""
    return (html_folder() / f"{page}.html").as_uri()


@cache
def page_images(page: str) -> tuple[str, ...]:
    """Return the addresses of the images that the page or its style sheets name, so that they can be loaded first.

    An image that arrives late changes the size, and so the visibility, of what it fills.
    """
    path = html_folder() / f"{page}.html"
    text = path.read_text(encoding="utf-8")
    sheets = [path.parent / link for link in _STYLESHEET.findall(text)]
    sources = [(path, text)] + [(sheet, sheet.read_text(encoding="utf-8")) for sheet in sheets if sheet.is_file()]
    images = (source.parent / name for source, text in sources for name in _IMAGE.findall(text))
    return tuple(sorted({image.resolve().as_uri() for image in images if image.is_file()}))


def check_pages(pages: Iterable[str], key: str = "tasks[].tasks") -> None:
    """Check that all pages exist.

    Raises:
        InputError: One does not; the message names the key and the nearest name.
    """
    for page in pages:
        if page not in page_names():
            near = difflib.get_close_matches(page, page_names(), 1)
            hint = f"did you mean {near[0]}?" if near else "docs/browser.md lists them"
            raise InputError(f"{key}: there is no MiniWoB++ page {page!r}; {hint}")


def step_limit(page: str) -> int:
    """Return the page's own step limit."""
    return STEP_LIMITS.get(page, DEFAULT_STEP_LIMIT)


Report = Callable[[str, str], None]
"""Called with the code and the message of something that happened."""


class TabLostError(Exception):
    """The page cannot be used any more.

    Attributes:
        code: ``page-lost`` (closed or crashed), ``page-hung`` or ``page-broken`` (its script failed at the start).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
