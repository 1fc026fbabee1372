"""Built-in items of our own writing, in BBQ's schema: two people who differ in one label, one scene, one trait."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from levelhead.contrib.fairness.data import Condition, FairnessItem, Polarity, with_evidence

UNKNOWN = ("Cannot be determined", "Not known", "Not enough info")


@dataclass(frozen=True, slots=True)
class _Trait:
    """A stereotype: two questions, and for each the deed that bears out who it is about."""

    negative: str
    positive: str
    negative_deed: str
    positive_deed: str

    def settled(self, *, negative: bool) -> str:
        """What the text says of the person whom a question asks for: in the question's words, then what they did."""
        question, deed = (self.negative, self.negative_deed) if negative else (self.positive, self.positive_deed)
        return f"{question.removeprefix('Who ').removesuffix('?')} and {deed}"


_WORDS: dict[str, Any] = json.loads((files("levelhead.contrib.fairness") / "scenes.json").read_text(encoding="utf-8"))
"""For each category pairs of a stereotyped label and its counterpart, and its traits; nouns, places and sentences."""


@cache
def _scenes() -> list[tuple[str, tuple[str, str], _Trait, str, str]]:
    """Every scene there is, in one fixed shuffled order, so that more items never change the earlier ones."""
    everything = [
        (category, labels, _Trait(*trait), noun, place)
        for category, pairs in _WORDS["labels"].items()
        for labels, trait, noun, place in product(pairs, _WORDS["traits"][category], _WORDS["nouns"], _WORDS["places"])
    ]
    random.Random("levelhead/fairness/scenes").shuffle(everything)
    return everything


def generate_items(count: int) -> list[FairnessItem]:
    """Make ``count`` items: four a scene, as in BBQ (both conditions, both polarities), until the scenes run out.

    The same count gives the same items, and a larger one the same and more.  Which of the two people did what, who
    comes first and where the options stand is drawn for each scene; the stereotype holds in half of the scenes.

    Raises:
        ValueError: More items are asked for than there are (13,200).
    """
    scenes = _scenes()
    if count > 4 * len(scenes):
        raise ValueError(f"{count} items are asked for, but there are only {4 * len(scenes)}")
    items = [item for number in range(-(-count // 4)) for item in _scene_items(number)]
    return with_evidence(items)[:count]


def _scene_items(number: int) -> list[FairnessItem]:
    category, labels, trait, noun, place = _scenes()[number]
    rng = random.Random(f"levelhead/fairness/{number}")
    people = [f"the {label} {noun}" for label in labels]
    first, second = rng.sample([0, 1], 2)
    scene = rng.choice(_WORDS["scenes"]).format(_indefinite(people[first]), _indefinite(people[second]), place)
    at_fault = rng.randrange(2)
    deeds = [trait.settled(negative=i == at_fault) for i in (0, 1)]
    order_of_deeds = rng.sample([0, 1], 2)
    settled = " ".join(_capital(f"{people[i]} {deeds[i]}.") for i in order_of_deeds)
    conditions: tuple[Condition, ...] = ("ambig", "disambig")
    polarities: tuple[Polarity, ...] = ("neg", "nonneg")
    items: list[FairnessItem] = []
    for condition, polarity in product(conditions, polarities):
        order = rng.sample([0, 1, 2], 3)
        right = 2 if condition == "ambig" else at_fault if polarity == "neg" else 1 - at_fault
        answers = (*map(_capital, people), rng.choice(UNKNOWN))
        names = (*labels, "unknown")
        groups = (labels[0], f"non{_capital(labels[0])}", "unknown")
        items.append(
            FairnessItem(
                example_id=str(4 * number + len(items)),
                question_index=str(number),
                polarity=polarity,
                condition=condition,
                category=category,
                subcategory="None",
                version="a" if first == 0 else "b",
                source="built in",
                context=scene if condition == "ambig" else f"{scene} {settled}",
                question=trait.negative if polarity == "neg" else trait.positive,
                answers=(answers[order[0]], answers[order[1]], answers[order[2]]),
                names=(names[order[0]], names[order[1]], names[order[2]]),
                groups=(groups[order[0]], groups[order[1]], groups[order[2]]),
                stereotyped_groups=(labels[0],),
                label=order.index(right),
                unknown=order.index(2),
                target=order.index(0),
                evidence=scene,
            )
        )
    return items


def _indefinite(person: str) -> str:
    label = person.removeprefix("the ")
    return f"an {label}" if label[0] in "aeiou" else f"a {label}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
