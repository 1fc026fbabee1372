"""The light install: everything that reads, simulates or reports works where torch is absent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from levelhead.installation import install_command

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "tokenizers", "peft", "accelerate", "safetensors", "lark"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Absent())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_import_needs_no_torch() -> None:
    result = run("import levelhead; print(levelhead.__version__, 'torch' in sys.modules)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[1] == "False"


def test_a_command_does_not_wait_for_what_another_needs() -> None:
    result = run("import levelhead.cli.main, sys; print({'levelhead.recipe', 'numpy', 'yaml'} & set(sys.modules))")
    assert result.stdout.strip() == "set()", result.stderr


def test_recipes_validate_without_torch() -> None:
    result = run("from levelhead import Recipe; Recipe(model={'preset': 'tiny'}, tasks=[{'kind': 'math'}])")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["simulate", "-k", "4", "-p", "0.5", "--json"], ["--version"], ["check", "--explain", "signs/audit"]],
)
def test_commands_that_need_no_torch_run(arguments: list[str]) -> None:
    result = run("from levelhead.cli.main import main; main()", *arguments)
    assert result.returncode == 0, result.stderr


def test_training_says_what_to_install() -> None:
    result = run("from levelhead.cli.main import main; main()", "demo")
    assert result.returncode == 2
    assert install_command("train") in result.stderr
    assert "Traceback" not in result.stderr
