"""When the ranks of a running job are sampled, and what becomes of it: an incident of kind `slowdown`.

| the run | sampled |
|---|---|
| has begun | a minute after it was met, or 20 s after its first steps |
| runs steadily | once every 5 minutes: a glance at its system calls (`blocked_calls`), and its stacks where that shows a rank that differs from the others, or nothing, or for the sixth time in a row that all are alike |
| takes a tenth longer for its steps than usual in four looks in a row, or a fifth in two, or one stretch, or the last four together, show a rank that waits least | at once, stretch after stretch (up to 16), until a rank is certain in both halves of them, or none can be slow any more |
| has a slow rank, or waits for a mount that has become slow | every 5 minutes, until two rows in turn show neither |
| takes longer for its steps, and is between two that are far apart | every 2.5 minutes, one stretch: what its ranks wait for, and nobody is compared |
| is quiet otherwise, stalled, or not judged | never |
| has ranks on other nodes | when its coordinator calls for it (`shared_slowness`) |

Belongs to the main loop's thread; the sampling is a worker's.
"""

import math
import time
from collections.abc import Callable, Mapping

import msgspec

from mldebug.goodput.comparison.blocked_calls import Glance, GlanceMemory
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.slow_storage import storage_words
from mldebug.goodput.speed_trend import SlowerSteps, SpeedTrend
from mldebug.goodput.straggler import SampledStretch, Slowness, find_slow_ranks
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.shared_slowness import (
    CALM,
    SharedSlowness,
    SlowdownIncidents,
    can_be_sampled,
    is_between_steps,
    why_over,
)
from mldebug_agents.watch.wait_sampler import SampleOrder

WARM = 60.0  # seconds after a run was met, in which its speed says nothing
NEWS = 300.0  # seconds for which slower steps are looked into beyond the stacks
WARM_STEPS = 20.0  # seconds after its first steps, for one that reports them


class _SlownessMemory:
    """What is known of one attempt of a run."""

    def __init__(self, attempt: int, due: float) -> None:
        self.attempt = attempt
        self.due = due
        self.trend = SpeedTrend()
        self.looked_at = 0.0  # the look whose step time was taken
        self.rows = SampleRows()
        self.glances = GlanceMemory()
        self.wants_stacks = False  # the last glance was not enough
        self.is_pending = False
        self.calm = 0  # rows in turn without a slow rank
        self.woken_at = -math.inf

    def slower_since(self, now: float, *, known: bool = False) -> SlowerSteps | None:
        """Since when the steps are slower, where that is news or the run is `known` to be slow: a run may stay as it is then for days."""
        slower = self.trend.slower
        return slower if slower is not None and (known or now - slower.since <= NEWS) else None


