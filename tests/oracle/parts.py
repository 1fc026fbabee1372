"""Parts of a model: sets of its parameters that a weight sync may leave behind, and their names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from torch import Tensor, nn

MOST = 600
"""Sets of parameters that are tried, at most."""
_OUTER = re.compile(r"^(?:base_model\.model\.|model\.|transformer\.|gpt_neox\.)+")


def words(part: Collection[str], names: Iterable[str]) -> str:
    """Return a part of a model in words, as ``layers.1.mlp``.

    Args:
        part: Names of its parameters.
        names: Names of all parameters that might be in it.
    """
    everything = {_short(name) for name in names}
    inside = {_short(name) for name in part}
    if inside == everything:
        return "the whole model"
    listed, others = _modules(inside, everything), _modules(everything - inside, everything)
    if len(others) < len(listed):
        return f"all but {_quoted(others)}"
    return _quoted(listed)


def candidates(names: Collection[str]) -> list[frozenset[str]]:
    """Return the sets of parameters that a sync may have left behind, the larger ones first.

    Everything; every module; every kind of module in all layers; and everything but one of these.
    """
    everything = frozenset(names)
    sets: dict[frozenset[str], None] = {everything: None}
    by_prefix: dict[str, set[str]] = {}
    for name in names:
        pieces = _short(name).split(".")
        for end in range(1, len(pieces) + 1):
            prefix = ".".join(pieces[:end])
            for key in (prefix, _starred(prefix), f"*.{pieces[end - 1]}"):
                by_prefix.setdefault(key, set()).add(name)
    modules = sorted(
        (frozenset(members) for members in by_prefix.values()), key=lambda part: (-len(part), sorted(part))
    )
    sets |= dict.fromkeys(modules)
    sets |= dict.fromkeys(everything - part for part in modules if len(part) < len(everything))
    return list(sets)[:MOST]


@contextlib.contextmanager
def swapped(pairs: Sequence[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """Give parameters other values inside."""
    held = [(parameter, parameter.data) for parameter, _ in pairs]
    try:
        for parameter, value in pairs:
            parameter.data = value
        yield
    finally:
        for parameter, value in held:
            parameter.data = value


def _short(name: str) -> str:
    """The name of a parameter without the names of wrappers."""
    return _OUTER.sub("", name)


def _starred(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _modules(inside: set[str], everything: set[str]) -> list[str]:
    """The fewest names of modules that together hold some parameters and no others."""
    modules = _covering(inside, everything)
    starred = sorted({_starred(name) for name in modules})
    whole = all(
        all(
            other in inside
            for other in everything
            if re.fullmatch(re.escape(star).replace(r"\*", r"\d+") + r"(\..*)?", other)
        )
        for star in starred
    )
    return starred if whole and len(starred) < len(modules) else modules


def _covering(inside: set[str], everything: set[str], prefix: str = "") -> list[str]:
    """The highest modules all of whose parameters are among some."""
    below = sorted({_child(name, prefix) for name in everything if _under(name, prefix)}, key=_natural)
    modules: list[str] = []
    for child in below:
        members = {name for name in everything if _under(name, child)}
        if members <= inside:
            modules.append(child)
        elif members & inside:
            modules += _covering(inside, everything, child)
    return modules


def _under(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def _child(name: str, prefix: str) -> str:
    start = len(prefix) + 1 if prefix else 0
    return (name[:start] + name[start:].split(".")[0]).removesuffix(".")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in name.split(".")]


def _quoted(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")
