"""The watch of one job: what is kept of it between two looks, and what one look reads.

Stacks are read only where the stall decision wants a sample, without stopping a rank, and within
one deadline for all ranks.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from mldebug.capture.frames import comparable, last_frame, principal, python_frames
from mldebug.capture.movement import ProcessSample, movement
from mldebug.core.model import (
    Classification,
    Gap,
    Job,
    LostRank,
    ProcessCapture,
    RankCapture,
    RankIdentity,
)
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.known_issues.match import KnownIssue
from mldebug.jobs.logs.records import LogCounts, LogRecord, StepTimes
from mldebug.stall.heartbeats import HeartbeatProgress, last_step, scalars, shortest_timeout
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.signals import RankLook, RunLook
from mldebug_agents.capture.stacks.blocked_call import line_of, source_text
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.records import HeartbeatReader
from mldebug_agents.jobs.logs.job_logs import HungMounts, JobLogs, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.watch.activity import COMPILER, ChildWork, rate, read_activity

SAMPLE_TIMEOUT = 3.0
KEPT = 2  # samples of one rank that are compared
Counters = tuple[float, Sequence[float]]  # monotonic time, seconds as `_cpu` takes them


class JobLook(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a job's processes, logs and hooks once: what the stall decision needs, and what status and metrics
    show.
    """

    job: Job
    look: RunLook
    step: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    scalars: dict[str, float] = {}  # other figures of its log or hook by name
    points: tuple[LogRecord, ...] = ()  # with figures, new since the look before
    step_read_at: float | None = (
        None  # monotonic: by when its log was read, or its hooks where these tell the step
    )
    earlier_steps: tuple[int, ...] = ()  # first look only: of the records that stood in its log
    step_times: StepTimes | None = None
    log: str = ""  # the file that is followed, or why there is none
    total_steps: int | None = (
        None  # beside the step in its log; of one epoch, where it counts those
    )
    evaluations: int = 0  # records of evaluations in its log so far
    step_format: str = ""  # of the file that told the step
    log_counts: LogCounts = LogCounts()
    beats: dict[int, Heartbeat] = {}  # by rank: what its hook says
    classes: dict[int, Classification] = {}  # of a stack sample, by rank
    frames: dict[int, str] = {}  # of the same: the last Python frame
    traced: dict[int, float] = {}  # by rank: unix time of the newest record in its trace ring
    traps: tuple[KnownIssue, ...] = ()  # known ones that it sits in: no evidence of a stall
    gaps: tuple[Gap, ...] = ()  # what could not be looked at


def with_traces(one: JobLook, written: Mapping[int, float]) -> JobLook:
    """The look, with the time of the newest record in each rank's call trace.

    `written`: that time (unix seconds) by pid.
    """
    mine = {rank.rank: written[rank.pid] for rank in one.job.ranks if rank.pid in written}
    return msgspec.structs.replace(one, traced=mine) if mine else one


