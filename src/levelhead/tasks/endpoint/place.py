"""Where a file of replies lies: SQLite's locks do not hold on a network file system."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs")
"""Types of file systems on which several machines may write; one that runs in user space has ``fuse.`` in front."""
_LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs")


def network_file_system(path: str | Path, mounts: Iterable[str] | None = None) -> str | None:
    """Return the type of the network file system that a path lies on; ``None`` where it is local or cannot be told.

    Args:
        path: It need not exist yet.
        mounts: Lines of ``/proc/mounts``; the machine's own unless given.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
    place = os.path.realpath(Path(path).expanduser())
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").rstrip("/")
        if (place == point or place.startswith(f"{point}/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    remote = kind in NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if remote else None
