"""Made-up runs as looks, and a driver that asks the watch as an agent does: stacks are seen only when it wanted them."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mldebug.core.model import Role
from mldebug.stall.decision import StallWatch
from mldebug.stall.progress_clock import StallMemory
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import (
    Progress,
    ProgressKind,
    RankLook,
    RunLook,
    Stage,
    StallDecision,
)


class Does(NamedTuple):
    """What a rank does for a while; `frames` changes with every look unless it stands."""

    role: Role
    doing: str
    operation: str = ""
    class_name: str = ""
    stands: bool = True
    cpu: float = 0.0
    switches: float = 0.0  # a second
    io: float = 0.0  # bytes a second; -inf: not readable
    device: bool | None = None
    state: str = "S"
    compiling: bool = False
    process_cpu: float = 0.0
    children_cpu: float = 0.0
    children_io: float = 0.0
    children_blocked: bool = False
    phase: str | None = None  # as a hook says it
    writes: float = 0.0  # bytes a second
    prints: float = 0.0  # bytes a second, of these by its main thread
    delay: float = 0.0  # share of the time that it waits for a free CPU
    children_delay: float = 0.0


WAITS = Does(Role.WAITING, "waits in all_reduce at train.py:30", "all_reduce", "collective")
SPINS = WAITS._replace(cpu=1.0, device=False, state="R")
BLIND = SPINS._replace(device=None)
SLEEPS = Does(Role.INERT, "sleeps in slow_data_loader (train.py:7)", class_name="sleep")
LOADS = Does(Role.INERT, "waits for its DataLoader in train.py:7", class_name="dataloader")
STOPPED = Does(Role.INERT, "is stopped by a signal", class_name="stopped", state="T")
WORKS = Does(Role.BUSY, "runs evaluate (train.py:40)", stands=False, cpu=1.0, switches=1.0)
LOOPS = WORKS._replace(stands=True, doing="runs tokenize_forever (train.py:47)", switches=0.0)
TRAINS = Does(Role.BUSY, "runs train (train.py:20)", stands=False, cpu=0.9, switches=11.0)
ONE_LINE = SPINS._replace(device=True, switches=11.0)  # healthy, always seen in `.item()`
COMPILES = Does(Role.INERT, "waits for a child", compiling=True)
EVALUATES = Does(Role.INERT, "waits for a child", children_cpu=0.08)  # on a crowded node
COPIES = Does(Role.INERT, "waits for a child", class_name="child_wait", children_io=5e6)
JOINS = Does(Role.INERT, "waits for a thread of its own", class_name="thread_join")
SAVES = Does(
    Role.INERT, "saves", stands=False, cpu=0.6, switches=100.0, io=8e8, state="D", writes=8e8
)
RENDEZVOUS = Does(Role.WAITING, "waits in init_process_group", "init_process_group", "init")
EXITED = Does(Role.EXITED, "has exited")

CAPTURE_LOOKS = 3
Crew = Does | dict[int, Does]


class Run:
    """A run that is told what it does, second by second; `looks` collects what a watch would see."""

    def __init__(self, ranks: int = 4, interval: float = 1.0, start: float = 1000.0) -> None:
        self.ranks, self.interval, self.at = ranks, interval, start
        self.looks: list[RunLook] = []
        self.signals: dict[ProgressKind, Progress] = {}
        self.attempt, self.started, self.backend = 0, False, "nccl"
        self.evaluates = False
        self.collective_timeout: float | None = None
        self._switches = [0.0] * ranks
        self._io = [4096.0] * ranks
        self._written = [4096.0] * ranks
        self._printed = [4096.0] * ranks
        self.elsewhere = False
        self._frames = 0

    def signal(self, kind: ProgressKind, value: float, at: float | None = None) -> None:
        """Set one progress signal."""
        self.signals[kind] = Progress(kind=kind, value=value, at=self.at if at is None else at)

    def train(self, seconds: float, every: float = 1.0, does: Crew = TRAINS) -> "Run":
        """Step every so many seconds."""
        return self.play(seconds, does, every=lambda _: every)

    def play(
        self,
        seconds: float,
        does: Crew,
        *,
        every: Callable[[int], float] | None = None,
        kind: ProgressKind = ProgressKind.RECORD,
        others: Does = WAITS,
    ) -> "Run":
        """Let time pass. `does` is for all ranks or by rank, the rest do `others`."""
        end, steps = self.at + seconds, 0
        due = self.at + every(0) if every else float("inf")
        while self.at < end - 1e-9:
            self.at += self.interval
            while due <= self.at + 1e-9 and every:
                value = self.signals[kind].value if kind in self.signals else 0
                self.signal(kind, value + 1, due)
                self.started = self.started or kind is not ProgressKind.LOG_GROWTH
                steps += 1
                due += every(steps)
            self.look(does, others)
        return self

    def look(self, does: Crew, others: Does = WAITS) -> None:
        """Append one look."""
        self._frames += 1
        crew = [does if isinstance(does, Does) else does.get(n, others) for n in range(self.ranks)]
        ranks = tuple(self._rank(n, doing) for n, doing in enumerate(crew) if doing is not EXITED)
        self.looks.append(
            RunLook(
                at=self.at,
                run="run-7",
                attempt=self.attempt,
                ranks=ranks,
                exited=tuple(n for n, doing in enumerate(crew) if doing is EXITED),
                progress=tuple(self.signals.values()),
                started=self.started,
                evaluates=self.evaluates,
                backend=self.backend,
                collective_timeout=self.collective_timeout,
                elsewhere=self.elsewhere,
            )
        )

    def _rank(self, number: int, does: Does) -> RankLook:
        self._switches[number] += does.switches * self.interval
        self._io[number] += does.io * self.interval
        self._written[number] += (does.writes + does.prints) * self.interval
        self._printed[number] += does.prints * self.interval
        place = does.doing if does.stands else f"{does.doing} {self._frames}"
        return RankLook(
            rank=number,
            role=does.role,
            class_name=does.class_name,
            operation=does.operation,
            doing=does.doing,
            frames_signature=place,
            cpu_ratio=does.cpu,
            process_cpu_ratio=max(does.cpu, does.process_cpu),
            children_cpu_ratio=does.children_cpu,
            delay_ratio=does.delay,
            children_delay_ratio=does.children_delay,
            children_io_rate=does.children_io,
            children_blocked=does.children_blocked,
            switches=int(self._switches[number]),
            io_bytes=max(0, int(self._io[number])) if math.isfinite(self._io[number]) else 0,
            written_bytes=int(self._written[number]),
            thread_written_bytes=int(self._printed[number]),
            state=does.state,
            compiling=does.compiling,
            device_progress=does.device,
            phase=does.phase,
        )


class Story:
    """What the watch said to a run; times are seconds since the first look."""

    def __init__(self, results: list[tuple[float, StallDecision]], watch: StallWatch) -> None:
        self.decisions, self.watch = results, watch

    def times(self, wanted: Callable[[StallDecision], bool]) -> list[float]:
        """When it said something of that sort."""
        return [at for at, decision in self.decisions if wanted(decision)]

    @property
    def opened(self) -> list[float]:
        """When incidents opened."""
        return self.times(lambda decision: decision.open)

    @property
    def captured(self) -> list[float]:
        """When captures were wanted."""
        return self.times(lambda decision: decision.capture)

    def first(self, stage: Stage) -> StallDecision:
        """The first decision of that stage."""
        return next(decision for _, decision in self.decisions if decision.stage is stage)

    @property
    def stages(self) -> list[Stage]:
        """The stages in order, without repetition."""
        found: list[Stage] = []
        for _, decision in self.decisions:
            if not found or found[-1] is not decision.stage:
                found.append(decision.stage)
        return found


def watch(
    looks: Iterable[RunLook],
    memory: StallMemory | None = None,
    *,
    blind: bool = True,
    native: Mapping[int, Does] = {},
    **settings: Any,
) -> Story:
    """Show the looks to a watch. `blind`: stacks and classes are hidden unless the look before asked for them.

    `native`: what the native stacks of a capture show of a rank; the capture is done three looks after it was asked for.
    """
    chosen = StallSettings(**{"interval": 1.0, **settings})
    watcher = StallWatch(chosen, memory)
    results: list[tuple[float, StallDecision]] = []
    start: float | None = None
    sample, taken = False, 0
    for look in looks:
        taken -= 1
        if taken == 0:
            watcher.take_classes({rank: _proved(rank, does) for rank, does in native.items()})
        start = look.at if start is None else start
        decision = watcher.look(_unseen(look) if blind and not sample else look)
        sample = decision.sample
        taken = CAPTURE_LOOKS if decision.capture else taken
        results.append((look.at - start, decision))
    return Story(results, watcher)


def _proved(rank: int, does: Does) -> RankLook:
    return RankLook(
        rank=rank,
        role=does.role,
        class_name=does.class_name,
        operation=does.operation,
        doing=does.doing,
    )


def _unseen(look: RunLook) -> RunLook:
    ranks = tuple(
        msgspec.structs.replace(
            rank, role=None, class_name="", operation="", doing="", frames_signature=None
        )
        for rank in look.ranks
    )
    return msgspec.structs.replace(look, ranks=ranks)
