"""Asks NCCL RAS of the jobs on this node, each question in a child process with a deadline.

During a capture the question runs in a background thread (`RasBackgroundQuery`), so that stacks are taken meanwhile.
"""

import math
import os
import threading
import time
from collections.abc import Callable

import msgspec

from mldebug.core.model import Gap, Job, NcclRas, RankIdentity
from mldebug_agents.capture.nccl_ras.child import NAME, RasOrder, RasReply
from mldebug_agents.jobs.ranks.ras_address import OFF
from mldebug_agents.system.child.link import ask_once
from mldebug_agents.system.failure_counts import RAS, FailureCounts
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner

DEADLINE = 2.5  # seconds for everything in a capture, whose report waits for it
GLANCE = 1.5  # in the watch
SLACK = 0.5  # seconds more until its child is given up
MAX_NODES = 16  # of a job of which each node asks for itself
WHAT = "NCCL RAS"
_NETWORK = "net:["
ELSEWHERE = Gap(what=WHAT, reason="of a job this large the node of rank 0 asks alone")


class RasClient:
    """Asks NCCL RAS about jobs, with a new child process for each question. Safe from any thread."""

    def __init__(
        self, spawner: Spawner, host: Host, unanswered: FailureCounts | None = None
    ) -> None:
        self._spawner = spawner
        self._host = host
        self.unanswered = unanswered or FailureCounts()

    def ask(self, job: Job, *, whole: bool = True, seconds: float = DEADLINE) -> RasReply:
        """Ask NCCL RAS (NCCL's status service) about this job, for about `seconds` at most. Returns its answer, or in
        `error` the reason why there is no answer; never raises.

        `whole`: the answer holds rows for the ranks that are worth storing (those of this node, those furthest behind,
        those that do not answer); otherwise only launch counts, and which process is which rank.
        """
        if not job.ranks:
            return RasReply(error="no rank of the job lives here")
        if switched_off(job):
            why = "the job has switched it off (NCCL_RAS_ENABLE=0)"
            return RasReply(error=why, way_out="start the job without it")
        if seconds <= 0:
            return RasReply(error="no time was left to ask")
        reply = self._carry_out(self._order(job, whole, seconds))
        if reply.error and not reply.silent:
            self.unanswered.count(RAS)
        return reply

    def _order(self, job: Job, whole: bool, seconds: float) -> RasOrder:
        first = job.ranks[0]
        return RasOrder(
            address=first.nccl_ras,
            pids=tuple(rank.namespace_pid or rank.pid for rank in job.ranks),
            host_pids=tuple(rank.pid for rank in job.ranks),
            uid=first.uid,
            seconds=seconds,
            pid=first.pid,
            network=self._foreign_network(first),
            whole=whole,
        )

    def _foreign_network(self, rank: RankIdentity) -> int:
        """Its namespace; 0 where it is ours, or nobody may see which it is."""
        theirs = self._host.link(rank.pid, "ns/net")
        ours = self._host.link(os.getpid(), "ns/net")
        number = theirs.removeprefix(_NETWORK).rstrip("]")
        return int(number) if theirs != ours and number.isdecimal() else 0

    def _carry_out(self, order: RasOrder) -> RasReply:
        try:
            worker = self._spawner.fork_worker(NAME)
        except OSError as error:
            return RasReply(error=f"not asked: {error.strerror or error}")
        try:
            return ask_once(worker, order, msgspec.msgpack.Decoder(RasReply), order.seconds + SLACK)
        except TimeoutError:
            return RasReply(error=f"no answer in {order.seconds:g} s")
        except OSError as error:
            return RasReply(error=f"the child that asks has ended: {error}")


def switched_off(job: Job) -> bool:
    """Whether all ranks of the job on this node run with NCCL_RAS_ENABLE=0."""
    return all(rank.nccl_ras == OFF for rank in job.ranks)


def nodes_of(job: Job) -> int:
    """How many nodes the job has, estimated from the world size and the number of its ranks on this node."""
    return math.ceil(job.world_size / max(1, len(job.ranks) + len(job.lost)))


def is_ours_to_ask(job: Job) -> bool:
    """Whether this node asks RAS about the job.

    One answer covers all processes, so of a job of more than `MAX_NODES` nodes only the node of
    rank 0 asks.
    """
    return nodes_of(job) <= MAX_NODES or any(rank.rank == 0 for rank in job.ranks)


def gap(reply: RasReply) -> Gap | None:
    """Why RAS gave no answer, as an entry for the capture's `gaps`; None where it gave one."""
    return None if reply.answer else Gap(what=WHAT, reason=reply.error, way_out=reply.way_out)


Ask = Callable[[Job, float], RasReply]


class RasBackgroundQuery:
    """A question to NCCL RAS that runs in a background thread from the moment this is made.

    Nothing is asked where `ask` is None, or where it is another node's task to ask.
    """

    def __init__(self, ask: Ask | None, job: Job, seconds: float) -> None:
        self._reply: RasReply | None = None
        self._thread: threading.Thread | None = None
        self._until = time.monotonic() + seconds + SLACK
        self._elsewhere = ask is not None and not is_ours_to_ask(job)
        if ask is not None and not self._elsewhere:
            work = threading.Thread(target=self._ask, args=(ask, job, seconds), daemon=True)
            self._thread = work
            work.start()

    def take(self, left: float, uses_gpus: bool) -> tuple[NcclRas | None, tuple[Gap, ...]]:
        """Wait at most `left` seconds; return the answer and the gap that says why there is none.

        A job without GPUs gets no gap where nothing listens at RAS's address.
        """
        if self._thread is None:
            return None, (ELSEWHERE,) if self._elsewhere and uses_gpus else ()
        self._thread.join(max(0.0, min(left, self._until - time.monotonic())))
        reply = self._reply or RasReply(error="no answer in time")
        missing = gap(reply)
        show = missing is not None and (uses_gpus or not reply.silent)
        return reply.answer, (missing,) if missing is not None and show else ()

    def _ask(self, ask: Ask, job: Job, seconds: float) -> None:
        self._reply = ask(job, seconds)
