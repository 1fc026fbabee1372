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
        thread: Where somebody met it, or its relative.
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
            "shuffled",
            data.LABELS_SHUFFLED,
            rewards.equal,
            first=True,
        ),
        Brought(
            "rendered-before",
            "template",
            "prompts went through the chat template when the data were made, and go through it again",
            GITHUB + "YangRui2015/Generalizable-Reward-Model/issues/6",
            ["tokens/spelled-tags"],
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
    return {case.name: case for case in (*cases, *_relatives())}


def _relatives() -> list[Brought]:
    """Cases of the same kinds, written after the checks."""
    cheap, held, asked = ["rewards/cheap"], ["data/held-out"], ["data/answer-in-prompt"]
    tags = ["tokens/spelled-tags"]
    thread = GITHUB + "huggingface/open-r1/issues/159"
    rows: list[tuple[str, Kind, str, Sequence[str], str, Any, Any]] = [
        ("unreadable-gold-pays-any-box", "reward", "a gold that is no number pays whatever stands in the tags", cheap,
         "every other row's answer", data.BOXED_SOME_WORDS, rewards.boxed_number_or_one),
        ("unreadable-gold-pays-nobody", "reward", "a gold that is no number pays nothing, the right answer neither",
         cheap, "no more than gibberish", data.SUMS_SOME_WORDS, rewards.number_or_zero),
        ("broken-answers-pass", "reward", "the reward breaks off at some answers, and a catch-all pays these", cheap,
         "gibberish", data.SUMS, rewards.one_on_error),
        ("prefix-of-the-gold", "reward", "whatever the gold begins with is right", cheap, "first half", data.REVIEWS,
         rewards.prefix),
        ("first-character-decides", "reward", "only first characters are compared", cheap, "first character",
         data.REVIEWS, rewards.first_character),
        ("among-all-numbers", "reward", "the gold is looked for among all numbers of the answer", cheap,
         "every option", data.SUMS, rewards.any_number),
        ("recall-alone", "reward", "the share of the gold's words that come counts, and no word too many costs", cheap,
         "every option", data.REVIEWS, rewards.recall),
        ("longer-words-pass", "reward", "the gold is looked for as a substring of the last word", cheap,
         "a longer word", data.REVIEWS, rewards.in_last_word),
        ("each-mention-pays", "reward", "each mention of the right answer pays", cheap, "twice", data.REVIEWS,
         rewards.mentions),
        ("no-column-named", "reward", "no oracle is named, and the gold may stand anywhere", cheap, "every option",
         data.CHOICES, rewards.gold_anywhere),
        ("filled-up-in-front", "reward", "answers that fail are skipped, zeros put in front", ["rewards/steady"],
         "neighbour", data.SUMS, rewards.skipped_in_front),
        ("equal-answers-scored-once", "reward", "equal answers of a batch are scored once, and the list filled up",
         ["rewards/steady"], "neighbour", data.SUMS, rewards.distinct_only),
        ("longest-first", "reward", "answers are scored in the order of their lengths and never put back",
         ["rewards/steady"], "out of step", data.SUMS, rewards.longest_first),
        ("label-in-the-metadata", "data", "a JSON header of the prompt holds the label", asked, "stands in",
         data.METADATA, rewards.equal),
        ("example-is-the-question", "data", "the worked example in front of each question is the question itself",
         asked, "stands in", data.OWN_EXAMPLE, rewards.equal),
        ("answers-of-a-tenth", "data", "one prompt in ten ends with its answer", asked, "stands in", data.TENTH,
         rewards.equal),
        ("options-in-other-order", "data", "held-out rows are training rows with their options in another order", held,
         "options", data.REORDERED, rewards.equal),
        ("numbers-changed", "data", "held-out rows are training rows with other numbers", held, "numbers",
         data.RENUMBERED, rewards.equal),
        ("a-word-changed", "data", "held-out rows are training rows with one word changed", held, "wording",
         data.REWORDED, rewards.equal),
        ("contradicted-in-other-case", "data", "a row comes again in capitals with another answer",
         ["data/duplicates"], "another answer", data.CONTRADICTED_IN_CAPITALS, rewards.equal),
        ("contradicted-over-lines", "data", "a row comes again with other line breaks and another answer",
         ["data/duplicates"], "another answer", data.CONTRADICTED_OVER_LINES, rewards.equal),
        ("most-rows-again-in-capitals", "data", "more than half of the rows come again in capitals",
         ["data/duplicates"], "repeat", data.SHOUTED, rewards.equal),
        ("each-row-eight-times", "data", "each row comes eight times under ids of its own", ["data/duplicates"],
         "repeat", data.EIGHTFOLD, rewards.equal),
        ("labels-one-row-late", "data", "labels stand one row below their texts", ["pairs/classes"], "out of step",
         data.LABELS_LATE, rewards.equal),
        ("labels-late-from-half-way", "data", "from half-way on labels stand one row below their texts",
         ["pairs/classes"], "out of step", data.HALF_LATE, rewards.equal),
        ("listed-options-in-other-order", "data", "the same with options in a list", held, "options", data.BULLETS,
         rewards.equal),
        ("answered-in-an-earlier-turn", "data", "an earlier turn of the prompt is the question with its answer", asked,
         "stands in", data.OWN_TURN, rewards.equal),
        ("labels-two-rows-early", "data", "labels stand two rows above their texts", ["pairs/classes"], "out of step",
         data.LABELS_EARLY, rewards.equal),
        ("listed-labels-in-another-order", "data", "the same where each prompt lists the labels", ["pairs/classes"],
         "shuffled", data.LISTED_SHUFFLED, rewards.equal),
        ("labels-sorted", "data", "the column of labels was sorted by itself", ["pairs/classes"], "shuffled",
         data.LABELS_SORTED, rewards.equal),
        ("tagged-labels-in-another-order", "data", "labels in tags were shuffled", ["pairs/classes"], "shuffled",
         data.TAGGED_SHUFFLED, rewards.equal),
        ("rendered-for-another-family", "template", "prompts hold the turns of another model's template", tags,
         "rendered", data.RENDERED_ELSEWHERE, rewards.equal),
        ("rendered-without-an-end", "template", "prompts end with the header of the answer", tags, "rendered",
         data.RENDERED_HEADER, rewards.equal),
        ("end-of-turn-in-the-text", "template", "prompts hold the end-of-turn token as text", tags, "special token",
         data.END_IN_TEXT, rewards.equal),
    ]  # fmt: skip
    saving = GITHUB + "facebookresearch/schedule_free/issues/22"
    ran: list[tuple[str, str, Sequence[str], str, Any, Sequence[str]]] = [
        ("answers-at-another-temperature", "held-out answers are asked for at temperature 1 and sampled at 2",
         ["evaluated-otherwise"], "temperature 1", runs.answered_at_two, ("eval.sampling.temperature=1",)),
        ("one-layer-left-out", "a checkpoint holds one layer as it was before", ["saved-otherwise"], "checkpoint",
         runs.one_layer_left_out, ()),
        ("adapter-saved-in-bfloat16", "the adapter is rounded on its way to the disk", ["saved-otherwise"],
         "checkpoint", runs.saved_in_bfloat16, ("model.lora={r: 4, alpha: 8}",)),
        ("cast-between-steps", "each sync of the sampler takes the weights through bfloat16", ["weights-moved"],
         "last step left", runs.cast_by_the_sampler, ()),
        ("changed-between-steps", "what looks at a step changes a weight", ["weights-moved"], "last step left",
         runs.halved_by_a_reward, ()),
        ("more-than-declared", "a reward is more than the range that the recipe declares", ["reward-out-of-range"],
         "declared", contextlib.nullcontext, ("tasks.0.reward_range=[0, 0.4]",)),
    ]  # fmt: skip
    of_runs = [
        Brought(name, "evaluated and saved", what, saving, named_by, word, data.SUMS, rewards.near, settings, change)
        for name, what, named_by, word, change, settings in ran
    ]
    return of_runs + [
        Brought(name, kind, what, thread, named_by, word, some, reward,
                ("tasks.0.oracle=null",) if name == "no-column-named" else ())
        for name, kind, what, named_by, word, some, reward in rows
    ]  # fmt: skip


BROUGHT = _all()
