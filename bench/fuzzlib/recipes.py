"""Recipes: the shipped ones with values, keys and bytes changed, and YAML that no recipe has."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from fuzzlib.mutate import mutate, warp

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "recipes").rglob("*.yaml"))
_TAGS = ("!!float x", "!!float ''", "!!int ''", "!!bool x", "!!timestamp x", "!!timestamp 2001-01-01", "!!binary x",
    "!!set [a]",
         "!!python/object:os.system x", "!!null x", "!!omap [a]", "!!pairs 3", "!!str [a]", "!!merge x", "!!map x",
         "1" * 5000, "0o9", "1:2:3", "0b", "-", "2001-02-31", ".inf", ".nan", "-.inf", "1e999", "~", "=", "<<",
             "*x", "&x",
         "{[a]: b}", "? [a]\n  : b", "[" * 700, "{a: " * 700, "&b [*b]", "'\\ud800'", '"\\uD800"', "\x1b[31m",
         "|\n x")  # fmt: skip
_NUMBERS = (
    True,
    False,
    -1,
    0,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    10**30,
    10**6,
    "..",
    "a/b",
    "x" * 5000,
    None,
    [],
    {},
)
_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
)
_MERGES = "a: &a {k: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]}}\n"
    for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
)


def recipe(rng: random.Random) -> tuple[bytes, list[str]]:
    """Return the bytes of a recipe and overrides for it."""
    text = rng.choice(SHIPPED).read_text(encoding="utf-8")
    turn = rng.random()
    if turn < 0.35:
        data = mutate(text.encode(), rng)
    elif turn < 0.65:
        tree = _poked(yaml.safe_load(text), rng)
        data = yaml.safe_dump(warp(tree, rng, rng.choice((0.0, 0.02, 0.1))), sort_keys=False).encode("utf-8", "replace")
    elif turn < 0.95:
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        head = lines[at].split(":")[0]
        lines[at] = f"{head}: {rng.choice(_TAGS)}" if rng.random() < 0.8 else f"{rng.choice(_TAGS)}: {head.strip()}"
        data = "\n".join(lines).encode("utf-8", "replace")
    else:
        use = f"model: {{preset: tiny, chat_template_kwargs: {{x: *{rng.choice('bfjk')}}}}}\n"
        data = (rng.choice((_BOMB, _MERGES)) + use + text).encode()
    if rng.random() < 0.03:
        data = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00")) + data
    return data, [_override(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]


def _poked(tree: Any, rng: random.Random) -> Any:
    """Put an odd value at one or two of the numbers and texts of a recipe."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                walk(value)
            else:
                spots.append((node, key))

    walk(tree)
    for node, key in rng.sample(spots, min(len(spots), rng.randrange(1, 3))):
        node[key] = rng.choice(_NUMBERS)
    return tree


def _override(rng: random.Random) -> str:
    key = rng.choice(("seed", "threads", "name", "grpo.steps", "tasks.0.weight", "tasks.\u00b2.weight", "tasks.9.x",
        "a..b",
                      "model.name", "grpo.optimizer.betas", "grpo.optimizer.learning_rate", "", "grpo", "=",
                          "\x1b[31m"))  # fmt: skip
    values = (*_TAGS, *map(str, _NUMBERS), "[0.9, 1.5]", "true", "\x00")
    return f"{key}={rng.choice(values)}" if rng.random() < 0.95 else key
