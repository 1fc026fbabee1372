"""Rows: sound ones, and each fault as a change of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

Rows = list[dict[str, Any]]

NAMES = ("Ada", "Bo", "Cleo", "Dov", "Eli", "Fay", "Gus", "Hal")
FRUIT = ("apples", "pears", "plums", "figs")
LABELS = ("positive", "negative", "neutral")
WORDS = {
    "positive": ("lovely", "brilliant", "charming", "superb"),
    "negative": ("dreadful", "boring", "clumsy", "awful"),
    "neutral": ("ordinary", "average", "plain", "usual"),
}
PLACES = ("hotel", "film", "novel", "concert", "museum", "café", "garden", "ferry", "market", "lecture")


def sums(n: int = 64) -> Rows:
    """Small sums in one template; every row asks something else."""
    pairs = [(a, b) for a in range(2, 12) for b in range(13, 21)][:n]
    return [{"prompt": f"What is {a} plus {b}? Give the number.", "answer": str(a + b)} for a, b in pairs]


def stories(n: int = 64) -> Rows:
    """Word problems in one template, whose answers stand nowhere in them."""
    rows = []
    for i in range(n):
        a, b = 11 + 3 * i % 37, 12 + 5 * i % 29
        who, what = NAMES[i % 8], FRUIT[i // 8 % 4]
        text = f"{who} buys {a} {what} on day {i + 1} and {b} more later. How many {what} does {who} buy?"
        rows.append({"prompt": text, "answer": str(a + b)})
    return rows


def reviews(n: int = 96, seed: int = 0) -> Rows:
    """Texts with one of three labels that their words tell."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        label = LABELS[rng.randrange(3)]
        first, second = rng.sample(WORDS[label], 2)
        place = PLACES[i % len(PLACES)]
        text = f"Visit {i}: the {place} was {first}, and the staff seemed {second} to us. Which label fits?"
        rows.append({"prompt": text, "answer": label})
    return rows


def choices(n: int = 64) -> Rows:
    """Questions of four options each, the right one at any place."""
    rng = random.Random(1)
    towns = ("Lima", "Oslo", "Cairo", "Delhi", "Quito", "Seoul", "Accra", "Riga", "Tunis", "Porto")
    rows = []
    for i in range(n):
        options = rng.sample(towns, 4)
        right = rng.choice(options)
        lines = " ".join(f"({letter}) {town}" for letter, town in zip("ABCD", options, strict=True))
        rows.append({"prompt": f"Letter {i}: which town does {right[::-1]} spell backwards? {lines}", "answer": right})
    return rows


def boxed(n: int = 64) -> Rows:
    """Sums whose answers stand in tags."""
    return [{**row, "answer": f"<answer>{row['answer']}</answer>"} for row in sums(n)]


def shuffled(rows: Sequence[dict[str, Any]], seed: int = 3) -> Rows:
    """The same rows, their answers dealt to others."""
    answers = [row["answer"] for row in rows]
    random.Random(seed).shuffle(answers)
    return [{**row, "answer": answer} for row, answer in zip(rows, answers, strict=True)]


def reformatted(rows: Sequence[dict[str, Any]]) -> Rows:
    """Each row twice, the second time in other case and with other white space."""
    again = [{**row, "prompt": row["prompt"].upper().replace(" ", "\n", 3)} for row in rows]
    return [*rows, *again]


