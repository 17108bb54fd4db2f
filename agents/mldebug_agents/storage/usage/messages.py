"""What `mldebug usage` and the child that counts for it send each other over a `ChildLink`."""

import msgspec

from mldebug.storage.usage.model import CountedFolder, CountedTree

NAME = "usage"  # of the worker that the process starter forks
SECONDS = 30.0
MOST = 1_000_000  # inodes
DEPTH = 64


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The directories to count (whole paths), and the limits for all of them together."""

    paths: tuple[bytes, ...]
    seconds: float = SECONDS
    most: int = MOST
    depth: int = DEPTH


class CountProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted since the last message. `at`: the folder that is touched next; `tree`: the end of the directory with this number; `over`: nothing follows."""

    at: bytes = b""
    folders: tuple[CountedFolder, ...] = ()
    number: int = 0
    tree: CountedTree | None = None
    over: bool = False
