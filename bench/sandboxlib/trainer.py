"""A trainer that hostile programs attack: it has what they want, and says after each what they got.

Run as ``python -m sandboxlib.trainer TOKEN`` in a folder of its own; reads an order a line (JSON) on its input, and
answers each with a line.  ``TOKEN`` stands in its arguments, environment, memory, private file and keyring.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.sandbox import run
from levelhead.tasks.sandbox.launcher import system
from levelhead.tasks.sandbox.surroundings import scratch, view
from sandboxlib.programs import PRELUDE, PROGRAMS

LIMITS = SandboxLimits(cpu_s=2, wall_s=3.0, memory_mb=256, output_kb=16, file_mb=4, processes=6, isolation="none")
MARK = f"levelhead-hostile-{os.getpid()}"
_DISK_MB, _MEMORY_MB, _SECONDS, _FORKS = 24, 900, 12, 5
_CATCHABLE = [
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGIO,
    signal.SIGALRM,
]
_PR_SET_CHILD_SUBREAPER = 36
_ADD_KEY = {"x86_64": 248, "aarch64": 217}

libc = ctypes.CDLL(None, use_errno=True)


class Trainer:
    """What there is to take, and the eyes on it."""

    def __init__(self, token: str) -> None:
        """Lay out files, sockets, memory and handlers."""
        self.token = token
        self.home = Path.cwd() / "home"
        self.memory = ctypes.create_string_buffer(token.encode(), 64)
        os.environ["SECRET_TOKEN"] = token
        self.signals: list[int] = []
        for number in _CATCHABLE:
            signal.signal(number, lambda seen, _: self.signals.append(seen))
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        key = ctypes.c_char_p(token.encode())
        libc.syscall(_ADD_KEY[os.uname().machine], b"user", b"levelhead", key, len(token), ctypes.c_int(-3))
        self.lay_out()
        self.fd = os.open(self.home / "secret.txt", os.O_RDONLY)
        os.set_inheritable(self.fd, True)
        self.listeners = self.listen()

    def lay_out(self) -> None:
        """Make the files anew."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        (self.home / "secret.txt").write_text(self.token)
        (self.home / "secret.txt").chmod(0o600)
        (self.home / "notes.txt").write_text("notes")

    def listen(self) -> list[socket.socket]:
        """Listen where a program might call."""
        self.unix = str(Path.cwd() / "socket")
        self.abstract = f"levelhead-{os.getpid()}"
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", self.port))
        path, name, datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.socket(1, 2)
        for place in (self.unix, self.unix + ".datagram"):
            Path(place).unlink(missing_ok=True)
        path.bind(self.unix)
        name.bind("\0" + self.abstract)
        datagram.bind(self.unix + ".datagram")
        for listener in (path, name):
            listener.listen()
        for listener in (tcp, udp, path, name, datagram):
            listener.setblocking(False)
        return [tcp, udp, path, name, datagram]

    def constants(self) -> str:
        """Return what a program is told."""
        bound = {
            "PID": os.getpid(),
            "ADDRESS": ctypes.addressof(self.memory),
            "HOME": str(self.home),
            "PORT": self.port,
            "SOCKET": self.unix,
            "ABSTRACT": self.abstract,
            "FD": self.fd,
            "SITE": next(iter(view()[1]), "/nowhere"),
            "MARK": MARK,
        }
        return "".join(f"{name} = {value!r}\n" for name, value in bound.items())

    def state(self) -> dict[str, Any]:
        """Return all that a program must not change."""
        files = {
            path.name: (path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_uid, path.lstat().st_nlink)
            for path in self.home.iterdir()
        }
        texts = {path.name: path.read_bytes() for path in self.home.iterdir() if path.is_file()}
        marks = {path.name: os.listxattr(path) for path in self.home.iterdir() if path.is_file()}
        outside = sorted(
            str(path) for place in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(place).glob(MARK + "*")
        )
        return {
            "files": (files, texts, marks),
            "files elsewhere": outside,
            "memory": self.memory.raw,
            "limits": [resource.getrlimit(number) for number in range(16)],
            "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
            "processors": sorted(os.sched_getaffinity(0)),
            "shared segments": (len(_lines("/proc/sysvipc/shm")), len(_lines("/proc/sysvipc/msg"))),
        }

    def attack(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one program, and say what it got through to."""
        program = PROGRAMS[order["index"]]
        source = PRELUDE + self.constants() + program.source
        before, began = self.state(), time.monotonic()
        self.signals.clear()
        watch = Watch()
        if order["control"]:
            wall, status, said = "none", "", _without_sandbox(source)
        else:
            try:
                result = run.run_program(source, LIMITS, walls=tuple(order["walls"]), landlock=order["landlock"])
            except InputError as error:
                return {"refused": str(error)}
            if result.status == "refused":
                return {"refused": result.note}
            wall, status, said = result.wall, result.status, result.stdout + result.stderr
        seconds = time.monotonic() - began
        watch.stop()
        breaches = [line for line in said.splitlines() if line.startswith("BREACH")]
        if self.token in said:
            breaches.append("has the secret")
        breaches += (
            self.compare(before) + watch.breaches() + self.callers() + _end_survivors(program.kind == "processes")
        )
        if seconds > _SECONDS:
            breaches.append(f"held the trainer for {seconds:.0f} s")
        self.repair()
        return {"wall": wall, "status": status, "breaches": breaches, "said": said[-500:], "seconds": seconds}

    def compare(self, before: dict[str, Any]) -> list[str]:
        """Return what is no longer as it was."""
        changed = [f"changed {what}" for what, value in self.state().items() if value != before[what]]
        return changed + [f"sent {signal.Signals(number).name}" for number in self.signals]

    def callers(self) -> list[str]:
        """Return who called on a socket."""
        seen = []
        for listener in self.listeners:
            with contextlib.suppress(OSError):
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(16)
                seen.append("reached the trainer by a socket")
        return seen

    def repair(self) -> None:
        """Undo what was done, for the next one."""
        self.lay_out()
        ctypes.memmove(self.memory, self.token.encode(), len(self.token))
        for place in ("/tmp", "/dev/shm"):
            for path in Path(place).glob(MARK + "*"):
                path.unlink(missing_ok=True)
        for kind, remove in (("shm", "shmctl"), ("msg", "msgctl")):
            for line in _lines(f"/proc/sysvipc/{kind}"):
                if int(line.split()[0]) == 0x1EAD:
                    getattr(libc, remove)(int(line.split()[1]), 0, None)


class Watch:
    """The most disk and memory that were taken at any time."""

    def __init__(self) -> None:
        """Look every 20 ms, until it is stopped."""
        self.disk = self.memory = 0
        self._shared = _shared_mb()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._done.set()
        self._thread.join()

    def breaches(self) -> list[str]:
        """Return which bound was passed."""
        over = [f"{self.disk:.0f} MiB on disk"] if self.disk > _DISK_MB else []
        return over + ([f"{self.memory:.0f} MiB of memory"] if self.memory > _MEMORY_MB else [])

    def _look(self) -> None:
        while not self._done.wait(0.02):
            resident = sum(_resident_mb(pid) for pid in descendants())
            self.memory = max(self.memory, resident + _shared_mb() - self._shared)
            self.disk = max(self.disk, _disk_mb(Path(os.environ["TMPDIR"])))


def descendants() -> set[int]:
    """Return the processes whose chain of parents leads here."""
    parents = {pid: int(fields[1]) for pid, fields in system.statuses().items() if fields[0] != "Z"}
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return mine - {os.getpid()}


def _end_survivors(forks: bool) -> list[str]:
    """End what is left of a program, which may be one that forks without pause; return that there was something."""
    time.sleep(0.05)
    left = descendants()
    # One that forks and ends without pause is gone at every look; what it leaves behind comes to its new parent, here.
    _reap()
    time.sleep(0.2 if forks else 0.0)
    runs_on = _reap() > _FORKS
    if runs_on:
        time.sleep(6.0)
    deadline = time.monotonic() + 10
    while descendants() and time.monotonic() < deadline:
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
    return [f"{len(left) or 'ever new'} processes outlived it"] if left or runs_on else []


def _without_sandbox(source: str) -> str:
    """Run a program as a careless trainer would, and wait no longer than it takes."""
    with scratch() as folder:
        process = subprocess.Popen(
            [sys.executable, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,
            cwd=folder,
        )
        try:
            out, err = process.communicate(source.encode(), timeout=LIMITS.wall_s)
        except subprocess.TimeoutExpired as late:
            process.kill()
            out, err = late.stdout or b"", late.stderr or b""
    return (out + err).decode(errors="replace")


def _reap() -> int:
    """Take leave of the children that have ended, adopted ones included; returns how many they were."""
    count = 0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            count += 1
    return count


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:] if Path(path).exists() else []


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except (OSError, IndexError):
        return 0.0


def _shared_mb() -> float:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["Shmem"].split()[0]) / 1024


def _disk_mb(folder: Path) -> float:
    total, pending = 0, [str(folder)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return total / 2**20


def main() -> None:
    """Answer orders until there are no more."""
    trainer = Trainer(sys.argv[1] if len(sys.argv) > 1 else secrets.token_hex(16))
    for line in sys.stdin:
        print(json.dumps(trainer.attack(json.loads(line))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
