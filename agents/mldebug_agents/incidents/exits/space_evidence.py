"""Looks after an exit for want of space at the filesystems that its errors and checkpoints name: what is left, and which checkpoint
was cut.

Used by the worker of exits. Mounts are asked through the mount child and checkpoints are listed through a reader child, with the rights
of the rank's user; a mount that does not answer is not listed.
"""

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from mldebug.core.model import RankIdentity
from mldebug.core.plugins import create_all
from mldebug.core.units import size_words
from mldebug.diagnosis.exits.model import AttemptExit, CheckpointsAtExit, FilesystemFill, QuotaFill
from mldebug.diagnosis.exits.no_space.full_filesystem import named_paths, tells_of_space
from mldebug.diagnosis.exits.no_space.other_limits import SHARED_MEMORY
from mldebug.storage.checkpoints.history import (
    CheckpointSeries,
    KnownCheckpoint,
    SeriesMemory,
    printable,
)
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.names import checkpoint_of
from mldebug.storage.filesystems.fullness import fullness
from mldebug_agents.incidents.exits.quota_evidence import read_quotas
from mldebug_agents.storage.checkpoints.monitor import KnownSeries
from mldebug_agents.storage.checkpoints.reader import series_key
from mldebug_agents.storage.checkpoints.series_reader import SeriesFiles, SeriesReader
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import MountAnswer, MountRequest
from mldebug_agents.storage.filesystems.mounts import IMAGES, mount_table, printable_path
from mldebug_agents.system import procfs
from mldebug_agents.system.context import Context

MAX_SERIES = 4
MAX_MOUNTS = 32
NEWEST = 3  # checkpoints of a series that are looked at
UNTOUCHED = frozenset(("autofs",))  # to touch it would mount something


class SpaceEvidence:
    """Reads what is left of filesystems and checkpoints after an exit. `known`: by run, its series as they were last seen;
    `mounts`: the mount points that users' jobs had before.
    """

    def __init__(
        self,
        context: Context,
        probe: MountClient,
        known: Callable[[str], tuple[KnownSeries, ...]],
        mounts: Callable[[AbstractSet[int]], tuple[str, ...]],
    ) -> None:
        self._context, self._probe, self._known, self._before = context, probe, known, mounts
        self._layouts = create_all("checkpoints")

    def complete(self, attempt: AttemptExit) -> AttemptExit:
        """The exit with `filesystems` and `checkpoints` as they are now, where an error of it tells of no space; else as it was."""
        rank = next(iter(attempt.identities), None)
        if rank is None or not tells_of_space(attempt):
            return attempt
        root = next(iter(self._context.host.rights.roots(rank)), "")
        if not root:
            return attempt  # nobody sees its files any more
        series = self._series(attempt)
        before = self._before({rank.uid})[:MAX_MOUNTS]  # an error may name no path
        paths = (*(one.folder for one in series), *named_paths(attempt), SHARED_MEMORY, *before)
        mounts = self._mounts(root, paths)
        answers = self._ask(root, list(mounts.values()))
        written = [one.folder for one in series]
        written += [one.rpartition("/")[0] for one in named_paths(attempt)]
        quotas = read_quotas(
            *(self._context, self._probe, rank, [mount for mount, _ in answers], written),
            root if root != self._context.host.root else "",
        )
        fills = tuple(
            _fill(mount, answer, quotas.get(mount.id, ()))
            for mount, answer in answers
            if _may_fill(mount, answer)
        )
        answering = {mount.id for mount, answer in answers if answer.space}
        found = tuple(
            self._checkpoints(one, root, rank, attempt)
            for one in series
            if one.folder in mounts and mounts[one.folder].id in answering
        )
        return msgspec.structs.replace(attempt, filesystems=fills, checkpoints=found)

    def _series(self, attempt: AttemptExit) -> tuple[KnownSeries, ...]:
        """Those that are known of the run, and those of the files that errors name."""
        known = {(one.folder, one.series): one for one in self._known(attempt.job.id)}
        for path in named_paths(attempt):
            checkpoint = checkpoint_of(path)
            if checkpoint is not None:
                key = series_key(checkpoint)
                known.setdefault(key, KnownSeries(*key, (), ()))
        return tuple(known.values())[:MAX_SERIES]

    def _mounts(self, root: str, paths: Sequence[str]) -> dict[str, procfs.Mount]:
        """By path, the mount on which it lies. Reads only the mount table."""
        inside = (
            root != self._context.host.root
        )  # /proc/PID/root, whose table has the paths as they are inside
        table = mount_table(self._context.host, root.split("/")[-2] if inside else "self")
        found = {
            path: procfs.mount_of(table, path if inside else f"{root}{path}") for path in paths
        }
        return {path: one for path, one in found.items() if one and one.fstype not in UNTOUCHED}

    def _ask(
        self, root: str, mounts: Sequence[procfs.Mount]
    ) -> list[tuple[procfs.Mount, MountAnswer]]:
        each = list({one.id: one for one in mounts}.values())
        below = root if root != self._context.host.root else ""
        places = [MountRequest(one.id, os.fsencode(f"{below}{one.point}")) for one in each]
        try:
            return list(zip(each, self._probe.ask(places), strict=True))
        except OSError:  # the mount child has ended, and a new one is started by the next call
            return []

    def _checkpoints(
        self, one: KnownSeries, root: str, rank: RankIdentity, attempt: AttemptExit
    ) -> CheckpointsAtExit:
        """The series as it is on disk now: nobody writes it any more."""
        host = self._context.host
        files = SeriesFiles(self._context.reader, root, one.folder, host.rights.of(rank))
        reader, now = SeriesReader((one.folder, one.series), self._layouts, NEWEST), host.clock()
        look = reader.look(attempt.job.id, files, frozenset(), now)
        series = CheckpointSeries(SeriesMemory(complete=list(one.complete)), settle=0.0)
        series.look(now, look.readings, whole=False, world_size=attempt.job.world_size)
        present = {it.name: it for it in (*one.present, *series.checkpoints)}
        return at_exit(printable(one.folder), tuple(present.values()), series.checkpoints)


