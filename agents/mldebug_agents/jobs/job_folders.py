"""Folders into which a job may write: the one in which it works, and those that its command line names.

Only a link below /proc is read here; a folder is opened with the rights of the rank's user.
"""

from collections.abc import Iterator
from posixpath import dirname, join, normpath

from mldebug.core.model import Job
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host

MAX_HINTS = 8


def likely_folders(host: Host, job: Job) -> tuple[str, ...]:
    """Folders in which a job may write checkpoints and charts, at most `MAX_HINTS`: those on the
    command line of its lowest rank on this node, and that rank's working folder.

    The paths are as the rank sees them.
    """
    if not job.ranks:
        return ()
    rank = min(job.ranks, key=lambda one: one.rank)
    cwd = host.link(rank.pid, "cwd")
    found = [normpath(join(cwd or "/", one)) for one in _paths(rank.argv)]
    found += [cwd] if cwd else []
    return tuple(dict.fromkeys(one for one in found if _usable(one)))[:MAX_HINTS]


def _paths(argv: tuple[str, ...]) -> Iterator[str]:
    """Values that may be folders: `--output_dir /out/run`, `--save=/out`."""
    for before, word in zip(("", *argv), argv, strict=False):
        name, _, value = word.partition("=")
        named = name if value else before
        path = value or word
        if path.startswith("-") or "***" in path or not named.startswith("--"):
            continue
        if any(part in named.lower() for part in ("out", "save", "ckpt", "checkpoint", "dir", "log")):  # fmt: skip
            yield path


def _usable(path: str) -> bool:
    return procfs.is_stored(path) and dirname(path) != path
