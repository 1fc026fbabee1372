"""Single-turn tasks in TRL's ``GRPOTrainer``: rows of a data set, and a reward function; TRL itself is not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from levelhead.records import Prompt
from levelhead.tasks.base import Answer, SingleTurnTask, Split, Task
from levelhead.training.loop import EventLoop

_SPLITS: tuple[Split, ...] = ("train", "eval")

Row = dict[str, Any]


def rows(task: Task, split: Split, seed: int, count: int) -> list[Row]:
    """Return rows of a data set for a single-turn task: ``prompt`` and ``levelhead_id``, which the reward needs."""
    return [
        {"prompt": [dict(message) for message in one.messages], "levelhead_id": one.id}
        for one in islice(task.prompts(split, seed), count)
    ]


def reward_function(task: SingleTurnTask) -> Callable[..., list[float | None]]:
    """Return a reward function with TRL's signature that scores as a single-turn task does.

    The data set must come from :func:`rows` of the same task.  A part of the score is not told apart; ``None`` marks a
    completion that the task drops.
    """
    prompts: dict[str, Prompt] = {}
    loop = EventLoop()

    def reward(
        completions: Sequence[Any],
        levelhead_id: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **_: Any,
    ) -> list[float | None]:
        if not prompts:
            prompts.update((one.id, one) for split in _SPLITS for one in task.prompts(split, 0))
        tokens = completion_ids or [()] * len(completions)
        answers = [
            Answer(prompts[key], _text(completion), tuple(ids))
            for key, completion, ids in zip(levelhead_id, completions, tokens, strict=True)
        ]
        scores = loop.run(task.rewarded(answers))
        return [None if score is None else score.total for score in scores]

    reward.__name__ = task.name
    return reward


def _text(completion: Any) -> str:
    """Return what the model wrote: TRL passes text, or the messages of a conversation."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
