"""What the agent and the probe child tell each other over a `ChildLink`."""

import msgspec


class CanaryFile(msgspec.Struct, frozen=True):
    """A small file that is to be written, synced and removed."""

    name: str
    size: int  # bytes


class QuotaOwners(msgspec.Struct, frozen=True):
    """Whose quotas are asked for. Projects are found by the folders that lie on the same filesystem."""

    ids: tuple[tuple[int, int], ...]  # (user 0 or group 1, number)
    folders: tuple[bytes, ...] = ()


class MountRequest(msgspec.Struct, frozen=True):
    """One mount to be asked, by any path on it that the child may open. Without `trial` and `owners`: how full it is."""

    mount: int  # its id; what is found at the path counts only where it has this id. 0: whatever is there, links are followed
    path: bytes
    trial: CanaryFile | None = None
    owners: QuotaOwners | None = None
    root: bytes = b""  # of the node, where that is not the agent's own: the path and its links mean what they mean there

    @property
    def key(self) -> tuple[int, str, bytes]:
        """The key of calls that hang together: while one hangs no other with this key is made."""
        kind = "trial" if self.trial else "owners" if self.owners else "space"
        return self.mount, kind, self.path if self.trial or not self.mount else b""

    @property
    def whole(self) -> tuple[int, str, bytes]:
        """The key of the request how full the same mount is: while that hangs, nothing else is asked of it."""
        return self.mount, "space", b""


class MountRequests(msgspec.Struct, frozen=True):
    """Requests to many mounts at once; `seconds`: how long the child may wait for all of them."""

    number: int
    places: tuple[MountRequest, ...]
    seconds: float


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """statvfs of one mount. Bytes; `available` is what an ordinary user may still take, `free` has root's reserve, too."""

    size: int = 0
    free: int = 0
    available: int = 0
    inodes: int = 0  # 0: this filesystem does not count them
    inodes_free: int = 0
    read_only: bool = False


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of writing the small file. `errno`: 0 where it went well; else what the filesystem says was left at that moment."""

    errno: int = 0
    seconds: float = 0.0
    available: int = 0  # bytes
    inodes: int = 0  # 0: this filesystem does not count them
    inodes_free: int = 0


class KernelQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's quota of one user (kind 0), group (1) or project (2); sizes in bytes, limit 0: none."""

    kind: int
    id: int
    used: int
    limit: int
    inodes: int
    inodes_limit: int


class MountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one mount, or the reason why there is none. `stuck`: seconds for which a call there has not come back."""

    mount: int
    wrote: CanaryResult | None = None
    blocks: tuple[KernelQuota, ...] = ()
    space: Space | None = None
    reason: str = ""
    stuck: float = 0.0


class MountAnswers(msgspec.Struct, frozen=True):
    """The answers of all mounts, in the order of the requests."""

    number: int
    mounts: tuple[MountAnswer, ...]
