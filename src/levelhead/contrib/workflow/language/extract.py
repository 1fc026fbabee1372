"""Finding the workflow in what a model wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from levelhead.contrib.workflow.language.checks import Limits, check
from levelhead.contrib.workflow.language.errors import WorkflowError
from levelhead.contrib.workflow.language.normalise import normalise
from levelhead.contrib.workflow.language.parser import parse, to_text
from levelhead.contrib.workflow.language.tree import Node

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
