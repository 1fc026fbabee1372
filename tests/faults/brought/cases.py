"""The cases, as data: rows, a reward, settings, or a change of what saves and evaluates; each from a public thread.

The first twelve were written before any check that looks for their kind (``first``), the others are their relatives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from faults.brought import data, rewards, runs

Kind = Literal["reward", "data", "template", "evaluated and saved"]


@dataclass(frozen=True, slots=True)
class Brought:
    """One fault.

    Attributes:
        name: What it does.
        kind: Where it lies.
        what: What goes wrong, in one line.
        thread: Where somebody met it.
        named_by: Checks (without the task) or events that must name it, any one of them.
        word: A text that the message must hold: the cause, and no symptom of it.
        rows: Of the task.
        reward: Of the task.
        settings: Of the recipe.
        change: Of the code, for what happens while a run evaluates and saves.
        first: Whether it was written before the checks.
    """

    name: str
    kind: Kind
    what: str
    thread: str
    named_by: Sequence[str]
    word: str
    rows: Sequence[dict[str, Any]]
    reward: Any
    settings: Sequence[str] = ()
    change: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    first: bool = False


GITHUB = "https://github.com/"


def _all() -> dict[str, Brought]:
    cases = [
        Brought(
            "unparsable-gold-pays-all",
            "reward",
            "an answer whose gold cannot be read as a number gets full marks, whatever it is",
            GITHUB + "huggingface/open-r1/issues/159",
            ["rewards/cheap"],
            "gibberish",
            data.SUMS_SOME_WORDS,
            rewards.number_or_one,
            first=True,
        ),
        Brought(
            "empty-box-is-inside-the-gold",
            "reward",
            "gold in answer or answer in gold: the empty box is in every gold",
            GITHUB + "Liuziyu77/Visual-RFT/issues/176",
            ["rewards/cheap"],
            "empty box",
            data.SPECIES,
            rewards.either_in_the_other,
            first=True,
        ),
        Brought(
            "every-option-at-once",
            "reward",
            "the right keyword anywhere in the answer is enough, so that naming every option always is",
            GITHUB + "unslothai/unsloth/issues/2690",
            ["rewards/cheap"],
            "every option",
            data.CHOICES,
            rewards.gold_anywhere,
            first=True,
        ),
        Brought(
            "skipped-and-filled-up",
            "reward",
            "an answer that fails is skipped and a 0 is put at the end: every score behind it is its neighbour's",
            GITHUB + "huggingface/open-r1/issues/159",
            ["rewards/steady", "rewards/cheap"],
            "neighbour",
            data.SUMS,
            rewards.skipped,
            first=True,
        ),
        Brought(
            "tags-pay-as-often-as-they-come",
            "reward",
            "each tag pays, so that an answer written twice beats a right one",
            GITHUB + "huggingface/open-r1/pull/418",
            ["rewards/cheap"],
            "twice",
            data.BOXED,
            rewards.tags_counted,
            first=True,
        ),
        Brought(
            "hint-holds-the-answer",
            "data",
            "a hint of the form of the answer that is the answer",
            GITHUB + "ucbepic/DataAgentBench/pull/56",
            ["data/answer-in-prompt"],
            "stands in",
            data.HINTED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "held-out-but-for-line-breaks",
            "data",
            "held-out rows are training rows with other line breaks and case",
            GITHUB + "benjaminvdb/DBRD/issues/6",
            ["data/held-out"],
            "but for",
            data.REFORMATTED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "one-text-two-labels",
            "data",
            "the same text twice, with another label",
            GITHUB + "sebischair/Medical-Abstracts-TC-Corpus/issues/2",
            ["data/duplicates"],
            "another answer",
            data.CONTRADICTED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "labels-in-another-order",
            "data",
            "the labels were shuffled and the texts were not; there are but three of them",
            GITHUB + "dennybritz/cnn-text-classification-tf/issues/136",
            ["pairs/classes"],
            "order",
            data.LABELS_SHUFFLED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "rendered-before",
            "template",
            "prompts went through the chat template when the data were made, and go through it again",
            GITHUB + "YangRui2015/Generalizable-Reward-Model/issues/6",
            ["tokens/rendered-before"],
            "rendered",
            data.RENDERED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "greedy-that-samples",
            "evaluated and saved",
            "held-out answers are asked for at temperature 0 and sampled at 1",
            GITHUB + "huggingface/lighteval/issues/559",
            ["evaluated-otherwise"],
            "temperature 0",
            data.SUMS,
            rewards.near,
            change=runs.sampled_at_one,
            first=True,
        ),
        Brought(
            "saved-otherwise",
            "evaluated and saved",
            "the weights of a checkpoint are not those that were evaluated",
            GITHUB + "facebookresearch/schedule_free/issues/22",
            ["saved-otherwise"],
            "checkpoint",
            data.SUMS,
            rewards.near,
            change=runs.saved_in_bfloat16,
            first=True,
        ),
    ]
    return {case.name: case for case in cases}


BROUGHT = _all()
