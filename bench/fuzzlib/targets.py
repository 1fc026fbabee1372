"""What is fuzzed: the commands themselves, as the command line calls them, with what they print caught."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzzlib.folders import folder
from fuzzlib.logs import log
from fuzzlib.recipes import recipe
from levelhead.cli.doctor import doctor
from levelhead.cli.main import _explain
from levelhead.cli.report import report
from levelhead.cli.train import train

CONTROLS = frozenset(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x061C, 0x200E, 0x200F,
                               *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]))  # fmt: skip
"""Characters that a terminal may obey; tabs and line ends are none of them."""


class CrashError(Exception):
    """A command ended in another way than a person is told of."""


def controls(text: str) -> int:
    """Number of control characters in what was printed."""
    return sum(character in CONTROLS for character in text)


def _command(call: Callable[[], None]) -> int:
    """Run a command as ``levelhead`` does and return the control characters that it printed.

    Raises:
        CrashError: It ended with another code than 0, 1 or 2.
    """
    out = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            call()
        except Exception as error:
            code = _explain(error)
            if code not in (0, 1, 2):
                raise CrashError(f"exit {code}") from error
    said = out.getvalue()
    if code == 2 and len(said.splitlines()) > 12:
        raise CrashError(f"an error of {len(said.splitlines())} lines")
    return controls(said)


def logs(place: Path, rng: random.Random) -> int:
    """The doctor on a log."""
    target = place / rng.choice(("train.log", "x.csv", "trainer_state.json", "events.out.tfevents.1", "run.wandb"))
    target.write_bytes(log(rng))
    lang, as_json = rng.choice(("en", "zh")), rng.random() < 0.5
    return _command(lambda: doctor(target, None, as_json, None, None, lang, None, False, 2.0))


def folders(place: Path, rng: random.Random) -> int:
    """The doctor on a run folder."""
    folder(place / "run", rng)
    page = place / "page.html" if rng.random() < 0.1 else None
    as_json = rng.random() < 0.5
    return _command(lambda: doctor(place / "run", None, as_json, page, None, "en", None, False, 2.0))


def reports(place: Path, rng: random.Random) -> int:
    """The report of a run folder; a section that had to be left out counts as a crash."""
    folder(place / "run", rng)
    seen = _command(lambda: report(place / "run", False))
    page = place / "run" / "report.html"
    if page.is_file():
        shown = page.read_text(encoding="utf-8", errors="replace")
        if "could not be drawn" in shown[-shown[::-1].find(">retoof<") :] or "could not be drawn" in shown:
            raise CrashError("a section could not be drawn")
    return seen


def recipes(place: Path, rng: random.Random) -> int:
    """A recipe read, resolved and printed."""
    data, overrides = recipe(rng)
    target = place / "recipe.yaml"
    target.write_bytes(data)
    as_json = rng.random() < 0.3
    return _command(lambda: train(target, overrides, None, False, True, False, False, as_json))


TARGETS: dict[str, Callable[[Path, random.Random], int]] = {
    "logs": logs,
    "folders": folders,
    "reports": reports,
    "recipes": recipes,
}


@contextlib.contextmanager
def emptied(place: Path) -> Iterator[Path]:
    """Give an input a folder of its own."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    yield place
