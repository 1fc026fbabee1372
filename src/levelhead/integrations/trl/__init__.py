"""Levelhead in TRL: the doctor as a callback of any trainer, and our tasks in its ``GRPOTrainer``.

    from levelhead.integrations.trl import LevelheadCallback

    trainer = GRPOTrainer(..., callbacks=[LevelheadCallback()])

Names are imported on first use: the callback needs transformers and nothing else of what training with Levelhead needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelhead.integrations.trl.callback import LevelheadCallback
    from levelhead.integrations.trl.tasks import reward_function, rows

__all__ = ["LevelheadCallback", "reward_function", "rows"]

_BROWSER = ("SYSTEM_PROMPT", "BrowserEnvironments", "BrowserTools", "browser_reward")
_MODULES = {
    "LevelheadCallback": f"{__name__}.callback",
    **dict.fromkeys(("reward_function", "rows"), f"{__name__}.tasks"),
    **dict.fromkeys(_BROWSER, "levelhead.contrib.browser.trl"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
