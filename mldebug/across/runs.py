"""Which run a capture is of: what all nodes of one run say alike, and no other run says."""

import hashlib
import re

from mldebug.model import Job, NodeCapture

GENERIC_RUN_IDS = ("", "none", "default", "static", "0")
_LOOPBACK = re.compile(
    r"localhost(?:\.localdomain)?|127\.[\d.]+|::1|\[::1\]|ip6-localhost", re.IGNORECASE
)

RunKey = tuple[str, ...]


def is_specific(run_id: str) -> bool:
    """Does this run id tell its run from others?"""
    return run_id.lower() not in GENERIC_RUN_IDS


def is_loopback(master: str) -> bool:
    """Can this master, `addr:port`, be reached from its own node only?"""
    return _LOOPBACK.fullmatch(master.rpartition(":")[0]) is not None


def run_key(capture: NodeCapture) -> RunKey:
    """The same on all nodes of one run."""
    return job_key(capture.job, capture.node)


def job_key(job: Job, node: str) -> RunKey:
    """The same on all nodes of one run; without a run id and a master that others can reach, a run has one node.

    Whose processes they are belongs to it: anybody may start one with another's run id in its environment.
    """
    alone = ("alone", node, job.id)
    whose = (f"uid {job.uid}",) if job.uid else ()
    first = next(iter(job.ranks), None)
    if first is None:
        return alone
    if is_specific(first.run_id):
        return (first.launcher, first.run_id, *whose)
    if first.master and not is_loopback(first.master):
        return (first.launcher, "", first.master, *whose)
    return alone


def run_id(key: RunKey) -> str:
    """Eight digits for a run, whichever of its nodes answer."""
    return hashlib.sha256(repr(key).encode(errors="replace")).hexdigest()[:8]
