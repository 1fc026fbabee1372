"""Built-in items of our own writing, in HaluEval's question schema: a few facts about people, one question."""

from __future__ import annotations

import random

from levelhead.contrib.faithfulness.data import UNKNOWN, FaithfulnessItem, qa_item

# One form for every fact and few words a property: what a tiny policy has to learn here is to read, not to speak.
_FACT = "{name}'s {what} is {value}."
_QUESTION = "What is {name}'s {what}?"
_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia")
_VALUES = {
    "city": ("Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi"),
    "color": ("red", "blue", "green", "black", "white", "pink"),
    "sport": ("tennis", "golf", "judo", "rowing", "hockey", "boxing"),
    "dish": ("rice", "soup", "pasta", "fish", "salad", "stew"),
    "drink": ("tea", "coffee", "milk", "juice", "water", "cider"),
    "subject": ("math", "history", "music", "art", "law", "biology"),
    "language": ("French", "Arabic", "Hindi", "Greek", "Dutch", "Korean"),
    "game": ("chess", "poker", "darts", "bingo", "bridge", "dominoes"),
}


def generate_items(count: int, unanswerable: float) -> list[FaithfulnessItem]:
    """Make ``count`` different items, about the share ``unanswerable`` of them without an answer in their text.

    Two to four shuffled facts about one or two people; the question asks for one.  In half of the items the
    hallucinated answer is what the text says of the other person, in the other half the text does not hold it.  For an
    unanswerable question another fact about the same person stands in the place of the one that answers it.  The same
    arguments give the same items, and a larger count the same and more.
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
    name, other = rng.sample(_NAMES, 2)
    size = rng.randint(2, 4)
    what, *spare = rng.sample(list(_VALUES), size + 1)
    right, wrong = rng.sample(_VALUES[what], 2)
    missing = rng.random() < unanswerable
    # Where the fact is missing another takes its place: a shorter text would give that away.
    first = spare.pop() if missing else what
    facts = [(name, first, rng.choice(_VALUES[first]) if missing else right)]
    if rng.random() < 0.5:
        facts.append((other, what, wrong))
    while len(facts) < size:
        filler = spare.pop()
        facts.append((rng.choice((name, other)), filler, rng.choice(_VALUES[filler])))
    rng.shuffle(facts)
    text = " ".join(_FACT.format(name=n, what=w, value=v) for n, w, v in facts)
    return qa_item(text, _QUESTION.format(name=name, what=what), UNKNOWN if missing else right, wrong)
