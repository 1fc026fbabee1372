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


# Few words a property: copying must be learnt from the text, yet soon enough for a tiny policy.
_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia")

_FACTS = (
    _Fact("{0} lives in {1}.", "Where does {0} live?", ("Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi")),
    _Fact("{0} works as a {1}.", "What is the job of {0}?", ("baker", "pilot", "nurse", "farmer", "painter", "lawyer")),
    _Fact("{0} owns a {1}.", "What pet does {0} own?", ("cat", "dog", "horse", "parrot", "rabbit", "goat")),
    _Fact("{0} plays the {1}.", "What does {0} play?", ("piano", "violin", "flute", "drum", "guitar", "harp")),
    _Fact("{0} likes to eat {1}.", "What does {0} like to eat?", ("rice", "soup", "bread", "pasta", "fish", "cake")),
    _Fact("{0} drives a {1} car.", "What color is the car of {0}?", ("red", "blue", "green", "black", "white", "pink")),
    _Fact("{0} was born in {1}.", "In what month was {0} born?", ("January", "March", "April", "June", "July", "May")),
    _Fact("{0} studies {1}.", "What does {0} study?", ("math", "history", "music", "art", "law", "biology")),
)


def generate_items(count: int, unanswerable: float) -> list[FaithfulnessItem]:
    """Make ``count`` different items, about the share ``unanswerable`` of them without an answer in their text.

    Two people, two properties each, told in four shuffled sentences; the question asks for one.  In half of the items
    the two share their properties, with values of their own, and the hallucinated answer is the other person's; in the
    other half all four properties differ, and it is a value that the text does not hold.  For an unanswerable question
    the sentence that answers it is left out.  The same arguments give the same items, and a larger count the same and
    more.
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
    shared = rng.random() < 0.5
    facts = rng.sample(_FACTS, 2) * 2 if shared else rng.sample(_FACTS, 4)
    # Two values for each property, so that the other one is there to be hallucinated.
    values = {fact.statement: rng.sample(fact.values, 2) for fact in facts}
    told = [(people[i // 2], fact, values[fact.statement][i // 2 if shared else 0]) for i, fact in enumerate(facts)]
    asked = rng.randrange(4)
    name, fact, right = told[asked]
    (wrong,) = (value for value in values[fact.statement] if value != right)
    missing = rng.random() < unanswerable
    lines = [f.statement.format(n, v) for i, (n, f, v) in enumerate(told) if not (missing and i == asked)]
    rng.shuffle(lines)
    return qa_item(" ".join(lines), fact.question.format(name), UNKNOWN if missing else right, wrong)
