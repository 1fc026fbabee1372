"""Namespaces of a program's own, and the file system in them: built here, or by bubblewrap."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from pathlib import Path

from . import calls
from .system import LINUX, Config, check, libc

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_SPACES = _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
# statvfs's flags and mount's, of those that a bind mount must keep in a user namespace.
_KEPT_FLAGS = {1: _MS_RDONLY, 2: _MS_NOSUID, 4: _MS_NODEV, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
MOST_FILES = 4096
_LAUNCHER_AT = "/levelhead"


def unshare() -> str:
    """Leave the system's namespaces; return why that failed, or nothing."""
    if not LINUX:
        return f"{platform.system()} has no namespaces"
    if os.geteuid() == 0 and libc.unshare(_SPACES) == 0:
        return ""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_SPACES | _CLONE_NEWUSER) != 0:
        return f"the system allows no namespaces ({os.strerror(ctypes.get_errno())})"
    try:
        # To nobody and not to root, so that becoming the program drops every capability in the namespace.
        for file, line in (("setgroups", "deny"), ("uid_map", f"65534 {uid} 1"), ("gid_map", f"65534 {gid} 1")):
            Path(f"/proc/self/{file}").write_text(line)
    except OSError as error:
        return f"the user namespace cannot be mapped ({error.strerror})"
    return ""


def wall_in(config: Config) -> str:
    """Move into a file system that holds an interpreter, its libraries, three devices and an empty folder.

    Returns:
        The empty folder.

    Raises:
        OSError: The system allows none.
    """
    check(libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    root = Path(config["folder"]) / "root"
    root.mkdir()
    _mount("tmpfs", str(root), "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for source in config["shown"]:
        _show(Path(source), root)
    for place in config["hidden"]:
        # An empty file system on top: what lies below cannot be reached by any name.
        _mount("tmpfs", f"{root}{place}", "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "size=4k,mode=755")
    for device in DEVICES:
        _show(Path(device), root, device=True)
    home = own_folder(config)
    folder = Path(f"{root}{home}")
    folder.mkdir()
    options = f"size={config['file_mb']}m,nr_inodes={MOST_FILES},mode=1777"
    _mount("tmpfs", str(folder), "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    old = root / "old"
    old.mkdir()
    number = calls.PIVOT_ROOT.get(platform.machine(), calls.PIVOT_ROOT["x86_64"])
    check(libc.syscall(number, str(root).encode(), str(old).encode()), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"/old", _MNT_DETACH), "umount")
    Path("/old").rmdir()
    _mount(None, "/", None, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    return home


def own_folder(config: Config) -> str:
    """Return where the empty folder is: ``/tmp``, unless the interpreter lies there."""
    taken = {parent for place in config["shown"] for parent in (Path(place), *Path(place).parents)}
    return next(place for place in ("/tmp", "/program", "/levelhead-program") if Path(place) not in taken)  # noqa: S108


def bubblewrap(config: Config, boot: str) -> list[str]:
    """Return the command that runs the launcher's second half within bubblewrap's namespaces."""
    home, launcher = own_folder(config), str(Path(__file__).parent.parent)
    command = [config["bubblewrap"], "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"]
    if os.geteuid() == 0:
        # The launcher inside becomes a user that no other program has; it needs no more than that.
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        # And looks how many files there are in folders of that user.
        command += ["--cap-add", "CAP_DAC_READ_SEARCH"]
    else:
        command += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    places = [*map(Path, config["shown"]), *map(Path, DEVICES), Path(home), Path(_LAUNCHER_AT, "launcher")]
    for parent in sorted({parent for place in places for parent in place.parents} - {Path("/")}):
        # Left to itself, bubblewrap makes some of them for root alone.
        command += ["--perms", "0755", "--dir", str(parent)]
    for source in map(Path, config["shown"]):
        if source.is_symlink():
            command += ["--symlink", str(source.readlink()), str(source)]
        elif source.exists():
            command += ["--ro-bind", str(source), str(source)]
    for place in config["hidden"]:
        command += ["--tmpfs", place, "--remount-ro", place]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--ro-bind", f"{launcher}/launcher", f"{_LAUNCHER_AT}/launcher"]
    command += ["--perms", "1777", "--size", str(config["file_mb"] << 20), "--tmpfs", home]
    command += ["--remount-ro", "/", "--chdir", home, "--"]
    inner = {**config, "walls": [], "inside": True, "folder": home}
    return [*command, config["python"], "-I", "-S", "-B", "-c", boot, _LAUNCHER_AT, json.dumps(inner)]


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
    _mount(str(source), str(target), None, _MS_BIND)
    present = os.statvfs(target).f_flag
    flags = sum(flag for seen, flag in _KEPT_FLAGS.items() if present & seen)
    extra = 0 if device else _MS_RDONLY | _MS_NODEV
    _mount(None, str(target), None, flags | extra | _MS_NOSUID | _MS_REMOUNT | _MS_BIND)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    check(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount on {target}")
