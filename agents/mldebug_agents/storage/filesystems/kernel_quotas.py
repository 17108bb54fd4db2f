"""Collects the kernel's quotas: of the users, groups and projects of ranks, on the filesystems that they use."""

import os
from collections.abc import Iterator, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.core.units import size_words
from mldebug.storage.filesystems.state import Cell, Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import (
    KernelQuota,
    MountAnswer,
    MountRequest,
    QuotaOwners,
)
from mldebug_agents.storage.filesystems.mounts import UsedMount, used_mounts
from mldebug_agents.system.context import Context

INTERVAL = 120.0  # seconds
WITH_QUOTAS = frozenset(("ext2", "ext3", "ext4", "xfs", "f2fs", "jfs", "ocfs2", "tmpfs"))
KINDS = ("user", "group", "project")
MOST = 64  # owners of one filesystem that are asked for
WAY_OUT = "run the agent as root: the kernel tells others only their own"


class OwnedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """One quota that the kernel reports. `uids`: the users who may see it, since their ranks use the filesystem."""

    used: UsedMount
    block: KernelQuota
    who: str
    uids: tuple[int, ...]

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Shares of the bytes and inodes in use, 0 to 1; None without a limit."""
        one = self.block
        inodes = one.inodes / one.inodes_limit if one.inodes_limit else None
        return (one.used / one.limit if one.limit else None), inodes


class KernelQuotaCollector:
    """Reads the quotas that the kernel keeps for ext4, XFS and similar filesystems. For others, `QuotaCollector` runs a site's
    own tools.
    """

    name = "kernel_quotas"
    interval = INTERVAL

    def __init__(self, context: Context, probe: MountClient) -> None:
        self._context, self._probe = context, probe
        self._kept: list[OwnedQuota] = []
        self._gaps: list[Gap] = []

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read the quotas of each filesystem that jobs use. Raises OSError where the mount child has ended. `now`: unix
        time.
        """
        ranks = {rank.pid: rank.uid for job in jobs for rank in job.ranks}
        found = used_mounts(self._context.host, jobs, ())
        kept = {one.mount.device: one for one in found.values() if one.mount.fstype in WITH_QUOTAS}
        used = [one for one in kept.values() if one.ranks]
        places = [self._place(one, ranks) for one in used]
        wanted = [(use, one) for use, one in zip(used, places, strict=True) if one.owners and one.owners.ids]  # fmt: skip
        answers = self._probe.ask([place for _, place in wanted])
        answered = [(use, one) for (use, _), one in zip(wanted, answers, strict=True)]
        self._kept = [one for use, answer in answered for one in self._owned(use, answer, ranks)]
        self._gaps = [
            _gap(use, answer) for use, answer in answered if answer.reason and not answer.stuck
        ]

    def samples(self) -> Iterator[Measure]:
        """Yield metric values: for each limit of bytes or inodes the share that is used, 0 to 1."""
        for one in self._kept:
            where = (one.used.name, one.used.mount.device)
            labels = (*where, KINDS[one.block.kind], str(one.block.id))
            for name, share in zip(("used", "inodes_used"), one.shares, strict=True):
                if share is not None:
                    metric = f"mldebug_filesystem_quota_{name}_ratio"
                    yield Measure(metric=metric, labels=labels, value=share, uids=one.uids)

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "quotas" of `mldebug status --storage`: one row for each quota that has a limit."""
        rows = tuple(_row(one) for one in self._kept if one.shares != (None, None))
        return {"quotas": rows} if rows else {}

    def alarms(self) -> Iterator[StorageAlert]:
        """Alerts about quotas of which more is used than `storage.quota_limit`."""
        limit = self._context.config.storage.quota_limit
        for one in self._kept:
            if max(share or 0.0 for share in one.shares) >= limit:
                words = f"quota {_line(one)}"
                yield StorageAlert(kind="quota", subject=_name(one), sentence=words, uids=one.uids)

    def gaps(self) -> Sequence[Gap]:
        """Filesystems whose quotas the agent may not read."""
        return self._gaps

    def _place(self, used: UsedMount, ranks: dict[int, int]) -> MountRequest:
        """The request for one filesystem. An agent that is not root may ask only for its own user."""
        host, mine = self._context.host, os.geteuid()
        users = {(0, ranks[pid]) for pid in used.ranks if mine in (0, ranks[pid])}
        groups = {(1, group) for pid in used.ranks if mine == 0 for group in _groups(host.text(pid, "status"))}  # fmt: skip
        folders = [os.fsencode(f"{host.proc}/{pid}/cwd") for pid in sorted(used.ranks)[:MOST]]
        owners = QuotaOwners(
            tuple(sorted(users | groups))[:MOST], tuple(folders if mine == 0 else ())
        )
        return MountRequest(used.mount.id, used.path, owners=owners)

    def _owned(
        self, used: UsedMount, answer: MountAnswer, ranks: dict[int, int]
    ) -> Iterator[OwnedQuota]:
        uids = tuple(sorted({ranks[pid] for pid in used.ranks}))
        for block in answer.blocks:
            who = self._context.host.user(block.id) if block.kind == 0 else str(block.id)
            own = (block.id,) if block.kind == 0 else uids
            yield OwnedQuota(used=used, block=block, who=who, uids=own)


def _groups(status: str) -> list[int]:
    """The group that new files get: the one of the filesystem."""
    lines = [line.split() for line in status.splitlines() if line.startswith("Gid:")]
    return [int(lines[0][4])] if lines and len(lines[0]) > 4 else []


def _gap(used: UsedMount, answer: MountAnswer) -> Gap:
    pid = min(used.ranks) if used.uids else None
    return Gap(what=f"quotas of {used.title}", reason=answer.reason, way_out=WAY_OUT, pid=pid)


def _name(one: OwnedQuota) -> str:
    return f"{KINDS[one.block.kind]} {one.who} on {one.used.title}"


def _line(one: OwnedQuota) -> str:
    block, (share, inodes) = one.block, one.shares
    words = [f"{share:.1%} used, {size_words(block.used)} of {size_words(block.limit)}"] if share is not None else []  # fmt: skip
    words += [f"{inodes:.1%} of its inodes"] if inodes is not None else []
    return f"of {_name(one)}: {', '.join(words)}"


def _row(one: OwnedQuota) -> Row:
    share, inodes = one.shares
    row: dict[str, Cell] = {"quota": _name(one), "used_ratio": share, "inodes_used_ratio": inodes}
    row[UIDS] = uids_cell(one.uids)
    return {**row, "used_bytes": one.block.used, "limit_bytes": one.block.limit, "line": _line(one)}
