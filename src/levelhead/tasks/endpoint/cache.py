"""Replies kept on disk by the content of the call, so that nothing is paid for twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError

_COLUMNS = "text, prompt_tokens, completion_tokens, counted, cut, yes"
_ADDED = {"cut": "INTEGER NOT NULL DEFAULT 0", "yes": "REAL"}
"""Columns that files from earlier versions lack."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer to one request.

    Attributes:
        text: The answer.
        prompt_tokens: Tokens that were read, as the endpoint counts them.
        completion_tokens: Tokens that were written.
        counted: Whether the endpoint counted; otherwise both numbers are estimates (a token for four characters).
        cut: Whether the model ran out of its token budget before it was done.
        yes: Probability of yes against no where it last said one of them, if the endpoint gives log-probabilities.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool = True
    cut: bool = False
    yes: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the whole call."""
        return self.prompt_tokens + self.completion_tokens


def content_key(body: Mapping[str, Any], sample: str) -> str:
    """Return the key of a call: a hash of all that the endpoint is sent, and of which sample of it this is."""
    text = json.dumps([body, sample], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class CacheError(Exception):
    """The file of replies fails in the middle of a run."""


class ReplyCache:
    """An SQLite file of replies, safe to be shared by runs; each reply is on disk before it is used."""

    def __init__(self, path: str | Path, where: str = "tasks[].executor") -> None:
        """Open the file, or make it.

        Args:
            path: The file.
            where: The section's place in a recipe, for messages.

        Raises:
            InputError: The path cannot be written, or holds something else.
        """
        self.path = place = Path(path).expanduser()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(place, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, "
                "prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, counted INTEGER NOT NULL, "
                "cut INTEGER NOT NULL DEFAULT 0)"
            )
            columns = {row[1] for row in self._db.execute("PRAGMA table_info(replies)")}
            for name in _ADDED.keys() - columns:
                with contextlib.suppress(sqlite3.OperationalError):  # another run has just added it
                    self._db.execute(f"ALTER TABLE replies ADD COLUMN {name} {_ADDED[name]}")
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{place}: cannot be used as {where}.cache ({error})") from error
        self._lock = threading.Lock()

    def get(self, key: str) -> Reply | None:
        """Return the reply to a call, or ``None`` where it has none, or none that can be read.

        Raises:
            CacheError: The file cannot be read.
        """
        query = f"SELECT {_COLUMNS} FROM replies WHERE key = ?"  # noqa: S608 - a constant
        try:
            with self._lock:
                row = self._db.execute(query, (key,)).fetchone()
        except sqlite3.Error as error:
            raise CacheError(f"{self.path}: cannot be read ({error})") from error
        if row is None or not isinstance(row[0], str) or not all(isinstance(n, int) and n >= 0 for n in row[1:5]):
            return None
        yes = row[5] if isinstance(row[5], float) and 0 <= row[5] <= 1 else None
        return Reply(row[0], row[1], row[2], bool(row[3]), bool(row[4]), yes)

    def put(self, key: str, reply: Reply) -> Reply:
        """Keep the reply to a call, and return the one that is kept: the first, so that all processes go by the same.

        Raises:
            CacheError: The file cannot be written: the disk is full, or another program holds it.
        """
        command = f"INSERT OR IGNORE INTO replies (key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        counts = (reply.prompt_tokens, reply.completion_tokens, int(reply.counted), int(reply.cut))
        try:
            with self._lock:
                inserted = self._db.execute(command, (key, reply.text, *counts, reply.yes)).rowcount
        except sqlite3.Error as error:
            raise CacheError(f"{self.path}: cannot be written ({error})") from error
        return reply if inserted else self.get(key) or reply

    def __len__(self) -> int:
        """Return the number of replies."""
        with self._lock:
            return int(self._db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close the file of stored replies."""
        with self._lock:
            self._db.close()
