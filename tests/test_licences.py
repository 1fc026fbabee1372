"""What the default extras bring is under permissive licences."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement

COPYLEFT = re.compile(r"\b(A?GPL|LGPL|GNU|SSPL|BUSL|EUPL|proprietary)\b", re.IGNORECASE)
EXTRAS = ("train", "browser", "judge", "engine", "math", "data", "mcp")


def closure(name: str, extras: tuple[str, ...] = (), seen: set[str] | None = None) -> set[str]:
    """Names of the installed packages that one brings, itself included."""
    seen = set() if seen is None else seen
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        inner = tuple(sorted(requirement.extras))
        if (mark := f"{key}[{','.join(inner)}]") in seen:
            continue
        seen.add(mark)
        try:
            closure(key, inner, seen)
        except metadata.PackageNotFoundError:
            seen.discard(mark)  # of another platform, or of an extra that is not installed here
    return seen


def licence(name: str) -> str:
    about = metadata.metadata(name)
    classifiers = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    return about.get("License-Expression") or " / ".join(classifiers) or (about.get("License") or "").split("\n")[0]


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_the_default_extras_bring_permissive_licences_alone(extra: str) -> None:
    names = {mark.partition("[")[0] for mark in closure("levelhead", (extra,) if extra else ())}
    assert {"numpy", "pydantic"} <= names
    bad = {name: licence(name) for name in names - {"levelhead"} if COPYLEFT.search(licence(name))}
    assert bad == {}


def test_the_extra_for_merging_is_seen_to_bring_another() -> None:
    names = {mark.partition("[")[0] for mark in closure("levelhead", ("merge",))}
    assert "GPL" in licence("quadprog")
    assert "quadprog" in names
