"""What the agent and the child that counts directories send each other over a `ChildLink`."""

import msgspec

from mldebug.storage.dir_sizes import DirSize

NAME = "trees"  # of the worker that the process starter forks
MAX_BODY = 1 << 20


class DirSizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A directory to count, and the seconds after which it is counted again, with and without inotify events."""

    path: str
    root: str = ""  # below which the node's own files lie, and inside which links resolve
    rescan: float = 600.0
    verify: float = 6 * 3600.0
    max_inodes: int = 20_000_000
    max_folders: int = 20_000_000
    max_depth: int = 4096  # levels below the directory
    owners: tuple[int, ...] = ()  # users to one of whom it has to belong; empty: to anybody
    links: bool = True  # whether a link may stand in its path; a job's own may lead to what the job must not learn of


class DirSizeRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The directories to count from now on: what is known of those that were counted already stays."""

    orders: tuple[DirSizeRequest, ...]


class DirSizeUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the child that counts directories. `state`: the new size of the directory `path`; None: it begins to count that
    directory.
    """

    path: str
    state: DirSize | None = None
