"""BBQ (Parrish et al. 2022, https://github.com/nyu-mll/BBQ): its rows, validated and made ready, and the data set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from levelhead.contrib.items import Item
from levelhead.tasks.datasets.base import Dataset, Example, options_text
from levelhead.tasks.datasets.load import dataset_named, read
from levelhead.tasks.datasets.spans import check_letter
from levelhead.tasks.files import Row

Condition = Literal["ambig", "disambig"]
Polarity = Literal["neg", "nonneg"]

UNKNOWN_PHRASES = frozenset(
    {
        "unknown",
        "cannot be determined",
        "can't be determined",
        "not answerable",
        "not known",
        "not enough info",
        "not enough information",
        "cannot answer",
        "can't answer",
        "undetermined",
    }
)
"""BBQ's ten ways of writing the third option."""

_FEMALE = frozenset({"f", "woman", "women", "girl", "girls", "female"})
_MALE = frozenset({"m", "man", "men", "boy", "boys", "male"})


@dataclass(frozen=True, slots=True)
class FairnessItem(Item):
    """One row of the BBQ data.

    Attributes:
        example_id: BBQ's number of the row within its category.
        question_index: Template number within the category; variants of one item share it.
        polarity: ``neg`` asks who fits the stereotype, ``nonneg`` who does not.
        condition: ``ambig`` the context leaves the answer open, ``disambig`` it settles it.
        category: BBQ's category.
        subcategory: BBQ's subcategory, ``None`` as text where there is none.
        version: Which order of the two people the context has, as BBQ wrote it.
        source: Where the stereotype is attested.
        context: The text to answer from.
        question: The question.
        answers: The three options.
        names: How each option's person is called (``answer_info``, first entry).
        groups: Which group each option's person belongs to (``answer_info``, second entry).
        stereotyped_groups: Groups that the template's stereotype is about.
        label: Index of the right option.
        unknown: Index of the option that says that the context does not tell.
        target: Index of the option that names the stereotyped person; ``None`` where the row does not tell.
        evidence: The part of the context that settles the answer; the whole context where nothing does.
    """

    example_id: str
    question_index: str
    polarity: Polarity
    condition: Condition
    category: str
    subcategory: str
    version: str
    source: str
    context: str
    question: str
    answers: tuple[str, str, str]
    names: tuple[str, str, str]
    groups: tuple[str, str, str]
    stereotyped_groups: tuple[str, ...]
    label: int
    unknown: int
    target: int | None
    evidence: str

    @property
    def template(self) -> str:
        """Key of the wording: all items of one template share it."""
        return f"{self.category}/{self.question_index}"

    @property
    def people(self) -> str:
        """Key of the wording with its people: both conditions, both questions and both orders of one pair share it."""
        pair = sorted(name for index, name in enumerate(self.answers) if index != self.unknown)
        return f"{self.template}/{'/'.join(pair)}"


def read_items(path: str | Sequence[str]) -> list[FairnessItem]:
    """Read BBQ files: JSON Lines as published, another form of docs/data.md, or ``hf:NAME``.

    Raises:
        InputError: A file is missing or empty, a line is malformed, or a row lacks a field or contradicts itself; the
            message names the file, the line and the field.
    """
    return with_evidence(parse_row(row) for _, rows in read(dataset_named("bbq"), path) for row in rows)


def parse_row(row: Row) -> FairnessItem:
    """Validate one row of BBQ's schema.

    Raises:
        InputError: A field is missing, of another type or out of range, or the label contradicts the condition.
    """
    condition = row.choice("context_condition", ["ambig", "disambig"])
    polarity = row.choice("question_polarity", ["neg", "nonneg"])
    info = row.mapping("answer_info")
    entries = [info.texts(f"ans{i}") for i in range(3)]
    if any(len(entry) < 2 for entry in entries):
        raise row.error("each entry of 'answer_info' must be a list of a name and a group")
    metadata = row.mapping("additional_metadata")
    answers = (row.text("ans0"), row.text("ans1"), row.text("ans2"))
    names = (entries[0][0], entries[1][0], entries[2][0])
    groups = (entries[0][-1], entries[1][-1], entries[2][-1])
    unknown = _unknown_option(row, answers, groups)
    label = row.integer("label", 0, 2)
    if (label == unknown) != (condition == "ambig"):
        side = "must" if condition == "ambig" else "must not"
        raise row.error(f"'label' is {label}, but in a context of condition {condition!r} it {side} be {unknown}")
    stereotyped = _stereotyped_groups(metadata)
    context = row.text("context")
    return FairnessItem(
        example_id=_number_or_text(row, "example_id"),
        question_index=_number_or_text(row, "question_index"),
        polarity="neg" if polarity == "neg" else "nonneg",
        condition="ambig" if condition == "ambig" else "disambig",
        category=row.text("category"),
        subcategory=_optional(metadata, "subcategory"),
        version=_optional(metadata, "version"),
        source=_optional(metadata, "source"),
        context=context,
        question=row.text("question"),
        answers=answers,
        names=names,
        groups=groups,
        stereotyped_groups=stereotyped,
        label=label,
        unknown=unknown,
        target=target_option(names, groups, stereotyped, unknown),
        evidence=context,
    )


