"""Quotas as the kernel keeps them, for the mount child: by quotactl_fd, which needs Linux 5.14.

struct if_dqblk is that of linux/quota.h, struct fsxattr that of linux/fs.h.
"""

import ctypes
import errno
import fcntl
import os
import struct

from mldebug_agents.storage.child.messages import KernelQuota, QuotaOwners

PROJECT = 2
_QUOTACTL_FD = 443  # the same number on every architecture
_GET = 0x800007 << 8
_BLOCK = struct.Struct("<8QI4x")
_FSXATTR = struct.Struct("<5I8x")
_GETXATTR = 0x801C581F
_UNIT = 1024  # bytes of a block limit
_NOT_KEPT = frozenset((errno.ESRCH, errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL))  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


def read_blocks(mount: int, owners: QuotaOwners) -> tuple[KernelQuota, ...]:
    """The kernel's quotas of these owners on the filesystem of an open file. Raises OSError where they may not be read."""
    wanted = [*owners.ids, *((PROJECT, one) for one in _projects(mount, owners.folders))]
    found = [_ask(mount, kind, number) for kind, number in wanted]
    return tuple(one for one in found if one is not None)


def _projects(mount: int, folders: tuple[bytes, ...]) -> list[int]:
    """The projects of those folders that lie on this filesystem; 0 is none."""
    device = os.fstat(mount).st_dev
    found: dict[int, None] = {}
    for folder in folders:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # it is gone, or not ours to open
        try:
            if os.fstat(handle).st_dev == device:
                attributes = fcntl.ioctl(handle, _GETXATTR, bytes(_FSXATTR.size))
                found[_FSXATTR.unpack(attributes)[3]] = None
        except OSError:
            continue  # a filesystem without projects
        finally:
            os.close(handle)
    return [one for one in found if one]


def _ask(mount: int, kind: int, number: int) -> KernelQuota | None:
    """One quota; None where the filesystem has none of that kind."""
    block = ctypes.create_string_buffer(_BLOCK.size)
    if _libc.syscall(_QUOTACTL_FD, mount, ctypes.c_uint32(_GET | kind), number, block) == 0:
        return parse_block(block.raw, kind, number)
    failed = ctypes.get_errno()
    if failed in _NOT_KEPT:
        return None
    raise OSError(failed, os.strerror(failed))


def parse_block(raw: bytes, kind: int, number: int) -> KernelQuota:
    """Return the quota in the kernel's `if_dqblk`, with `kind` and id `number` as requested; space in bytes (the kernel
    gives limits in KiB). `limit` is the lower one of hard and soft limit, because writes fail there in the end; 0: no
    limit.
    """
    hard, soft, used, inodes_hard, inodes_soft, inodes, *_ = _BLOCK.unpack(raw)
    return KernelQuota(
        kind=kind,
        id=number,
        used=used,
        limit=_lower(hard, soft) * _UNIT,
        inodes=inodes,
        inodes_limit=_lower(inodes_hard, inodes_soft),
    )


def _lower(hard: int, soft: int) -> int:
    return min(filter(None, (hard, soft)), default=0)
