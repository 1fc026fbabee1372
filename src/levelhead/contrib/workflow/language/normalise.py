"""Near-misses: texts that are no workflow, but differ from one only in spelling.

Used only where the recipe says so.  Each rule has a name, and what was applied is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
    """Rewrite known near-misses.

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
