"""Programs that a model writes: which wall stands around them on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.errors import InputError
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check
from levelhead.recipe.tasks import Workflow
from levelhead.recipe.workflow import EndpointExecutor
from levelhead.training.prepare import name_of

_WALLS = {
    "bubblewrap": "bubblewrap, with no network and a file system of their own",
    "namespaces": "namespaces, with no network and a file system of their own",
    "landlock": "Landlock and a system-call filter, which keep files, processes and network from them",
}


def check_isolation(context: PreflightContext) -> Iterator[Check]:
    """Run an empty program for each task that runs programs, and say what it was behind."""
    for section in context.recipe.tasks:
        if not (isinstance(section, Workflow) and isinstance(section.executor, EndpointExecutor)):
            continue
        # Only here: the light parts of a workflow task need an extra.
        from levelhead.tasks.sandbox import find_wall

        name = f"isolation/wall/{name_of(section)}"
        try:
            result = find_wall(section.sandbox)
        except InputError as error:
            yield Check(name, "fail", str(error), {}, "install bubblewrap, or allow user namespaces or Landlock")
            continue
        evidence = {"wall": result.wall, "network": result.network, "note": result.note}
        if result.wall in _WALLS:
            yield Check(name, "pass", f"programs run behind {_WALLS[result.wall]}", evidence)
        else:
            message = f"programs run with no wall, and can do what your user can: {result.note}"
            yield Check(name, "warn", message, evidence, "install bubblewrap, and set sandbox.isolation to 'required'")
