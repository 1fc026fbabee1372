"""How much memory a device has."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def capacity(device: torch.device) -> int | None:
    """Return the bytes a device can give, what is used already included; ``None`` where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(path).read_text(encoding="utf-8").strip() if Path(path).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return min(limits, default=None)
    return min(limits)
