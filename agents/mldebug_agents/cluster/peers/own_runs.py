"""The runs of this node as it announces them, with the progress of the same runs that other nodes have announced.

Belongs to the main loop's thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from mldebug.cluster.messages import AnnouncedExit, RunNews, Signal, spoken
from mldebug.cluster.run_identity import RunKey, job_key
from mldebug.core.ranksets import fold_ranks
from mldebug.incidents.incident import is_unreported
from mldebug.stall.signals import STEPS, Progress, ProgressKind
from mldebug_agents.incidents.recent_failures import FailedRun, RecentFailures
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.slowness_watch import SlownessWatch

Belongs = Callable[[Run], bool]


_KINDS = {str(kind): kind for kind in STEPS}


class RemoteProgress:
    """Progress of one run (steps, log records, heartbeats), as this node has read it and as other nodes have announced it. For
    each kind, what this node has read takes precedence.
    """

    def __init__(self) -> None:
        self._own: tuple[Progress, ...] = ()
        self._far: dict[ProgressKind, Progress] = {}

    def own(self, now: float) -> tuple[Signal, ...]:
        """The progress that this node has read, as messages for other nodes. `now`: monotonic seconds; a message holds the
        age in its place.
        """
        return tuple(
            Signal(kind=str(one.kind), value=one.value, age=max(0.0, now - one.at))
            for one in self._own
            if one.kind in STEPS
        )

    def all(self, now: float) -> tuple[Signal, ...]:
        """The progress of each kind, read on this node or else announced by others. `now`: monotonic seconds."""
        here = self.own(now)
        kinds = {one.kind for one in here}
        far = (
            Signal(
                kind=str(one.kind),
                value=one.value,
                age=max(0.0, now - one.at),
                stale=max(0.0, now - (now if one.until is None else one.until)),
            )
            for one in self._far.values()
        )
        return (*here, *(one for one in far if one.kind not in kinds))

    def take(self, signals: Iterable[Signal], now: float) -> None:
        """Replace what other nodes have announced of this run. `now`: monotonic seconds.

        A value that is announced again unchanged is no new progress: its time stays that of the first announcement.
        """
        kinds = set()
        for signal in signals:
            if (kind := _KINDS.get(signal.kind)) is None:
                continue
            kinds.add(kind)
            known = self._far.get(kind)
            until = now - min(max(0.0, signal.stale), 1e9)
            if known is not None and known.value == signal.value:
                until = max(until, known.until or until)
                self._far[kind] = msgspec.structs.replace(known, until=until)
            else:
                steps = signal.value - known.value if known else 0.0
                events = int(min(max(1.0, steps), 1e6))
                at = now - min(max(0.0, signal.age), 1e9)
                self._far[kind] = Progress(
                    kind=kind, value=signal.value, at=at, events=events, until=max(at, until)
                )
        self._far = {kind: one for kind, one in self._far.items() if kind in kinds}

    def forget(self) -> None:
        """Drop what other nodes announced, since no node announces it any more."""
        self._far = {}

    def complete(self, one: JobLook) -> JobLook:
        """Remember the progress that was read of a job, and add to it what other nodes announced, for each kind that this node
        has not read itself.
        """
        self._own = one.look.progress
        here = {each.kind for each in self._own}
        more = tuple(each for kind, each in self._far.items() if kind not in here)
        if not more:
            return one
        look = msgspec.structs.replace(one.look, progress=(*self._own, *more))
        return msgspec.structs.replace(one, look=look)


class OwnRuns:
    """The runs that have ranks on this node, with the progress that other nodes announced of them. `bad_ends`: runs that failed
    lately. `slowness`: how their ranks wait.
    """

    def __init__(
        self, node: str, bad_ends: RecentFailures, slowness: SlownessWatch | None = None
    ) -> None:
        self.runs: Mapping[str, Run] = {}
        self._node, self._bad_ends, self._slowness = node, bad_ends, slowness
        self._ended: Mapping[str, FailedRun] = {}  # of runs that are gone
        self._far: dict[str, RemoteProgress] = {}
        self.present: dict[str, tuple[str, ...]] = {}  # by job id: nodes with a launcher of it

    def tick(self, runs: Mapping[str, Run]) -> None:
        """Set the present runs, by job id. Others are forgotten, except those that failed lately."""
        self.runs = runs
        for job_id in self._far.keys() - runs.keys():
            del self._far[job_id]
        self.present = {job_id: one for job_id, one in self.present.items() if job_id in runs}
        recent = self._bad_ends.recent().items()
        self._ended = {job_id: one for job_id, one in recent if job_id not in runs}

    @property
    def all(self) -> dict[str, Run]:
        """The runs of this moment and those that failed lately, by job id."""
        return {**self.runs, **{job_id: one.run for job_id, one in self._ended.items()}}

    def find(self, key: RunKey, attempt: int | None = None) -> Run | None:
        """The run with this key and this attempt (None: any attempt); None where this node has no such run."""
        for run in self.runs.values():
            if job_key(run.job, self._node) == key and attempt in (None, run.job.attempt):
                return run
        return None

    def by_key(self) -> dict[RunKey, Run]:
        """The present runs by their key; of several with one key, the first."""
        return {job_key(run.job, self._node): run for run in reversed(list(self.runs.values()))}

    def progress(self, job_id: str) -> RemoteProgress:
        """The progress of the run with this job id, on this node and on others. Empty where nothing is known."""
        return self._far.setdefault(job_id, RemoteProgress())

    def forget_progress(self, belongs: Belongs) -> None:
        """Drop what other nodes announced of all runs for which `belongs` is true."""
        for job_id, far in self._far.items():
            if job_id in self.runs and belongs(self.runs[job_id]):
                far.forget()

    def news(self, belongs: Belongs, now: float) -> tuple[RunNews, ...]:
        """What this node announces to others: one message for each run for which `belongs` is true, those that failed lately
        included,
        those that are judged no more left out. `now`: monotonic seconds."""
        bad = self._bad_ends.recent()
        first = self.by_key()
        runs = tuple(
            self._with_samples(
                run, news_of(run, self._node, self.progress(run.job.id), bad.get(run.job.id), now)
            )
            for run in self.runs.values()
            if not run.unjudged and belongs(run) and first[job_key(run.job, self._node)] is run
        )
        here = {(news.key, news.attempt) for news in runs}
        ended = (gone(one, self._node) for one in self._ended.values() if belongs(one.run))
        return (*runs, *(news for news in ended if (news.key, news.attempt) not in here))

    def _with_samples(self, run: Run, news: RunNews) -> RunNews:
        """The message with what is known of how the run's ranks wait, where some are on other nodes."""
        if self._slowness is None or len(run.job.ranks) == run.job.world_size:
            return news
        shared = self._slowness.shared
        return msgspec.structs.replace(
            news,
            samples=shared.samples(run),
            slower=self._slowness.is_slower(run),
            row=shared.row(run),
        )


