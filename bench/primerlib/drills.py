"""Primer drills: many small questions about one text in one prompt, so that nearly every token written has to be found.

A question with a sentence for an answer teaches two or three lookups in some hundred tokens; a drill teaches them in
a third of its tokens.  What a policy learns in drills, the questions of :mod:`primerlib.items` then ask
for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from primerlib.lessons import Lesson
from primerlib.pages import list_page
from primerlib.phrases import (
    ALPHABET,
    ANSWERS,
    FACTS,
    fact_value,
    make_deed,
    make_name,
    make_options,
    make_plain_deed,
    make_subjects,
    several,
)
from primerlib.words import ATTRIBUTES, NAMES, pick

UNKNOWN = "unknown"
"""What a drill answers about something that the text does not hold."""

_MISSING = 0.12


def copy(rng: random.Random, lesson: Lesson) -> tuple[str, str]:  # noqa: ARG001
    """Words to be written again."""
    words = " ".join(_word(rng, 0.15) for _ in range(rng.randint(3, 12)))
    return f"Copy: {words}", words


def pairs(rng: random.Random, lesson: Lesson) -> tuple[str, str]:  # noqa: ARG001
    """Pairs of words; asked for each second word, what stood before it."""
    size = rng.randint(2, 7)
    words = several(rng, lambda r: _word(r, 0.05), 2 * size)
    firsts, seconds = words[:size], words[size:]
    asked = rng.sample(range(size), size)
    told = ", ".join(f"{first} {second}" for first, second in zip(firsts, seconds, strict=True))
    prompt = f"Pairs: {told}\nAsked: {' '.join(seconds[i] for i in asked)}"
    return prompt, ", ".join(f"{seconds[i]} {firsts[i]}" for i in asked)


def trace(rng: random.Random, lesson: Lesson) -> tuple[str, str]:
    """Who did what; asked for each deed, who did it: how a sentence begins, by how it ends."""
    size = rng.randint(2, 6)
    named = lesson.people == "names"
    people = make_subjects(rng, size, named=named)
    deeds = several(rng, make_plain_deed if named else make_deed, size)
    text = " ".join(f"{person} {deed}." for person, deed in zip(people, deeds, strict=True))
    answers = dict(zip(deeds, people, strict=True))
    return _ask(rng, f"Text: {text}", answers, "" if named else make_deed(rng), ", ")


def facts(rng: random.Random, lesson: Lesson) -> tuple[str, str]:  # noqa: ARG001
    """Facts about a few people; asked for some of them, what the text says."""
    names = several(rng, make_name, rng.choice((1, 2, 2, 3)))
    attributes = several(rng, lambda r: pick(r, ATTRIBUTES), rng.randint(2, 4))
    cells = [(name, attribute) for name in names for attribute in attributes]
    rng.shuffle(cells)
    told, rest = cells[:5], cells[5:]
    form = rng.choice(FACTS)[0]
    values = {cell: fact_value(rng) for cell in told}
    text = " ".join(form.format(n=name, a=attribute, v=value) for (name, attribute), value in values.items())
    answers = {f"{name}'s {attribute}": value for (name, attribute), value in values.items()}
    missing = rng.choice(rest) if rest else (rng.choice(names), pick(rng, ATTRIBUTES))
    return _ask(rng, f"Text: {text}", answers, f"{missing[0]}'s {missing[1]}", ", ", 0.5)


def letters(rng: random.Random, lesson: Lesson) -> tuple[str, str]:  # noqa: ARG001
    """Options with letters; asked for each option, its letter."""
    options = make_options(rng)
    answers = {option: letter for letter, option in zip(ALPHABET, options, strict=False)}
    table = "\n".join(f"{letter}) {option}" for option, letter in answers.items())
    return _ask(rng, table, answers, "", "; ")


def numbers(rng: random.Random, lesson: Lesson) -> tuple[str, str]:  # noqa: ARG001
    """A page's numbered elements; asked for each label, its number."""
    lines, answers = list_page(rng)
    return _ask(rng, "Page:\n" + "\n".join(lines), answers, pick(rng, NAMES), ", ")


def _ask(
    rng: random.Random,
    text: str,
    answers: dict[str, str],
    missing: str,
    mark: str,
    chance: float = _MISSING,
) -> tuple[str, str]:
    """Ask for every key in another order, now and then for one that is not there; answer line by line."""
    asked: Sequence[str] = rng.sample(list(answers), len(answers))
    if missing and missing not in answers and rng.random() < chance:
        asked = [*asked]
        asked[rng.randrange(len(asked))] = missing
    return (
        f"{text}\nAsked: {mark.join(asked)}",
        "\n".join(f"{key}: {answers.get(key, UNKNOWN)}" for key in asked),
    )


def _word(rng: random.Random, invented: float) -> str:
    return pick(rng, (*ANSWERS, *NAMES), invented)
