"""The identity of a run: a key that is the same for the captures of all its nodes, and differs from that of any other run."""

import hashlib
import re

from mldebug.core.model import Job, NodeCapture, NodeWait, RankIdentity

GENERIC_RUN_IDS = ("", "none", "default", "static", "0")
CHOSEN_BY_PEOPLE = ("torchrun", "accelerate")  # launchers whose run id is typed in: many copy one
_LOOPBACK = re.compile(
    r"localhost(?:\.localdomain)?|127\.[\d.]+|::1|\[::1\]|ip6-localhost", re.IGNORECASE
)

RunKey = tuple[str, ...]


def is_specific(run_id: str) -> bool:
    """Whether a run id (such as torchrun's `--rdzv-id`) identifies one run, and is no default such as "none"."""
    return run_id.lower() not in GENERIC_RUN_IDS


def is_loopback(master: str) -> bool:
    """Whether a master (`addr:port` of rank 0's store) has an address that only its own node can reach."""
    return _LOOPBACK.fullmatch(master.rpartition(":")[0]) is not None


def port_of(master: str) -> str:
    """The port in a master's `addr:port`; "" where it has none. Only one run can listen on it.

    The address may differ from node to node: the first may say `localhost`, another a name or an
    IP.
    """
    port = master.rpartition(":")[2]
    return port if port.isdecimal() else ""


def run_key(capture: NodeCapture) -> RunKey:
    """The key of the capture's run, which is the same on all its nodes."""
    return job_key(capture.job, capture.node)


def job_key(job: Job, node: str) -> RunKey:
    """The key of a job's run, the same on all nodes of one attempt (one start of it).

    Made of launcher, run id, the master's port or address, and user. The port tells apart two jobs
    with one `--rdzv-id`; the user, because anybody may copy another's run id. Without a run id and
    a master that other nodes can reach, the key is for this node alone.
    """
    alone = ("alone", node, job.id)
    whose = (f"uid {job.uid}",) if job.uid else ()
    if job.waits is not None:
        return _waiting_key(job, job.waits) or alone
    first = next(iter(job.ranks), None)
    if first is None:
        return alone
    if is_specific(first.run_id):
        return (first.launcher, first.run_id, *_port(first), *whose)
    if first.master and not is_loopback(first.master):
        return (first.launcher, "", first.master, *whose)
    return alone


def _waiting_key(job: Job, wait: NodeWait) -> RunKey:
    """Of a run without ranks: where its nodes meet; empty where they can only meet on this node."""
    whose = (f"uid {job.uid}",) if job.uid else ()
    port = port_of(wait.endpoint)
    where = (f"port {port}",) if is_specific(wait.run_id) and port else (wait.endpoint,)
    if not is_specific(wait.run_id) and (not wait.endpoint or is_loopback(wait.endpoint)):
        return ()
    return ("waits for nodes", job.launcher, wait.run_id, *where, *whose)


def _port(rank: RankIdentity) -> tuple[str, ...]:
    """What tells two runs of one id apart, where the launcher itself gives it to every rank."""
    port = port_of(rank.master) if rank.launcher in CHOSEN_BY_PEOPLE else ""
    return (f"port {port}",) if port else ()


def run_id(key: RunKey) -> str:
    """An id for a run from its key: eight hexadecimal digits, the same on all its nodes."""
    return hashlib.sha256(repr(key).encode(errors="replace")).hexdigest()[:8]


def user_of(key: RunKey) -> str:
    """The part `uid N` of a run's key; "" where it has none (runs of root)."""
    return key[-1] if key and key[-1].startswith("uid ") else ""


def is_of(key: RunKey, uid: int) -> bool:
    """Whether the run belongs to the user `uid`.

    Always False for root, since keys of root's runs hold no user.
    """
    return user_of(key) == f"uid {uid}"
