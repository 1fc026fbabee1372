"""How an endpoint is asked: at rates that all processes share, at a width that 429 narrows, and with which keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from levelhead.errors import InputError
from levelhead.recipe.endpoint import Endpoint

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
    messages = body.get("messages") or []
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


BURST_S = 10.0
"""Seconds' worth of a rate that may be asked for at once after a pause."""
LONGEST_DEBT_S = 3600.0
"""Longest wait that a file of rates is believed: one beyond it stems from a clock that was set back."""


class Rates:
    """Requests and tokens a minute, kept by all processes of a machine that ask one endpoint with one key.

    A file holds, for each rate, the time at which all that was reserved so far is paid off (the "theoretical arrival
    time" of the generic cell rate algorithm, ITU-T I.371).  A call moves it on by its share of a minute, under a lock
    that lasts for one read and one write, and then waits for its own turn: nobody polls, and turns are in order.

    Args:
        section: How the endpoint is reached, with its rates.
        folder: Where the file lies; a folder of this user's in the system's temporary one unless given.
    """

    def __init__(self, section: Endpoint, folder: Path | None = None) -> None:
        limits = {"requests": section.requests_per_minute, "tokens": section.tokens_per_minute}
        self._per_s = {name: limit / 60 for name, limit in limits.items() if limit is not None}
        user = os.getuid() if hasattr(os, "getuid") else "all"
        place = folder or Path(tempfile.gettempdir()) / f"levelhead-rates-{user}"
        name = f"{section.base_url.rstrip('/')}\0{section.api_key_env}"
        self.path = place / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def __bool__(self) -> bool:
        """Whether there is any bound."""
        return bool(self._per_s)

    def reserve(self, tokens: float) -> float:
        """Take a turn for one request of so many tokens; returns the seconds to wait until it comes.

        Raises:
            InputError: The file of rates cannot be used.
        """
        return self._add({"requests": 1.0, "tokens": tokens})

    def correct(self, tokens: float) -> None:
        """Add tokens that a call took beyond those that were reserved; a negative number gives some back.

        Raises:
            InputError: The file of rates cannot be used.
        """
        if "tokens" in self._per_s:
            self._add({"tokens": tokens})

    def _add(self, amounts: Mapping[str, float]) -> float:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(self.path.with_suffix(".lock"))
            with lock, self.path.open("a+", encoding="utf-8") as file:
                file.seek(0)
                due, now, wait = _read(file.read()), time.time(), 0.0
                for name in self._per_s.keys() & amounts.keys():
                    before = due.get(name, 0.0)
                    start = max(now, before) if before < now + LONGEST_DEBT_S else now
                    due[name] = max(now, start + amounts[name] / self._per_s[name])
                    wait = max(wait, start - now - self._burst_s(name))
                file.seek(0)
                file.truncate()
                file.write(json.dumps(due))
        except OSError as error:
            raise InputError(f"{self.path}: cannot keep the rates of an endpoint ({error})") from error
        return wait

    def _burst_s(self, name: str) -> float:
        """Ten seconds, or what one request more takes where that is longer than them."""
        return max(BURST_S - 1 / self._per_s[name], 0.0) if name == "requests" else BURST_S


def _read(text: str) -> dict[str, float]:
    try:
        due = json.loads(text or "{}")
    except ValueError:
        return {}  # cut off by a full disk or a kill: begin anew
    numbers = due.items() if isinstance(due, dict) else ()
    return {name: float(value) for name, value in numbers if isinstance(value, int | float) and math.isfinite(value)}


class Width:
    """How many calls may be under way: halved when there are too many, and widened again by one for a round of replies.

    Additive increase, multiplicative decrease (Chiu and Jain 1989), as in TCP.  Of refusals that belong together, those
    of calls that were begun before the last halving, only one counts.

    Args:
        most: The recipe's ``concurrency``.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = float(most)
        self._narrowed = -math.inf

    def __int__(self) -> int:
        """Calls that may be under way."""
        return int(self.now)

    def reply(self) -> None:
        """Take note of a reply."""
        self.now = min(float(self.most), self.now + 1 / self.now)

    def refuse(self, began: float) -> bool:
        """Take note of a refusal (429); returns whether it narrowed the width.

        Args:
            began: When the attempt was begun, by :func:`time.monotonic`.
        """
        if began <= self._narrowed or self.now <= 1:
            return False
        self.now, self._narrowed = max(1.0, self.now / 2), time.monotonic()
        return True


class Pace:
    """How one endpoint is asked, from batch to batch: how fast, and without which keys of a call.

    Args:
        section: How it is reached.
    """

    def __init__(self, section: Endpoint) -> None:
        self.rates, self.width = Rates(section), Width(section.concurrency)
        self.learned = Learned()


class Gate:
    """Lets as many attempts in as the width allows at the time; use it as an async context manager, on one loop."""

    def __init__(self, width: Width) -> None:
        self._width, self._inside = width, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        """Wait until one more request may be under way."""
        while self._inside >= int(self._width):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._call()
                raise
        self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        """Let the next ones in."""
        self._inside -= 1
        self._call()

    def _call(self) -> None:
        free = int(self._width) - self._inside
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
