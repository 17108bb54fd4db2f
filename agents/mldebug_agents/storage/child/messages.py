"""What the agent and the probe child tell each other over a `ChildLink`."""

import msgspec


class CanaryFile(msgspec.Struct, frozen=True):
    """A small file that is to be written, synced and removed."""

    name: str
    size: int  # bytes


class QuotaOwners(msgspec.Struct, frozen=True):
    """Whose quotas are asked for. Projects are learned from the folders that lie on the same filesystem."""

    ids: tuple[tuple[int, int], ...]  # (user 0 or group 1, number)
    folders: tuple[bytes, ...] = ()


class MountRequest(msgspec.Struct, frozen=True):
    """One mount to be asked: any path on it that the child may open. Without `trial` and `owners`: how full it is."""

    mount: int  # its id; what is found at the path counts only where it has this id. 0: whatever is there, links are followed
    path: bytes
    trial: CanaryFile | None = None
    owners: QuotaOwners | None = None
    root: bytes = b""  # of the node, where that is not the agent's own: the path and its links mean what they mean there

    @property
    def key(self) -> tuple[int, str, bytes]:
        """What hangs together: it is not asked again before it has come back."""
        kind = "trial" if self.trial else "owners" if self.owners else "space"
        return self.mount, kind, self.path if self.trial or not self.mount else b""

    @property
    def whole(self) -> tuple[int, str, bytes]:
        """The key of the question how full the same mount is: where that hangs, nothing else is asked."""
        return self.mount, "space", b""


class MountRequests(msgspec.Struct, frozen=True):
    """One question about many mounts; `seconds`: how long the child may wait for all of them."""

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
    """What came of the small file. `errno`: 0 where it was written; then what the filesystem says is left, at that moment."""

    errno: int = 0
    seconds: float = 0.0
    available: int = 0  # bytes
    inodes: int = 0  # 0: this filesystem does not count them
    inodes_free: int = 0


class KernelQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel keeps of one user (0), group (1) or project (2); bytes, and 0 for no limit."""

    kind: int
    id: int
    used: int
    limit: int
    inodes: int
    inodes_limit: int


class MountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one mount: its space, or why not. `stuck`: seconds for which a call there has not come back."""

    mount: int
    wrote: CanaryResult | None = None
    blocks: tuple[KernelQuota, ...] = ()
    space: Space | None = None
    reason: str = ""
    stuck: float = 0.0


class MountAnswers(msgspec.Struct, frozen=True):
    """All mounts of one round, in the order of the question."""

    number: int
    mounts: tuple[MountAnswer, ...]
