"""Samples all ranks of a running job for some seconds with `py-spy record`, which reads their memory and stops nobody.

py-spy runs twice beside each rank: once it counts every sample, once those in which the thread is on a CPU. One start and
a hundred samples cost about as much CPU time as a single dump (0.02 s).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from mldebug.capture.folded_stacks import CountedStack
from mldebug.capture.trace.line_format import is_source
from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.rank_shares import CodeLine, RankShares, is_fetch, rank_shares, usual_lines
from mldebug.goodput.recorded_waits import condensed, recorded_waits, with_recorded
from mldebug.goodput.straggler import SampledStretch
from mldebug.goodput.waiting_hosts import wait_for_gpus
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.ranks.rank_processes import ProcessTree
from mldebug_agents.system import procfs
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.watch.rank_evidence import EvidenceReader, KernelCounters

RATE = 20  # samples a second
SECONDS = 5
AT_ONCE = 16  # ranks sampled at the same time, two processes each: more of them take turns, and are compared with no other node
MAX_RANKS = 64  # of one job on this node
MOST_UNTIMED = 256  # runs of which is known that they time no collectives


class SampleOrder(NamedTuple):
    """An order to a worker: sample the stacks of all ranks of this job on this node for `seconds`. `call`: the stretch of a run over
    several nodes for which it is; "" for a run of this node alone.
    """

    job: Job
    seconds: int = SECONDS
    call: str = ""


class WaitSampler:
    """Samples the stacks of jobs with py-spy. May be used from any thread; `clock` gives unix time."""

    def __init__(self, tools: CaptureTools, clock: Callable[[], float] = time.time) -> None:
        self._tools, self._clock = tools, clock
        self._host = tools.context.host
        self._evidence = EvidenceReader(self._host)
        self._untimed: set[tuple[str, int]] = set()  # run and attempt

    def take(self, order: SampleOrder) -> SampledStretch:
        """Sample the first `MAX_RANKS` ranks of the job on this node, `AT_ONCE` at a time, and
        return in which frames each spent its time.

        Ranks that cannot be sampled are left out.
        """
        ranks = order.job.ranks[:MAX_RANKS]
        tree, pids = ProcessTree(self._host.briefs()), {rank.pid for rank in order.job.ranks}
        own = {pid: (pid, *tree.descendants(pid, without=pids)) for pid in pids}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            shares = list(pool.map(lambda rank: self._shares(rank, order.seconds, own), ranks))
        found = tuple(one for one in shares if one is not None)
        stretch = SampledStretch(
            at=self._clock(),
            seconds=float(order.seconds),
            ranks=found,
            world_size=order.job.world_size,
        )
        return self._with_records(order, stretch)

    def _with_records(self, order: SampleOrder, stretch: SampledStretch) -> SampledStretch:
        """The stretch with what the ranks' Flight Recorders show of the same seconds: how long each waited, or, of a run over several nodes, what
        the coordinator needs for that. They are asked where the stacks show nothing: all hosts wait for their GPUs. To write one takes a rank
        up to 0.1 s, so ranks whose recorders have once timed nothing are not asked again.
        """
        job = order.job
        here = len(job.ranks) if order.call else job.world_size
        if (job.id, job.attempt) in self._untimed or len(stretch.ranks) != here:
            return stretch
        if not wait_for_gpus(stretch.ranks):
            return stretch
        records = self._tools.timed_calls(job.ranks)
        if order.call:
            timed = {rank: calls for rank, one in records.items() if (calls := condensed(one))}
            added = msgspec.structs.replace(stretch, timed=timed)
        else:
            added = with_recorded(stretch, recorded_waits(records, job.world_size))
        if added == stretch:
            self._untimed = {*list(self._untimed)[-MOST_UNTIMED:], (job.id, job.attempt)}
        return added

    def _shares(
        self, rank: RankIdentity, seconds: int, own: Mapping[int, tuple[int, ...]]
    ) -> RankShares | None:
        """The shares of one rank; None where it is gone, or py-spy cannot read it. `own`: the processes of each rank of its job."""
        ours = {pid for pids in own.values() for pid in pids}
        before = self._evidence.counters(rank.pid)
        with ThreadPoolExecutor(2) as second:
            files = second.submit(self._evidence.file_waits, own[rank.pid], seconds)
            on_cpu = second.submit(self._tools.pyspy.record, rank.pid, seconds, RATE, on_cpu=True)
            stacks = self._tools.pyspy.record(rank.pid, seconds, RATE)
            active = on_cpu.result()
        evidence = self._evidence.evidence(rank.pid, before, files.result(), ours)
        delayed = self._delayed(rank.pid, before)
        brief = self._host.brief(rank.pid)
        if brief is None or brief.start_ticks != rank.start_ticks:
            return None
        fetches = self._fetches(rank, stacks)
        return rank_shares(rank.rank, rank.pid, stacks, active, delayed, evidence, fetches)

    def _fetches(self, rank: RankIdentity, stacks: Sequence[CountedStack]) -> frozenset[CodeLine]:
        """The lines at which a rank that has a GPU open stands most often, and that take a value off it. They are read with the rights
        of the rank's user; what cannot be read is none.
        """
        if not self._host.open_gpus(rank.pid):
            return frozenset()
        rights = self._host.rights.of_process(rank.pid, rank.start_ticks)
        reader, root = self._tools.context.reader, self._host.root_of(rank.pid)
        found = set()
        for one in usual_lines(stacks):
            if not is_source(one.path):
                continue
            answer = reader.read_lines(f"{root}{one.path}", one.line, rights=rights)
            if not isinstance(answer, Unreadable) and is_fetch(answer.at(one.line)):
                found.add(one)
        return frozenset(found)

    def _delayed(self, pid: int, before: KernelCounters) -> float:
        """The share of the time since then in which the main thread was ready to run while no CPU was free; 0 where the kernel does
        not count it.
        """
        delay = procfs.parse_schedstat(self._host.text(pid, f"task/{pid}/schedstat"))
        return min(1.0, max(0.0, (delay - before.delayed) / (time.monotonic() - before.at)))
