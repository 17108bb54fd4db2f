"""The watch: one cheap look at all jobs of this node, every few seconds, without attaching to anybody.

Runs in one worker thread. Only where the decision asks for a sample are stacks read, and then without stopping a rank.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mldebug.judging.classification import classify
from mldebug.logparser import LogParser
from mldebug.model import (
    Classification,
    Job,
    ProcessCapture,
    ProcessState,
    RankCapture,
    RankIdentity,
)
from mldebug.movement import Sample, movement
from mldebug.rooms import create_all
from mldebug.stacks import labels, principal, python_frames
from mldebug.stall.progress import LogProgress
from mldebug.stall.signals import Look, RankLook
from mldebug_agents.logs.following import LogFollower
from mldebug_agents.logs.places import LogFinder, LogPlace
from mldebug_agents.sourceline import source_line
from mldebug_agents.sources.ranks import Child, Discovery
from mldebug_agents.workbench import Workbench

SAMPLE_TIMEOUT = 3.0
MAX_LOGS = 4  # followed per job
KEPT = 2  # samples of one rank that are compared
COMPILERS = ("ptxas", "cc1plus", "cicc", "nvcc", "ninja", "clang", "gcc", "g++", "ld", "triton")

Counters = tuple[
    float, float, float
]  # monotonic time, main thread's CPU seconds, all threads' CPU seconds


class JobLook(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one look: what the decision needs, and what people want to see."""

    job: Job
    look: Look
    step: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    log: str = ""  # the file that is followed, or why there is none
    classes: dict[int, Classification] = {}  # of a stack sample, by rank


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs at one look."""

    at: float
    found: Discovery
    jobs: tuple[JobLook, ...] = ()
    seconds: float = 0.0


class Watch:
    """Looks at the node. `wanted` is the set of job ids whose stacks the next look shall sample."""

    def __init__(self, bench: Workbench, clock: Callable[[], float] = time.monotonic) -> None:
        self.bench = bench
        self.clock = clock
        self._jobs: dict[str, _JobWatch] = {}

    def look(self, wanted: Iterable[str] = ()) -> NodeLook:
        """Look once; a job that is gone is forgotten."""
        started = self.clock()
        found = self.bench.finder.find()
        finder = LogFinder(self.bench.host)
        asked = set(wanted)
        self._jobs = {job.id: self._jobs.get(job.id) or _JobWatch(self.bench) for job in found.jobs}
        looks = tuple(
            self._jobs[job.id].look(job, found.children, finder, self.clock, sample=job.id in asked)
            for job in found.jobs
        )
        return NodeLook(at=started, found=found, jobs=looks, seconds=self.clock() - started)


class _JobWatch:
    """What the watch remembers of one job between two looks."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.progress = LogProgress()
        self.log = ""
        self._followers: dict[tuple[int, str], LogFollower] = {}
        self._counters: dict[int, Counters] = {}
        self._samples: dict[int, deque[Sample]] = {}

    def look(
        self,
        job: Job,
        children: dict[int, tuple[Child, ...]],
        finder: LogFinder,
        clock: Callable[[], float],
        *,
        sample: bool,
    ) -> JobLook:
        """Look at the processes and the logs of the job; with `sample`, at its stacks too."""
        now = clock()
        states = {
            rank.rank: self.bench.host.process_state(rank.pid, files=True) for rank in job.ranks
        }
        self._read_logs(job, states, finder, now)
        captures = self._sample(job.ranks, states, now) if sample else {}
        classes = {rank: classify(capture) for rank, capture in captures.items()}
        ranks = tuple(
            self._rank(rank, states[rank.rank], children, captures, classes, now)
            for rank in job.ranks
        )
        look = Look(
            at=now,
            run=job.id,
            attempt=job.attempt,
            ranks=ranks,
            exited=tuple(lost.rank for lost in job.lost),
            progress=self.progress.signals(),
            backend="nccl" if _uses_gpu(states.values()) else "gloo",
        )
        told = self.progress
        return JobLook(
            job=job,
            look=look,
            step=told.step,
            loss=told.loss,
            step_seconds=told.step_seconds,
            log=self.log,
            classes=classes,
        )

    # --- progress ----------------------------------------------------------------------------------

    def _read_logs(
        self, job: Job, states: dict[int, ProcessState | None], finder: LogFinder, now: float
    ) -> None:
        launcher = (
            self.bench.host.process_state(job.launcher_pid, files=True)
            if job.launcher_pid
            else None
        )
        launchers = (launcher,) if launcher else ()
        self.log = ""
        read: set[tuple[int, str]] = set()
        for state in states.values():
            if state is None or len(read) >= MAX_LOGS:
                continue
            logs = finder.find(state, launchers)
            self.log = self.log or (logs.places[0].target if logs.places else logs.reason)
            for place in logs.places:
                key = (place.inode, place.target)
                if key not in read:
                    read.add(key)
                    self._poll(key, place, now)

    def _poll(self, key: tuple[int, str], place: LogPlace, now: float) -> None:
        follower = self._followers.get(key)
        if follower is None:
            follower = self._followers[key] = LogFollower(
                self.bench.reader, LogParser(create_all("logs"))
            )
        news = follower.poll(place)
        if news.before is not None:
            self.progress.arrive(
                news.before, now - max(0.0, self.bench.host.clock() - news.modified_at)
            )
        self.progress.take(news.records, news.grew_bytes, now)

    # --- activity ----------------------------------------------------------------------------------

    def _sample(
        self, ranks: tuple[RankIdentity, ...], states: dict[int, ProcessState | None], now: float
    ) -> dict[int, RankCapture]:
        """Stacks of all ranks, non-blocking and in parallel; a rank that could not be read is left out."""
        pyspy = self.bench.pyspy
        with ThreadPoolExecutor(self.bench.capturer().workers()) as pool:
            futures = {
                rank: pool.submit(pyspy.dump, rank.pid, timeout=SAMPLE_TIMEOUT) for rank in ranks
            }
            dumps = {rank: future.result() for rank, future in futures.items()}
        found = {}
        for rank, dump in dumps.items():
            state = states[rank.rank]
            if dump.failure or state is None:
                continue
            kept = self._samples.setdefault(rank.pid, deque(maxlen=KEPT))
            kept.append(Sample(now, state, dump.stacks))
            process = ProcessCapture(
                pid=rank.pid,
                state=state,
                stacks=dump.stacks,
                movement=movement(rank.pid, list(kept)),
                source_line=source_line(self.bench.host, self.bench.reader, rank.pid, dump.stacks),
            )
            found[rank.rank] = RankCapture(identity=rank, process=process)
        return found

    def _rank(
        self,
        rank: RankIdentity,
        state: ProcessState | None,
        children: dict[int, tuple[Child, ...]],
        captures: dict[int, RankCapture],
        classes: dict[int, Classification],
        now: float,
    ) -> RankLook:
        if state is None:
            return RankLook(rank=rank.rank)
        main, everybody = self._cpu(rank.pid, state, now)
        thread, known = state.main, classes.get(rank.rank)
        return RankLook(
            rank=rank.rank,
            role=known.role if known else None,
            class_name=known.name if known else "",
            operation=known.operation if known else "",
            doing=known.doing if known else "",
            frames_signature=_signature(captures.get(rank.rank)),
            cpu_ratio=main,
            process_cpu_ratio=everybody,
            switches=thread.voluntary_switches if thread else 0,
            io_bytes=state.io.read_chars + state.io.written_chars if state.io else 0,
            state=state.state,
            wchan=thread.wchan if thread else "",
            compiling=any(child.name.startswith(COMPILERS) for child in children.get(rank.pid, ())),
        )

    def _cpu(self, pid: int, state: ProcessState, now: float) -> tuple[float, float]:
        """Shares of a core since the look before: main thread, all threads."""
        main = state.main.cpu_seconds if state.main else 0.0
        everybody = sum(thread.cpu_seconds for thread in state.threads)
        before = self._counters.get(pid)
        self._counters[pid] = (now, main, everybody)
        if before is None or now <= before[0]:
            return 0.0, 0.0
        span = now - before[0]
        return max(0.0, main - before[1]) / span, max(0.0, everybody - before[2]) / span


def _signature(capture: RankCapture | None) -> str | None:
    stack = principal(capture.process.stacks, capture.process.pid) if capture else None
    return "\n".join(labels(python_frames(stack.frames))) if stack else None


def _uses_gpu(states: Iterable[ProcessState | None]) -> bool:
    return any(file.kind == "gpu" for state in states if state for file in state.files)
