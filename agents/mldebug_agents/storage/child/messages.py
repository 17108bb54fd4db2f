"""What the agent and the mount child send each other over a `ChildLink`."""

import msgspec

from mldebug.storage.filesystems.canary import CanaryResult


class CanaryFile(msgspec.Struct, frozen=True):
    """A small test file that the child is to write, sync and remove, to see whether a filesystem can be written."""

    name: str
    size: int  # bytes


class QuotaOwners(msgspec.Struct, frozen=True):
    """Whose quotas are read on one mount: users and groups by id, and the projects (XFS, ext4) of folders that lie on it."""

    ids: tuple[tuple[int, int], ...]  # (user 0 or group 1, number)
    folders: tuple[bytes, ...] = ()


class MountRequest(msgspec.Struct, frozen=True):
    """One request about one mount, named by a path on it that the child may open. `trial`: write a test file; `owners`: read
    quotas; with neither, the free space is read.
    """

    mount: int  # its id; what is found at the path counts only where it has this id. 0: whatever is there, links are followed
    path: bytes
    trial: CanaryFile | None = None
    owners: QuotaOwners | None = None
    root: bytes = b""  # of the node, where that is not the agent's own: the path and its links mean what they mean there

    @property
    def key(self) -> tuple[int, str, bytes]:
        """(mount id, kind of request, path). While a request hangs, no other one with the same key is made."""
        kind = "trial" if self.trial else "owners" if self.owners else "space"
        return self.mount, kind, self.path if self.trial or not self.mount else b""

    @property
    def whole(self) -> tuple[int, str, bytes]:
        """The `key` of the free-space request for the same mount. While that one hangs, no other request is made to this mount."""
        return self.mount, "space", b""


class MountRequests(msgspec.Struct, frozen=True):
    """Requests about many mounts, handled at the same time. `number`: repeated in the answer. `seconds`: the time limit for all
    of them.
    """

    number: int
    places: tuple[MountRequest, ...]
    seconds: float


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The free space of one mount by statvfs, in bytes. `available`: what an ordinary user may still use; `free`: also what is
    reserved for root.
    """

    size: int = 0
    free: int = 0
    available: int = 0
    inodes: int = 0  # 0: this filesystem does not count them
    inodes_free: int = 0
    read_only: bool = False


class KernelQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's quota of one user (`kind` 0), group (1) or project (2) with this `id`. `used` and `limit` are bytes; a
    `limit` of 0 means that there is no limit.
    """

    kind: int
    id: int
    used: int
    limit: int
    inodes: int
    inodes_limit: int


class MountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one mount, or in `reason` why nothing was. `stuck`: for how many seconds a call there has hung."""

    mount: int
    wrote: CanaryResult | None = None
    blocks: tuple[KernelQuota, ...] = ()
    space: Space | None = None
    reason: str = ""
    stuck: float = 0.0


class MountAnswers(msgspec.Struct, frozen=True):
    """The answer to `MountRequests` of the same `number`: one for each mount, in the order of the requests."""

    number: int
    mounts: tuple[MountAnswer, ...]
