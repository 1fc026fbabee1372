"""What packages add to Levelhead beside a task, by group: ours, and those of other packages by entry points.

Each group is a group of entry points, ``levelhead.GROUP``; ours are listed here, one line each, in the same form.  A
module is imported when its object is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

Group = Literal["readers", "analyses", "sections", "drawings", "players", "providers", "datasets"]
"""What the entries of a group are.

- ``readers``: log readers of the doctor (:class:`levelhead.doctor.readers.base.ExtensionReader`), by format.
- ``analyses``: from the path of a log to what a doctor's report says beside its findings, or ``None``; by JSON key.
- ``sections``: from a run to a section of its report, by heading.
- ``drawings``: from a text of a score's ``info`` to its drawing on the watch page, by the key of ``info``.
- ``players``: classes that play episodes again on the watch page.
- ``providers``: dialects of chat endpoints (:class:`levelhead.tasks.endpoint.dialects.Dialect`), ours alone.
- ``datasets``: public data sets (:class:`levelhead.tasks.datasets.base.Dataset`), ours alone.
"""

OURS: Mapping[Group, Mapping[str, str]] = {
    "readers": {"workflow": "levelhead.contrib.workflow.log:WorkflowReader"},
    "analyses": {"workflows": "levelhead.contrib.workflow.analysis:analyse_path"},
    "sections": {"Workflows": "levelhead.contrib.workflow.section:section"},
    "drawings": {"workflow": "levelhead.contrib.workflow.drawing:drawing"},
    "players": {"browser": "levelhead.contrib.browser.replay:Episodes"},
    "providers": {
        "openai": "levelhead.tasks.endpoint.dialects:OpenAi",
        "anthropic": "levelhead.tasks.endpoint.dialects:Anthropic",
        "gemini": "levelhead.tasks.endpoint.dialects:Gemini",
    },
    "datasets": {
        "gsm8k": "levelhead.tasks.datasets.mathematics:GSM8K",
        "math": "levelhead.tasks.datasets.mathematics:MATH",
        "aime": "levelhead.tasks.datasets.mathematics:AIME",
        "humaneval": "levelhead.tasks.datasets.programs:HUMANEVAL",
        "mbpp": "levelhead.tasks.datasets.programs:MBPP",
        "hotpotqa": "levelhead.tasks.datasets.hotpotqa:DATASET",
        "drop": "levelhead.tasks.datasets.drop:DATASET",
        "bbq": "levelhead.contrib.fairness.data:DATASET",
        "halueval": "levelhead.contrib.faithfulness.data:DATASET",
        "truthfulqa": "levelhead.tasks.datasets.truthfulqa:DATASET",
    },
}


@cache
def names(group: Group) -> Mapping[str, str]:
    """Return ``module:object`` by name of all that packages add to a group; where names meet, ours win."""
    theirs = {entry.name: entry.value for entry in entry_points(group=f"levelhead.{group}")}
    return {**theirs, **OURS[group]} if theirs else OURS[group]


def load(group: Group, name: str) -> Any:
    """Return the object of a group that has a name.

    Raises:
        KeyError: There is none.
    """
    module, _, attribute = names(group)[name].partition(":")
    return getattr(import_module(module), attribute)


def load_all(group: Group) -> dict[str, Any]:
    """Return all objects of a group by name."""
    return {name: load(group, name) for name in names(group)}
