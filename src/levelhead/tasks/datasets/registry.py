"""The data sets by name; a module is imported only when its data set is asked for."""

from __future__ import annotations

from collections.abc import Collection

from levelhead import extensions
from levelhead.errors import InputError
from levelhead.tasks.datasets.base import Dataset

NAMES: tuple[str, ...] = tuple(extensions.OURS["datasets"])
"""Names of all data sets."""


def dataset_named(name: str) -> Dataset:
    """Return a data set by its name in recipes.

    Raises:
        InputError: There is none of that name.
    """
    if name not in NAMES:
        raise InputError(f"tasks[].dataset: no data set is called {name!r}; there are {', '.join(NAMES)}")
    dataset: Dataset = extensions.load("datasets", name)
    return dataset


def names_by_fields(fields: Collection[str]) -> list[str]:
    """Return the data sets whose rows have exactly such fields, the one that needs most of them first."""
    have = set(fields)
    needs = {
        name: max((len(schema) for schema in dataset_named(name).schemas if have.issuperset(schema)), default=0)
        for name in NAMES
    }
    most = max(needs.values())
    return [name for name, count in needs.items() if count == most > 0]
