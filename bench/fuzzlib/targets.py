"""What is fuzzed: the commands themselves, as the command line calls them, with what they print caught."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import torch

from fuzzlib.folders import folder
from fuzzlib.logs import log
from fuzzlib.recipes import recipe
from fuzzlib.replies import reply
from levelhead.cli.doctor import doctor
from levelhead.cli.main import _explain
from levelhead.cli.report import report
from levelhead.cli.train import train
from levelhead.recipe.endpoint import Endpoint
from levelhead.tasks.endpoint import ChatClient, Reply
from levelhead.tasks.endpoint.exchange import EndpointError
from levelhead.tasks.endpoint.verdicts import read_letter, read_verdict
from levelhead.tasks.judges.forms import FORMS, PAIR_FORMS
from levelhead.tasks.judges.questions import Question
from levelhead.tasks.metering import Usage

CONTROLS = frozenset(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x061C, 0x200E, 0x200F,
                               *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]))  # fmt: skip
"""Characters that a terminal may obey; tabs and line ends are none of them."""


DRY = 0.02
"""Share of the recipes that are run up to the first forward pass."""


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
    return _command(lambda: doctor(target, as_json=as_json, lang=lang))


def folders(place: Path, rng: random.Random) -> int:
    """The doctor on a run folder."""
    folder(place / "run", rng)
    page = place / "page.html" if rng.random() < 0.1 else None
    as_json = rng.random() < 0.5
    return _command(lambda: doctor(place / "run", as_json=as_json, html=page))


def reports(place: Path, rng: random.Random) -> int:
    """The report of a run folder; a section that had to be left out counts as a crash."""
    folder(place / "run", rng)
    seen = _command(lambda: report(place / "run"))
    page = place / "run" / "report.html"
    if page.is_file():
        shown = page.read_text(encoding="utf-8", errors="replace")
        if "could not be drawn" in shown[-shown[::-1].find(">retoof<") :] or "could not be drawn" in shown:
            raise CrashError("a section could not be drawn")
    return seen


def recipes(place: Path, rng: random.Random) -> int:
    """A recipe read, resolved and printed; a few with everything that comes before the model's first forward pass.

    Those few make a small data set: a hundred thousand items take seconds, and are no hang.
    """
    data, overrides = recipe(rng)
    target = place / "recipe.yaml"
    as_json, dry = rng.random() < 0.3, rng.random() < DRY
    target.write_bytes(re.sub(rb"items: \d{4,}", b"items: 300", data) if dry else data)
    return _command(lambda: train(target, overrides, print_recipe=not dry, dry=dry, as_json=as_json))


def replies(_: Path, rng: random.Random) -> int:
    """A chat endpoint's reply, read as a judge's grade, a verdict and a letter.

    Raises:
        CrashError: A grade out of range, tokens that cannot be, or a text that no encoding can carry.
    """
    status, headers, body = reply(rng)
    usage = Usage()
    section = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", max_tokens=64, patience_s=0, backoff_s=0.001)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, headers=headers, content=body))

    async def ask() -> Reply:
        async with ChatClient(section, usage, None, transport) as client:
            return await client.ask([{"role": "user", "content": "Grade this."}], 0.0, "0")

    try:
        said = asyncio.run(ask())
    except EndpointError as error:
        return controls(str(error) + "".join(usage.take_news()))
    text = said.text
    text.encode()
    for form in (*FORMS.values(), *PAIR_FORMS.values()):
        shown = Question("p", "Is it?", text, None, "Is it even?").show(form, "key")
        grade = form.grade(said, shown.mark, shown.material)
        if grade is not None:
            raise CrashError(f"a grade of {grade} from what the answer says itself")
        grade = form.grade(said)
        if grade is not None and not (math.isfinite(grade) and 0 <= grade <= 1):
            raise CrashError(f"a grade of {grade}")
    if min(usage.prompt_tokens, usage.completion_tokens) < 0 or usage.tokens > 300_000:
        raise CrashError(f"{usage.tokens} tokens")
    read_verdict(text), read_letter(text, "ABC")
    return controls("".join(usage.take_news()))


TARGETS: dict[str, Callable[[Path, random.Random], int]] = {
    "logs": logs,
    "folders": folders,
    "reports": reports,
    "recipes": recipes,
    "replies": replies,
}


def warm() -> None:
    """Import what a command imports when it is called, so that no input is charged for it, and log nothing."""
    import levelhead.training.prepare  # noqa: F401

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)


@contextlib.contextmanager
def emptied(place: Path) -> Iterator[Path]:
    """Give an input a folder of its own."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    yield place
