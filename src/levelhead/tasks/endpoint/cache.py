"""Replies kept on disk by the content of the call, so that nothing is paid for twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered.

    Attributes:
        text: The answer.
        prompt_tokens: Tokens that were read, as the endpoint counts them.
        completion_tokens: Tokens that were written.
        counted: Whether the endpoint counted; otherwise both numbers are estimates (a token for four characters).
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of the whole call."""
        return self.prompt_tokens + self.completion_tokens


def content_key(body: Mapping[str, Any], sample: str) -> str:
    """Return the key of a call: a hash of all that the endpoint is sent, and of which sample of it this is."""
    text = json.dumps([body, sample], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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
        place = Path(path).expanduser()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(place, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, "
                "prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, counted INTEGER NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{place}: cannot be used as {where}.cache ({error})") from error
        self._lock = threading.Lock()

    def get(self, key: str) -> Reply | None:
        """Return the reply to a call, or ``None`` where it has none."""
        query = "SELECT text, prompt_tokens, completion_tokens, counted FROM replies WHERE key = ?"
        with self._lock:
            row = self._db.execute(query, (key,)).fetchone()
        return Reply(row[0], row[1], row[2], bool(row[3])) if row else None

    def put(self, key: str, reply: Reply) -> None:
        """Keep the reply to a call; the first one stays."""
        row = (key, reply.text, reply.prompt_tokens, reply.completion_tokens, int(reply.counted))
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?)", row)

    def __len__(self) -> int:
        """Return the number of replies."""
        with self._lock:
            return int(self._db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