class SlownessWatch:
    """Decides when the ranks of a run are sampled, and opens and closes its slowdown incident.

    `put` gives an order to the worker, and returns False where its queue is full. `clock`:
    monotonic seconds. `shared`: the part for runs over several nodes.
    """

    def __init__(
        self,
        put: Callable[[SampleOrder], bool],
        incidents: SlowdownIncidents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put, self._incidents, self._clock = put, incidents, clock
        self.shared = SharedSlowness(put, incidents, clock, self._times)
        self._runs: dict[str, _SlownessMemory] = {}

    def tick(
        self,
        runs: Mapping[str, Run],
        pace: float,
        mounts: Callable[[Slowness], Slowness] = lambda found: found,
    ) -> None:
        """Order samples for each run for which they are due.

        `pace`: seconds between two orders for a run that goes on steadily. `mounts`: adds to a finding what is slow now on the mounts
        for which its ranks wait.
        """
        now = self._clock()
        self.shared.tick(runs, pace)
        self._runs = {name: one for name, one in self._runs.items() if name in runs}
        for name, run in runs.items():
            memory = self._of(name, run, now + min(WARM, pace))
            _follow(memory, run, now)
            if not is_comparable(run):
                memory.rows.drop()
                memory.glances.forget()
                if memory.trend.slower is None or not _is_here(run) or not is_between_steps(run):
                    continue
            self._join(run, memory, mounts)
            if memory.trend.is_slower and now - memory.woken_at >= pace / 2:
                memory.due, memory.woken_at = now, now
            if not memory.is_pending and now >= memory.due:
                memory.is_pending = self._put(self._order(run, memory, now))
                memory.due = now + pace

    def on_result(self, result: Result, runs: Mapping[str, Run]) -> None:
        """Handle the samples of one run.

        More are ordered until they suffice to compare the ranks (`SampleRows`). If the worker failed, the row is dropped.
        """
        if result.order.call:
            self.shared.on_result(result)
            return
        run, memory = runs.get(result.order.job.id), self._runs.get(result.order.job.id)
        if memory is None or run is None or memory.attempt != result.order.job.attempt:
            return
        memory.is_pending = False
        if result.order.glance:
            self._glanced(run, memory, result.value)
            return
        memory.wants_stacks = False
        if not isinstance(result.value, SampledStretch) or not is_comparable(run):
            memory.rows.drop()
            self._take_alone(run, result.value)
            return
        since = memory.slower_since(self._clock(), known=is_slow(run))
        slower = since and since._replace(since=result.value.at - (self._clock() - since.since))
        alike = memory.glances.shows_alike(find_slow_ranks((result.value,)).shares)
        found = memory.rows.add(result.value, known=is_slow(run), slower=slower, alike=alike)
        if found is None:
            memory.due = self._clock()
            return
        memory.glances.sampled()
        self._take(run, memory, found)

    def _order(self, run: Run, memory: _SlownessMemory, now: float) -> SampleOrder:
        """A glance at a run that goes on steadily, as far as is known; else its stacks."""
        steadily = is_comparable(run) and not is_slow(run) and memory.slower_since(now) is None
        glance = steadily and not memory.rows.is_begun and not memory.wants_stacks
        return SampleOrder(run.job, glance=glance)

    def _glanced(self, run: Run, memory: _SlownessMemory, glance: object) -> None:
        """Have the stacks sampled at once where the glance does not show that all ranks are alike, or has failed."""
        shares = run.slowness.shares if run.slowness is not None else ()
        is_enough = isinstance(glance, Glance) and not memory.glances.wants_stacks(glance, shares)
        memory.wants_stacks = not is_enough
        if not is_enough:
            memory.due = self._clock()

    def is_slower(self, run: Run) -> bool:
        """Whether the steps of the run take a tenth longer than they used to."""
        memory = self._runs.get(run.job.id)
        return memory is not None and memory.trend.is_slower

    @property
    def is_comparing(self) -> bool:
        """Whether ranks of a run are sampled now because its steps have become slower."""
        now, some = self._clock(), self._runs.values()
        return any(one.is_pending and one.slower_since(now) is not None for one in some)

    def _times(self, run: Run) -> float:
        """How many times as long a step of the run takes as it used to; 0 where no longer."""
        memory = self._runs.get(run.job.id)
        slower = memory.trend.slower if memory else None
        return slower.times if slower else 0.0

    def _join(self, run: Run, memory: _SlownessMemory, mounts: Callable[[Slowness], Slowness]) -> None:  # fmt: skip
        """Take what is known of slow mounts by now: that needs three readings, and the ranks were sampled before."""
        if run.slowness is None or (memory.trend.slower is None and not is_slow(run)):
            return
        found = _with_pace(mounts(run.slowness), memory.trend)
        if found == run.slowness:
            return
        run.set_slowness(found)
        if storage_words(found) or (found.ranks and is_slow(run)):
            memory.calm = 0
            self._incidents.slow(run, found)

    def _take(self, run: Run, memory: _SlownessMemory, found: Slowness) -> None:
        """Keep what a row has shown, and what the row before it, where that had a slow rank, has shown as well."""
        found = _with_pace(found, memory.trend)
        run.set_slowness(found)
        is_slowed = bool(found.ranks or storage_words(found))
        memory.calm = 0 if is_slowed else memory.calm + 1
        if is_slowed:
            self._incidents.slow(run, found)
        elif memory.calm >= CALM:
            self._incidents.no_longer_slow(run, "recovered", why_over(run))

    def _take_alone(self, run: Run, stretch: object) -> None:
        """Keep what the ranks of a run wait for between two steps that are far apart; a rank that is known to be slow stays named."""
        known = run.slowness is not None and bool(run.slowness.ranks)
        if isinstance(stretch, SampledStretch) and is_between_steps(run) and not known:
            why = "its steps are far apart, and one stretch between two of them compares nobody"
            found = msgspec.structs.replace(find_slow_ranks((stretch,)), ranks=(), why_nobody=why)
            run.set_slowness(found)

    def _of(self, name: str, run: Run, due: float) -> _SlownessMemory:
        known = self._runs.get(name)
        if known is None or known.attempt != run.job.attempt:
            known = self._runs[name] = _SlownessMemory(run.job.attempt, due)
        return known


def _with_pace(found: Slowness, trend: SpeedTrend) -> Slowness:
    """The finding with how many times as long a step takes as it used to, where no rank explains that."""
    if found.ranks:
        return found
    return msgspec.structs.replace(found, slower=trend.slower.times if trend.slower else 0.0)


def is_slow(run: Run) -> bool:
    """Whether the run has a slowdown incident."""
    return run.incident is not None and run.incident.kind == "slowdown"


def is_comparable(run: Run) -> bool:
    """Whether this node can compare the ranks of the run: there are two or more, all of them on this node, it makes
    progress, alerts may be raised for it (see `unjudged`), and it has no open incident but a slowdown.
    """
    return _is_here(run) and can_be_sampled(run)


def _is_here(run: Run) -> bool:
    return 2 <= len(run.job.ranks) == run.job.world_size


def _follow(memory: _SlownessMemory, run: Run, now: float) -> None:
    """Take the newest step of the run. After the first steps it is sampled soon."""
    look = run.last_look
    if look is None or look.look.at == memory.looked_at:
        return
    memory.looked_at = look.look.at
    began = memory.trend.steps
    memory.trend.add(look.step, look.look.at)
    if memory.trend.steps and not began:
        memory.due = min(memory.due, now + WARM_STEPS)
