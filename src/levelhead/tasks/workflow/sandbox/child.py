"""The launcher: builds the walls around itself, then becomes the program.

Run as ``python -I -S -B child.py CONFIG`` with the program on standard input; never imported by the trainer, and with
nothing but the standard library at hand.  What it managed to build goes to the status pipe as one line of JSON before
the program starts, how the program ended as a second one.

Three processes.  The launcher waits, and ends everything when it is told to.  The keeper builds the walls; where the
system allows, it is the first process of a process namespace, so that its end is the end of everything in there.  The
program is unprivileged, and cannot become anything else.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

Config = dict[str, Any]

LINUX = sys.platform == "linux"

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
SPACES = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
# statvfs's flags and mount's, of those that a bind mount must keep in a user namespace.
KEPT_FLAGS = {1: MS_RDONLY, 2: MS_NOSUID, 4: MS_NODEV, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
# Of each machine: its audit number, and the system calls pivot_root, socket and io_uring_setup (a way around socket).
MACHINES = {"x86_64": (0xC000003E, 155, 41, 425), "aarch64": (0xC00000B7, 41, 198, 425)}

LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Build the walls, run the program on standard input, and end with it."""
    config: Config = json.loads(sys.argv[1])
    os.set_inheritable(config["status"], False)
    _die_with_parent()
    if os.getppid() != config["trainer"]:
        os._exit(1)
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    why = _unshare() if config["namespaces"] else "it was told to build none"
    keeper = os.fork()
    if keeper == 0:
        _keep(config, why)
    signal.signal(signal.SIGTERM, lambda *_: _end(137))
    _, status = os.waitpid(keeper, 0)
    _end(os.waitstatus_to_exitcode(status) & 0xFF)


def _end(code: int) -> NoReturn:
    """Kill whatever is left below this process: as a subreaper it inherits every orphan."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(code)


def _children() -> list[int]:
    me, found = os.getpid(), []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = entry.read_text(errors="replace").rsplit(")", 1)[1].split()[1]
        except (OSError, IndexError):
            continue
        if int(parent) == me:
            found.append(int(entry.parent.name))
    return found


def _unshare() -> str:
    """Leave the system's namespaces; return why that failed, or nothing."""
    if not LINUX:
        return f"{platform.system()} has no namespaces"
    if os.geteuid() == 0 and libc.unshare(SPACES) == 0:
        return ""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(SPACES | CLONE_NEWUSER) != 0:
        return f"the system allows no namespaces ({os.strerror(ctypes.get_errno())})"
    try:
        # To nobody and not to root, so that becoming the program drops every capability in the namespace.
        for file, line in (("setgroups", "deny"), ("uid_map", f"65534 {uid} 1"), ("gid_map", f"65534 {gid} 1")):
            Path(f"/proc/self/{file}").write_text(line)
    except OSError as error:
        return f"the user namespace cannot be mapped ({error.strerror})"
    return ""


def _keep(config: Config, why: str) -> NoReturn:
    """Wall in the file system, start the program, reap until it ends, and end with it."""
    _die_with_parent()
    spaces, walls = not why, False
    folder = str(Path(config["folder"]) / "work")
    Path(folder).mkdir()
    if spaces:
        try:
            _wall_in(config)
            folder, walls = "/tmp", True  # noqa: S108 - a file system of its own
        except OSError as error:
            why = f"the system allows no file system of its own ({error})"
    if not walls and config["required"]:
        _refuse(config, why)
    program = os.fork()
    if program == 0:
        try:
            _become_program(config, folder, {"namespaces": spaces, "files": walls, "why": why})
        except OSError as error:
            _refuse(config, str(error))
    while True:
        pid, status = os.wait()
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            _report(config, {"exit": code} if code >= 0 else {"signal": -code})
            os._exit(code & 0xFF)