def at_exit(
    folder: str, every: Sequence[KnownCheckpoint], newest: Sequence[KnownCheckpoint]
) -> CheckpointsAtExit:
    """A series after the run's end. `every`: all of it that are known to be there; `newest`: those that were looked at now, the
    oldest first.
    """
    whole = [one for one in newest if one.state is Completeness.COMPLETE]
    last = whole[-1] if whole else None
    after = newest[newest.index(last) + 1 :] if last else newest
    cut = next((one for one in reversed(after) if one.state is Completeness.INCOMPLETE), None)
    return CheckpointsAtExit(
        folder=folder,
        last=last.name if last else "",
        last_bytes=last.size if last else 0,
        cut=cut.name if cut else "",
        cut_bytes=cut.size if cut else 0,
        held=len(every),
        held_bytes=sum(one.size for one in every),
    )


def _may_fill(mount: procfs.Mount, answer: MountAnswer) -> bool:
    """Whether anybody can write there: an image is always full, and no reason for anything."""
    return answer.space is not None and not answer.space.read_only and mount.fstype not in IMAGES


def _fill(
    mount: procfs.Mount, answer: MountAnswer, quotas: tuple[QuotaFill, ...]
) -> FilesystemFill:
    space = answer.space
    if space is None:
        raise ValueError("a mount that did not answer")
    now = fullness(space.size, space.free, space.available, space.inodes, space.inodes_free, 1.0)
    name = printable_path(mount.point)
    inodes = f", inodes {now.inode_share:.0%}" if now.inodes else ""
    source = printable_path(mount.source) or mount.fstype
    return FilesystemFill(
        mount=name,
        line=f"{name} ({source}): {now.share:.1%} used, {size_words(now.left)} left{inodes}",
        used_ratio=now.share,
        inodes_used_ratio=now.inode_share,
        fstype=mount.fstype,
        left_after=now.left,
        inodes_left_after=int(now.inodes_left) if now.inodes else None,
        quotas=quotas,
    )
