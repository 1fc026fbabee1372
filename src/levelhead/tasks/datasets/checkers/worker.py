"""The child process that compares answers: a line of JSON in, ``equal``, ``different`` or a reason out.

Never imported by the trainer.  What it reads is written by a policy: it is parsed by a grammar of our own, and never
evaluated.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from levelhead.tasks.datasets.checkers.compare import same_answer
from levelhead.tasks.datasets.checkers.tokens import UnreadableError

_MEMORY = 2 << 30


class _TooLongError(Exception):
    """The comparison has used up its processor time."""


def main() -> None:
    """Answer every line of the standard input until it closes."""
    cpu_s = float(sys.argv[2])
    _bound_memory()
    signal.signal(signal.SIGVTALRM, _stop)
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answer, reference = json.loads(line)
        print(_verdict(answer, reference, cpu_s), file=out, flush=True)


def _verdict(answer: str, reference: str, cpu_s: float) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        return "equal" if same_answer(answer, reference) else "different"
    except UnreadableError as error:
        return f"unreadable: {error}"
    except _TooLongError:
        return "the comparison took too long"
    except MemoryError:
        return "the comparison needs too much memory"
    except Exception as error:  # whatever sympy makes of it: the answer counts as different
        return f"not comparable ({type(error).__name__})"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _stop(*_: object) -> None:
    raise _TooLongError


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