class JobWatch:
    """Reads one job every few seconds, and keeps what the next reading is compared with: positions in its logs, CPU times,
    stack samples.
    """

    def __init__(
        self,
        tools: CaptureTools,
        hung: HungMounts,
        writers: LogSharing,
        heartbeats: HeartbeatReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tools, self._host, self._clock = tools, tools.context.host, clock
        self._reader = tools.context.reader
        self._heartbeats = heartbeats
        self._beats = HeartbeatProgress()
        self.progress = LogProgress()
        self.logs = JobLogs(
            self._host,
            self._reader,
            hung,
            tools.log_parser,
            self.progress,
            writers,
            tools.context.node,
        )
        self._counters: dict[int, Counters] = {}
        self._below = ChildWork(self._host)
        self._samples: dict[int, deque[ProcessSample]] = {}
        self._followed: dict[int, int] = {}  # pid -> the thread that speaks for it
        self._turn = 0
        self._looked_at = self._sampled_at = -math.inf  # monotonic

    def look(
        self,
        job: Job,
        children: dict[int, tuple[RankChild, ...]],
        finder: LogFinder,
        now: float,
        *,
        sample: float,
        programs: Mapping[int, Program] = {},
    ) -> JobLook:
        """Read the processes, logs and hook records of the job.

        `now`: monotonic seconds. `sample`: how many seconds the stacks of all ranks may take; 0:
        read none.
        """
        self._looked_at = now
        self._sampled_at = now if sample else self._sampled_at
        files = {pid: program.nccl_file for pid, program in programs.items() if program.nccl_file}
        self.logs.look(job, finder, now, files)
        read_at = self._clock()
        self._forget(job.ranks)
        captures, gaps = self._sample(job.ranks, now, sample) if sample else ({}, ())
        classes = {rank: classify(capture) for rank, capture in captures.items()}
        beats = self._heartbeats.read(job.ranks)
        read_at = read_at if self.progress.step is not None else self._clock()
        self.progress.take_heartbeats(beats, now)
        ranks = tuple(
            _in_phase(self._rank(rank, children, captures, classes, now), beats.get(rank.rank))
            for rank in job.ranks
        )
        frames = {
            rank: last_frame(one.process.stacks, one.identity.pid) for rank, one in captures.items()
        }
        found = self._job_look(job, self._run_look(job, ranks, beats, now), beats)
        return msgspec.structs.replace(
            found,
            step_read_at=read_at,
            classes=classes,
            frames=frames,
            gaps=(*self.logs.gaps, *gaps),
        )

    def _run_look(
        self, job: Job, ranks: tuple[RankLook, ...], beats: Mapping[int, Heartbeat], now: float
    ) -> RunLook:
        """What the stall decision needs of this look."""
        return RunLook(
            at=now,
            run=job.id,
            attempt=job.attempt,
            ranks=ranks,
            exited=tuple(lost.rank for lost in job.lost if _lived(lost)),
            missing=tuple(lost.rank for lost in job.lost if not _lived(lost)),
            elsewhere=job.world_size > len(job.ranks) + len(job.lost),
            progress=(*self.progress.signals(), *self._beats.signals(beats)),
            started=last_step(beats) is not None or self._has_started(job, now),
            evaluates=self.progress.amid_evaluation,
            backend="nccl" if self.logs.gpu else "gloo",
            collective_timeout=shortest_timeout(beats),
        )

    def _job_look(self, job: Job, look: RunLook, beats: dict[int, Heartbeat]) -> JobLook:
        """The same with what log and hook tell of the training: a figure of the log goes before the hook's."""
        progress, hook = self.progress, scalars(beats)
        return JobLook(
            job=job,
            look=look,
            step=progress.step if progress.step is not None else last_step(beats),
            loss=progress.loss if progress.loss is not None else hook.get("loss"),
            step_seconds=progress.step_seconds or progress.hook_seconds,
            scalars={**hook, **progress.scalars},
            points=progress.take_points(),
            earlier_steps=progress.take_earlier_steps(),
            step_times=progress.step_times,
            log=self.logs.sentence,
            total_steps=progress.total_steps,
            evaluations=progress.evaluations,
            step_format=progress.step_format,
            log_counts=self.logs.counts,
            beats=beats,
        )

    def last(self, sample: bool) -> float:
        """When the job was last looked at (monotonic seconds); with `sample`, when its stacks were
        last sampled. -inf for never.
        """
        return self._sampled_at if sample else self._looked_at

    def _has_started(self, job: Job, now: float) -> bool:
        """Was a step written since the youngest rank came? A log may begin with those of an earlier launch."""
        written = self.progress.moved_at
        if written is None or not self.progress.made_a_step or not job.ranks:
            return False
        youngest = max(rank.started_at for rank in job.ranks)
        return written >= now - (self._host.clock() - youngest)

    def _forget(self, ranks: tuple[RankIdentity, ...]) -> None:
        pids = {rank.pid for rank in ranks}
        self._below.keep(pids)
        for known in (self._counters, self._samples, self._followed):
            for pid in known.keys() - pids:
                del known[pid]

    # --- stacks ------------------------------------------------------------------------------------

    def _sample(
        self, ranks: tuple[RankIdentity, ...], now: float, seconds: float
    ) -> tuple[dict[int, RankCapture], tuple[Gap, ...]]:
        """Stacks of all ranks, non-blocking and in parallel; a rank that could not be read is left out.

        Where the time is not enough for all, the next sample begins with those that are left.
        """
        until = time.monotonic() + seconds
        turn = self._turn % len(ranks)
        with ThreadPoolExecutor(self._tools.capturer().workers()) as pool:
            futures = [
                pool.submit(self._sample_one, rank, now, until)
                for rank in (*ranks[turn:], *ranks[:turn])
            ]
            taken = [future.result() for future in futures]
        found = {one.identity.rank: one for one in taken if isinstance(one, RankCapture)}
        late = sum(one == "late" for one in taken)
        if not late:
            return found, ()
        self._turn = turn + len(ranks) - late
        what = f"stack samples of {late} of {len(ranks)} ranks"
        reason = f"no time was left for {what} in this look"
        return found, (Gap(what=what, reason=reason),)

    def _sample_one(
        self, rank: RankIdentity, now: float, until: float
    ) -> RankCapture | Literal["late"] | None:
        left = until - time.monotonic()
        if left <= 0:
            return "late"
        state = self._host.process_state(rank.pid, files=True)
        if state is None or state.start_ticks != rank.start_ticks:
            return None
        dump = self._tools.pyspy.dump(rank.pid, timeout=min(SAMPLE_TIMEOUT, left))
        if dump.failure:
            return None
        kept = self._samples.setdefault(rank.pid, deque(maxlen=KEPT))
        kept.append(ProcessSample(now, state, dump.stacks))
        process = ProcessCapture(
            pid=rank.pid,
            state=state,
            stacks=dump.stacks,
            by_hook=bool(dump.instead),
            movement=movement(rank.pid, list(kept)),
            source_line=line_of(source_text(self._host, self._reader, state, dump.stacks)),
        )
        return RankCapture(identity=rank, process=process)

    # --- activity ----------------------------------------------------------------------------------

    def _rank(
        self,
        rank: RankIdentity,
        children: dict[int, tuple[RankChild, ...]],
        captures: dict[int, RankCapture],
        classes: dict[int, Classification],
        now: float,
    ) -> RankLook:
        known, capture = classes.get(rank.rank), captures.get(rank.rank)
        if capture is not None and known is not None:
            self._followed[rank.pid] = _thread(capture, known)
        tid = self._followed.get(rank.pid, rank.pid)
        activity = read_activity(self._host, rank.pid, rank.start_ticks, tid)
        if activity is None:
            return RankLook(rank=rank.rank)
        family = children.get(rank.pid, ())
        below = self._below.work(rank.pid, (child.pid for child in family))
        used = activity.thread_cpu_seconds, activity.cpu_seconds, activity.thread_delay_seconds
        span, main, everybody, delay = self._cpu(rank.pid, used, now)
        return RankLook(
            rank=rank.rank,
            role=known.role if known else None,
            class_name=known.name if known else "",
            operation=known.operation if known else "",
            doing=known.doing if known else "",
            frames_signature=_signature(capture, tid),
            cpu_ratio=main,
            process_cpu_ratio=everybody,
            children_cpu_ratio=rate(below.cpu_seconds, span),
            delay_ratio=delay,
            children_delay_ratio=rate(below.delay_seconds, span),
            children_io_rate=rate(below.io_bytes, span),
            children_blocked=below.blocked,
            switches=activity.switches,
            io_bytes=activity.io_bytes,
            written_bytes=activity.written_bytes,
            thread_written_bytes=activity.thread_written_bytes,
            state=activity.state,
            wchan=activity.wchan,
            compiling=any(COMPILER.fullmatch(child.name) for child in family),
        )

    def _cpu(self, pid: int, used: Sequence[float], now: float) -> tuple[float, ...]:
        """Seconds since the look before, and how much of each counter (seconds in all) was used in each of them: CPU of the followed
        thread and of all threads, and the followed one's delay.
        """
        at, before = self._counters.get(pid, (now, used))
        self._counters[pid] = (now, used)
        span = now - at
        return span, *(rate(new - old, span) for old, new in zip(before, used, strict=True))


def _in_phase(look: RankLook, beat: Heartbeat | None) -> RankLook:
    return msgspec.structs.replace(look, phase=beat.phase) if beat and beat.phase else look


def _lived(lost: LostRank) -> bool:
    return lost.pid is not None or bool(lost.leftovers)


def _thread(capture: RankCapture, known: Classification) -> int:
    """The thread that speaks for a rank: its main thread, or the one in which it trains and waits."""
    named = {stack.name or str(stack.tid): stack.tid for stack in capture.process.stacks}
    return named.get(known.thread, capture.process.pid)


def _signature(capture: RankCapture | None, tid: int) -> str | None:
    if capture is None:
        return None
    stacks = capture.process.stacks
    stack = next((one for one in stacks if one.tid == tid), None) or principal(stacks, tid)
    return "\n".join(comparable(python_frames(stack.frames))) if stack else None
