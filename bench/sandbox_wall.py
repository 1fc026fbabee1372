"""Which hostile programs get through which wall: the table of docs/experiments/workflow.md.

Programs (``sandboxlib/programs.py``) attack a trainer (``sandboxlib/trainer.py``) as root and as an ordinary user, with
no sandbox at all, with limits alone, behind the second wall (Landlock and the filter, as of today and as of the first
kernel that had it), in namespaces, and in bubblewrap.  To play the ordinary user it must be started as root.

    python bench/sandbox_wall.py --out bench/results/sandbox_wall.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from sandboxlib.programs import PROGRAMS

import levelhead
from levelhead.tasks.sandbox.launcher import landlock
from levelhead.tasks.sandbox.surroundings import scratch

ORDINARY = 64_321
"""An ordinary user that has nothing else on this machine."""
Outcome = dict[str, dict[str, list[str] | str]]
"""By level and user, and by ``kind: name`` of a program: what it got through to, or why it was not run."""
_PATIENCE_S = 60


@dataclass(frozen=True)
class Level:
    """What stands around the programs: no sandbox, or one with these walls."""

    name: str
    wall: str
    walls: tuple[str, ...] = ()
    landlock: int = 99
    control: bool = False


LEVELS = {
    level.name: level
    for level in (
        Level("no sandbox", "none", control=True),
        Level("limits alone", "none"),
        Level("second wall, Linux 5.13", "landlock", ("landlock",), landlock=1),
        Level("second wall", "landlock", ("landlock",)),
        Level("namespaces", "namespaces", ("namespaces",)),
        Level("bubblewrap", "bubblewrap", ("bubblewrap",)),
    )
}


class Victim:
    """A trainer in a process of its own, as some user; started again where a program ends it."""

    def __init__(self, user: int, python: str, folder: Path) -> None:
        """Lay out its folder."""
        self.user, self.python, self.folder = user, python, folder
        self.token = secrets.token_hex(16)
        self.process: subprocess.Popen[str] | None = None
        for place in (folder, folder / "tmp"):
            place.mkdir(exist_ok=True)
            os.chown(place, user, user)

    def start(self) -> subprocess.Popen[str]:
        """Start it unless it runs."""
        if self.process is None or self.process.poll() is not None:
            places = [Path(__file__).parent, Path(levelhead.__file__).parents[1], Path(pydantic.__file__).parents[1]]
            self.process = subprocess.Popen(
                [self.python, "-B", "-m", "sandboxlib.trainer", self.token],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                env={
                    "PYTHONPATH": ":".join(map(str, places)),
                    "TMPDIR": str(self.folder / "tmp"),
                    "PATH": "/usr/bin:/bin",
                },
                start_new_session=True,
                **({} if self.user == os.getuid() else {"user": self.user, "group": self.user, "extra_groups": []}),
            )
        return self.process

    def attack(self, index: int, level: Level) -> dict[str, Any]:
        """Run a program against it."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"index": index, "walls": level.walls, "landlock": level.landlock, "control": level.control}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        stopped, deadline = False, time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.2)[0]:
                line = process.stdout.readline()
                if not line:
                    return {"wall": level.wall, "breaches": [f"ended the trainer ({process.wait()})"]}
                answer: dict[str, Any] = json.loads(line)
                if stopped:
                    answer["breaches"].append("stopped the trainer")
                return answer
            if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
                stopped = True
                os.kill(process.pid, signal.SIGCONT)
        self.end()
        return {"wall": level.wall, "breaches": ["held the trainer for ever"]}

    def end(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def attack_all(level: Level, user: int, python: str, names: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Run programs, all of them or those named, one after the other; return the answers by ``kind: name``."""
    with scratch() as place:
        place.chmod(0o755)
        victim = Victim(user, python, place / "trainer")
        try:
            return {
                f"{program.kind}: {program.name}": victim.attack(index, level)
                for index, program in enumerate(PROGRAMS)
                if names is None or program.name in names
            }
        finally:
            victim.end()


def python_for(user: int) -> str | None:
    """Return an interpreter of this version that a user can run, or nothing."""
    own = str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    if user == os.getuid():
        return own
    for place in (own, f"/usr/bin/python3.{sys.version_info[1]}", f"/usr/local/bin/python3.{sys.version_info[1]}"):
        path = Path(place)
        if path.exists() and all(parent.stat().st_mode & 0o005 == 0o005 for parent in path.resolve().parents):
            return place
    return None


def users() -> dict[str, int]:
    """Return the users that this process can play."""
    return {"root": 0, "ordinary user": ORDINARY} if os.getuid() == 0 else {"ordinary user": os.getuid()}


def table(results: Outcome) -> str:
    """Return how many programs of each kind got through, by level: as an ordinary user, and as root."""
    kinds = Counter(program.kind for program in PROGRAMS)
    names = [name for name in LEVELS if any(column.startswith(f"{name}, ") for column in results)]
    lines = ["| programs that go for | how many | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for kind, count in kinds.items():
        cells = []
        for name in names:
            columns = [results[f"{name}, {who}"] for who in ("ordinary user", "root") if f"{name}, {who}" in results]
            cells.append(" / ".join(_through(kind, answers) for answers in columns))
        lines.append(f"| {kind} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _through(kind: str, answers: dict[str, list[str] | str]) -> str:
    mine = [answer for name, answer in answers.items() if name.startswith(f"{kind}: ")]
    if not mine or all(isinstance(answer, str) for answer in mine):
        return "-"
    return str(sum(bool(answer) for answer in mine if not isinstance(answer, str)))


def named(results: Outcome) -> str:
    """Return which programs got through a sandbox."""
    lines = []
    for column, answers in results.items():
        through = [name for name, answer in answers.items() if answer and not isinstance(answer, str)]
        if "no sandbox" not in column:
            lines.append(f"{column}: {'; '.join(through) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    """Run every program at every level as every user, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", nargs="*", choices=list(LEVELS), default=list(LEVELS))
    parser.add_argument("--users", nargs="*", choices=["root", "ordinary user"], default=list(users()))
    parser.add_argument("--programs", nargs="*", help="names; all of them unless given")
    parser.add_argument("--python", help="the interpreter for every user")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    results: Outcome = {}
    for who in asked.users:
        for name in asked.levels:
            level, user = LEVELS[name], users()[who]
            # Root with no sandbox could end the machine, and that is no news.
            if level.control and user == 0:
                continue
            python = asked.python or python_for(ORDINARY)
            if python is None:
                sys.exit(f"there is no Python 3.{sys.version_info[1]} that an ordinary user can run: give --python")
            began = time.monotonic()
            answers = attack_all(level, user, python, asked.programs)
            results[f"{name}, {who}"] = {key: one.get("breaches", one.get("refused")) for key, one in answers.items()}
            print(f"{name}, {who}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            wrong = {str(answer.get("wall")) for answer in answers.values() if "refused" not in answer} - {level.wall}
            if wrong:
                print(f"  the wall was {wrong} and not {level.wall}", file=sys.stderr)
    print(table(results), named(results), sep="\n\n")
    if asked.out:
        facts = {"kernel": platform.release(), "machine": platform.machine(), "landlock": landlock.version()}
        asked.out.write_text(json.dumps({**facts, "programs": len(PROGRAMS), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
