"""Who may coordinate a run that nobody has configured peers for: the nodes of its scheduler in their order, then its master.

A job chose these words: they are names and addresses to be asked for a proof, and nothing more.
"""

from mldebug.cluster.run_identity import is_loopback
from mldebug.core.errors import UsageError
from mldebug.core.model import Job
from mldebug.core.ranksets import unfold_nodes
from mldebug_agents.cluster.peers.client import Peer

MAX_HOST = 253  # characters of a name
MAX_LISTED = 2048  # nodes that are asked who coordinates; of more, peers are to be configured


def candidates(job: Job, port: int) -> tuple[Peer, ...]:
    """The same on all nodes of the run, in the same order; none for a run of this node alone. `port`: of all agents."""
    if job.world_size <= len(job.ranks) + len(job.lost):
        return ()
    nodes = listed(job.node_list)
    hosts = dict.fromkeys((*(nodes if len(nodes) <= MAX_LISTED else ()), *_master(job)))
    return tuple(Peer(host, port) for host in hosts)


def listed(text: str) -> tuple[str, ...]:
    """The nodes of a scheduler's list; none where it cannot be read."""
    try:
        return unfold_nodes(text, groups=False) if text else ()
    except UsageError:
        return ()


def _master(job: Job) -> tuple[str, ...]:
    master = next((rank.master for rank in job.ranks if rank.master), "")
    host = master.rpartition(":")[0].strip("[]")
    usable = host and len(host) <= MAX_HOST and not is_loopback(master)
    return (host,) if usable else ()
