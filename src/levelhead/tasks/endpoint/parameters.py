"""The keys of a call's body: what the recipe adds or takes away, and what an endpoint turns out not to take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEAVES_OUT = ("temperature", "seed", "top_p", "top_k")
"""Keys that a call may go without: its answer is sampled in the endpoint's own way."""
_RENAMED = {"max_tokens": "max_completion_tokens"}
"""Keys that newer models take under another name, which their error says."""
_SECTIONS = ("generationConfig",)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|not permitted|not allowed|forbidden|unknown|unrecognized|unexpected|"
    r"not recognized|extra (?:inputs|fields)|deprecated|only (?:the default|accepts|supports|\d)|cannot find field|"
    r"may only be|不支持|不允许",
    re.IGNORECASE,
)
_NO_SYSTEM = re.compile(
    r"role\W.*not support\W+system|system role not|developer instruction is not|roles must alternate", re.IGNORECASE
)
"""How endpoints refuse a message with the role ``system``: o1, Gemma, Mistral's first models."""


def merge(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the recipe's keys: they go before ours, objects are merged, and null takes a key away."""
    merged = dict(body)
    for key, value in extra.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


class Learned:
    """Which keys an endpoint has refused, so that further calls go without them or under another name."""

    def __init__(self) -> None:
        self._changes: dict[str, str | None] = {}
        self._without_system = False

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body without what the endpoint does not take."""
        changed: dict[str, Any] = {}
        if self._without_system and _has_system(body):
            body = {**body, "messages": _folded(body["messages"])}
        for key, value in body.items():
            name = self._changes.get(key, key)
            if name is not None:
                changed[name] = self.apply(value) if key in _SECTIONS and isinstance(value, Mapping) else value
        return changed

    def learn(self, said: str, sent: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
        """Take note of a refusal; returns what changes, in words, or ``None`` where it names no key to do without.

        Args:
            said: The error's body.
            sent: What was refused.
            theirs: Keys that the recipe sets itself, which are the recipe's to change.
        """
        if _NO_SYSTEM.search(said) and _has_system(sent) and not self._without_system:
            self._without_system = True
            return "does not take system messages; their text begins the user's"
        if not _UNSUPPORTED.search(said):
            return None
        named = _named(said)
        for key in _keys(sent):
            if key not in named or key in theirs or key in self._changes:
                continue
            if key in _LEAVES_OUT:
                self._changes[key] = None
                return f"does not take {key}; calls go without it"
            if key in _RENAMED and _RENAMED[key] in said:
                self._changes[key] = _RENAMED[key]
                return f"takes {_RENAMED[key]} instead of {key}, and gets that"
        return None


def hint(said: str, sent: Mapping[str, Any], where: str) -> str:
    """Return what to change in the recipe where a refusal names a key of the body; else an empty text."""
    keys = sorted(_named(said) & set(_keys(sent)) - {"messages", "contents", "model"})
    if not keys or not _UNSUPPORTED.search(said):
        return ""
    return f"leave {keys[0]} out with {where}.extra_body: {{{keys[0]}: null}}"


def _has_system(body: Mapping[str, Any]) -> bool:
    """Whether the first of a body's messages, with another behind it, is of the role ``system``."""
    messages = body.get("messages") or ()
    return len(messages) > 1 and messages[0].get("role") == "system"


def _folded(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose second one begins with the text of the first."""
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def _keys(body: Mapping[str, Any]) -> Iterator[str]:
    for key, value in body.items():
        yield key
        if key in _SECTIONS and isinstance(value, Mapping):
            yield from value


def _named(said: str) -> set[str]:
    """Keys that an error names: where it has a place for that, only those; else all words of its text."""
    try:
        data = json.loads(said)
    except (ValueError, RecursionError):
        data = None
    places = set(_places(data))
    return places or set(re.findall(r"[A-Za-z_]\w*", said))


def _places(data: Any) -> Iterator[str]:
    """What stands under ``param`` (OpenAI) and at the end of ``loc`` (FastAPI)."""
    if isinstance(data, dict):
        if isinstance(data.get("param"), str):
            yield data["param"].rpartition(".")[2]
        if isinstance(loc := data.get("loc"), list) and loc:
            yield str(loc[-1])
        for value in data.values():
            yield from _places(value)
    elif isinstance(data, list):
        for value in data:
            yield from _places(value)
