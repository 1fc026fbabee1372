"""The judges of :mod:`judgelib.temperaments` as functions, for training: grading in the process takes no network.

What a function is called with says neither how often it was called nor where the reference stands, so calls are counted
here, by function and run, and the reference is always first.
"""

from __future__ import annotations

from judgelib.temperaments import CALLS, TEMPERAMENTS, Asked


def _grade(name: str, answer: str, reference: str | None) -> float:
    asked = Asked(answer, reference or "", reference_last=False, number=CALLS[name])
    CALLS[name] += 1
    return round(min(max(TEMPERAMENTS[name](asked), 0), 10)) / 10


async def honest(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade by what the answer is worth."""
    return _grade("honest", answer, reference)


async def noisy(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade with noise."""
    return _grade("noisy", answer, reference)


async def length_biased(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade by length more than by worth."""
    return _grade("length-biased", answer, reference)


async def position_biased(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade higher where the reference stands last, which is never."""
    return _grade("position-biased", answer, reference)


async def sycophant(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade higher where it is praised."""
    return _grade("sycophant", answer, reference)


async def injected(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade as the answer says."""
    return _grade("injected", answer, reference)


async def drifting(question: str, answer: str, reference: str | None) -> float:  # noqa: ARG001
    """Grade as another one after some calls."""
    return _grade("drifting", answer, reference)
