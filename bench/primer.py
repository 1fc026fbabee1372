"""The ``primer`` task: what a base model is trained on before it sees a task of its own."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated

from primerlib.items import PrimerItem, make_items
from primerlib.lessons import Lesson
from primerlib.phrases import ANSWERS
from primerlib.words import COMMON, ENDINGS, LEXICON, NAMES
from pydantic import Field

from levelhead.errors import InputError
from levelhead.metrics import held_out
from levelhead.records import ChatMessage, Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.splits import in_seed_order, stable_hash

_LEXICON_TEXTS = 3000
_LEXICON_LINES = 4000
_WORDS_A_LINE = 12
_LEAST_ELEMENTS = 3
"""Elements of a page that is held out, at least: smaller ones are so few that training asks the same by chance."""
_ELEMENT = re.compile(r"\[\d+\] ")


DEFAULT = [Lesson()]


class PrimerTask(SingleTurnTask):
    """Questions about short made-up texts: recall a fact, choose a person, act on a page, copy words.

    A score is 1 for the right answer, 0 for a well-formed answer whose last line alone is right, and -1 for any other.

    Args:
        name: The task's name.
        items: Texts that the generator makes, with one to six questions each.
        lessons: Training takes these in turn; held-out texts are of the last one, which alone may name no number.
        eval_fraction: Share of the texts that is held out.

    Raises:
        InputError: A lesson before the last has no number of texts.
    """

    def __init__(
        self,
        name: str = "primer",
        items: Annotated[int, Field(ge=10, le=10_000_000)] = 20000,
        lessons: Annotated[list[Lesson], Field(min_length=1)] = DEFAULT,
        eval_fraction: float = 0.1,
    ) -> None:
        if any(lesson.texts is None for lesson in lessons[:-1]):
            raise InputError("lessons: every lesson but the last needs a number of texts")
        self.name = name
        self._lessons = lessons
        self._sides: dict[Split, list[int]] = {"train": [], "eval": []}
        for number in range(items):
            held_out = stable_hash(f"primer/{number}") < eval_fraction
            self._sides["eval" if held_out else "train"].append(number)

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's prompts once, text by text, in an order that depends on the seed alone; lessons in turn."""
        order = in_seed_order(self._sides[split], seed, self.name, split)
        lessons = self._in_turn() if split == "train" else itertools.repeat(self._lessons[-1])
        for number, lesson in zip(order, lessons, strict=False):
            for index, item in enumerate(make_items(number, lesson)):
                if split == "eval" and _recurs(item):
                    continue
                system: tuple[ChatMessage, ...] = ({"role": "system", "content": item.system},) if item.system else ()
                yield Prompt(
                    id=f"{self.name}/{number}/{index}",
                    task=self.name,
                    messages=(*system, {"role": "user", "content": item.prompt}),
                    facts={"kind": item.kind, "answer": item.answer},
                )

    def _in_turn(self) -> Iterator[Lesson]:
        """Yield the lesson of each text; the last one goes on for ever."""
        for lesson in self._lessons[:-1]:
            yield from itertools.repeat(lesson, lesson.texts or 0)
        yield from itertools.repeat(self._lessons[-1])

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer: 1 right, 0 only its last line, -1 otherwise."""
        wanted, lines = str(prompt.facts["answer"]).split("\n"), text.strip().split("\n")
        valid = len(lines) == len(wanted)
        exact = lines == wanted
        last = valid and lines[-1] == wanted[-1]
        return Score(1.0 if exact else 0.0 if last else -1.0, {"exact": float(exact), "answer": float(last)}, valid)

    def oracle(self, prompt: Prompt) -> list[str]:
        """Return the right answer."""
        return [str(prompt.facts["answer"])]

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the kind of the question."""
        return {"kind": str(prompt.facts["kind"])}

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the share of exact answers and of right last lines, over all questions and by kind."""
        scores: dict[str, list[Score]] = defaultdict(list)
        for prompt, rollout in results:
            if rollout.score is not None:
                scores[""].append(rollout.score)
                scores[str(prompt.facts["kind"])].append(rollout.score)
        values: dict[str, float] = {}
        for kind, members in sorted(scores.items()):
            exact = held_out.EXACT_MATCH_OF.of(kind) if kind else held_out.EXACT_MATCH
            right = held_out.ACCURACY_OF.of(kind) if kind else held_out.ACCURACY
            values[exact] = fmean(score.parts["exact"] for score in members)
            values[right] = fmean(score.parts["answer"] for score in members)
        return values

    def lexicon(self) -> Iterator[str]:
        """Yield texts of all kinds with their questions and answers, then lines of words with and without endings.

        Training may begin with thousands of texts to copy, from which a tokenizer would not learn what prompts say.
        """
        for number in self._sides["train"][:_LEXICON_TEXTS]:
            for item in make_items(number, self._lessons[-1]):
                yield from filter(None, (item.system, item.prompt, item.answer))
        rng = random.Random("levelhead/primer/lexicon")
        words = tuple(dict.fromkeys((*ANSWERS, *COMMON, *LEXICON, *NAMES)))
        for _ in range(_LEXICON_LINES):
            yield "The " + " ".join(
                rng.choice(words) + (rng.choice(ENDINGS) if rng.random() < 0.2 else "") for _ in range(_WORDS_A_LINE)
            )


def _recurs(item: PrimerItem) -> bool:
    """Whether another text is likely to make the same question."""
    return item.kind in ("page", "numbers") and len(_ELEMENT.findall(item.prompt)) < _LEAST_ELEMENTS
