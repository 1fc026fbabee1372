"""Random numbers that belong to one completion and to nothing else in its batch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def uniforms(seed: int, prompt_id: str, index: int, n: int) -> NDArray[np.float64]:
    """Return the n uniform numbers in [0, 1) that draw completion ``index`` of a prompt, one a token."""
    return generator(seed, "draw", prompt_id, index).random(n)


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a generator that depends on the seed and the names alone, however many others are in use."""
    import numpy as np

    text = "\x1f".join([str(seed), *map(str, names)])
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on the seed and the names alone."""
    return int(generator(seed, *names).integers(1 << 63))