def news_of(
    run: Run, node: str, progress: RemoteProgress, bad: FailedRun | None, now: float
) -> RunNews:
    """The message about a run that has ranks on this node. `bad`: how ranks of it failed here, None if none did. `now`:
    monotonic seconds.
    """
    job, decision = run.job, run.decision
    stall = run.incident if run.incident and run.incident.kind == "stall" else None
    return RunNews(
        key=job_key(job, node),
        name=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        age=max(0.0, time.time() - job.started_at) if job.started_at else 0.0,
        ranks=fold_ranks(rank.rank for rank in job.ranks),
        step=run.last_look.step if run.last_look else None,
        stage=str(decision.stage) if decision else "watching",
        sentence=decision.sentence if decision else "",
        signals=progress.own(now),
        incident=stall.id if stall else bad.incident.id if bad else "",
        published=stall is not None and (stall.shared or not is_unreported(stall)),
        end=_end(bad) if bad else None,
        node_list=job.node_list,
        launchers=job.waits.here if job.waits else 0,
    )


def gone(bad: FailedRun, node: str) -> RunNews:
    """The message about a run that failed lately and has no rank left on this node."""
    job = bad.run.job
    return RunNews(
        key=job_key(job, node),
        name=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        stage="ended",
        sentence=bad.diagnosis.summary,
        end=_end(bad),
    )


def _end(bad: FailedRun) -> AnnouncedExit:
    age = max(0.0, time.monotonic() - bad.at)
    return AnnouncedExit(incident=bad.incident.id, diagnosis=spoken(bad.diagnosis), age=age)
