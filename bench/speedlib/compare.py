"""What two gradients have in common, and what several timings say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch


def gradients(one: Path, other: Path) -> dict[str, float]:
    """Relative distance ``|a - b| / |b|`` and cosine of two saved gradients; they must name the same parameters."""
    from safetensors.torch import load_file

    a, b = load_file(one), load_file(other)
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise SystemExit(f"the two sides train different parameters: {odd[:4]}")
    x = torch.cat([a[name].flatten().double() for name in sorted(a)])
    y = torch.cat([b[name].flatten().double() for name in sorted(a)])
    return {
        "relative_distance": float((x - y).norm() / y.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(x, y, dim=0)),
        "norm": float(y.norm()),
        "parameters": float(x.numel()),
    }


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and greatest of every number that all rows have."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {
        name: {
            "median": statistics.median(row[name] for row in rows),
            "min": min(row[name] for row in rows),
            "max": max(row[name] for row in rows),
        }
        for name in names
    }
