"""A package that a command turns out to need is named with the extra that brings it."""

from __future__ import annotations

import pytest

from levelhead.cli.main import _explain
from levelhead.installation import install_command


@pytest.mark.parametrize(
    ("module", "extra"),
    [("torch", "train"), ("lark", "workflow"), ("sympy.physics", "workflow"), ("playwright.sync_api", "browser")],
)
def test_the_extra_of_a_missing_package_is_named(module: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain(ModuleNotFoundError(f"No module named {module!r}", name=module)) == 2
    assert f"{module} is not installed; {install_command(extra)}" in capsys.readouterr().err


def test_a_module_of_nobody_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain(ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")) == 3
    assert "pip install" not in capsys.readouterr().err
