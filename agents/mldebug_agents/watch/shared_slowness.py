"""Finds slow ranks in runs over several nodes: each agent samples the stacks of its own ranks when the coordinator orders it, and the
coordinator compares the samples of all nodes.

Only the agent on the node of the first slow rank opens an incident, because it can look at the rank's process. Everything here
runs in the main loop's thread; a worker thread takes the samples.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from mldebug.goodput.sentences import held_by_mount
from mldebug.goodput.shared_samples import NodeSamples, SampleCall, SharedFinding, travelling
from mldebug.goodput.slow_storage import storage_words
from mldebug.goodput.straggler import LONG, SampledStretch, Slowness
from mldebug.stall.signals import Stage
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.wait_sampler import SampleOrder

CALM = 2  # rows without a slow rank, after which a slowdown is over
MAX_WAIT = 120.0  # seconds before its beginning that a stretch is called
MAX_CALLS = LONG + 4  # stretches of one run in one interval: a long row


class SlowdownIncidents(Protocol):
    """The part of `IncidentManager` that opens and closes slowdowns."""

    def slow(self, run: Run, found: Slowness) -> None:
        """Open a slowdown incident of the run, or write its report again where something has changed."""

    def no_longer_slow(self, run: Run, state: Literal["recovered"], why: str) -> None:
        """Close the run's slowdown incident, where it has one. `why`: a sentence for its timeline."""


class _Taken(NamedTuple):
    """A stretch of the ranks here. `at`: monotonic seconds of its end."""

    call: str
    at: float
    stretch: SampledStretch


class _SharedMemory:
    """What is known of one attempt of a run."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.calls: deque[float] = deque(maxlen=MAX_CALLS)  # when stretches were called
        self.call = ""  # the last one
        self.due: float | None = None
        self.taken: _Taken | None = None
        self.row = ""  # of the last finding


class SharedSlowness:
    """Handles the coordinator's orders to sample ranks, and what it has found, for runs over several nodes.

    `put` hands an order to the worker that takes samples, and returns False where the worker's queue is full. `clock`:
    monotonic seconds. `slower`: how many times as long a step of a run takes as it used to; 0 where no longer.
    """

    def __init__(
        self,
        put: Callable[[SampleOrder], bool],
        incidents: SlowdownIncidents,
        clock: Callable[[], float] = time.monotonic,
        slower: Callable[[Run], float] = lambda _: 0.0,
    ) -> None:
        self._put, self._incidents, self._clock, self._slower = put, incidents, clock, slower
        self._pace = 0.0
        self._runs: dict[str, _SharedMemory] = {}

    def tick(self, runs: Mapping[str, Run], pace: float) -> None:
        """Hand the sampling orders that are due to the worker. `pace`: seconds between two comparisons of a run's ranks."""
        now, self._pace = self._clock(), pace
        self._runs = {name: one for name, one in self._runs.items() if name in runs}
        for name, memory in self._runs.items():
            if memory.due is not None and now >= memory.due:
                memory.due = None
                if can_be_sampled(runs[name]):
                    self._put(SampleOrder(runs[name].job, call=memory.call))

    def call(self, run: Run, call: SampleCall) -> None:
        """Handle the coordinator's order to sample the ranks of a run: note when it begins. It is ignored where it is
        repeated, begins too late, or comes too soon after many others.
        """
        memory, now = self._of(run), self._clock()
        crowded = len(memory.calls) == MAX_CALLS and now - memory.calls[0] < self._pace
        if call.call == memory.call or not 0.0 <= call.begins_in <= MAX_WAIT or crowded:
            return
        memory.call, memory.due = call.call, now + call.begins_in
        memory.calls.append(now)

    def on_result(self, result: Result) -> None:
        """Keep the samples that the worker has taken for one order of the coordinator, until the next order of the run."""
        order: SampleOrder = result.order
        memory = self._runs.get(order.job.id)
        if memory is None or memory.call != order.call:
            return
        if isinstance(result.value, SampledStretch):
            memory.taken = _Taken(order.call, self._clock(), result.value)

    def samples(self, run: Run) -> NodeSamples | None:
        """Return the last samples of this node's ranks that the coordinator has ordered, in the form sent to it; None where
        there are none.
        """
        taken = self._of(run).taken
        if taken is None:
            return None
        return NodeSamples(
            call=taken.call,
            age=max(0.0, self._clock() - taken.at),
            seconds=taken.stretch.seconds,
            ranks=tuple(map(travelling, taken.stretch.ranks)),
            timed=taken.stretch.timed,
        )

    def row(self, run: Run) -> str:
        """The name of the coordinator's newest finding about the run that this node has got; "" for none."""
        return self._of(run).row

    def found(self, run: Run, finding: SharedFinding) -> None:
        """Handle the coordinator's finding from the samples of all nodes: keep it with the run, and open the incident where
        the first slow rank is on this node, or else the first that waits for a mount that has become slow. An open one is closed where
        that rank is elsewhere, or nothing is slow any more.
        """
        memory = self._of(run)
        if finding.row == memory.row:
            return
        memory.row = finding.row
        found = msgspec.structs.replace(finding.found, since=time.time() - finding.age)
        if not found.ranks:
            found = msgspec.structs.replace(found, slower=self._slower(run))
        run.set_slowness(found)
        is_whole = len(found.shares) == run.job.world_size  # of a large run a few ranks travel
        held = held_by_mount(found.shares) if is_whole and storage_words(found) else ()
        slow = [one.rank for one in found.ranks or held]
        if slow and slow[0] in {rank.rank for rank in run.job.ranks}:
            self._incidents.slow(run, found)
        elif slow:
            self._incidents.no_longer_slow(run, "recovered", "a rank on another node is slow now")
        elif finding.calm >= CALM:
            self._incidents.no_longer_slow(run, "recovered", why_over(run))

    def _of(self, run: Run) -> _SharedMemory:
        known = self._runs.get(run.job.id)
        if known is None or known.attempt != run.job.attempt:
            known = self._runs[run.job.id] = _SharedMemory(run.job.attempt)
        return known


def why_over(run: Run) -> str:
    """Why the run's slowdown is over, for its timeline."""
    known = run.incident.slowness if run.incident else None
    return "its ranks wait alike again" if known is None or known.ranks else "no slow mount holds it up any more"  # fmt: skip


def can_be_sampled(run: Run) -> bool:
    """Whether the ranks of the run may be sampled: it has ranks on this node, it makes progress, alerts may be raised for
    it (see `unjudged`), and it has no open incident but a slowdown.
    """
    return _has_stage(run, Stage.WATCHING)


def is_between_steps(run: Run) -> bool:
    """Whether the run might be sampled but for a step that takes longer than usual, and may yet come: what its ranks wait for meanwhile
    shows, and nothing can be said of who is slow.
    """
    return _has_stage(run, Stage.QUIET, Stage.SUSPECT)


def _has_stage(run: Run, *stages: Stage) -> bool:
    is_in = run.decision is not None and run.decision.stage in stages
    stalled = run.incident is not None and run.incident.kind != "slowdown"
    return is_in and bool(run.job.ranks) and not run.unjudged and not stalled
