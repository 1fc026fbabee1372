"""Scores made by a process of its own, whose hashes, identity and state are others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from levelhead.recipe.tasks import Function
from levelhead.records import Score
from levelhead.tasks.base import Answer

LONGEST_S = 60.0
"""Longest that the process may take, in seconds."""
LARGEST = 1 << 25
"""Bytes of a data file that is read a second time."""
HEAVY = ("torch", "transformers", "vllm", "jax", "tensorflow", "sentence_transformers")
"""Packages of reward functions that are not loaded twice: they may hold a model."""


def second_process_of(section: object, answers: Sequence[Answer]) -> SecondProcess | None:
    """Start scoring answers in another process; ``None`` where a task cannot be built anew from its section.

    That takes reward functions in files, which load no models, and data in a small file.
    """
    if not isinstance(section, Function) or not section.rewards or section.path is None:
        return None
    files = [Path(entry.rpartition(":")[0]).expanduser() for entry in section.rewards]
    data = Path(section.path).expanduser()
    if not data.is_file() or data.stat().st_size > LARGEST:
        return None
    if any(not file.is_file() or _is_heavy(file) for file in files):
        return None
    return SecondProcess(section, answers)


def _is_heavy(file: Path) -> bool:
    text = file.read_text(encoding="utf-8", errors="replace")
    return any(name in text for name in HEAVY)


class SecondProcess:
    """The same answers scored by another process, which starts at once.

    Args:
        section: Of the task.
        answers: What to score.
    """

    def __init__(self, section: Function, answers: Sequence[Answer]) -> None:
        rows = [{"id": a.prompt.id, "text": a.text, "token_ids": list(a.token_ids)} for a in answers]
        self._input = json.dumps({"section": section.model_dump(mode="json"), "answers": rows})
        self._process = subprocess.Popen(  # noqa: S603 - this Python, this file
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": "4711"},
            text=True,
        )

    def close(self) -> None:
        """End the process, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def scores(self) -> list[Score | None] | None:
        """Return the scores; ``None`` where the process could not make them."""
        try:
            out, _ = self._process.communicate(self._input, timeout=LONGEST_S)
            rows = json.loads(out.splitlines()[-1])
            return [None if row is None else Score(row["total"], row["parts"], valid=row["valid"]) for row in rows]
        except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError, KeyError, TypeError):
            self.close()
            return None


def score_here() -> None:
    """Read a section and answers from stdin, score them in one call, and write the scores to stdout as JSON."""
    import asyncio

    from levelhead.tasks.function import FunctionTask

    request = json.loads(sys.stdin.read())
    task = FunctionTask(Function.model_validate(request["section"]))
    prompts = {prompt.id: prompt for prompt in task.prompts("train", 0)}
    answers = [Answer(prompts[row["id"]], row["text"], tuple(row["token_ids"])) for row in request["answers"]]
    scores = asyncio.run(task.score_batch(answers))
    rows = [None if s is None else {"total": s.total, "parts": dict(s.parts), "valid": s.valid} for s in scores]
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    score_here()
