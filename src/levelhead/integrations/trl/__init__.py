"""Levelhead in TRL: the doctor as a callback of any trainer, and our tasks in its ``GRPOTrainer``.

    from levelhead.integrations.trl import LevelheadCallback

    trainer = GRPOTrainer(..., callbacks=[LevelheadCallback()])

Names are imported on first use: the callback needs transformers and nothing else of what training with Levelhead needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelhead.integrations.trl.callback import LevelheadCallback
    from levelhead.integrations.trl.tasks import (
        SYSTEM_PROMPT,
        BrowserEnvironments,
        BrowserTools,
        browser_reward,
        reward_function,
        rows,
    )

__all__ = [
    "SYSTEM_PROMPT",
    "BrowserEnvironments",
    "BrowserTools",
    "LevelheadCallback",
    "browser_reward",
    "reward_function",
    "rows",
]


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "callback" if name == "LevelheadCallback" else "tasks"
    return getattr(importlib.import_module(f"{__name__}.{room}"), name)