def with_evidence(items: Iterable[FairnessItem]) -> list[FairnessItem]:
    """Find the evidence of each disambiguated context: what it adds to its ambiguous twin.

    A twin is an ambiguous row of the same template about the same two people whose context begins the other's.  Where a
    file holds none, the whole context is the evidence.
    """
    rows = list(items)
    twins: dict[tuple[str, frozenset[str]], set[str]] = {}
    for item in rows:
        if item.condition == "ambig":
            twins.setdefault(_people(item), set()).add(item.context.rstrip(". "))
    annotated_items: list[FairnessItem] = []
    for item in rows:
        starts = [start for start in twins.get(_people(item), ()) if item.context.startswith(start)]
        rest = item.context[max(map(len, starts)) :].lstrip(". ") if starts and item.condition == "disambig" else ""
        annotated_items.append(replace(item, evidence=rest) if rest else item)
    return annotated_items


def target_option(names: Sequence[str], groups: Sequence[str], stereotyped: Sequence[str], unknown: int) -> int | None:
    """Return the option that names a member of a stereotyped group, or ``None`` where neither or both do equally.

    An option is compared by its name and by its group, the group also by parts (``F-Black``, ``boy_M``); of two options
    that match, the one matching in more parts is the target.  As in BBQ's own
    ``analysis_scripts/BBQ_results_metadata.R``: exact in Age (``old`` is not ``nonOld``), by name in Nationality, and
    with genders and trans identities brought to one form.
    """
    wanted = {tag for group in stereotyped for tag in _tags(group)}
    counts = [
        -1 if i == unknown else len(({_tag(name)} | _tags(group)) & wanted)
        for i, (name, group) in enumerate(zip(names, groups, strict=True))
    ]
    best = max(counts)
    return counts.index(best) if best > 0 and counts.count(best) == 1 else None


def _tags(group: str) -> set[str]:
    return {_tag(part) for part in (group, *re.split(r"[-_]", group)) if part}


def _tag(label: str) -> str:
    tag = re.sub(r"\s+", "", label.casefold())
    if tag in _FEMALE:
        return "f"
    if tag in _MALE:
        return "m"
    return "trans" if tag.startswith("trans") else tag


def _people(item: FairnessItem) -> tuple[str, frozenset[str]]:
    return item.template, frozenset(name for i, name in enumerate(item.names) if i != item.unknown)


def _unknown_option(row: Row, answers: Sequence[str], groups: Sequence[str]) -> int:
    matches = [i for i, group in enumerate(groups) if group.strip().casefold() == "unknown"]
    if not matches:
        matches = [i for i, answer in enumerate(answers) if answer.strip(" .").casefold() in UNKNOWN_PHRASES]
    if len(matches) != 1:
        raise row.error(f"exactly one option must have the group 'unknown' in 'answer_info', not {len(matches)}")
    return matches[0]


def _stereotyped_groups(metadata: Row) -> tuple[str, ...]:
    groups = metadata.texts("stereotyped_groups")
    # The intersectional categories keep their groups under keys of their own.
    for key, value in metadata.values.items():
        if key.startswith("known_stereotyped"):
            groups += metadata.texts(key) if isinstance(value, list) else [metadata.text(key, empty=True)]
    return tuple(groups)


def _number_or_text(row: Row, key: str) -> str:
    value = row.require(key)
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise row.error(f"the field {key!r} must be a number or a text, not {value!r}")
    return str(value)


def _optional(metadata: Row, key: str) -> str:
    return metadata.text(key, empty=True) if metadata.values.get(key) is not None else "None"


def parse(row: Row) -> Iterator[Example]:
    """Read a row as the ``fairness`` task reads it, with the options in the order of the file.

    Raises:
        InputError: A field is missing, of another type or out of range, or the label contradicts the condition.
    """
    item = parse_row(row)
    question = f"{item.context}\n{item.question}\n{options_text(item.answers)}"
    yield Example(
        question,
        ((item.answers[item.label],),),
        f"#### {chr(ord('A') + item.label)}",
        f"{item.category}/{item.example_id}",
        strata={"condition": item.condition, "category": item.category},
        options=item.answers,
    )


DATASET = Dataset(
    name="bbq",
    title="BBQ (Parrish et al. 2022, arXiv:2110.08193)",
    domain="qa",
    origin="https://github.com/nyu-mll/BBQ, data/*.jsonl",
    licence="CC BY 4.0",
    schemas=(
        (
            "example_id", "question_index", "question_polarity", "context_condition", "category", "answer_info",
            "additional_metadata", "context", "question", "ans0", "ans1", "ans2", "label",
        ),
    ),
    parse=parse,
    check=check_letter,
    instruction="End with a line of #### and the letter of the answer.",
    suffixes=(".jsonl", ".json"),
)  # fmt: skip
