"""Questions about sums and about the stock of shops: the rows of stock.jsonl, two tools, and the reward.

``python recipes/real/stock.py > recipes/real/stock.jsonl`` writes the rows again.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from typing import Any

_THINGS = ("lamps", "chairs", "books", "cups", "bags", "pens", "clocks", "shoes")
_NUMBER = re.compile(r"-?\d[\d,]*")


def stock(thing: str, shop: int) -> int:
    """How many of a thing a shop has.

    Args:
        thing: The thing.
        shop: The number of the shop.
    """
    return 10 + hashlib.sha256(f"{thing} {shop}".encode()).digest()[0] % 90


def add(numbers: list[int]) -> int:
    """The sum of numbers.

    Args:
        numbers: The numbers.
    """
    return sum(numbers)


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:  # noqa: ARG001
    """1 where the last number of the answer is the right one, else 0."""
    last = [(_NUMBER.findall(text) or [""])[-1].replace(",", "") for text in completions]
    return [float(number == want) for number, want in zip(last, answer, strict=True)]


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def _row(kind: str, question: str, answer: int, calls: list[dict[str, Any]]) -> dict[str, Any]:
    turns = [*calls, {"role": "assistant", "content": str(answer)}]
    return {"prompt": f"{question} Answer with the number alone.", "answer": str(answer), "kind": kind, "turns": turns}


def rows(count: int = 160, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` different questions of each kind."""
    rng = random.Random(seed)
    result: dict[str, dict[str, Any]] = {}
    while len(result) < 3 * count:
        thing, one, other = rng.choice(_THINGS), *rng.sample(range(1, 60), 2)
        numbers = [rng.randint(11, 99) for _ in range(3)]
        first, second = stock(thing, one), stock(thing, other)
        look, look_too = _call("stock", thing=thing, shop=one), _call("stock", thing=thing, shop=other)
        both = [look, look_too, _call("add", numbers=[first, second])]
        question = f"How many {thing} are in shop {one}"
        for row in (
            _row("sum", f"What is {' + '.join(map(str, numbers))}?", sum(numbers), [_call("add", numbers=numbers)]),
            _row("look up", f"{question}?", first, [look]),
            _row("look up and sum", f"{question} and shop {other} together?", first + second, both),
        ):
            if sum(row["kind"] == other["kind"] for other in result.values()) < count:
                result[row["prompt"]] = row
    shuffled = list(result.values())
    rng.shuffle(shuffled)
    return shuffled


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(row) + "\n" for row in rows())
