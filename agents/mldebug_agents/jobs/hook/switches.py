"""Which folder a job asks for its switches: its ranks have named it beside their records, whoever runs them."""

import os

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.heartbeat import record_name
from mldebug.jobs.switches import MAX_BYTES, SUFFIX, parse_announcement
from mldebug_agents.jobs.hook.records import FOLDER, check_owner
from mldebug_agents.jobs.hook.switch_child import Order, Owner
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece

MAX_ASKED = 8  # ranks of a job: rank 0 of the node is enough, if it lives


def place_of(job: Job, host: Host, reader: Reader) -> Order | None:
    """How to look at the folder of a job; None where none of its ranks here asks for switches."""
    for rank in job.ranks[:MAX_ASKED]:
        folder = _announced(rank, host, reader)
        if folder:
            inside = host.link(rank.pid, "ns/mnt") != host.link(os.getpid(), "ns/mnt")
            pid = rank.pid if inside else 0
            return Order(verb="look", folder=folder, pid=pid, owner=_owner(rank, host))
    return None


def _announced(rank: RankIdentity, host: Host, reader: Reader) -> str:
    name = record_name(rank.namespace_pid or rank.pid, rank.start_ticks) + SUFFIX
    path = f"{host.root_of(rank.pid)}{FOLDER}/{name}"
    piece = reader.read_from(path, 0, max_bytes=MAX_BYTES)
    if not isinstance(piece, FilePiece):
        return ""
    try:
        check_owner(piece, rank.uid)
    except ValueError:
        return ""
    return parse_announcement(piece.data)


def _owner(rank: RankIdentity, host: Host) -> Owner:
    """Its user, its effective group and its others, as the kernel says."""
    told = host.status(rank.pid).groups
    return Owner(rank.uid, told[1] if len(told) > 1 else rank.uid, tuple(told[4:]))
