"""May a job's user read what the job writes? An agent with more rights than the job must not read for it.

A job gets descriptors from others: a shell that ran as root, a service manager, a `tee` of somebody else. What is
asked is what the kernel would ask if the job opened /proc/self/fd/N again: the owner, group and mode of the file that
is open, and not of the folders on the way to its name. Access lists are not consulted: they can only make us refuse.
"""

import stat
from typing import Protocol

import msgspec


class FileOwnership(Protocol):
    """What says who owns a file: the part of a `FilePiece` that is needed here."""

    @property
    def mode(self) -> int:
        """The file's type and permission bits."""

    @property
    def uid(self) -> int:
        """The uid of the file's owner."""

    @property
    def gid(self) -> int:
        """The gid of the file's group."""


class ReadRights(msgspec.Struct, frozen=True):
    """The user and groups of one process of the job; a log is only read where these may read it."""

    uid: int
    groups: tuple[int, ...] = ()

    def may_read(self, file: FileOwnership) -> bool:
        """Whether the kernel would let these users read the file. An owner may always give himself the right."""
        if self.uid in (0, file.uid):
            return True
        group = file.gid in self.groups
        return bool(file.mode & (stat.S_IRGRP if group else stat.S_IROTH))
