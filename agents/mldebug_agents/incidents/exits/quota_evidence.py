"""Reads after an exit how much is used of the kernel's quotas that its writes met: of the job's user, of the group of that user, and of the projects (XFS, ext4)
of the folders that it wrote to.
"""

import os
from collections.abc import Mapping, Sequence

from mldebug.core.model import RankIdentity
from mldebug.diagnosis.exits.model import QuotaFill
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import KernelQuota, MountRequest, QuotaOwners
from mldebug_agents.storage.filesystems.kernel_quotas import KINDS, WITH_QUOTAS
from mldebug_agents.system.context import Context
from mldebug_agents.system.procfs import Mount

MAX_FOLDERS = 16


def read_quotas(
    context: Context,
    probe: MountClient,
    rank: RankIdentity,
    mounts: Sequence[Mount],
    folders: Sequence[str],
    below: str,
) -> Mapping[int, tuple[QuotaFill, ...]]:
    """The quotas with a limit, by the id of their mount. `folders`: to which the job wrote, as it sees them; `below`: the root that it sees,
    "" for the agent's own. Empty where the agent may not read them: the kernel tells those who are not root only their own.
    """
    ids = _owners(context, rank)
    paths = tuple(os.fsencode(f"{below}{one}") for one in folders[:MAX_FOLDERS])
    owners = QuotaOwners(ids, paths)
    kept = [one for one in mounts if one.fstype in WITH_QUOTAS] if ids else []
    places = [
        MountRequest(one.id, os.fsencode(f"{below}{one.point}"), owners=owners) for one in kept
    ]
    try:
        answers = probe.ask(places) if places else []
    except OSError:  # the mount child has ended
        return {}
    return {
        mount.id: tuple(
            _fill(context, one) for one in answer.blocks if one.limit or one.inodes_limit
        )
        for mount, answer in zip(kept, answers, strict=True)
    }


def _owners(context: Context, rank: RankIdentity) -> tuple[tuple[int, int], ...]:
    mine, group = os.geteuid(), context.host.rights.of(rank).gid
    if mine not in (0, rank.uid):
        return ()
    return ((0, rank.uid), *(((1, group),) if group >= 0 else ()))


def _fill(context: Context, one: KernelQuota) -> QuotaFill:
    name = context.host.user(one.id) if one.kind == 0 else str(one.id)
    return QuotaFill(
        whose=f"{KINDS[one.kind]} {name}",
        used=one.used,
        limit=one.limit,
        inodes=one.inodes,
        inodes_limit=one.inodes_limit,
    )
