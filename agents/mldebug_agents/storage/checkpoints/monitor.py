"""The checkpoints of all runs: orders looks of the worker, keeps their results, and shows them.

A series is the checkpoints of one folder whose names differ only in numbers. Folders that were found, and what is known of earlier
checkpoints, survive a restart of the agent. Belongs to the main loop's thread.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from posixpath import dirname
from typing import NamedTuple

import msgspec

from mldebug.config.storage import CheckpointsConfig
from mldebug.core.model import NodeCapture
from mldebug.core.units import duration_words
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import (
    CheckpointSeries,
    KnownCheckpoint,
    SeriesMemory,
    printable,
)
from mldebug.storage.checkpoints.state import SeriesState, lines_of, newest_of, series_state
from mldebug_agents.jobs.job_folders import likely_folders
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.state.key_value_store import KeyValueStore as Store
from mldebug_agents.storage.checkpoints.reader import (
    CheckpointNews,
    CheckpointRequest,
    JobRequest,
)
from mldebug_agents.storage.checkpoints.series_reader import SeriesLook
from mldebug_agents.system.host import Host
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

DEADLINE = 60.0
OLD = DEADLINE + 30.0  # seconds, and two intervals: older readings do not show what is there now
BURST = 1 << 20  # bytes that a job has written since the order before
STORE_EVERY = 30.0
MEMO = "saves"
MAX_STORED = 64  # series
OVER = 3600.0  # seconds for which the checkpoints of a run that has ended are remembered

Key = tuple[str, str, str]  # run, folder, series


Who = tuple[int, str]  # uid and name of a job


class KnownSeries(NamedTuple):
    """One series of a run's checkpoints as it was last seen, the oldest first."""

    folder: str
    series: str
    complete: tuple[KnownCheckpoint, ...]  # also those that were deleted since
    present: tuple[KnownCheckpoint, ...]


class _StoredSeries(msgspec.Struct):
    run: str
    folder: str
    series: str
    memory: SeriesMemory
    who: Who = (-1, "")


