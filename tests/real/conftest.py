"""The real model that ``LEVELHEAD_REAL_MODEL`` names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Its folder; skips the test where there is none."""
    named = os.environ.get("LEVELHEAD_REAL_MODEL")
    if not named:
        pytest.skip(
            "LEVELHEAD_REAL_MODEL names no folder of a real model (python tests/real/smollm2.py FOLDER lays one out)"
        )
    folder = Path(named).absolute()
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"LEVELHEAD_REAL_MODEL: {folder} holds no model.safetensors")
    return folder
