"""Hostile programs get through no wall, as root and as an ordinary user; `bench/sandbox_wall.py` runs all of them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pydantic
import pytest

import levelhead
from levelhead.tasks.sandbox.launcher import landlock, seccomp
from levelhead.tasks.sandbox.run import _bubblewrap

BENCH = Path(__file__).parents[3] / "bench"
PATH = ":".join(
    str(place) for place in (BENCH, Path(levelhead.__file__).parents[1], Path(pydantic.__file__).parents[1])
)

QUICK = (
    "reads a private file",
    "overwrites a file",
    "changes a file's mode",
    "writes to /tmp",
    "reads installed packages",
    "reads /proc/PID/mem",
    "writes with process_vm_writev",
    "attaches with ptrace",
    "reads /proc/PID/environ",
    "reads the trainer's command line",
    "SIGKILL",
    "SIGSTOP",
    "a signal of its choice by fcntl",
    "a lower limit on open files",
    "connects to a Unix socket",
    "sends from a pair of sockets",
    "a daemon that outlives it",
    "a runaway chain of sessions",
    "namespaces by clone",
    "a shared segment that stays",
    "memory that no limit counts",
    "folders too deep to remove",
    "links that trap the sweeper",
    "an inherited descriptor",
    "words on every descriptor",
    "deleted files",
)
OLD_KERNELS = (
    "empties a file by its path",
    "empties a file by opening it to read",
    "SIGUSR1",
    "SIGUSR2 to everybody",
    "tgkill",
    "connects to an abstract socket",
    "moves a file to itself",
)
"""What the newer versions of Landlock hold, and the filter in their place."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("sandbox_wall")
    finally:
        sys.path.remove(str(BENCH))


def test_the_page_has_the_table_that_was_measured(bench: ModuleType) -> None:
    measured = json.loads((BENCH / "results" / "sandbox_wall.json").read_text(encoding="utf-8"))
    page = (BENCH.parent / "docs" / "experiments" / "workflow.md").read_text(encoding="utf-8")
    assert bench.table(measured["results"]) in page
    assert f"runs {measured['programs']} hostile programs" in page
    assert measured["programs"] == len(bench.PROGRAMS)
    walls = [column for column in measured["results"] if not column.startswith(("no sandbox", "limits alone"))]
    through = {name for column in walls for name, answer in measured["results"][column].items() if answer}
    assert through == {"names of files: learns whether a file is there"}


@pytest.mark.parametrize("who", ["root", "ordinary user"])
@pytest.mark.parametrize("name", ["second wall, Linux 5.13", "second wall", "namespaces", "bubblewrap"])
@pytest.mark.timeout(600)
def test_no_hostile_program_gets_through(bench: ModuleType, name: str, who: str) -> None:
    level = bench.LEVELS[name]
    if who not in bench.users():
        pytest.skip("only root can play root")
    if level.wall == "landlock" and not (landlock.version() and seccomp.supported()):
        pytest.skip("this kernel has no Landlock, or this machine no filter")
    if level.wall == "bubblewrap" and _bubblewrap() is None:
        pytest.skip("bubblewrap is not installed")
    python = bench.python_for(bench.ORDINARY if os.getuid() == 0 else os.getuid())
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user can run")
    names = {"landlock": QUICK, "namespaces": QUICK[::4], "bubblewrap": QUICK[1::4]}[level.wall]
    if level.landlock == 1:
        names = OLD_KERNELS
    elif who == "root" and level.wall == "landlock":
        names = QUICK[2::4]
    answers = bench.attack_all(level, bench.users()[who], python, names)
    assert len(answers) == len(names)
    refusals = {answer["refused"] for answer in answers.values() if "refused" in answer}
    if level.wall != "landlock" and refusals:
        pytest.skip(f"no {level.wall} for this user here: {refusals}")
    assert not refusals
    assert {answer["wall"] for answer in answers.values()} == {level.wall}
    assert {program: answer["breaches"] for program, answer in answers.items() if answer["breaches"]} == {}


def test_root_with_a_private_temporary_folder_gives_a_program_one_to_write_in(
    bench: ModuleType, tmp_path: Path
) -> None:
    if os.getuid() != 0 or not (landlock.version() and seccomp.supported()):
        pytest.skip("only root becomes somebody else, and only Landlock needs to be told of the folder")
    python = bench.python_for(bench.ORDINARY)
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user can run")
    (tmp_path / "private").mkdir(mode=0o700)
    code = (
        "from levelhead.tasks.sandbox import run_program\n"
        "print(run_program(\"print(open('x', 'w').write('abc'))\", walls=('landlock',)).stdout)"
    )
    env = {"PYTHONPATH": PATH, "TMPDIR": str(tmp_path / "private")}
    done = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.stdout.split() == ["3"], done


def test_the_programs_do_get_through_where_there_is_no_sandbox(bench: ModuleType) -> None:
    if "ordinary user" not in bench.users() or os.getuid() != 0:
        pytest.skip("only root can play a user who has nothing to lose")
    python = bench.python_for(bench.ORDINARY)
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user can run")
    names = (
        "reads a private file",
        "reads /proc/PID/mem",
        "SIGKILL",
        "a runaway chain of sessions",
        "sends from a pair of sockets",
    )
    answers = bench.attack_all(bench.LEVELS["no sandbox"], bench.ORDINARY, python, names)
    assert all(answer["breaches"] for answer in answers.values()), answers


NO_NAMESPACES = """
import sys
from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import run_program
from levelhead.tasks.sandbox.launcher import seccomp
import ctypes
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
seccomp.install(seccomp.Sharing())
if sys.argv[1] == "no Landlock":
    ruin = seccomp.Step(0x15, 0, 1, 444), seccomp._refuse(38)
    real = seccomp.assemble
    seccomp.assemble = lambda *given: [*real(*given)[:4], *ruin, *real(*given)[4:]]
    seccomp.install(seccomp.Sharing())
for isolation in ("required", "none"):
    try:
        result = run_program("print(open('/etc/passwd').read(4))", SandboxLimits(isolation=isolation))
        print(isolation, result.wall, result.network, result.status, result.note)
    except InputError as error:
        print(isolation, "refused:", error)
"""


@pytest.mark.skipif(not seccomp.supported() or not landlock.version(), reason="no filter, or no Landlock here")
@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("no namespaces", ["required landlock filter error", "none landlock filter error"]),
        ("no Landlock", ["required refused: tasks[].sandbox.isolation is 'required'", "none none filter ok"]),
    ],
)
def test_a_container_that_allows_no_namespaces_gets_the_second_wall(
    bench: ModuleType, without: str, expected: list[str]
) -> None:
    """The trainer itself lives behind a filter that refuses namespaces and mounts, as containers do."""
    user = bench.ORDINARY if os.getuid() == 0 else os.getuid()
    python = bench.python_for(user)
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user can run")
    becoming = {} if user == os.getuid() else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(
        [python, "-B", "-c", NO_NAMESPACES, without],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": PATH, "PATH": "/usr/bin:/bin"},
        cwd="/",
        timeout=120,
        check=False,
        **becoming,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