class CheckpointMonitor:
    """Keeps what is known of all series of checkpoints on this node. For the main loop's thread only."""

    def __init__(
        self, host: Host, worker: Worker, store: Store, settings: CheckpointsConfig
    ) -> None:
        """`worker`: has a `CheckpointReader` look."""
        self.worker = worker
        self._host = host
        self._store = store
        self._settings = settings
        self._series: dict[Key, CheckpointSeries] = {}
        self._looks: dict[Key, SeriesLook] = {}
        self._steps: dict[str, int | None] = {}
        self._worlds: dict[str, int] = {}
        self._who: dict[str, Who] = {}
        self._before: dict[str, Who] = {}  # as an earlier agent stored them
        self._over: list[
            tuple[float, _StoredSeries]
        ] = []  # of runs that have ended: who comes back resumes from them
        self._written: dict[str, int] = {}
        self._burst: set[str] = set()
        self._orders: dict[str, bool] = {}  # runs that an order has named
        self._troubles: Counter[str] = Counter()
        self._known: Mapping[str, tuple[KnownSeries, ...]] = {}  # never changed, only replaced
        self._due = self._store_due = 0.0
        self._read_store = False

    # --- the loop ------------------------------------------------------------------------------------

    def tick(self, runs: Mapping[str, Run], found: Discovery, settings: CheckpointsConfig) -> None:
        """Have the worker look at the checkpoints of these runs if that is due, and store the state from time to time.
        Where `settings` turn it off, forget all series.
        """
        now = time.monotonic()
        self._settings = settings
        if not settings.watch:
            self._series.clear()
            return
        self._restore()
        for id, run in runs.items():
            if id not in self._who:
                self._who[id] = run.job.uid, run.job.name
                self._inherit(run)
        self._note(runs)
        if now >= self._due and not self.worker.busy and (runs or settings.paths):
            moving = any(self._moves(one) for one in self._series.values())
            begun = any(one not in self._orders for one in runs)
            soon = moving or begun or bool(self._burst)
            self._due = now + settings.interval / (2 if soon else 1)
            self.worker.order(self._order(runs, found))
            self._orders = dict.fromkeys(runs, True)
        if now >= self._store_due and self._read_store:
            self._store_due = now + STORE_EVERY
            self._store_state(runs)

    def _note(self, runs: Mapping[str, Run]) -> None:
        """Which runs have written much: a fast checkpoint is over before its files are seen open."""
        for id, run in runs.items():
            written = (
                sum(rank.written_bytes for rank in run.last_look.look.ranks) if run.last_look else 0
            )
            before = self._written.get(id)
            if before is None or written - before >= BURST or written < before:
                self._burst |= {id} if id not in self._orders or before is None or written > before else set()  # fmt: skip
                self._written[id] = written
                self._due = min(self._due, time.monotonic() + 2.0) if before is not None and self._quiet(id) else self._due  # fmt: skip
            self._steps[id] = run.last_look.step if run.last_look else None
            self._worlds[id] = run.job.world_size
        self._remember_ended(runs)
        for gone in self._written.keys() - runs.keys():
            del self._written[gone], self._steps[gone], self._worlds[gone]
            self._burst.discard(gone)

    def _quiet(self, run: str) -> bool:
        """Whether no series of this run is known: then a burst of writing is worth an early look."""
        return not any(key[0] == run for key in self._series)

    def _order(self, runs: Mapping[str, Run], found: Discovery) -> CheckpointRequest:
        jobs = []
        for id, run in runs.items():
            pids = [rank.pid for rank in run.job.ranks]
            pids += [child.pid for rank in run.job.ranks for child in found.children.get(rank.pid, ())]  # fmt: skip
            series = tuple((folder, kind) for of, folder, kind in self._series if of == id)
            jobs.append(JobRequest(job=run.job, pids=tuple(pids), series=series, burst=id in self._burst))  # fmt: skip
        self._burst.clear()
        return CheckpointRequest(jobs=tuple(jobs), patterns=self._settings.paths)

    def _moves(self, series: CheckpointSeries) -> bool:
        return bool(series.grown_at and time.time() - series.grown_at < 2 * self._settings.interval)

    def on_result(self, result: Result, runs: Mapping[str, Run]) -> None:
        """Handle the worker's readings of checkpoints; an error is logged."""
        if not isinstance(result.value, CheckpointNews):
            log.warning("checkpoints could not be looked at: %s", result.error)
            return
        self._forget_configured(result.value)
        for look in result.value.looks:
            if look.run and look.run not in runs:
                continue
            key = look.run, look.folder, look.series
            if key not in self._series and not look.readings:
                continue  # nothing is there yet
            series = self._series.setdefault(key, CheckpointSeries())
            series.set_settle(self._settings.settle)
            series.look(look.at, look.readings, whole=look.whole, step=self._steps.get(look.run), world_size=self._worlds.get(look.run))  # fmt: skip
            self._looks[key] = look
            self._troubles.update(trouble.code for trouble in look.troubles)
        self._keep_known()

    def known_series(self, run: str) -> tuple[KnownSeries, ...]:
        """The series of a run as they were last seen; also for some time after it has ended. Safe from any thread."""
        return self._known.get(run, ())

    def _keep_known(self) -> None:
        known: dict[str, tuple[KnownSeries, ...]] = {}
        for (run, folder, kind), series in self._series.items():
            one = KnownSeries(folder, kind, tuple(series.memory.complete), series.checkpoints)
            known[run] = (*known.get(run, ()), one)
        ended = {run: some for run, some in self._known.items() if run not in known}
        self._known = dict([*ended.items(), *known.items()][-MAX_STORED:])

    def _forget_configured(self, news: CheckpointNews) -> None:
        """Drop series of the configuration whose folder it does not name any more, or that were deleted."""
        for key in [key for key in self._series if not key[0] and key[1:] not in news.configured]:
            del self._series[key]
            self._looks.pop(key, None)

    def _trouble(self, key: Key, now: float) -> str:
        """Why the readings of a series are not what is there now; "" where they are."""
        look = self._looks.get(key)
        if look is None:
            return "not looked at since the agent started"
        quiet = now - look.at
        if quiet > OLD + 2 * self._settings.interval:
            return look.trouble or f"not looked at for {duration_words(round(quiet))}"
        return look.trouble

    def places(self, runs: Mapping[str, Run]) -> dict[str, tuple[str, ...]]:
        """For each run the folders of its checkpoints and of its log, as paths that its ranks see."""
        logs = {id: run.last_look.log for id, run in runs.items() if run.last_look}
        return {
            id: tuple({folder: None for of, folder, _ in self._series if of == id})
            + tuple(dirname(one) for one in [logs.get(id, "")] if one.startswith("/"))
            for id in runs
        }

    # --- results -------------------------------------------------------------------------------

    def states(self) -> tuple[SeriesState, ...]:
        """The state of all series, for the snapshot."""
        now, found = time.time(), []
        for (run, folder, kind), series in self._series.items():
            look = self._looks.get((run, folder, kind))
            trouble = self._trouble((run, folder, kind), now)
            name = run, printable(folder), printable(kind)
            found.append(series_state(series, name, now, step=self._steps.get(run), trouble=trouble, gaps=look.gaps if look else ()))  # fmt: skip
        return tuple(found)

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Add to the snapshot all series, the errors counted so far, and the worker's state."""
        states = self.states()
        by_run = {
            run.id: tuple(state for state in states if state.run == run.id) for run in snapshot.runs
        }
        return msgspec.structs.replace(
            snapshot,
            runs=tuple(
                msgspec.structs.replace(run, checkpoint_series=by_run[run.id])
                for run in snapshot.runs
            ),
            checkpoint_series=tuple(one for one in states if not one.run),
            checkpoint_troubles=dict(self._troubles),
            sources=(*snapshot.sources, self.worker.state()),
        )

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """Add to the capture a sentence on how much training would be lost if the run ended now; "" where that is not known."""
        return msgspec.structs.replace(capture, checkpoints=self._sentence(capture.job.id))

    def _sentence(self, run: str) -> str:
        """What would be lost if the run ended now; "" where nothing is known of it."""
        states = self.states()
        newest = newest_of(states, run)
        return newest.sentence if newest else next(iter(lines_of(states, run)), "")

    def complete(self, look: JobLook) -> JobLook:
        """Add to a reading of a job when one of its checkpoints last grew on disk, which counts as progress."""
        grown = [one.grown_at for key, one in self._series.items() if key[0] == look.job.id and one.grown_at]  # fmt: skip
        if not grown:
            return look
        at = time.monotonic() - max(0.0, time.time() - max(grown))
        return msgspec.structs.replace(
            look, look=msgspec.structs.replace(look.look, checkpoint_grew_at=at)
        )

    # --- across restarts -----------------------------------------------------------------------------

    def _remember_ended(self, runs: Mapping[str, Run]) -> None:
        """Keep the series of runs that have ended for a while: a restart of the same job resumes from them."""
        now = time.monotonic()
        self._over = [one for one in self._over if now - one[0] < OVER][-MAX_STORED:]
        for key in [key for key in self._series if key[0] and key[0] not in runs]:
            if key[0] in self._who:
                ended = _StoredSeries(*key, self._series.pop(key).memory, self._who[key[0]])
                self._over.append((now, ended))
                self._looks.pop(key, None)
        for id in self._who.keys() - runs.keys():
            del self._who[id]

    def _inherit(self, run: Run) -> None:
        """Take over series of an ended job of the same user and name whose folder this one works in or names on its command line."""
        own = likely_folders(self._host, run.job)
        for one in [one for one in self._over if one[1].who == self._who[run.job.id]]:
            stored = one[1]
            if any(f"{stored.folder}/".startswith(f"{folder}/") for folder in own):
                self._over.remove(one)
                key = run.job.id, stored.folder, stored.series
                self._series.setdefault(key, CheckpointSeries(stored.memory))

    def _restore(self) -> None:
        if self._read_store or not self._store.opened:
            return
        self._read_store = True
        try:
            stored = msgspec.json.decode(self._store.memo(MEMO) or b"[]", type=list[_StoredSeries])
        except msgspec.MsgspecError:
            log.warning("what was stored of checkpoints cannot be read, and is forgotten")
            return
        for one in stored:
            self._before[one.run] = one.who
            self._series.setdefault((one.run, one.folder, one.series), CheckpointSeries(one.memory))

    def _store_state(self, runs: Mapping[str, Run]) -> None:
        """Drop series that nobody uses, and store the others; a folder whose name is no UTF-8 is not stored."""
        wanted = self._looks.keys() | {key for key in self._series if key[0] in runs}
        for key in [key for key in self._series if key not in wanted] if self._orders else ():
            self._over.append((time.monotonic(), _StoredSeries(*key, self._series.pop(key).memory, self._before.get(key[0], (-1, "")))))  # fmt: skip
        whose = self._before | self._who
        rows = [_StoredSeries(*key, one.memory, whose.get(key[0], (-1, ""))) for key, one in self._series.items()]  # fmt: skip
        rows = [one for one in (*rows, *(stored for _, stored in self._over)) if _is_text((one.run, one.folder, one.series))]  # fmt: skip
        self._store.remember(MEMO, msgspec.json.encode(rows[:MAX_STORED]) if rows else b"")


def _is_text(key: Key) -> bool:
    return all(printable(one) == one for one in key)
