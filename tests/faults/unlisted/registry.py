"""Faults of post-training code that no check was written against, each from a thread of a trainer's tracker.

They stand apart from ``faults.known``, on which the checks are developed: these measure what a bug that nobody
has listed meets.  Each changes our own code while it is entered, and puts it back.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "advantages",
    "aggregation",
    "ratio",
    "reference",
    "shaping",
    "masks",
    "optimizer",
    "resume",
    "sampling",
    "weights",
    "rewards",
    "data",
    "bookkeeping",
    "turns",
    "precision",
    "tasks",
]
KINDS: dict[Kind, str] = {
    "advantages": "advantages and their normalisation",
    "aggregation": "loss aggregation",
    "ratio": "clipping and importance ratios",
    "reference": "KL and reference",
    "shaping": "shaping and length penalties",
    "masks": "masks and tokens",
    "optimizer": "schedule, optimizer, accumulation",
    "resume": "resume and checkpoints",
    "sampling": "sampling statistics and controls",
    "weights": "weight sync and staleness",
    "rewards": "rewards: order, clock, batch",
    "data": "prompts and answers",
    "bookkeeping": "best checkpoint, metrics, evaluation",
    "turns": "several turns",
    "precision": "precision",
    "tasks": "several tasks and rewards",
}
"""Classes of fault, with their headings."""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unlisted:
    """A fault that no check was written against.

    Attributes:
        name: By which it is switched on.
        story: What goes wrong, in one line.
        threads: Addresses of the threads it comes from.
        kind: Its class.
        change: Context manager that puts it into our code.
        named_by: A message names the cause where it holds all words of one of these; fixed before any check was built.
        settings: Recipe keys without which it has no effect.
        probe: Which of the probes it is put into.
        reward: The probe's reward function.
        resumes: Whether the run is interrupted half-way and goes on.
    """

    name: str
    story: str
    threads: tuple[str, ...]
    kind: Kind
    change: Callable[[], contextlib.AbstractContextManager[None]]
    named_by: tuple[Words, ...]
    settings: tuple[str, ...] = ()
    probe: str = "single"
    reward: str = "closeness"
    resumes: bool = False

    def names(self, text: str) -> bool:
        """Whether a message names the cause."""
        return any(all(_stands(word, text.lower()) for word in words) for words in self.named_by)


def _stands(word: str, text: str) -> bool:
    """Whether a word of the text begins like this, or is this where a bar says that it ends."""
    pattern = r"(?<![a-z])" + re.escape(word.removesuffix("|")) + (r"(?![a-z])" if word.endswith("|") else "")
    return re.search(pattern, text) is not None


UNLISTED: dict[str, Unlisted] = {}


def unlisted(
    name: str,
    story: str,
    *threads: str,
    kind: Kind,
    named_by: Sequence[str],
    settings: Sequence[str] = (),
    probe: str = "single",
    reward: str = "closeness",
    resumes: bool = False,
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Register a generator of one yield.

    ``named_by`` holds alternatives, the beginnings of the words of one parted by blanks; a bar ends a word.
    """

    def register(function: Callable[[], Iterator[None]]) -> None:
        words = tuple(tuple(alternative.split()) for alternative in named_by)
        change = contextlib.contextmanager(function)
        UNLISTED[name] = Unlisted(name, story, threads, kind, change, words, tuple(settings), probe, reward, resumes)

    return register


@contextlib.contextmanager
def swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put ``make(original)`` in the place of an attribute; it must be the owner's own."""
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


GITHUB = "https://github.com/"
TRL = GITHUB + "huggingface/trl/"
VERL = GITHUB + "verl-project/verl/"
OPENRLHF = GITHUB + "OpenRLHF/OpenRLHF/"
PRIME = GITHUB + "PrimeIntellect-ai/prime-rl/"
NEMO = GITHUB + "NVIDIA-NeMo/RL/"
SWIFT = GITHUB + "modelscope/ms-swift/"
INSTRUCT = GITHUB + "allenai/open-instruct/"
UNSLOTH = GITHUB + "unslothai/unsloth/"
ZOO = GITHUB + "unslothai/unsloth-zoo/"
