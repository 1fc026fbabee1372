"""Sums of two and three terms: the rows of sums.jsonl, and the reward for them.

``python recipes/real/sums.py > recipes/real/sums.jsonl`` writes the rows again.
"""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

_KINDS = {"two terms, to 20": (2, 2, 20), "two terms, to 50": (2, 2, 50), "three terms, to 20": (3, 2, 20)}
_NUMBER = re.compile(r"-?\d[\d,]*")


def rows(count: int = 300, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` different sums of each kind: prompt, answer, kind."""
    rng, result = random.Random(seed), []
    for kind, (terms, low, high) in _KINDS.items():
        seen: set[tuple[int, ...]] = set()
        while len(seen) < count:
            numbers = tuple(rng.randint(low, high) for _ in range(terms))
            if numbers not in seen:
                seen.add(numbers)
                question = f"What is {' + '.join(map(str, numbers))}? Answer with the number alone."
                result.append({"prompt": question, "answer": str(sum(numbers)), "kind": kind})
    rng.shuffle(result)
    return result


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:  # noqa: ARG001
    """1 where the last number of the answer is the sum, else 0."""
    last = [(_NUMBER.findall(text) or [""])[-1].replace(",", "") for text in completions]
    return [float(number == want) for number, want in zip(last, answer, strict=True)]


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(row) + "\n" for row in rows())