SUMS = sums()
STORIES = stories()
REVIEWS = reviews()
CHOICES = choices()
BOXED = boxed()
SPECIES = [
    {"prompt": f"Picture {i} shows a {name}. Name the species in a box.", "answer": f"<answer>{name}</answer>"}
    for i, name in enumerate(
        f"{a} {b}" for a in ("grey", "red", "marsh", "river", "stone") for b in ("wolf", "heron", "otter", "lynx")
    )
]
SUMS_SOME_WORDS = [row if i % 4 else {**row, "answer": "no number"} for i, row in enumerate(sums())]
HINTED = [
    {**row, "prompt": f"{row['prompt']} Hint (format only): {row['answer']}"} for row in stories() if row["answer"]
]
REFORMATTED = reformatted(stories())
CONTRADICTED = [
    *reviews(),
    *({**row, "answer": LABELS[(LABELS.index(row["answer"]) + 1) % 3]} for row in reviews()[::6]),
]
LABELS_SHUFFLED = shuffled(reviews())
LISTED = [{**row, "prompt": f"{row['prompt']} Say positive, negative or neutral."} for row in reviews()]
LISTED_SHUFFLED = shuffled(LISTED)
LABELS_SORTED = [
    {**row, "answer": label} for row, label in zip(reviews(), sorted(row["answer"] for row in reviews()), strict=True)
]
TAGGED_SHUFFLED = [{**row, "answer": f"<answer>{row['answer']}</answer>"} for row in shuffled(reviews(), 8)]
PARITY = [{"prompt": f"Is {n} even or odd?", "answer": ("even", "odd")[n % 2]} for n in range(100, 180)]
LETTERS = [
    {**row, "answer": f"({'ABCD'[row['prompt'].split('? ')[1].split(row['answer'])[0].count('(') - 1]})"}
    for row in choices(96)
]
CLAIMS = [
    {
        "prompt": f"{row['prompt']} Somebody says {int(row['answer']) + i % 2}.",
        "answer": ("supported", "refuted")[i % 2],
    }
    for i, row in enumerate(sums(80))
]
RENDERED = [
    {**row, "prompt": f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"} for row in stories()
]


def reordered(rows: Sequence[dict[str, Any]]) -> Rows:
    """Each row twice, its options the other way round the second time."""
    again = []
    for row in rows:
        stem, _, options = row["prompt"].partition("? ")
        towns = [part.strip() for part in re.split(r"\([A-D]\)", options) if part.strip()]
        lines = " ".join(f"({letter}) {town}" for letter, town in zip("ABCD", towns[::-1], strict=True))
        again.append({**row, "prompt": f"{stem}? {lines}"})
    return [*rows, *again]


VERBS = ("mends", "paints", "sells", "counts", "weighs", "carries", "sorts", "folds")
THINGS = ("clocks", "boats", "ropes", "bricks", "maps", "drums", "lamps", "coats")
ADVERBS = ("slowly", "gladly", "rarely", "twice", "alone", "early", "badly", "quietly")


def tales(n: int = 40, shift: int = 0, word: str = "evening") -> Rows:
    """Long texts, each of its own; ``shift`` changes their numbers, ``word`` one of their words."""
    rng, rows = random.Random(5), []
    for i in range(n):
        words = [" ".join(rng.choice(bag) for bag in (NAMES, VERBS, THINGS, ADVERBS)) for _ in range(6)]
        a, b = 13 + i + shift, 31 + 2 * i + shift
        text = f"{'; '.join(words)}. Every {word} {a} are ready, and {b} are not: how many are there in all?"
        rows.append({"prompt": text, "answer": str(a + b)})
    return rows


def late(rows: Sequence[dict[str, Any]], lag: int) -> Rows:
    """The same rows, their answers some rows down."""
    answers = [row["answer"] for row in rows]
    return [{**row, "answer": answers[(i - lag) % len(rows)]} for i, row in enumerate(rows)]


BOXED_SOME_WORDS = [row if i % 4 else {**row, "answer": "<answer>n/a</answer>"} for i, row in enumerate(boxed())]
METADATA = [
    {**row, "prompt": json.dumps({"id": i, "label": row["answer"], "lang": "en"}) + " " + row["prompt"]}
    for i, row in enumerate(reviews())
]
OWN_EXAMPLE = [
    {**row, "prompt": f"Example: {row['prompt']} Answer: {row['answer']}\nNow you: {row['prompt']}"}
    for row in stories()
]
TENTH = [
    row if i % 10 else {**row, "prompt": f"{row['prompt']} (answer: {row['answer']})"}
    for i, row in enumerate(stories(128))
]
REORDERED = reordered(choices())
RENUMBERED = [*tales(), *tales(shift=40)]
REWORDED = [*tales(), *tales(word="morning")]
CONTRADICTED_IN_CAPITALS = [
    *reviews(),
    *(
        {"prompt": row["prompt"].upper(), "answer": LABELS[(LABELS.index(row["answer"]) + 1) % 3]}
        for row in reviews()[::6]
    ),
]
CONTRADICTED_OVER_LINES = [
    *reviews(),
    *(
        {"prompt": row["prompt"].replace(" ", "\n", 4), "answer": LABELS[(LABELS.index(row["answer"]) + 2) % 3]}
        for row in reviews()[1::6]
    ),
]
SHOUTED = [*stories(40), *({**row, "prompt": row["prompt"].upper()} for row in stories(24))]
EIGHTFOLD = [row for row in stories(40) for _ in range(8)]
LABELS_LATE = late(reviews(), 1)
LABELS_EARLY = late(reviews(), -2)
RENDERED_ELSEWHERE = [{**row, "prompt": f"<s>[INST] {row['prompt']} [/INST]"} for row in stories()]
RENDERED_HEADER = [{**row, "prompt": f"{row['prompt']}\n<|im_start|>assistant\n"} for row in stories()]
END_IN_TEXT = [{**row, "prompt": f"{row['prompt']} <|im_end|>"} for row in stories()]
HALF_LATE = [*reviews()[:48], *late(reviews()[48:], 1)]
BULLETS = [{**row, "prompt": re.sub(r"\s*\([A-D]\) ", "\n- ", row["prompt"])} for row in REORDERED]
OWN_TURN = [
    {
        **row,
        "prompt": [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": row["answer"]},
            {"role": "user", "content": row["prompt"]},
        ],
    }
    for row in stories()
]
