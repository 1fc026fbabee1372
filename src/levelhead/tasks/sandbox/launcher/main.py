"""Three processes: the launcher waits and ends everything, the keeper builds the walls, the program runs behind them.

Where the system allows, the keeper is the first process of a process namespace, so that its end is the end of
everything in there.  Elsewhere all that the program starts stays in one process group, which one signal ends.  The
program is unprivileged, and cannot become anything else.  What was built goes to the status pipe as one line of JSON
before the program starts, how the program ended as a second one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from . import BOOT, landlock, seccomp, spaces
from .system import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    Config,
    check,
    drop_root,
    follow_parent,
    hide,
    libc,
    limit,
    over_disk,
    refuse,
    report,
    statuses,
    tasks_of_user,
)

_LOOK_EVERY_S = 0.05
_GRACE_S = 1.0
_keeper = 0


def main(settings: str) -> NoReturn:
    """Build the walls, run the program on standard input, and end with it."""
    config: Config = json.loads(settings)
    os.set_inheritable(config["status"], False)
    if config.get("inside"):
        _keep(config, "", "bubblewrap")
    signal.signal(signal.SIGTERM, lambda *_: _end(137))
    follow_parent(signal.SIGTERM)
    if os.getppid() != config["trainer"]:
        os._exit(1)
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    by_bubblewrap = "bubblewrap" in config["walls"]
    why = ""
    if not by_bubblewrap:
        why = spaces.unshare() if "namespaces" in config["walls"] else "namespaces are not asked for"
    global _keeper
    _keeper = os.fork()
    if _keeper == 0:
        if by_bubblewrap:
            _wrap(config)
        _keep(config, why, "namespaces")
    hide()
    _, status = os.waitpid(_keeper, 0)
    _keeper = 0
    _end(os.waitstatus_to_exitcode(status) & 0xFF)


def _end(code: int) -> NoReturn:
    """End the keeper and whatever is left below this process: as a subreaper it inherits every orphan."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The keeper first: it knows the program's group.
    deadline = time.monotonic() + _GRACE_S
    with contextlib.suppress(OSError):
        if _keeper:
            os.kill(_keeper, signal.SIGTERM)
        while _keeper and time.monotonic() < deadline and os.waitpid(_keeper, os.WNOHANG)[0] == 0:
            time.sleep(0.001)
    me = os.getpid()
    while True:
        for pid, fields in statuses().items():
            if int(fields[1]) == me:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(code)


def _wrap(config: Config) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.set_inheritable(config["status"], True)
    command = spaces.bubblewrap(config, BOOT)
    try:
        os.execve(command[0], command, {})  # noqa: S606 - no shell on purpose
    except OSError as error:
        refuse(config, f"bubblewrap cannot be started ({error.strerror})")


def _keep(config: Config, why: str, built_by: str) -> NoReturn:
    """Wall in the file system, start the program, reap until it ends, and end with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_parent()
    hide()
    own_processes, wall = not why, "none"
    folder = config["folder"]
    if built_by == "bubblewrap":
        wall = built_by
    else:
        folder = str(Path(folder) / "work")
        Path(folder).mkdir()
        if own_processes:
            try:
                folder, wall = spaces.wall_in(config), "namespaces"
            except OSError as error:
                why = f"the system allows no file system of its own ({error.strerror or error})"
    version = landlock.version(config["landlock"]) if LINUX and "landlock" in config["walls"] else 0
    if wall == "none":
        lacking = _lacking(config, version)
        wall, why = ("none", f"{why}; {lacking}") if lacking else ("landlock", why)
    if wall == "none" and config["required"]:
        refuse(config, why)
    program = os.fork()
    if program == 0:
        os.setsid()
        try:
            _become_program(config, folder, {"wall": wall, "why": why}, own_processes, version)
        except OSError as error:
            refuse(config, error.strerror or str(error))
    # The table of processes that can be read is another one in a namespace.
    _reap(config, program, folder, 0 if own_processes else program, looks=LINUX and wall != "namespaces")


def _lacking(config: Config, version: int) -> str:
    """Return what the second wall lacks here, or nothing."""
    if "landlock" not in config["walls"]:
        return "Landlock is not asked for"
    if not LINUX:
        return f"{platform.system()} has no Landlock"
    if not seccomp.supported():
        return f"there is no system-call filter for {platform.machine()}"
    return "" if version else "the kernel has no Landlock, or does not turn it on"


def _reap(config: Config, program: int, folder: str, group: int, looks: bool) -> NoReturn:
    """Wait for the program, and for every orphan; end its group with it, or where its files pass the limit."""

    def end_group(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(program, signal.SIGKILL)

    def on_term(*_: object) -> NoReturn:
        end_group()
        os._exit(137)

    signal.signal(signal.SIGTERM, on_term)
    if looks:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG if looks else 0)
        if pid == program:
            end_group()
            code = os.waitstatus_to_exitcode(status)
            report(config, {"exit": code} if code >= 0 else {"signal": -code})
            os._exit(code & 0xFF)
        if pid == 0:
            signal.sigtimedwait({signal.SIGCHLD}, _LOOK_EVERY_S)
            if over_disk(folder, group, config["file_mb"] << 20, spaces.MOST_FILES):
                report(config, {"over": "files"})
                # In bubblewrap root may not signal the program's user, and ends it by ending itself.
                on_term()


def _become_program(config: Config, folder: str, built: dict[str, Any], own_processes: bool, version: int) -> NoReturn:
    """Give up every privilege, take on every limit, say what was built, and run."""
    os.chdir(folder)
    wall = built["wall"]
    own_files = wall in ("bubblewrap", "namespaces")
    own_user = os.geteuid() == 0
    # Before the limits: in a namespace the launcher, the keeper or both are of the program's user.
    already = 0 if own_user else 2 if own_processes else tasks_of_user()
    if own_user:
        drop_root(config, None if own_files else folder)
    if LINUX:
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        follow_parent()
    missing = limit(config, own_user, already)
    if missing:
        built["why"] = f"{built['why']}; the system sets no {', '.join(missing)}".lstrip("; ")
    if wall == "landlock":
        # By where it is: the user that root has become may not be able to walk there.
        landlock.enter(version, config["shown"], config["hidden"], spaces.DEVICES, ".")
    sharing = seccomp.Sharing(
        files=not own_files,
        processes=not own_processes,
        signals=not own_processes and not landlock.holds_signals(version),
        truncation=not own_files and not landlock.holds_truncation(version),
    )
    filtered = True
    try:
        seccomp.install(sharing)
    except OSError:
        if wall == "landlock":
            raise
        filtered = False
    network = "namespace" if own_processes else "filter" if filtered else "open"
    report(config, {"network": network, **built})
    os.execve(config["python"], [config["python"], "-I", "-S", "-B", "-"], {})  # noqa: S606 - no shell on purpose
