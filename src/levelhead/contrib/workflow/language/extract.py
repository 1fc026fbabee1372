"""Finding the workflow in what a model wrote, near-misses of its spelling rewritten where the recipe says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from levelhead.contrib.workflow.language.checks import Limits, check
from levelhead.contrib.workflow.language.parser import parse, to_text
from levelhead.contrib.workflow.language.tree import Node, WorkflowError
from levelhead.contrib.workflow.operators import OPERATORS

_FULL_WIDTH = str.maketrans("\uff08\uff09\uff3b\uff3d\u3010\u3011\uff0c\uff1a\uff1f\uff0a\uff1e\uff0d", "()[][],:?*>-")
_ARROWS = re.compile(r"\s*(?:[\u2192\u21d2\u2794\u279c\u27f6]|=+>|--+>|[\u2013\u2014]>)\s*")
_LABEL = re.compile(
    r"^\s*(?:the\s+)?(?:best\s+|final\s+)?(?:workflow|dsl|answer)(?:\s+is)?\s*[:=\uff1a]\s*", re.IGNORECASE
)
_QUOTED = re.compile(r"^\s*(?:`+|\*\*|['\"\u201c])(?P<inside>.+?)(?:`+|\*\*|['\"\u201d])\s*$", re.DOTALL)
_FULL_STOP = re.compile(r"(?<=[\w\])`'\"*])\s*[.;\u3002\uff1b]\s*$")
_CALL_BRACKETS = re.compile(r"([A-Za-z_]\w*)\s*\(\s*\)")
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*[A-Za-z]")
_TIMES = re.compile(r"\)\s*[x\u00d7]\s*([0-9]+)")
_BARE_LOOP = re.compile(r"([A-Za-z_]\w*)\s*[*\u00d7]\s*([0-9]+)")
_SPELLINGS = {re.sub(r"[_-]", "", name).lower(): name for name in [*OPERATORS, "done"]}


def _respell(text: str) -> str:
    def spelling(match: re.Match[str]) -> str:
        return _SPELLINGS.get(re.sub(r"[_-]", "", match[0]).lower(), match[0])

    return _NAME.sub(spelling, text)


RULES: dict[str, Callable[[str], str]] = {
    "label": lambda text: _LABEL.sub("", text),
    "full-stop": lambda text: _FULL_STOP.sub("", text),
    "quotes": lambda text: _QUOTED.sub(lambda match: match["inside"], text),
    "full-width": lambda text: text.translate(_FULL_WIDTH),
    "arrow": lambda text: _ARROWS.sub(" -> ", text),
    "call-brackets": lambda text: _CALL_BRACKETS.sub(r"\1", text),
    "spelling": _respell,
    "loop": lambda text: _BARE_LOOP.sub(r"(\1) * \2", _TIMES.sub(r") * \1", text)),
}
"""Each rule by name, in the order they are applied."""


def normalise(text: str) -> tuple[str, tuple[str, ...]]:
    """Rewrite the near-misses that a rule knows.

    Returns:
        The rewritten text, and the names of the rules that changed something.
    """
    applied = []
    for name, rule in RULES.items():
        rewritten = rule(text)
        if rewritten != text:
            applied.append(name)
            text = rewritten
    return text, tuple(applied)


Source = Literal["tagged", "fenced", "bare"]

_THOUGHTS_END = "</think>"
_TAGGED = re.compile(r"<workflow>(.*?)</workflow>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"^```[\w-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What was found in an answer: a workflow, or the reason why there is none.

    Attributes:
        tree: The workflow; ``None`` for a fallback (an answer that holds no valid workflow).
        text: Its canonical text; empty for a fallback.
        source: Where it stood: in ``<workflow>`` tags, in a code fence, or as the whole answer.
        alone: Whether the answer holds nothing besides.
        error: Why there is none; columns are counted within the tag, the fence, or the answer.
        repairs: Near-miss rules that had to be applied, where they were allowed.
    """

    tree: Node | None
    text: str
    source: Source
    alone: bool
    error: WorkflowError | None = None
    repairs: tuple[str, ...] = ()


def extract(answer: str, limits: Limits | None = None, *, near_misses: bool = False) -> Extraction:
    """Find the workflow of an answer: in tags, else in a code fence, else the whole answer.

    What stands up to ``</think>`` is thought, not answer.  Two different workflows in one answer are none.  The text is
    taken as it is: only with ``near_misses`` are known misspellings rewritten, and every rewriting is named.
    """
    answer = answer.rsplit(_THOUGHTS_END, 1)[-1].strip()
    source, candidates, rest = _candidates(answer)
    alone = not rest.strip()
    if len({" ".join(candidate.split()) for candidate in candidates}) > 1:
        error = WorkflowError("syntax", 1, f"{len(candidates)} {source} texts in one answer", ["one workflow"])
        return Extraction(None, "", source, alone, error)
    text = candidates[0].strip()
    try:
        return _accept(text, limits, source, alone)
    except WorkflowError as error:
        if near_misses and error.kind == "syntax":
            rewritten, repairs = normalise(text)
            try:
                return _accept(rewritten, limits, source, alone, repairs)
            except WorkflowError:
                pass
        return Extraction(None, "", source, alone, error)


def _candidates(answer: str) -> tuple[Source, list[str], str]:
    tagged = _TAGGED.findall(answer)
    if tagged:
        return "tagged", tagged, _TAGGED.sub("", answer)
    fenced = _FENCED.findall(answer)
    if fenced:
        return "fenced", fenced, _FENCED.sub("", answer)
    return "bare", [answer], ""


def _accept(text: str, limits: Limits | None, source: Source, alone: bool, repairs: tuple[str, ...] = ()) -> Extraction:
    tree = parse(text)
    check(tree, limits)
    return Extraction(tree, to_text(tree), source, alone, None, repairs)
