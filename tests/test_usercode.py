"""Every file that a recipe names is imported once, with the helpers that lie beside it, and again once one changes."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.recipe import validate
from levelhead.recipe.history import fingerprints
from levelhead.usercode import helper_files, load_object


def write(folder: Path, **files: str) -> Path:
    """Write Python files; ``__`` in a name is a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def load(path: Path, name: str = "r") -> Callable[..., Any]:
    function: Callable[..., Any] = load_object(f"{path}:{name}", "tasks[].rewards", "function", inspect.isfunction)
    return function


USES = "from utils import WORD\ndef r(): return WORD\n"


def test_files_in_two_folders_each_get_the_helper_beside_them(tmp_path: Path) -> None:
    write(tmp_path / "a", rewards=USES, utils="WORD = 'A'")
    write(tmp_path / "b", rewards=USES, utils="WORD = 'B'")
    assert [load(tmp_path / folder / "rewards.py")() for folder in "abab"] == ["A", "B", "A", "B"]


@pytest.mark.parametrize(
    "source",
    [
        "def r():\n    import utils\n    return utils.WORD",
        "import utils as u\nr = lambda: u.WORD",
        "from second import r",
        "from pack.inner import r",
        "import pack.inner\ndef r(): return pack.inner.r()",
        "from pack import inner\nr = inner.r",
    ],
)
def test_so_do_lazy_imports_helpers_of_helpers_and_packages(tmp_path: Path, source: str) -> None:
    for word in "AB":
        write(
            tmp_path / word,
            rewards=source,
            utils=f"WORD = {word!r}",
            second=USES,
            pack____init__="",
            pack__inner="from .same import WORD\nimport utils\ndef r(): return WORD and utils.WORD",
            pack__same="WORD = 1",
        )
    assert [load(tmp_path / word / "rewards.py")() for word in "AB"] == ["A", "B"]


PARENT = "import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))\n"


@pytest.mark.parametrize(
    "source",
    ["from lib.words import WORD\ndef r(): return WORD", "def r():\n    import lib.words as w\n    return w.WORD"],
)
def test_so_do_helpers_in_a_folder_that_a_file_puts_on_the_path(tmp_path: Path, source: str) -> None:
    for word in "AB":
        (tmp_path / word / "lib").mkdir(parents=True)
        (tmp_path / word / "lib" / "words.py").write_text(f"WORD = {word!r}", encoding="utf-8")
        write(tmp_path / word, rewards__first=PARENT + source, rewards__second=PARENT + source)
    loaded = [load(tmp_path / word / "rewards" / f"{name}.py") for name in ("first", "second") for word in "AB"]
    assert [function() for function in loaded] == ["A", "B", "A", "B"]
    assert helper_files(tmp_path / "A" / "rewards" / "first.py") == [tmp_path / "A" / "lib" / "words.py"]


def test_so_do_packages_without_an_init_file_unless_one_of_the_name_is_installed(tmp_path: Path) -> None:
    for word in "AB":
        for folder, text in (("pack/deep", f"WORD = {word!r}"), ("yaml", "raise OSError")):
            (tmp_path / word / folder).mkdir(parents=True)
            (tmp_path / word / folder / "inner.py").write_text(text, encoding="utf-8")
        write(
            tmp_path / word,
            rewards="import yaml\nfrom pack.deep.inner import WORD\ndef r(): return WORD, yaml.safe_load('1')",
        )
    assert [load(tmp_path / word / "rewards.py")() for word in "AB"] == [("A", 1), ("B", 1)]
    write(tmp_path / "A", pack__other="")
    (tmp_path / "A" / "pack" / "deep" / "inner.py").write_text("WORD = 'newer'", encoding="utf-8")
    assert load(tmp_path / "A" / "rewards.py")() == ("newer", 1)


def test_a_helper_goes_before_an_installed_package_of_its_name_and_hides_it_from_nobody(tmp_path: Path) -> None:
    write(tmp_path, rewards="import yaml\ndef r(): return yaml.WORD", yaml="WORD = 'mine'")
    assert load(tmp_path / "rewards.py")() == "mine"
    import yaml

    assert yaml.safe_load("a: 1") == {"a": 1}


def test_a_file_may_have_the_name_of_the_package_that_it_imports(tmp_path: Path) -> None:
    write(tmp_path, yaml="from yaml import safe_load\ndef r(): return safe_load('a: 1')")
    assert load(tmp_path / "yaml.py")() == {"a": 1}


