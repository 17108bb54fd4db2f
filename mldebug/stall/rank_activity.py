"""Frozen or moving: what the looks at one rank say, kept as the moments at which it last moved.

A rank is *frozen* when its frames were the same in all samples of a window and either it waits on a device that makes no
progress, or its main thread's CPU time and context switches stood still. Whoever waits but spins, on a device that
nobody can read, is `blind`: it may be computing. All times are seconds of the caller's clock.

What its other threads and its children do counts as movement where the main thread may wait for them:

| its main thread stands | its class | who else moves it |
|---|---|---|
| in a wait for a child: `wait`, `communicate`, the DataLoader's queue | child_wait, dataloader … | both |
| at a lock, a queue, a future, a pipe, a socket, or nobody knows where | any other | both |
| in a sleep, a debugger, at a terminal, on storage, or is stopped | `ITS_OWN` | nobody, since it last woke |

A sleeper that wakes now and then to look (`while not done(): sleep(5)`) waits for somebody: others count up to then.
A thread counts from `OTHERS_BUSY`, a child from `CHILDREN_BUSY`, both also by their I/O: a copy needs little CPU.

What a rank writes as fast as a checkpoint moves the whole job, unless the rank itself is seen to stand where nobody waits
for what it writes: in a wait for the others, in a sleep, in a debugger.
"""

import math
from enum import StrEnum

import msgspec

from mldebug.core.model import Role
from mldebug.stall.checkpoint_writes import FAST, WriteRate
from mldebug.stall.signals import RankLook

SLICE = 1.0  # counters are compared over at least this long: a clock tick is 10 ms
CPU_STILL = 0.01
TICKS = 0.02
SWITCHES_STILL = 3  # a DataLoader's poll is one in 5 s, a training step on a GPU about one per step
SWITCH_RATE = 0.5
IO_RATE = 64 * 1024  # bytes a second; a chatty thread writes less, a checkpoint more
COPY_RATE = 256 * 1024  # the same of its children; one that polls /proc reads less
OTHERS_BUSY = 0.2  # of one core, by the process's other threads
CHILDREN_BUSY = (
    0.05  # by its children: an idle one uses nothing, a working one on a crowded node little
)
SAMPLES = 4
STOPPED = ("T", "t")
POLLS = ("store", "init")  # waits that wake up now and then to look again
ITS_OWN = frozenset(
    ("sleep", "debugger", "stdin", "terminal", "stopped", "traced", "storage", "uninterruptible")
)
"""Classes of a main thread that no other thread and no child sets free."""
ON_STORAGE = frozenset(("storage", "uninterruptible"))  # where fsync stands


class Condition(StrEnum):
    """What a rank has done for a whole window."""

    WAITING = "waiting"  # frozen in a wait that only others can end
    BLIND = "blind"  # spins in such a wait without a switch; its device cannot be read
    INERT = "inert"  # frozen anywhere else
    BUSY = "busy"  # moved
    GONE = "gone"


class ActivitySum(msgspec.Struct):
    """What was used since a mark: looks are closer together than marks, and work comes in bursts."""

    main: float = 0.0  # CPU seconds
    process: float = 0.0
    children: float = 0.0
    children_bytes: float = 0.0

    def add(self, look: RankLook, span: float) -> None:
        """Take one look; `span` is the time since the one before."""
        self.main += look.cpu_ratio * span
        self.process += look.process_cpu_ratio * span
        self.children += look.children_cpu_ratio * span
        self.children_bytes += look.children_io_rate * span


