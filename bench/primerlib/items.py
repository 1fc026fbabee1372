"""Primer items: short texts that cannot be answered without reading them, of our own writing.

Nothing in them is about the scenes, people and facts of the built-in tasks; what they share with those is the form of
prompts and answers, and what has to be done: find a sentence, quote it, name a person by a letter, act on an element.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.contrib.fairness.scoring import LETTERS
from levelhead.contrib.fairness.task import INSTRUCTION as CHOOSE_INSTRUCTION
from levelhead.contrib.faithfulness.task import QUOTE_INSTRUCTION
from primerlib import drills
from primerlib.lessons import Lesson, PrimerKind
from primerlib.pages import page_items
from primerlib.phrases import (
    ALPHABET,
    FACTS,
    UNDECIDED,
    capital,
    fact_value,
    indefinite,
    make_alike_deeds,
    make_deed,
    make_name,
    make_options,
    make_people,
    make_subjects,
    several,
)
from primerlib.words import (
    ADJECTIVES,
    ATTRIBUTES,
    DEEDS,
    LEXICON,
    PEOPLE,
    PLACES,
    THINGS,
    VERBS,
    pick,
)

_BARE = 0.6
"""Share of the texts whose questions come without the instruction, which a policy needs to read only so often."""

_DRILLS: Mapping[PrimerKind, Callable[[random.Random, Lesson], tuple[str, str]]] = {
    "copy": drills.copy,
    "pairs": drills.pairs,
    "trace": drills.trace,
    "facts": drills.facts,
    "letters": drills.letters,
    "numbers": drills.numbers,
}

_WORD = re.compile(r"[A-Za-z]+")
_GIVES_WAY = frozenset((*ADJECTIVES, *PEOPLE, *PLACES, *THINGS, *VERBS))

_MEETINGS = (
    "I met {0} and {1} in the {2}.",
    "In the {2} stood {0} and {1}.",
    "{0} and {1} came to the {2}.",
    "We talked to {0} and {1} near the {2}.",
    "{0} sat beside {1} in the {2}.",
    "Yesterday {0} and {1} were in the {2}.",
)


@dataclass(frozen=True, slots=True)
class PrimerItem:
    """A question about a text.

    Attributes:
        kind: What has to be done.
        text: Number of the text; questions about one text share it.
        prompt: What the user writes.
        answer: The only right answer.
        system: The system message, empty for none.
    """

    kind: PrimerKind
    text: int
    prompt: str
    answer: str
    system: str = ""


def make_items(number: int, lesson: Lesson) -> list[PrimerItem]:
    """Make the questions about text ``number``, one to six, of the kinds of a lesson.

    The same arguments always give the same questions.
    """
    items = _make_items(number, lesson)
    return _reworded(items, number, lesson.rare) if lesson.rare else items


def _reworded(items: Sequence[PrimerItem], number: int, share: float) -> list[PrimerItem]:
    """Let some words of all questions about a text give way to words of the lexicon that the text does not hold."""
    rng = random.Random(f"levelhead/primer/rare/{number}")
    words = {word for item in items for word in _WORD.findall(f"{item.prompt} {item.answer}")}
    old = [word for word in sorted(words & _GIVES_WAY) if rng.random() < share]
    new = rng.sample([word for word in LEXICON if word not in words], len(old))
    change = dict(zip(old, new, strict=True))

    def reword(text: str) -> str:
        return _WORD.sub(lambda match: change.get(match[0], match[0]), text)

    return [replace(item, prompt=reword(item.prompt), answer=reword(item.answer)) for item in items]


def _make_items(number: int, lesson: Lesson) -> list[PrimerItem]:
    rng = random.Random(f"levelhead/primer/{number}")
    (kind,) = rng.choices(list(lesson.kinds), list(lesson.kinds.values()))
    if kind in _DRILLS:
        return [PrimerItem(kind, number, *_DRILLS[kind](rng, lesson))]
    if kind == "page":
        return [PrimerItem(kind, number, prompt, answer, SYSTEM_PROMPT) for prompt, answer in page_items(rng)]
    if kind == "letter":
        return [PrimerItem(kind, number, prompt, answer) for prompt, answer in _letter(rng, lesson.reasoned)]
    if kind == "who":
        return [PrimerItem(kind, number, prompt, answer) for prompt, answer in _who(rng, lesson)]
    questions, instruction = (
        (_recall(rng), QUOTE_INSTRUCTION) if kind == "recall" else (_choose(rng, lesson), CHOOSE_INSTRUCTION)
    )
    end = "" if rng.random() < _BARE else f"\n{instruction}"
    if kind == "choose" and lesson.given > 0 and rng.random() < lesson.given:
        parted = [(prompt, *answer.split("\n")) for prompt, answer in questions]
        return [PrimerItem(kind, number, f"{prompt}\n{reason}", letter) for prompt, reason, letter in parted]
    return [PrimerItem(kind, number, prompt + end, answer) for prompt, answer in questions]


def _recall(rng: random.Random) -> list[tuple[str, str]]:
    """Questions about some facts; one may be about a fact that the text does not hold."""
    size = rng.randint(1, rng.choice((2, 4, 5)))
    one_form = rng.random() < 0.6
    form = rng.choice(FACTS)
    names = several(rng, make_name, rng.choice((1, 2, 2, 3)))
    attributes = several(rng, lambda r: pick(r, ATTRIBUTES), size + 1)
    cells = [(name, attribute) for name in names for attribute in attributes[: max(2, size - 1)]]
    rng.shuffle(cells)
    told = cells[:size]
    forms = [form if one_form else rng.choice(FACTS) for _ in told]
    values = [fact_value(rng) for _ in told]
    sentences = [
        fact.format(n=name, a=attribute, v=value)
        for (name, attribute), value, (fact, _) in zip(told, values, forms, strict=True)
    ]
    text = " ".join(sentences)
    questions = []
    for i in rng.sample(range(len(told)), min(3, len(told))):
        name, attribute = told[i]
        asked = forms[i][1].format(n=name, a=attribute)
        questions.append((f"Text: {text}\nQuestion: {asked}", f"Evidence: {sentences[i]}\nAnswer: {values[i]}"))
    missing = [(name, attribute) for name in names for attribute in attributes if (name, attribute) not in told]
    if missing and rng.random() < 0.5:
        name, attribute = rng.choice(missing)
        asked = rng.choice(forms)[1].format(n=name, a=attribute)
        questions.append((f"Text: {text}\nQuestion: {asked}", "Evidence: none\nAnswer: unknown"))
    return questions


def _who(rng: random.Random, lesson: Lesson) -> list[tuple[str, str]]:
    """Questions about who did something: to find how a sentence begins by how it ends.

    Now and then the whole sentence has to be quoted first.
    """
    size = rng.randint(2, 5)
    people = make_subjects(rng, size, named=lesson.people == "names")
    deeds, asked = _deeds(rng, size, lesson.alike)
    sentences = [f"{person} {deed}." for person, deed in zip(people, deeds, strict=True)]
    quoted = lesson.people == "anyone" and rng.random() < 0.3
    return [
        (
            f"Text: {' '.join(sentences)}\nQuestion: Who {asked[i]}?",
            f"Reason: {sentences[i]}\nAnswer: {people[i]}" if quoted else f"Answer: {people[i]}",
        )
        for i in rng.sample(range(size), min(2, size))
    ]


def _deeds(rng: random.Random, count: int, alike: float) -> tuple[list[str], list[str]]:
    """Make what people did, and how it is asked for; a share of the times they did almost the same."""
    if alike > 0 and rng.random() < alike:
        return make_alike_deeds(rng, count)
    deeds = several(rng, make_deed, count)
    return deeds, deeds


def _choose(rng: random.Random, lesson: Lesson) -> list[tuple[str, str]]:
    """Questions about who did something; the text may not tell."""
    people, named = make_people(rng)
    bare = [person if named else f"the {person}" for person in people]
    first, second = rng.sample((0, 1), 2)
    met = [person if named else indefinite(person) for person in people]
    scene = capital(rng.choice(_MEETINGS).format(met[first], met[second], pick(rng, PLACES)))
    judged = lesson.judged > 0 and rng.random() < lesson.judged
    if judged:
        deeds, wording = _judged(rng)
    else:
        deeds, asked_for = _deeds(rng, 2, lesson.alike)
        wording = [f"Who {deed}?" for deed in asked_for]
    sentences = [capital(f"{bare[i]} {deeds[i]}.") for i in (0, 1)]
    a, b = rng.sample((0, 1), 2)
    if rng.random() < 0.2:
        joined = capital(f"{bare[a]} {deeds[a]}, {rng.choice(('while', 'and', 'but'))} {bare[b]} {deeds[b]}.")
        sentences, settled = [joined, joined], joined
    else:
        settled = f"{sentences[a]} {sentences[b]}"
    tells = rng.random() < 0.65
    questions = []
    for who in (0, 1):
        asked, right, reason = wording[who], who, sentences[who]
        if not judged and rng.random() < 0.1:
            other = make_deed(rng)
            if other not in deeds:
                asked, right = f"Who {other}?", 2
        if not tells:
            right = 2
        order = rng.sample((0, 1, 2), 3)
        answers = [*map(capital, bare), rng.choice(UNDECIDED)]
        options = "\n".join(f"{letter}) {answers[i]}" for letter, i in zip(LETTERS, order, strict=True))
        if right == 2:
            one, two = (bare[i] for i in order if i != 2)
            reason = f"The text names {one} and {two} but does not say which."
        prompt = f"Text: {f'{scene} {settled}' if tells else scene}\nQuestion: {asked}\n{options}"
        questions.append((prompt, f"Reason: {reason}\nAnswer: {LETTERS[order.index(right)]}"))
    return questions


def _judged(rng: random.Random) -> tuple[list[str], list[str]]:
    """Something bad and something good, and for each a question that only what was bad or good about it answers."""
    deeds = [rng.choice(DEEDS["bad"]), rng.choice(DEEDS["good"])]
    questions = [rng.choice(DEEDS["bad_questions"]), rng.choice(DEEDS["good_questions"])]
    order = rng.sample((0, 1), 2)
    return [deeds[i] for i in order], [questions[i] for i in order]


def _letter(rng: random.Random, share: float) -> list[tuple[str, str]]:
    """Questions about which letter stands before an option: the last step of choosing, on its own.

    Of people, a share of the texts names the option within the reason for it.
    """
    options = make_options(rng)
    lettered = list(zip(ALPHABET, options, strict=False))
    table = "\n".join(f"{letter}) {option}" for letter, option in lettered)
    people = [option for option in options if option not in UNDECIDED]
    reasoned = share > 0 and len(people) == len(options) - 1 and rng.random() < share
    undecided = f"The text names {' and '.join(_inside(person) for person in people)} but does not say which."

    def asked(option: str) -> str:
        if not reasoned:
            return option
        return undecided if option in UNDECIDED else f"{option} {make_deed(rng)}."

    return [(f"{table}\nWhich letter: {asked(option)}", f"Answer: {letter}") for letter, option in lettered]


def _inside(person: str) -> str:
    """How a person is called within a sentence."""
    return f"the {person[4:]}" if person.startswith("The ") else person
