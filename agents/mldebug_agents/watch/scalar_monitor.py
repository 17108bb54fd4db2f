"""Keeps the history of each run's training figures, has the rules find events in it, and stores both over restarts of the agent.

Belongs to the main loop's thread. Bounded: `MOST_LIVING` runs that live and `MOST_OVER` that are over, those of each user in turns, and
`MOST_VALUES` values of all together.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from math import inf, isfinite

import msgspec

from mldebug.core.model import Gap, Job, shared_fields
from mldebug.goodput.scalars.history import RunHistory
from mldebug.goodput.scalars.model import LOSS, STEP_SECONDS, TrainingPoint
from mldebug.goodput.scalars.stored_training import (
    EndedTraining,
    StoredTraining,
    put_down,
    read_stored,
)
from mldebug.jobs.logs.records import LogRecord
from mldebug.jobs.logs.scalars import name_of
from mldebug.jobs.owners import in_turns
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_agents.state.key_value_store import KeyValueStore, hashed_name
from mldebug_agents.state.settled_clock import SettledClock
from mldebug_agents.watch.goodput_monitor import Catching
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.run_activity import activity_of
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

MEMO, ASIDE = "scalars:", "scalars-unreadable:"
STORE_EVERY = 60.0  # seconds; what came since is lost with an agent that is killed
GONE = 60.0  # seconds after which a run that is not found any more is over; by the steady clock: the other may be set
MOST_LIVING, MOST_OVER = 128, 64  # runs
MOST_VALUES = 150_000  # 5 MB
MOST_ASIDE = 100_000  # bytes of the one unreadable history that is kept
SHOWN_EVENTS = 8
LastRow = tuple[int | None, str]  # step, and loss as text: NaN is NaN


class ScalarMonitor:
    """Keeps for each run of this node the history of its figures (loss, gradient norm, pace and so on), and finds events in it.

    `wall` returns unix time, `steady` monotonic seconds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._wall, self._steady = store, wall, steady
        self._clock = SettledClock(wall, steady)
        self._histories: dict[str, StoredTraining] = {}  # of runs that live
        self._ended: dict[str, EndedTraining] = {}  # of runs that are over
        self._looked: dict[str, float] = {}  # run -> the look that was taken
        self._found: dict[str, float] = {}  # run -> when it was last there: steady seconds
        self._last: dict[str, LastRow] = {}  # run -> step and loss of its last row
        self._changed: set[str] = set()  # runs that are not stored as they are
        self._stale: set[str] = set()  # runs whose shown history is older than they are
        self._left_out: set[str] = (
            set()
        )  # runs that live and have none, as too many others have one
        self._states: dict[str, RunState] = {}  # of the last snapshot
        self._shown: dict[str, RunHistory] = {}
        self._gaps: tuple[Gap, ...] = ()
        self._restored = False
        self._store_due = self._tidy_due = 0.0

    def tick(
        self,
        runs: Mapping[str, Run],
        catching: Catching = nullcontext,
        *,
        enabled: bool,
        age: float,
    ) -> None:
        """Take the looks that are new since the last call. `catching`: a context for work on one job.

        `enabled`: False forgets all histories. `age`: seconds for which one is kept after its run's end.
        """
        self._restore()
        if not self._restored:
            return
        self._left_out &= runs.keys() if enabled else set()
        if not enabled:
            self._forget((*self._histories, *self._ended))
            return
        now = self._wall()
        for id, run in runs.items():
            look = run.last_look
            if look is not None and run.job.ranks and look.look.at != self._looked.get(id):
                self._looked[id] = look.look.at
                with catching(run.job):
                    self._take(run, look, now)
        steady = self._steady()
        self._found |= dict.fromkeys(runs.keys() & self._histories.keys(), steady)
        self._left_out &= runs.keys()
        if steady >= self._tidy_due:
            self._tidy_due = steady + 5.0
            self._tidy(now, steady, age)
        if steady >= self._store_due:
            self._store_due = steady + STORE_EVERY
            self._keep()

    def end(self) -> None:
        """Have the histories stored for the last time: this agent ends by itself."""
        if self._restored:
            self._keep()

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the histories, the newest events of each run, and what was stored and cannot be used."""
        self._states = {run.id: run for run in snapshot.runs}
        for id in self._stale & self._histories.keys():
            self._shown[id] = _shown(self._histories[id])
        self._stale.clear()
        return msgspec.structs.replace(
            snapshot,
            runs=tuple(map(self._with_events, snapshot.runs)),
            histories=tuple(self._shown[id] for id in (*self._ended, *self._histories)),
            gaps=(*snapshot.gaps, *self._gaps, *self._without_history()),
        )

    # --- inside ------------------------------------------------------------------------------------

    def _with_events(self, run: RunState) -> RunState:
        history = self._shown.get(run.id)
        if history is None or not history.events:
            return run
        return msgspec.structs.replace(run, training_events=history.events[-SHOWN_EVENTS:])

    def _take(self, run: Run, look: JobLook, now: float) -> None:
        last, before = (look.step, repr(look.loss)), self._last.get(run.job.id)
        is_new = last != before
        points, values = tuple(points_of(run, look, now, before)), _values(look)
        state = self._states.get(run.job.id)
        activity = activity_of(state) if state is not None else {}
        known = self._histories.get(run.job.id) or self._wake(run.job.id)
        if known is None and (run.job.id in self._left_out or not (points or values or activity)):
            return
        history = known or self._begin(run.job, now)
        if history.look(now):
            self._changed.add(run.job.id)
            self._stale.add(run.job.id)
        news = history.rules.add(points)
        if values and is_new:
            self._last[run.job.id] = last
            history.table.add(now, look.step, values)
            news = True
        if activity and history.activity.add(now, look.step, activity):
            news = True
        if news:
            self._changed.add(run.job.id)
            self._stale.add(run.job.id)

    def _begin(self, job: Job, now: float) -> StoredTraining:
        """A run that was not there before; where it is the next one of a job, its rules know where that stood."""
        script = next((rank.script for rank in job.ranks), "")
        history = StoredTraining(
            run=job.id, name=job.name, user=job.user, uid=job.uid, script=script, started_at=now, looked_at=now
        )  # fmt: skip
        before = [one for one in self._ended.values() if one.job == history.job]
        if before:
            newest = max(before, key=lambda one: one.looked_at)
            history.rules.follow(newest.woken().rules)
        self._histories[job.id] = history
        self._stale.add(job.id)
        return history

    def _tidy(self, now: float, steady: float, age: float) -> None:
        found = {id: self._found.setdefault(id, steady) for id in self._histories}
        for id in (id for id, at in found.items() if steady - at > GONE):
            history = self._histories[id]
            history.end()
            self._put_down(history)
            self._looked.pop(id, None)
            self._found.pop(id, None)
            self._last.pop(id, None)
        self._make_room(now, age)
        self._shrink()

    def _put_down(self, history: StoredTraining) -> None:
        """Hold the history of a run that is over as it is stored, and store it."""
        id = history.run
        self._shown[id], self._ended[id] = _shown(history), put_down(history)
        self._store.remember(hashed_name(MEMO, id), self._ended[id].data)
        self._histories.pop(id, None)
        self._changed.discard(id)
        self._stale.discard(id)

    def _wake(self, id: str) -> StoredTraining | None:
        """The history of a run that was over, with its rules, among those that live; None where there is none."""
        ended = self._ended.pop(id, None)
        if ended is None:
            return None
        history = self._histories[id] = ended.woken()
        return history

    def _make_room(self, now: float, age: float) -> None:
        """Forget what ended long ago, and of too many runs some of the user with most: the newest that live, the oldest that are over."""
        living = sorted(self._histories.values(), key=lambda one: one.started_at)
        over = sorted(self._ended.values(), key=lambda one: -one.looked_at)
        oldest = now - age if self._clock.settled() else -inf
        over = [one for one in over if one.looked_at >= oldest]
        kept = {one.run for one in in_turns(living, lambda one: one.uid)[:MOST_LIVING]}
        kept |= {one.run for one in in_turns(over, lambda one: one.uid)[:MOST_OVER]}
        gone = (self._histories.keys() | self._ended.keys()) - kept
        if len(living) < MOST_LIVING:
            self._left_out.clear()
        self._left_out |= gone & {one.run for one in living}
        self._forget(tuple(gone))

    def _without_history(self) -> tuple[Gap, ...]:
        if not self._left_out:
            return ()
        reason = f"{MOST_LIVING} runs have one, and {len(self._left_out)} more live on this node"
        return (Gap(what="history of a run", reason=reason, way_out="none is needed: one begins when another run ends"),)  # fmt: skip

    def _shrink(self) -> None:
        """Thin the longest histories until all together are small enough."""
        while True:
            sizes = {id: one.size for id, one in self._histories.items()}
            sizes |= {id: one.size for id, one in self._ended.items()}
            if sum(sizes.values()) <= MOST_VALUES:
                return
            id = max(sizes, key=lambda id: sizes[id])
            longest = self._wake(id) or self._histories[id]
            longest.thin(max(len(longest.table.times), len(longest.activity.times)) // 2)
            if longest.is_over:
                self._put_down(longest)
            else:
                self._changed.add(longest.run)
                self._stale.add(longest.run)

    def _forget(self, runs: tuple[str, ...]) -> None:
        for id in runs:
            self._histories.pop(id, None)
            self._ended.pop(id, None)
            self._shown.pop(id, None)
            self._looked.pop(id, None)
            self._found.pop(id, None)
            self._last.pop(id, None)
            self._store.remember(hashed_name(MEMO, id), b"")
        self._changed -= set(runs)
        self._stale -= set(runs)

    def _keep(self) -> None:
        for id in self._changed & self._histories.keys():
            self._store.remember(hashed_name(MEMO, id), msgspec.json.encode(self._histories[id]))
        self._changed.clear()

    def _restore(self) -> None:
        if self._restored or not self._store.opened:
            return
        self._restored = True
        for name in self._store.memos(MEMO):
            data = self._store.memo(name)
            history, problem = read_stored(data, self._wall())
            if history is None:
                self._put_aside(name, data, problem)
            elif history.is_over:
                self._put_down(history)
            else:
                self._histories[history.run] = history
        self._stale |= self._histories.keys()

    def _put_aside(self, name: str, data: bytes, problem: str) -> None:
        """Keep the last history that cannot be used under another name, and report it."""
        self._store.remember(name, b"")
        aside = {"name": name, "problem": problem, "data": data[:MOST_ASIDE].decode(errors="replace")}  # fmt: skip
        self._store.remember(ASIDE, msgspec.json.encode(aside))
        log.warning("the stored history of a run cannot be used (%s), and is put aside", problem)
        gap = Gap(
            what="history of a run",
            reason=f"what was stored of it cannot be used: {problem}",
            way_out=f"none is needed: a new one has begun; the old one is the value {ASIDE!r} of the state database",
        )
        self._gaps = tuple(dict.fromkeys((*self._gaps, gap)))


def points_of(
    run: Run, look: JobLook, now: float, before: LastRow | None
) -> Iterator[TrainingPoint]:
    """The steps and figures (loss, learning rate and the like) that the last look at a run has brought, from its log or else its hook.

    `before`: step and loss of the hook at the look before, so that each step, and a loss that stays the same over several steps, is
    given once.
    """
    job = run.job
    attempt = f"{job.id}/{job.attempt}"
    slow = ", ".join(str(one.rank) for one in run.slowness.ranks) if run.slowness else ""
    around = {"ranks": str(job.world_size), "attempt": str(job.attempt)} | ({"slow ranks": slow} if slow else {})  # fmt: skip
    for record in look.points:
        yield TrainingPoint(
            at=now,
            step=record.step,
            total=look.total_steps,
            values=_figures(record),
            attempt=attempt,
            surroundings=around,
        )
    if (look.step, repr(look.loss)) != before and _only_hook_tells(look):
        values = {name_of(name) or name: value for name, value in look.scalars.items()}
        values.pop(LOSS, None)
        if look.loss is not None and (
            before is None or repr(look.loss) != before[1] or not isfinite(look.loss)
        ):
            values[LOSS] = look.loss
        yield TrainingPoint(at=now, step=look.step, total=look.total_steps, values=values, attempt=attempt, surroundings=around)  # fmt: skip


def _only_hook_tells(look: JobLook) -> bool:
    return not look.points and not look.step_format and bool(look.beats) and bool(look.scalars)


def _figures(record: LogRecord) -> dict[str, float]:
    own = ((LOSS, record.loss), (STEP_SECONDS, record.step_seconds))
    return {**record.scalars, **{name: value for name, value in own if value is not None}}


def _values(look: JobLook) -> dict[str, float]:
    """The figures of a look by their common names."""
    own = ((LOSS, look.loss), (STEP_SECONDS, look.step_seconds))
    scalars = {name_of(name) or name: value for name, value in look.scalars.items()}
    return {**scalars, **{name: value for name, value in own if value is not None}}


def _shown(one: StoredTraining) -> RunHistory:
    return RunHistory(
        **shared_fields(one, RunHistory),
        times=tuple(one.table.times),
        steps=tuple(one.table.steps),
        columns={name: tuple(column) for name, column in one.table.columns.items()},
        activity_times=tuple(one.activity.times),
        activity={name: tuple(column) for name, column in one.activity.columns.items()},
        events=tuple(one.rules.events),
        counts=dict(one.rules.counts),
    )
