"""The task: prompts from HaluEval rows, scored answers, and the metrics of a faithful policy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from levelhead.contrib.faithfulness.data import UNKNOWN, FaithfulnessItem, Kind, generate_items, read_items, withhold
from levelhead.contrib.faithfulness.scoring import MINIMUM, longest_answer, parse_answer, perfect_answer, score_answer
from levelhead.contrib.items import ItemFunctions, ItemTask
from levelhead.errors import InputError
from levelhead.metrics import held_out
from levelhead.recipe.tasks import Faithfulness
from levelhead.records import Prompt, Score
from levelhead.tasks.splits import limit_sides, split_by_group
from levelhead.tasks.text_match import normalize_answer

Outcome = tuple[FaithfulnessItem, Score]


def summarize_outcomes(outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    """Return every metric that exists for these outcomes; what cannot be parsed counts as wrong.

    Keys, each also with ``/<kind>``: ``exact_match`` and ``f1`` (abstaining being the right answer where the text holds
    none), ``quoted`` (share with a real quote, of the items that have something to quote), ``hallucinated`` (share
    nearer to the hallucinated answer, or answered where there is no answer).  Where there are questions:
    ``abstained/answerable`` and ``abstained/unanswerable``.  Where there are verdicts: ``recall/yes``, ``recall/no``
    and their mean ``balanced_accuracy``.
    """
    metrics: dict[str, float | None] = {}
    kinds = sorted({item.kind for item, _ in outcomes})
    metrics |= _shares(outcomes, held_out.EXACT_MATCH, held_out.F1, held_out.QUOTED, held_out.HALLUCINATED)
    for kind in kinds:
        names = (held_out.EXACT_MATCH_OF, held_out.F1_OF, held_out.QUOTED_OF, held_out.HALLUCINATED_OF)
        metrics |= _shares([row for row in outcomes if row[0].kind == kind], *(name.of(kind) for name in names))
    open_ended = [row for row in outcomes if row[0].kind != "general"]
    for answerable, name in ((True, held_out.ABSTAINED_ANSWERABLE), (False, held_out.ABSTAINED_UNANSWERABLE)):
        metrics[name] = _mean([row for row in open_ended if row[0].answerable == answerable], "abstained")
    verdicts = [row for row in outcomes if row[0].kind == "general"]
    recalls = [_mean([row for row in verdicts if row[0].right == label], "exact") for label in ("yes", "no")]
    metrics[held_out.RECALL_YES], metrics[held_out.RECALL_NO] = recalls
    if recalls[0] is not None and recalls[1] is not None:
        metrics[held_out.BALANCED_ACCURACY] = (recalls[0] + recalls[1]) / 2
    return {key: value for key, value in metrics.items() if value is not None}


def _shares(rows: Sequence[Outcome], exact: str, f1: str, quoted: str, hallucinated: str) -> dict[str, float | None]:
    return {
        exact: _mean(rows, "exact"),
        f1: _mean(rows, "f1"),
        quoted: _mean([row for row in rows if row[0].answerable], "quoted"),
        hallucinated: _mean(rows, "hallucinated"),
    }


def _mean(rows: Sequence[Outcome], key: str) -> float | None:
    return sum(float(score.info.get(key, 0.0)) for _, score in rows) / len(rows) if rows else None


log = logging.getLogger(__name__)

_REPLY = "Reply in two lines:\nEvidence: an exact quote from the text, or none\nAnswer:"
QUOTE_INSTRUCTION = f"{_REPLY} a few words, or unknown"
"""Put under every question about a text."""
_FORMS: dict[Kind, str] = {
    "qa": f"Text: {{0.text}}\nQuestion: {{0.question}}\n{QUOTE_INSTRUCTION}",
    "dialogue": f"Text: {{0.text}}\nDialogue: {{0.question}}\n{_REPLY} the assistant's next reply, or unknown",
    "summarization": f"Text: {{0.text}}\n{_REPLY} a short summary of the text",
    "general": (
        "Query: {0.question}\nResponse: {0.text}\nIs anything in the response false or made up? Reply in two lines:\n"
        "Evidence: an exact quote from the response that decides it\nAnswer: yes or no"
    ),
}


def render(item: FaithfulnessItem) -> str:
    """Return the text of an item's prompt: the text, what is asked, and how to answer."""
    return _FORMS[item.kind].format(item)


class FaithfulnessTask(ItemTask[FaithfulnessItem]):
    """Answers with quoted evidence, on HaluEval files or on built-in items in its question schema.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The files are missing, empty or malformed, too few to split, or all of their prompts are longer than
            ``max_prompt_chars``.
    """

    functions = ItemFunctions(
        FaithfulnessItem.from_facts,
        lambda item: f"{item.kind}/{item.key}",
        render,
        score_answer,
        perfect_answer,
        longest_answer,
        summarize_outcomes,
        MINIMUM,
    )

    def __init__(self, section: Faithfulness) -> None:
        self.section = section
        self.name = section.title
        if section.path is None:
            items = generate_items(section.items, section.unanswerable)
        else:
            items = read_items(section.path)
        items = self._short_enough(items)
        self._kinds = {item.kind for item in items}
        sides = split_by_group(items, lambda item: item.group, section.eval_fraction, stratum=lambda item: item.kind)
        limited = limit_sides(sides, section.limit, section.eval_fraction, lambda item: item.key)
        # Sentences are withheld only here: the split is made by the texts as they were.
        share = 0.0 if section.path is None else section.unanswerable
        self._sides = {side: [withhold(item, share) for item in items] for side, items in limited.items()}

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return the answer without its evidence, normalised; all ways of abstaining are ``unknown``.

        What cannot be parsed is its own text.
        """
        parsed = parse_answer(text, self.item(prompt))
        if parsed is None:
            return super().canonical(prompt, text)
        return UNKNOWN if parsed.abstains else normalize_answer(parsed.answer)

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return whether the text holds the answer, or for a response to be judged, the right verdict; and the kind.

        The kind is a stratum where the data hold several.
        """
        facts = prompt.facts
        if facts["kind"] == "general":
            strata = {"verdict": str(facts["right"])}
        else:
            strata = {"answerable": "yes" if facts["answerable"] else "no"}
        return {**strata, "kind": str(facts["kind"])} if len(self._kinds) > 1 else strata

    def form(self, prompt: Prompt) -> str:
        """Return the kind: what is asked about a text, a dialogue, a summary or a response differs at a glance."""
        return str(prompt.facts["kind"])

    def constants(self) -> Sequence[str]:
        """Return the abstention, and for verdicts both of them."""
        answers = ["unknown"] if self._kinds - {"general"} else []
        answers += ["yes", "no"] if "general" in self._kinds else []
        return [f"Evidence: none\nAnswer: {answer}" for answer in answers]

    def _short_enough(self, items: list[FaithfulnessItem]) -> list[FaithfulnessItem]:
        longest = self.section.max_prompt_chars
        if longest is None:
            return items
        short_items = [item for item in items if len(render(item)) <= longest]
        if not short_items:
            shortest = min(len(render(item)) for item in items)
            raise InputError(
                f"tasks[].max_prompt_chars is {longest}, but the shortest prompt of {self.name} has {shortest} "
                "characters; raise it, or leave it out"
            )
        if len(short_items) < len(items):
            log.warning(
                "%s: %d of %d rows left out, longer than %d characters",
                self.name,
                len(items) - len(short_items),
                len(items),
                longest,
            )
        return short_items
