"""The filesystem that a directory lies on, and whether inotify reports all changes there."""

import contextlib
import errno
import os

from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
from mldebug_agents.system.child.job_paths import open_inside

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC

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


def open_ordered(order: DirSizeRequest) -> int:
    """Open the folder that is to be counted. Raises OSError, also where none of the users who may learn its size owns it."""
    fd = open_folder(order.root, order.path, links=order.links)
    if not order.owners or os.fstat(fd).st_uid in order.owners:
        return fd
    os.close(fd)
    raise OSError(errno.EACCES, "it belongs to another user")


def open_folder(root: str, path: str, *, links: bool = True) -> int:
    """Open a folder and return its descriptor. Links are resolved below `root`, the host's root directory; without `links` one is an error.

    Raises OSError.
    """
    fd = _open_below(root, path) if root else os.open(path, _FOLDER)
    if links or os.readlink(f"/proc/self/fd/{fd}") == os.path.normpath(f"{root}{path}"):
        return fd
    os.close(fd)
    raise OSError(errno.ELOOP, "a link stands in its path")


def _open_below(root: str, path: str) -> int:
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_inside(top, os.fsencode(path.lstrip("/")), os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(top)
    try:
        return os.open(f"/proc/self/fd/{found}", _FOLDER)
    finally:
        os.close(found)


def real_path(fd: int, root: str, path: str) -> str:
    """A path by which this process can open the folder that the descriptor `fd` holds open.

    `path`: its path as the job sees it, below `root`, the job's root folder. Raises OSError where neither name leads to it any more.
    """
    own = os.fstat(fd)
    for one in (os.readlink(f"/proc/self/fd/{fd}"), f"{root}{path}"):
        # by that name it is not to be reached: the next is tried
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(one), own):
                return one
    raise OSError(errno.ESTALE, "it is not found by its own name")


def filesystem(fd: int) -> str:
    """The type of the filesystem of an open file, by its mount; "" where it cannot be read."""
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
    """Whether other machines can change files on this type of filesystem without an inotify event here."""
    return kind in SHARED or kind.startswith("fuse.")
