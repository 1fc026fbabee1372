"""A variant of a recipe beside the keys of its whole family: formulas are written for all variants at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelhead.objective.advantages import ADVANTAGES
from levelhead.objective.losses import LOSSES


class EveryKey:
    """A section of ``grpo``; a key that only other kinds of its family have is at its default.

    Args:
        section: ``grpo.loss`` or ``grpo.advantage``.
        family: All kinds of it.
    """

    def __init__(self, section: Any, family: Mapping[str, Any]) -> None:
        self._section, self._family = section, family

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._section, name):
            return getattr(self._section, name)
        owners = [kind for kind in self._family.values() if name in kind.model_fields]
        if not owners:
            raise AttributeError(name)
        return owners[0].model_fields[name].get_default(call_default_factory=True)


def advantage(section: Any) -> Any:
    return EveryKey(section, ADVANTAGES)


def loss(section: Any) -> Any:
    return EveryKey(section, LOSSES)
