"""Which run a capture is of: what all nodes of one run say alike, and no other run says."""

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
    """Whether the run id is specific to one run, and no default such as "none"."""
    return run_id.lower() not in GENERIC_RUN_IDS


def is_loopback(master: str) -> bool:
    """Whether this master, `addr:port`, can be reached from its own node only."""
    return _LOOPBACK.fullmatch(master.rpartition(":")[0]) is not None


def port_of(master: str) -> str:
    """The port of a master, `addr:port`, which only one run can listen on; "" where it has none.

    The address may differ: where torchrun is told it on each node, the first may say `localhost`, another a name or an IP.
    """
    port = master.rpartition(":")[2]
    return port if port.isdecimal() else ""


def run_key(capture: NodeCapture) -> RunKey:
    """The key of the capture's run, which is the same on all its nodes."""
    return job_key(capture.job, capture.node)


def job_key(job: Job, node: str) -> RunKey:
    """The key of a job's run, the same on all nodes of one attempt. Without a run id and a reachable master a run has one node.

    Of two jobs with one `--rdzv-id` the port of the master tells which is which; a restart may move it. Whose processes
    they are belongs to it: anybody may start one with another's run id in its environment.
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
    """An id of eight digits for a run, the same on all its nodes."""
    return hashlib.sha256(repr(key).encode(errors="replace")).hexdigest()[:8]


def user_of(key: RunKey) -> str:
    """The part "uid N" of a run's key; "" where it has none (runs of root)."""
    return key[-1] if key and key[-1].startswith("uid ") else ""


def is_of(key: RunKey, uid: int) -> bool:
    """Whether the run belongs to this user. Always False for root, since the keys of root's runs hold no user."""
    return user_of(key) == f"uid {uid}"
