"""Function tasks over a dozen rows, with rewards that look at an answer, at its length, or at nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from levelhead.recipe.tasks import Function
from levelhead.records import Prompt, Score
from levelhead.tasks.base import Answer
from levelhead.tasks.function import FunctionTask

ROWS = [{"prompt": f"Say {word}.", "solution": word, "level": n} for n, word in enumerate("abcdefghijkl")]
CHATS = [{"prompt": [{"role": "user", "content": row["prompt"]}], "solution": row["solution"]} for row in ROWS]


def section(**keys: object) -> Function:
    return Function.model_validate({"kind": "function", **keys})


def exact(completions: list[Any], solution: list[str], **_: Any) -> list[float]:
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [float(text == wanted) for text, wanted in zip(texts, solution, strict=True)]


def brevity(completions: list[Any], **_: Any) -> list[float]:
    return [1.0 / (1 + len(completion)) for completion in completions]


def task(rows: Any = ROWS, rewards: Any = exact, **keys: object) -> FunctionTask:
    return FunctionTask(section(**keys), data=rows, rewards=rewards)


def all_prompts(made: FunctionTask) -> dict[str, Prompt]:
    prompts = [prompt for split in ("train", "eval") for prompt in made.prompts(split, 0)]  # type: ignore[arg-type]
    return {prompt.id: prompt for prompt in prompts}


def batch(made: FunctionTask, *texts: str) -> list[Score | None]:
    prompts = list(all_prompts(made).values())
    answers = [Answer(prompt, text, (1, 2)) for prompt, text in zip(prompts, texts, strict=False)]
    return asyncio.run(made.score_batch(answers))


class Recorder:
    """A reward that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **arguments: Any) -> list[float]:
        self.calls.append(arguments)
        return [0.0] * len(arguments["completions"])


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file