def _wall_in(config: Config) -> None:
    """Move into a file system that holds an interpreter, its libraries, three devices and an empty folder."""
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = Path(config["folder"]) / "root"
    root.mkdir()
    _mount("tmpfs", str(root), "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for source in dict.fromkeys((config["prefix"], *LIBRARIES)):
        _show(Path(source), root)
    for device in DEVICES:
        _show(Path(device), root, device=True)
    folder = root / "tmp"
    folder.mkdir()
    _mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, f"size={config['file_mb']}m,nr_inodes=4096,mode=1777")
    old = root / "old"
    old.mkdir()
    number = MACHINES.get(platform.machine(), (0, 155, 0, 0))[1]
    _check(libc.syscall(number, str(root).encode(), str(old).encode()), "pivot_root")
    os.chdir("/")
    _check(libc.umount2(b"/old", MNT_DETACH), "umount")
    Path("/old").rmdir()
    _mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _show(source: Path, root: Path, device: bool = False) -> None:
    """Make a folder or file of the system visible, read-only, at its own place in the new root."""
    if not source.exists():
        return
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(str(source), str(target), None, MS_BIND)
    found = os.statvfs(target).f_flag
    kept = sum(flag for seen, flag in KEPT_FLAGS.items() if found & seen)
    extra = 0 if device else MS_RDONLY | MS_NODEV
    _mount(None, str(target), None, kept | extra | MS_NOSUID | MS_REMOUNT | MS_BIND)


def _become_program(config: Config, folder: str, built: dict[str, Any]) -> NoReturn:
    """Give up every privilege, take on every limit, say what was built, and run."""
    os.chdir(folder)
    own_user = os.geteuid() == 0
    if own_user:
        _drop_root(config, folder)
    if LINUX:
        _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _die_with_parent()
    filtered = _filter_sockets()
    spaces = built.pop("namespaces")
    others = 0 if own_user else 2 if spaces else _tasks_of_user()
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_FSIZE": config["file_mb"] << 20,
        "RLIMIT_AS": config["memory_mb"] << 20,
        "RLIMIT_NPROC": config["processes"] + others,
        "RLIMIT_CPU": config["cpu_s"],
    }
    missing = [name for name, value in limits.items() if not _limit(name, value)]
    if missing:
        built["why"] = f"{built['why']}; the system sets no {', '.join(missing)}".lstrip("; ")
    _report(config, {"network": "namespace" if spaces else "filter" if filtered else "open", **built})
    os.execve(config["python"], [config["python"], "-I", "-S", "-B", "-"], {})  # noqa: S606 - no shell on purpose


def _tasks_of_user() -> int:
    """Count the threads that already run as this user: where there is no own namespace, they count too."""
    uid, count = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*/task"):
        try:
            if folder.stat().st_uid == uid:
                count += sum(1 for _ in folder.iterdir())
        except OSError:
            continue
    return count


def _drop_root(config: Config, folder: str) -> None:
    """Become a user that no other program has, so that limits and signals concern nobody else."""
    os.setgroups([])
    for uid in (1_000_000 + config["number"], 50_000 + config["number"] % 10_000, 65534):
        try:
            for owned in {folder, str(Path(folder).parent)} - {"/"}:
                os.chown(owned, uid, uid)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:
            continue
        if not os.access(config["python"], os.X_OK):
            raise PermissionError(f"an unprivileged user cannot run {config['python']}")
        return
    raise PermissionError("the launcher is root and cannot become anybody else")


def _filter_sockets() -> bool:
    """Have the system refuse every new socket; return whether it will."""
    if not LINUX or platform.machine() not in MACHINES:
        return False
    audit, _, socket, io_uring = MACHINES[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    steps = (
        (load, 0, 0, 4),
        (equal, 1, 0, audit),
        (give, 0, 0, 0x80000000),  # a system call of another machine: kill
        (load, 0, 0, 0),
        (at_least, 3, 0, 0x40000000),
        (equal, 2, 0, socket),
        (equal, 1, 0, io_uring),
        (give, 0, 0, 0x7FFF0000),  # anything else: allow
        (give, 0, 0, 0x0005000D),  # refuse with EACCES
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    return bool(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)


def _limit(name: str, value: int) -> bool:
    what = getattr(resource, name)
    _, hard = resource.getrlimit(what)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        # A second of grace on top of the processor time: its first signal ends a program, and tells why.
        resource.setrlimit(what, (bound, bound + 1 if name == "RLIMIT_CPU" and bound == value else bound))
    except (OSError, ValueError):
        return False
    return True


def _die_with_parent() -> None:
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    given = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]), f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _refuse(config: Config, why: str) -> NoReturn:
    _report(config, {"refused": why})
    os._exit(126)


def _report(config: Config, line: dict[str, Any]) -> None:
    os.write(config["status"], (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    main()
