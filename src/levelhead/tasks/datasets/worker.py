r"""The child process that compares answers: a line of JSON in, ``equal``, ``different`` or a reason out.

Never imported by the trainer.  math-verify reads answers as LaTeX, by a grammar; its reader of plain expressions, which
evaluates them as Python, is not used.  What bounds time and memory is ours: an exception where Python runs, the
kernel's limit where a single operation on huge numbers does not end, and no such numbers where that is seen before.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import sys
import time
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

try:
    import resource
except ImportError:  # no such limits on this system
    resource = None  # type: ignore[assignment]

_MEMORY = 2 << 30
_AGAIN_S = 0.25
"""Processor seconds after which a comparison that has gone on is interrupted again."""
_LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]
_SIGNS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": r"\div ",
        "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ",
        "\u222a": r"\cup ", "\u00b1": r"\pm ", "\u00b0": None, "\u00b2": "^2", "\u00b3": "^3", "\n": " ",
    }
)  # fmt: skip
_ROOT = re.compile(r"\u221a\s*(\d+|\([^()]*\)|[a-z])|(?<![\\a-z])sqrt\s*\(([^()]*)\)")
_NAMED = re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|ln|log|exp|pi|infty)(?![a-zA-Z])")
_HUGE = re.compile(r"\^\s*\{?\s*[-(]?\d{4,}|\d{4,}\)?\s*!|\^[^\^]{0,12}\d\s*\}?\s*\^")
"""A power with an exponent of four digits or of another power, a factorial of four digits."""
_DEEPEST = 40
_INNER_DOLLAR = re.compile(r"(?<!\\)\$")


class _TooLongError(BaseException):
    """The comparison has used up its processor time."""


class _UnreadableError(Exception):
    """An answer is no mathematics that can be read."""


def main() -> None:
    """Answer every line of the standard input until it closes."""
    cpu_s = float(sys.argv[2])
    _bound_memory()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _stop)
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answer, reference = json.loads(line)
        print(_verdict(answer, reference, cpu_s), file=out, flush=True)


def _verdict(answer: str, reference: str, cpu_s: float) -> str:
    _bound_processor(cpu_s)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s, _AGAIN_S)
    try:
        same = verify(_read(reference), _read(answer), timeout_seconds=None)
        return "equal" if same else "different"
    except _UnreadableError as error:
        return f"unreadable: {error}"
    except _TooLongError:
        return "the comparison took too long"
    except MemoryError:
        return "the comparison needs too much memory"
    except Exception as error:  # whatever sympy makes of it: the answer counts as different
        return f"not comparable ({type(error).__name__})"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _read(text: str) -> list[Any]:
    """Return the mathematics of an answer; several formulas are a hedge, and read as none."""
    plain = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text.translate(_SIGNS).replace("**", "^"))
    plain = _NAMED.sub(r"\\\1 ", plain).strip().strip("$ ")
    if _INNER_DOLLAR.search(plain):
        raise _UnreadableError("it holds several formulas")
    depths = itertools.accumulate((letter in "({[") - (letter in ")}]") for letter in plain)
    if _HUGE.search(plain) or max(depths, default=0) > _DEEPEST:
        raise _UnreadableError("its numbers are too large, or its brackets too deep")
    expressions: list[Any] = parse(f"${plain}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
    if not expressions:
        raise _UnreadableError(f"no mathematics in {text[:60]!r}")
    return expressions


def _stop(*_: object) -> None:
    raise _TooLongError


def _bound_memory() -> None:
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _bound_processor(cpu_s: float) -> None:
    """Have the kernel end this process where a comparison goes on after it was interrupted."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + cpu_s) + 2, hard))
