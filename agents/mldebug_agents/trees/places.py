"""On which filesystem a directory lies, and whether inotify sees all that happens there."""

import os

SHARED = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "9p",
        "virtiofs",
        "afs",
        "panfs",
        "wekafs",
        "gfs2",
        "ocfs2",
        "pvfs2",
        "orangefs",
        "coda",
        "ncpfs",
        "vboxsf",
        "prl_fs",
        "fuse",
    ]
)  # others may write to it unseen
AT_ONCE = ("tmpfs", "ramfs")  # a file has its blocks when it is written, not some time later


def filesystem(fd: int) -> str:
    """Its type, by the mount of an open file (not by the text of a path); "" where that cannot be told."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            mount = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().split(b"\n")
    except (OSError, StopIteration):
        return ""
    found = [line.split(b" - ", 1)[1] for line in lines if line.split(b" ", 1)[0] == mount.encode()]
    return os.fsdecode(found[0].split()[0]) if found else ""


def is_shared(kind: str) -> bool:
    """Whether other machines, or a server of its own, change it without an event here."""
    return kind in SHARED or kind.startswith("fuse.")
