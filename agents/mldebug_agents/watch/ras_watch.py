"""When NCCL RAS is asked during the watch, and what becomes of the answers: a sign of progress beside the others.

| the run | asked |
|---|---|
| tells steps by its log or its hook | while it is quiet, every 2 s at most |
| tells nothing of that kind | every 15 s, oftener where `stall.timeout` is below 45 s, and while it is quiet as above |
| has more than 16 nodes | as above, so seldom that the whole job is asked 8 times a second at most; while it is not quiet by the node of rank 0 alone |
| has switched RAS off, or uses no GPU | never |

Each question makes every process of the job answer, so a run that is known to move is not asked. Belongs to the main
loop's thread; the asking is a worker's.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.model import Job
from mldebug.stall.collective_counts import CollectiveProgress
from mldebug.stall.signals import STEPS, Stage
from mldebug_agents.capture.nccl_ras.child import RasReply
from mldebug_agents.capture.nccl_ras.client import is_ours_to_ask, nodes_of, switched_off
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

HEALTHY = 15.0  # seconds between two questions to a run of which nothing else tells that it moves
QUIET = 2.0
AT_MOST = 8.0  # questions a second to one job, by all its nodes together
REFUSED = 60.0  # seconds until who did not answer is asked again
CALM = (Stage.WATCHING, Stage.RECOVERED, Stage.ENDED)


class RunToAsk(NamedTuple):
    """An order to the worker: ask NCCL RAS (NCCL's own status service) about this job."""

    job: Job


class _RasMemory:
    """What is known of one attempt of a run."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.progress = CollectiveProgress()
        self.due = 0.0
        self.is_pending = False


class RasWatch:
    """Decides when NCCL RAS is asked about which run.

    `put` gives an order to the worker, and returns False where its queue is full. `clock`:
    monotonic seconds.
    """

    def __init__(
        self, put: Callable[[RunToAsk], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._put = put
        self._clock = clock
        self._runs: dict[str, _RasMemory] = {}

    def tick(self, runs: Mapping[str, Run]) -> None:
        """Have the worker ask NCCL RAS about each run for which the table at the top of this file wants it by now."""
        now = self._clock()
        self._runs = {name: one for name, one in self._runs.items() if name in runs}
        for name, run in runs.items():
            memory = self._of(name, run)
            pace = _pace(run)
            if pace is None:
                memory.progress.forget()
            elif not memory.is_pending and now >= memory.due:
                memory.is_pending = self._put(RunToAsk(run.job))
                memory.due = now + pace

    def on_result(self, result: Result) -> None:
        """Handle the worker's result.

        After an answer its progress is kept; without one RAS is not asked about this run for 60 s.
        """
        memory = self._runs.get(result.order.job.id)
        if memory is None or memory.attempt != result.order.job.attempt:
            return
        memory.is_pending = False
        reply = result.value if isinstance(result.value, RasReply) else RasReply()
        if reply.answer is None:
            memory.due = self._clock() + REFUSED
        else:
            memory.progress.take(reply.answer, self._clock())

    def complete(self, one: JobLook) -> JobLook:
        """Return the reading of a job (`one`) with the progress added that NCCL RAS has shown; unchanged where it has shown
        none.
        """
        memory = self._runs.get(one.job.id)
        found = memory.progress.signals(one.look) if memory else ()
        if not found or memory is None or memory.attempt != one.job.attempt:
            return one
        look = msgspec.structs.replace(one.look, progress=(*one.look.progress, *found))
        return msgspec.structs.replace(one, look=look)

    def _of(self, name: str, run: Run) -> _RasMemory:
        known = self._runs.get(name)
        if known is None or known.attempt != run.job.attempt:
            known = self._runs[name] = _RasMemory(run.job.attempt)
        return known


def _pace(run: Run) -> float | None:
    """Seconds between two questions; None: it is not asked now."""
    if run.decision is None or run.last_look is None or run.last_look.look.backend != "nccl":
        return None
    if run.unjudged or switched_off(run.job):
        return None
    if run.decision.stage not in CALM:
        return max(QUIET, nodes_of(run.job) / AT_MOST)
    has_steps = any(one.kind in STEPS for one in run.last_look.look.progress)
    if has_steps or not is_ours_to_ask(run.job):
        return None
    timeout = run.decision.timeout or math.inf
    return max(min(HEALTHY, timeout / 3), nodes_of(run.job) / AT_MOST)
