"""The phrases that primer texts and questions are made of: people, deeds, facts and options."""

from __future__ import annotations

import random
from collections.abc import Callable

from levelhead.contrib.fairness.data import UNKNOWN_PHRASES
from primerlib.words import (
    ADJECTIVES,
    ATTRIBUTES,
    COLORS,
    COMMON,
    NAMES,
    PEOPLE,
    PLACES,
    THINGS,
    VERBS,
    invent,
    pick,
)

_WORDS = (*THINGS, *PLACES, *ADJECTIVES, *COLORS, *ATTRIBUTES, *PEOPLE, *(word for word in COMMON if len(word) > 2))
ANSWERS = tuple(word for word in dict.fromkeys(_WORDS) if word not in ("none", "unknown"))
"""What a fact can say; without the words for "nothing"."""

UNDECIDED = tuple(phrase[0].upper() + phrase[1:] for phrase in sorted(UNKNOWN_PHRASES))
"""Options that say that nobody can know."""

FACTS = (
    ("{n}'s {a} is {v}.", "What is {n}'s {a}?"),
    ("{n}'s {a} is {v}.", "What is {n}'s {a}?"),
    ("{n}'s {a} was {v}.", "What was {n}'s {a}?"),
    ("The {a} of {n} is {v}.", "What is the {a} of {n}?"),
    ("The {a} of {n} was {v}.", "What was {n}'s {a}?"),
    ("{n} has {v} as {a}.", "What does {n} have as {a}?"),
    ("For {n} the {a} is {v}.", "What is the {a} for {n}?"),
)
"""Forms of a fact and of the question about it."""

ALPHABET = "ABCDEF"
"""Letters of options."""


def make_options(rng: random.Random) -> list[str]:
    """Make up to six options to be told apart by letters: words, or two people and "not known"."""
    if rng.random() < 0.6:
        return several(rng, lambda r: pick(r, ANSWERS), rng.randint(2, len(ALPHABET)))
    people, named = make_people(rng)
    options = [*(capital(person if named else f"the {person}") for person in people), rng.choice(UNDECIDED)]
    rng.shuffle(options)
    return options


def make_people(rng: random.Random) -> tuple[list[str], bool]:
    """Two people, by what they are and are like, and whether they are first names."""
    kind = rng.random()
    if kind < 0.15:
        return several(rng, make_name, 2), True
    if kind < 0.6:
        noun = pick(rng, PEOPLE)
        return [f"{adjective} {noun}" for adjective in several(rng, lambda r: pick(r, ADJECTIVES), 2)], False
    return several(rng, make_person, 2), False


def make_subjects(rng: random.Random, count: int, *, named: bool) -> list[str]:
    """Make different people as sentences begin with them: first names, or mostly people told apart by one word."""
    kind = 0.0 if named else rng.random()
    if kind < 0.1:
        return several(rng, lambda r: r.choice(NAMES), count)
    if kind < 0.5:
        noun = pick(rng, PEOPLE)
        return [f"The {adjective} {noun}" for adjective in several(rng, lambda r: pick(r, ADJECTIVES), count)]
    return several(rng, lambda r: f"The {make_person(r)}", count)


def make_person(rng: random.Random) -> str:
    """Make somebody without a name: what they are, and mostly what they are like."""
    noun = pick(rng, PEOPLE)
    return f"{pick(rng, ADJECTIVES)} {noun}" if rng.random() < 0.6 else noun


def make_deed(rng: random.Random) -> str:
    """Make what somebody did or was, as it follows a person in a sentence."""
    verb, thing = pick(rng, VERBS), pick(rng, THINGS)
    kind = rng.random()
    if kind < 0.25:
        return f"{verb} a {pick(rng, ADJECTIVES)} {thing}"
    if kind < 0.45:
        return f"{verb} the {thing} in the {pick(rng, PLACES)}"
    if kind < 0.6:
        return f"was {pick(rng, ADJECTIVES)} and {pick(rng, ADJECTIVES)}"
    if kind < 0.7:
        return f"{verb} {rng.randrange(2, 30)} {thing}s"
    return f"{verb} the {thing}"


def make_alike_deeds(rng: random.Random, count: int) -> tuple[list[str], list[str]]:
    """Make deeds that differ in one word, most with an end of their own.

    Returns:
        The deeds, and each without its end.
    """
    verb, thing, place = pick(rng, VERBS), pick(rng, THINGS), pick(rng, PLACES)
    make = rng.choice(
        (
            lambda r: f"was {pick(r, ADJECTIVES)} at the {place}",
            lambda r: f"was {pick(r, ADJECTIVES)} with {thing}s",
            lambda r: f"was {pick(r, ADJECTIVES)}",
            lambda r: f"{verb} the {pick(r, THINGS)}",
            lambda r: f"{pick(r, VERBS)} the {thing}",
            lambda r: f"{verb} the {thing} in the {pick(r, PLACES)}",
        )
    )
    heads = several(rng, make, count)
    ended = rng.random() < 0.7
    return [f"{head} and {make_deed(rng)}" if ended else head for head in heads], heads


def make_plain_deed(rng: random.Random) -> str:
    """Make what somebody did to one thing."""
    return f"{pick(rng, VERBS)} the {pick(rng, THINGS)}"


def make_name(rng: random.Random) -> str:
    """Make a first name, now and then one that nobody has."""
    return rng.choice(NAMES) if rng.random() < 0.7 else invent(rng).capitalize()


def fact_value(rng: random.Random) -> str:
    """Make what a fact says: a word, a number, a name."""
    kind = rng.random()
    if kind < 0.15:
        return pick(rng, COLORS)
    if kind < 0.25:
        return str(rng.randrange(1, 100))
    if kind < 0.35:
        return pick(rng, NAMES)
    if kind < 0.45:
        return f"{pick(rng, ADJECTIVES)} {pick(rng, THINGS)}"
    return pick(rng, ANSWERS)


def several(rng: random.Random, make: Callable[[random.Random], str], count: int) -> list[str]:
    """Return ``count`` different results of ``make``."""
    results: list[str] = []
    while len(results) < count:
        result = make(rng)
        if result not in results:
            results.append(result)
    return results


def indefinite(person: str) -> str:
    """Put "a" or "an" before a person."""
    return f"an {person}" if person[0] in "aeiou" else f"a {person}"


def capital(text: str) -> str:
    """Write the first letter large."""
    return text[0].upper() + text[1:]