def test_importlib_that_would_find_another_file_is_refused(tmp_path: Path) -> None:
    source = "import importlib\ndef r(): return importlib.import_module('only_here_once').WORD"
    write(tmp_path / "a", rewards=source, only_here_once="WORD = 'A'")
    write(tmp_path / "b", rewards=source, only_here_once="WORD = 'B'")
    assert load(tmp_path / "a" / "rewards.py")() == "A"
    with pytest.raises(InputError, match=r"b/rewards\.py: it imports 'only_here_once' by importlib"):
        load(tmp_path / "b" / "rewards.py")


def test_a_file_named_twice_is_imported_once(tmp_path: Path) -> None:
    write(tmp_path, rewards="import counter\ncounter.TIMES.append(1)\ndef r(): return counter.TIMES\ndef s(): pass")
    write(tmp_path, counter="TIMES = []")
    first, second = load(tmp_path / "rewards.py"), load(tmp_path / ".." / tmp_path.name / "rewards.py", "s")
    assert first.__globals__ is second.__globals__
    assert first() == [1]


@pytest.mark.parametrize("changed", ["rewards", "utils", "second", "pack__inner"])
def test_a_file_is_imported_again_once_it_or_a_helper_has_changed(tmp_path: Path, changed: str) -> None:
    files = {
        "rewards": "import utils, pack.inner\nWORD = 'old'\ndef r(): return [WORD, utils.both(), pack.inner.WORD]",
        "utils": "import second\nWORD = 'old'\ndef both(): return [WORD, second.WORD]",
        "second": "WORD = 'old'",
        "pack____init__": "",
        "pack__inner": "WORD = 'old'",
    }
    write(tmp_path, **files)
    path = tmp_path / "rewards.py"
    assert load(path)() == ["old", ["old", "old"], "old"]
    write(tmp_path, **{changed: files[changed].replace("'old'", "'newer'")})
    assert str(load(path)()).count("newer") == 1


POOL = """
    from dataclasses import dataclass
    from THINGS import Thing

    @dataclass
    class Item:
        text: str

    def one(item):
        return len(item.text)

    def other(thing):
        return thing.size
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_file_defines_goes_through_a_process_pool(tmp_path: Path, method: str) -> None:
    write(
        tmp_path,
        **{f"by_{method}": POOL.replace("THINGS", f"for_{method}"), f"for_{method}": "class Thing:\n    size = 3\n"},
    )
    one, other = load(tmp_path / f"by_{method}.py", "one"), load(tmp_path / f"by_{method}.py", "other")
    items = [one.__globals__["Item"](text) for text in ("a", "bc")]
    with ProcessPoolExecutor(1, get_context(method)) as pool:
        assert list(pool.map(one, items)) == [1, 2]
        assert list(pool.map(other, [one.__globals__["Thing"]()])) == [3]


def test_an_import_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path, rewards="import utils\ndef r(): return 1", utils="raise OSError('no disk')")
    with pytest.raises(InputError, match=r"importing it raised OSError: no disk"):
        load(tmp_path / "rewards.py")
    write(tmp_path, utils="")
    assert load(tmp_path / "rewards.py")() == 1


# Resuming


def test_helpers_are_found_without_running_anything(tmp_path: Path) -> None:
    write(
        tmp_path,
        rewards="import os, utils\ndef r():\n    import lazy, importlib\n    importlib.import_module('late')",
        utils="import deeper",
        deeper="import utils, rewards",
        lazy="raise SystemExit",
        late="not Python (",
        unused="",
        pack____init__="",
    )
    assert [file.name for file in helper_files(tmp_path / "rewards.py")] == [
        "deeper.py",
        "late.py",
        "lazy.py",
        "utils.py",
    ]


def tasks(folder: Path) -> dict[str, Any]:
    return {"tasks": [{"kind": "function", "path": "d.jsonl", "rewards": [f"{folder}/rewards.py:r"]}]}


@pytest.mark.parametrize("edited", ["utils", "deeper", "pack__inner"])
def test_an_edited_helper_changes_the_fingerprints_of_a_recipe(tmp_path: Path, edited: str) -> None:
    write(tmp_path, rewards="import utils, pack", utils="import deeper", deeper="", pack____init__="", pack__inner="")
    recipe = validate({"model": {"preset": "tiny"}, **tasks(tmp_path)})
    before = fingerprints(recipe)
    write(tmp_path, **{edited: "CHANGED = 1"})
    after = fingerprints(recipe)
    assert [key for key in after if before[key] != after[key]] == [f"tasks.0.rewards.0.{edited.replace('__', '/')}.py"]


def test_the_light_start_stays_light() -> None:
    code = "import sys, levelhead.usercode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