class RankActivity(msgspec.Struct, kw_only=True):
    """One rank: when it last moved, by kind of movement."""

    last: RankLook
    steady: float  # since then: the same frames, no compiler, no device progress
    posed: float  # the same, whatever its device does
    calm: float  # no context switches
    still: float  # calm, and no CPU time
    woke: float  # no context switch at all
    helped: float  # no other thread and no child worked or did I/O
    marked: float
    mark: RankLook
    spent: ActivitySum = msgspec.field(default_factory=ActivitySum)  # since the mark
    looked: float = 0.0
    device: bool | None = None  # the last reading since the job moved
    role: Role | None = None
    told: RankLook | None = None  # the last look that brought a class
    signature: str | None = None
    samples: int = 0
    sampled: float = 0.0
    shown: float = 0.0  # the first sample of these frames
    changed: bool = False  # the last sample showed other frames than the one before
    writes: WriteRate = msgspec.field(default_factory=WriteRate)
    written: int = 0  # bytes, when the job last moved
    saved: float = -math.inf  # when its bytes last grew as fast as a checkpoint's

    def see(self, look: RankLook, now: float) -> None:
        """Take one more look."""
        self.spent.add(look, max(0.0, now - self.looked))
        grew = look.written_bytes > self.last.written_bytes
        if (self.writes.take(now, look.written_bytes) or 0.0) >= FAST and grew:
            self.saved = now
        self.last, self.looked = look, now
        if look.role is not None:
            self.role, self.told = look.role, look
        if look.device_progress is not None:
            self.device = look.device_progress
        if look.compiling or look.device_progress:
            self.steady = now
        if look.compiling:
            self.posed = now
        self._compare_frames(look.frames_signature, now)
        if now - self.marked >= SLICE:
            self._compare_counters(look, now)

    def forget(self, now: float) -> None:
        """The job moved: what was seen before says nothing about the next stall."""
        self.steady = self.posed = self.sampled = now
        self.calm = self.still = self.woke = self.helped = now
        self.signature = self.role = self.told = self.device = None
        self.samples = 0
        self.written, self.saved = self.last.written_bytes, -math.inf

    def saved_at(self, now: float, window: float) -> float:
        """When the job last moved by what this rank writes: not while it stands so that nobody waits for its writes."""
        known = self.told.class_name if self.told else ""
        rests = known in ITS_OWN - ON_STORAGE and now - self.idle >= window
        stands = self.samples >= SAMPLES and now - self.posed >= window
        for_nobody = stands and (rests or self.role is Role.WAITING)
        return min(self.saved, self.posed) if for_nobody else self.saved

    @property
    def grown(self) -> int:
        """Bytes that it has written as one writes a checkpoint, since the job last moved; 0 where it does not write so."""
        return self.last.written_bytes - self.written if self.saved > -math.inf else 0

    @property
    def since(self) -> float:
        """Since when it stands where it stands."""
        if self.role is Role.WAITING and self.polls:
            return self.same
        spins = self.role is Role.WAITING and self.device is False
        return self.steady if spins else max(self.steady, self.idle)

    @property
    def idle(self) -> float:
        """Since when neither it nor anybody it may wait for did anything."""
        alone = self.told is not None and self.told.class_name in ITS_OWN
        alone = alone or self.last.state in STOPPED
        return max(self.still, min(self.helped, self.woke) if alone else self.helped)

    @property
    def same(self) -> float:
        """Since when it shows the same frames, counters aside; before the first sample they still count."""
        return max(self.steady, min(self.shown, self.calm) if self.samples > 1 else self.calm)

    @property
    def polls(self) -> bool:
        """Whether it waits for the others to come in a way that wakes up by itself: switches prove nothing then."""
        return self.told is not None and self.told.class_name in POLLS

    @property
    def unmoved(self) -> float:
        """Since when no cheap sign speaks of movement; CPU time is none, a waiter may spin."""
        return self.steady if self.device is False else max(self.steady, self.calm)

    def condition(self, now: float, window: float, *, devices: bool = True) -> Condition:
        """What this rank has done in the last `window` seconds; without `devices`, as if its own could not be read."""
        if self.role in (Role.EXITED, Role.MISSING):
            return Condition.GONE
        steady = self.steady if devices else self.posed
        if now - steady < window or not self._enough_samples(now, window):
            return Condition.BUSY
        still = now - self.idle >= window
        if self.role is not Role.WAITING:
            return Condition.INERT if still else Condition.BUSY
        if self.device is False or still or (self.polls and now - self.same >= window):
            return Condition.WAITING
        return Condition.BLIND if now - self.calm >= window else Condition.BUSY

    def _compare_frames(self, signature: str | None, now: float) -> None:
        if signature is None:
            return
        if self.signature not in (None, signature):
            # it moved since the sample before: when its counters last did, if they did
            moved = max(self.still, self.helped)
            self.steady = max(self.steady, moved) if moved >= self.sampled else now
            self.posed = max(self.posed, moved) if moved >= self.sampled else now
            self.samples, self.changed = 0, True
        elif self.signature is not None:
            self.changed = False
        if self.samples == 0:
            self.shown = now
        self.signature, self.sampled = signature, now
        self.samples += 1

    def _compare_counters(self, look: RankLook, now: float) -> None:
        span = now - self.marked
        switches = look.switches - self.mark.switches
        moved = abs(look.io_bytes - self.mark.io_bytes)
        if not 0 <= switches <= max(SWITCHES_STILL, SWITCH_RATE * span):
            self.calm = self.still = now
        if switches:
            self.woke = now
        if self.spent.main > max(TICKS, CPU_STILL * span):
            self.still = now
        works = self.spent.process >= OTHERS_BUSY * span or moved > IO_RATE * span
        works = works or self.spent.children >= CHILDREN_BUSY * span
        if works or self.spent.children_bytes > COPY_RATE * span:
            self.helped = now
        self.marked, self.mark, self.spent = now, look, ActivitySum()

    def _enough_samples(self, now: float, window: float) -> bool:
        """A stopped rank needs no stack; one that cannot be sampled is judged by its counters."""
        tried = now - self.sampled >= window / 2
        return self.samples >= SAMPLES or self.last.state in STOPPED or tried


def new_activity(look: RankLook, now: float) -> RankActivity:
    """Begin with the first look at a rank: it counts as having moved just now."""
    trail = RankActivity(
        last=look,
        steady=now,
        posed=now,
        calm=now,
        still=now,
        woke=now,
        helped=now,
        marked=now,
        mark=look,
        written=look.written_bytes,
        looked=now,
        sampled=now,
    )
    trail.see(look, now)
    return trail
