"""Samples all ranks of a running job for some seconds with `py-spy record`, which reads their memory and stops nobody.

py-spy runs once or twice beside each rank: once it counts every sample, and once those in which the thread is on a CPU, unless the kernel says
that the ranks nearly always are, or nearly never (`NEVER`, `ALWAYS`). One start and a hundred samples cost 0.035 s of CPU time. Where no rank is
suspected a `Glance` is taken instead, which costs all ranks together less than that.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from mldebug.capture.folded_stacks import CountedStack
from mldebug.capture.trace.line_format import is_source
from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.comparison.blocked_calls import Glance
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.rank_shares import (
    CodeLine,
    in_proportion,
    is_by_main_thread,
    is_fetch,
    rank_shares,
    usual_lines,
)
from mldebug.goodput.recorded_waits import condensed, recorded_waits, with_recorded
from mldebug.goodput.straggler import SampledStretch
from mldebug.goodput.waiting_hosts import wait_for_gpus
from mldebug_agents.capture.stacks.call_reader import CallReader
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
NEVER, ALWAYS = (
    0.1,
    0.95,
)  # of the time a thread is on a CPU, or waits for one, below and above which nobody counts in which of its stacks
UNKNOWN = 0.5  # as often as it is assumed of one of which nothing is known
MOST_PROCESSES = 1024  # of which that is remembered


class SampleOrder(NamedTuple):
    """An order to a worker: sample the stacks of all ranks of this job on this node for `seconds`. `call`: the stretch of a run over
    several nodes for which it is; "" for a run of this node alone. `glance`: look at their system calls only.
    """

    job: Job
    seconds: int = SECONDS
    call: str = ""
    glance: bool = False


class WaitSampler:
    """Samples the stacks of jobs with py-spy. May be used from any thread; `clock` gives unix time."""

    def __init__(self, tools: CaptureTools, clock: Callable[[], float] = time.time) -> None:
        self._tools, self._clock = tools, clock
        self._host = tools.context.host
        self._evidence = EvidenceReader(self._host)
        self._calls = CallReader(self._host)
        self._untimed: set[tuple[str, int]] = set()  # run and attempt
        self._on_cpu: dict[tuple[int, int], float] = {}  # by pid and start, in the last stretch

    def carry_out(self, order: SampleOrder) -> SampledStretch | Glance:
        """Take what is ordered: a glance, or a stretch."""
        if order.glance:
            return self._calls.glance(order.job, order.seconds)
        return self.take(order)

    def take(self, order: SampleOrder) -> SampledStretch:
        """Sample the first `MAX_RANKS` ranks of the job on this node, `AT_ONCE` at a time, and
        return in which frames each spent its time.

        Ranks that cannot be sampled are left out.
        """
        ranks = order.job.ranks[:MAX_RANKS]
        tree, pids = ProcessTree(self._host.briefs()), {rank.pid for rank in order.job.ranks}
        own = {pid: (pid, *tree.descendants(pid, without=pids)) for pid in pids}
        twice = any(NEVER < self._on_cpu.get(_key(rank), UNKNOWN) < ALWAYS for rank in ranks)
        self._on_cpu = dict([*self._on_cpu.items()][-MOST_PROCESSES:])
        with ThreadPoolExecutor(AT_ONCE) as pool:
            sample = lambda rank: self._shares(rank, order.seconds, own, twice)
            shares = list(pool.map(sample, ranks))
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
        self, rank: RankIdentity, seconds: int, own: Mapping[int, tuple[int, ...]], twice: bool
    ) -> RankShares | None:
        """The shares of one rank; None where it is gone, or py-spy cannot read it. `own`: the processes of each rank of its job; `twice`: count the
        samples on a CPU as well.
        """
        ours = {pid for pids in own.values() for pid in pids}
        before, began, wanted = (
            self._evidence.counters(rank.pid),
            time.monotonic(),
            self._wanted(rank.pid),
        )
        record = self._tools.pyspy.record
        with ThreadPoolExecutor(2) as second:
            files = second.submit(self._evidence.file_waits, own[rank.pid], seconds)
            on_cpu = second.submit(record, rank.pid, seconds, RATE, on_cpu=True) if twice else None
            stacks = record(rank.pid, seconds, RATE)
            active = on_cpu.result() if on_cpu else ()
        share = (self._wanted(rank.pid) - wanted) / (time.monotonic() - began)
        active = active if on_cpu else in_proportion(stacks, min(1.0, max(0.0, share)))
        self._on_cpu[_key(rank)] = share if is_by_main_thread(stacks, rank.pid) else UNKNOWN
        evidence = self._evidence.evidence(rank.pid, before, files.result(), ours)
        delayed = self._delayed(rank.pid, before)
        brief = self._host.brief(rank.pid)
        if brief is None or brief.start_ticks != rank.start_ticks:
            return None
        fetches = self._fetches(rank, stacks)
        return rank_shares(rank.rank, rank.pid, stacks, active, delayed, evidence, fetches)

    def _wanted(self, pid: int) -> float:
        """Seconds in which its main thread has been on a CPU, or waited for one."""
        return procfs.parse_wants_cpu(self._host.text(pid, f"task/{pid}/schedstat"))

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


def _key(rank: RankIdentity) -> tuple[int, int]:
    return rank.pid, rank.start_ticks
