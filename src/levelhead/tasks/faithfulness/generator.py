"""Built-in items of our own writing, in HaluEval's question schema: two people, a few facts, one question."""

from __future__ import annotations

import random
from dataclasses import dataclass

from levelhead.tasks.faithfulness.data import UNKNOWN, FaithfulnessItem, qa_item


@dataclass(frozen=True, slots=True)
class _Fact:
    """A property: the sentence that states it, the question that asks for it, the values it takes."""

    statement: str
    question: str
    values: tuple[str, ...]


_NAMES = (
    "Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia", "Karim", "Laura", "Mia",
    "Noah", "Olga", "Peter", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip

_FACTS = (
    _Fact("{0} lives in {1}.", "Where does {0} live?",
          ("Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Boston", "Dublin", "Athens")),
    _Fact("{0} works as a {1}.", "What is the job of {0}?",
          ("baker", "pilot", "nurse", "farmer", "painter", "singer", "lawyer", "cook", "teacher", "driver")),
    _Fact("{0} owns a {1}.", "What pet does {0} own?",
          ("cat", "dog", "horse", "parrot", "rabbit", "goat", "duck", "snake", "turtle", "mouse")),
    _Fact("{0} plays the {1}.", "What does {0} play?",
          ("piano", "violin", "flute", "drum", "guitar", "harp", "trumpet", "cello", "organ", "banjo")),
    _Fact("{0} likes to eat {1}.", "What does {0} like to eat?",
          ("rice", "soup", "bread", "pasta", "fish", "cake", "beans", "cheese", "salad", "eggs")),
    _Fact("{0} drives a {1} car.", "What color is the car of {0}?",
          ("red", "blue", "green", "black", "white", "yellow", "gray", "brown", "pink", "silver")),
    _Fact("{0} was born in {1}.", "In what month was {0} born?",
          ("January", "March", "April", "June", "July", "August", "October", "November", "December", "May")),
    _Fact("{0} studies {1}.", "What does {0} study?",
          ("math", "history", "music", "art", "biology", "law", "physics", "poetry", "medicine", "Latin")),
)  # fmt: skip


def generate_items(count: int, unanswerable: float) -> list[FaithfulnessItem]:
    """Make ``count`` different items, about the share ``unanswerable`` of them without an answer in their text.

    Two people share two properties, each with values of their own, told in four shuffled sentences.  The question asks
    for one value; the hallucinated answer is the other person's, which stands in the text too.  For an unanswerable
    question the sentence that answers it is left out.  The same arguments give the same items, and a larger count the
    same and more.
    """
    items: list[FaithfulnessItem] = []
    seen: set[str] = set()
    number = 0
    while len(items) < count:
        item = _item(random.Random(f"levelhead/faithfulness/{number}"), unanswerable)
        number += 1
        if item.group not in seen:
            seen.add(item.group)
            items.append(item)
    return items


def _item(rng: random.Random, unanswerable: float) -> FaithfulnessItem:
    people = rng.sample(_NAMES, 2)
    facts = rng.sample(_FACTS, 2)
    told = [
        (who, what, value)
        for what, fact in enumerate(facts)
        for who, value in zip((0, 1), rng.sample(fact.values, 2), strict=True)
    ]
    who, what, right = rng.choice(told)
    (wrong,) = [value for other, same, value in told if same == what and other != who]
    missing = rng.random() < unanswerable
    lines = [facts[w].statement.format(people[p], value) for p, w, value in told if not (missing and value == right)]
    rng.shuffle(lines)
    return qa_item(" ".join(lines), facts[what].question.format(people[who]), UNKNOWN if missing else right, wrong)
