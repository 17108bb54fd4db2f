"""The user at the other end of the Unix socket, as the kernel reports it (SO_PEERCRED), and what this user may see.

root, the agent's own user and the members of the group `agent.group` see everything; other users see their own runs.
"""

import grp
import os
import socket
import struct

import msgspec

from mldebug.alerts.view import for_user
from mldebug.core.errors import UsageError
from mldebug.hardware.host_memory.state import of_runs
from mldebug.status.snapshot import FoundJobs, Snapshot
from mldebug.storage.filesystems.visibility import of_user

_UCRED = struct.Struct("iII")  # pid, uid, gid
_SO_PEERGROUPS = 59  # the same on all architectures that PyTorch runs on; Linux 4.13
_MAX_GROUPS = 1024  # bytes, the most that Python asks for: 256 groups


class PeerCredentials(msgspec.Struct, frozen=True):
    """The process at the other end of a Unix socket, as it was when it connected."""

    pid: int
    uid: int
    groups: frozenset[int] = frozenset()


def peer_of(link: socket.socket) -> PeerCredentials | None:
    """The process that connected to a Unix socket, by SO_PEERCRED; None for TCP."""
    if link.family != socket.AF_UNIX:
        return None
    pid, uid, gid = _UCRED.unpack(
        link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return PeerCredentials(pid, uid, frozenset((gid, *_groups(link))))


def _groups(link: socket.socket) -> tuple[int, ...]:
    try:
        groups = link.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS)
    except OSError:
        return ()
    return struct.unpack(f"{len(groups) // 4}I", groups)


def group_number(name: str) -> int | None:
    """The gid of `agent.group`; None for no group. Raises UsageError where this node has no such group."""
    if not name:
        return None
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(
            f"there is no group {name!r} on this node",
            f"groupadd --system {name}, or set another agent.group",
        ) from None


def may_see_all(peer: PeerCredentials | None, group: int | None) -> bool:
    """Whether this user may see everything: root, the agent's user, members of `group`. `peer` None (not on the Unix socket): no."""
    if peer is None:
        return False
    return peer.uid in (0, os.geteuid()) or (group is not None and group in peer.groups)


def view(snapshot: Snapshot, peer: PeerCredentials | None, group: int | None) -> Snapshot:
    """Return the part of a snapshot that this user may see: everything for root, the agent's user and members of `group`,
    otherwise the user's own runs. Of other users' runs only their number is left.
    """
    if may_see_all(peer, group):
        return snapshot
    runs = tuple(run for run in snapshot.runs if peer is not None and run.uid == peer.uid)
    mine = {"", *(run.id for run in runs)}
    pids = {pid for run in runs for pid in run.ranks.values()}
    uid = peer.uid if peer is not None else -1
    return msgspec.structs.replace(
        snapshot,
        runs=runs,
        hidden_runs=len(snapshot.runs) - len(runs),
        events=for_user(snapshot.events, peer.uid if peer is not None else None),
        remarks=tuple(remark for remark in snapshot.remarks if not remark.pids),
        gaps=tuple(gap for gap in snapshot.gaps if gap.pid is None),
        last_report={},
        memory=of_runs(snapshot.memory, mine) if snapshot.memory else None,
        checkpoint_series=(),  # of the places of the configuration: whoever owns them
        storage=of_user(snapshot.storage, uid, mine, pids) if snapshot.storage else None,
        orphans=tuple(orphan for orphan in snapshot.orphans if orphan.uid == uid)
        if snapshot.orphans is not None
        else None,
        histories=tuple(one for one in snapshot.histories if one.uid == uid),
        run_records=tuple(one for one in snapshot.run_records if one.uid == uid),
        goodput=tuple(job for job in snapshot.goodput if job.uid == uid),
        found=_own(snapshot.found, uid),
        kernel_events=tuple(one for one in snapshot.kernel_events if one.run in mine),
    )


def _own(found: FoundJobs, uid: int) -> FoundJobs:
    """What was found of one user's jobs, and what is about no process."""
    return msgspec.structs.replace(
        found,
        jobs=tuple(job for job in found.jobs if job.uid == uid),
        remarks=tuple(remark for remark in found.remarks if not remark.pids),
        gaps=tuple(gap for gap in found.gaps if gap.pid is None),
    )
