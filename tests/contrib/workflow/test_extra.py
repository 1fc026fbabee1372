"""Without the packages of the extra, the task says which to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from levelhead.installation import install_command

PROGRAM = """
import sys
sys.modules[{missing!r}] = None
from levelhead.errors import InputError
from levelhead.recipe.tasks import Workflow
from levelhead.tasks.registry import make_task
try:
    make_task(Workflow.model_validate({section!r}))
except InputError as error:
    print(error)
else:
    print("made")
"""

ENDPOINT = {"kind": "endpoint", "base_url": "http://localhost:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("missing", "section", "said"),
    [
        ("lark", {"kind": "workflow", "items": 30}, install_command("workflow")),
        ("httpx2", {"kind": "workflow", "items": 30, "executor": ENDPOINT}, install_command("workflow")),
        ("httpx2", {"kind": "workflow", "items": 30}, "made"),
        ("torch", {"kind": "workflow", "items": 30}, "made"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing: str, section: dict[str, object], said: str) -> None:
    program = PROGRAM.format(missing=missing, section=section)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=250)
    assert said in done.stdout, done.stderr
