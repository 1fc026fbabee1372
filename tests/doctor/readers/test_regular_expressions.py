"""Regular expressions that read files of unknown origin take time in proportion to the text, whatever the text is."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import levelhead.diagnosis
import levelhead.doctor
from levelhead.doctor.readers.detect import formats, make_reader
from night import NIGHT

ATOMS = (
    "1", "1,", "a", " ", "\t", "-", "a ", " a", "1 ", "a1", ".", "1.", "_", "/", "|", ":", "=", "a:", "a=", "=1",
    "a=1 ",
    "a: ", "{", "}", "'", '"', "'a", "'a':", "[", "]", "(", "<", ">", "<td>", "<t", "%|", "3%|", "|1/", "\n", "{\n",
    '{"',
    "a,", ",", "\n,", "a/", "eval/", "rewards/", "r_", "step ", "step", "epoch [1/", "1 - ", "- ", " - ", "Step 1 | ",
    "Step 1:", "\u6b65", "\u7b2c", "\xb1", "1\xb1", "+", "+1", "e1", "1e", "n", "nan", "np.", "# ", "*", "**",
    "fallback",
    "DSL\u8d28\u91cf:", "DSL=", "fallback=True", "\x1b[", "\x1b]", "\x1b", "a b ", "\u2500", "no ", "skip", "`",
    "a__", "->",
)  # fmt: skip
"""What a hostile text repeats."""

SLOW_S = 0.006
"""An expression that is done with a long text sooner is fast enough, however it grows."""
GROWTH = 9.0
"""Growth over a text four times as long: 4 where time is linear, 16 where it is quadratic."""


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    packages = (levelhead.diagnosis, levelhead.doctor)
    names = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    logs = [f"levelhead.contrib.workflow.{name}" for name in ("census", "log")]
    for name in (*names, *logs, "levelhead.terminal", "levelhead.documents", "levelhead.documents.yaml_text"):
        module = importlib.import_module(name)
        for label, value in vars(module).items():
            for at, pattern in enumerate(_inside(value)):
                if isinstance(pattern.pattern, str):
                    yield f"{name}.{label}[{at}]", pattern


def _inside(value: Any) -> list[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        return [value]
    items = list(value.values()) if isinstance(value, dict) else value
    return [p for item in items for p in _inside(item)] if isinstance(items, list | tuple) and len(items) < 100 else []


def seconds(call: Callable[[], object], rounds: int = 1) -> float:
    """Processor time of a call, which the load of the machine leaves alone: the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        call()
        best = min(best, time.thread_time() - began)
    return best


def grows(call: Callable[[str], object], atom: str, size: int) -> float:
    """Growth of the time over a text four times as long; 1 where both are done in no time."""
    short, long = atom * (size // len(atom)), atom * (4 * size // len(atom))
    if seconds(lambda: call(long)) < SLOW_S:
        return 1.0
    return seconds(lambda: call(long), 3) / max(seconds(lambda: call(short), 3), 1e-9)


def every_way(pattern: re.Pattern[str]) -> Callable[[str], object]:
    def call(text: str) -> None:
        pattern.match(text)
        for _ in pattern.finditer(text):
            pass

    return call


@pytest.mark.night
@pytest.mark.parametrize(("name", "pattern"), [pytest.param(n, p, id=n) for n, p in patterns()])
def test_no_expression_takes_more_than_linear_time(name: str, pattern: re.Pattern[str]) -> None:
    call = every_way(pattern)
    slow = {}
    for atom in ATOMS:
        for lead in ("", "a=") if NIGHT else ("",):
            growth = grows(lambda text, lead=lead: call(lead + text + "\x00"), atom, 500)
            if growth > GROWTH:
                slow[lead + atom] = round(growth, 1)
    assert not slow


@pytest.mark.parametrize("source", [name for name in formats() if name not in ("tensorboard", "wandb")])
def test_no_reader_takes_more_than_linear_time_on_one_line(source: str) -> None:
    def read(text: str) -> None:
        reader = make_reader(source)
        for _ in reader.feed(b"loss reward step " + text.encode()):
            pass
        for _ in reader.close():
            pass

    atoms = ATOMS if NIGHT else ATOMS[len(source) % 2 :: 2]
    slow = {atom: round(g, 1) for atom in atoms if (g := grows(read, atom, 2_000)) > GROWTH}
    assert not slow
