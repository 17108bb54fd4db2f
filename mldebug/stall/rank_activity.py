"""Whether one rank is frozen or moves: its readings, kept as the moments at which it last moved.

A rank is *frozen* when its frames were the same in all samples of a window and either it waits on a device that makes no
progress, or its main thread's CPU time and context switches stood still. A rank that waits but spins, on a device that
cannot be read, is `blind`: it may be computing. All times are seconds of the caller's clock.

What its other threads and child processes do counts as movement of the rank where the main thread may wait for them:

| where its main thread stands | class of the rank | whose work counts too |
|---|---|---|
| in a wait for a child: `wait`, `communicate`, the DataLoader's queue | child_wait, dataloader … | both |
| at a lock, a queue, a future, a pipe, a socket, or nobody knows where | any other | both |
| in a sleep, a debugger, at a terminal, on storage, or is stopped | `ITS_OWN` | nobody, since it last woke |

A rank without a GPU that spins in a wait and moves bytes meanwhile is one whose job spends its time in collectives: it moves. One that uses CPU
in frames which do not say what it does may be waiting. If a native stack has shown that, it holds until the Python frames change.

A rank that sleeps and wakes now and then to look (`while not done(): sleep(5)`) waits for somebody, so its other threads and children count until
it last woke. A thread works from a CPU share of `OTHERS_BUSY` on, a child from `CHILDREN_BUSY` on, and both by their I/O: a copy needs little CPU.

On a crowded node a rank that works gets as little CPU as one that only wakes to look again, but waits for it longer: at a load of 21 on 2 cores an
evaluation got 3 to 6 % of a core and was ready to run for 50 to 95 % of the time, a loop of HTTP retries 0.3 % and 15 %. Who waits for a CPU and uses 1 % works.

A rank that writes as fast as a checkpoint is written (1 MiB/s over 10 s, and now more than a log) moves the whole job, unless its main thread
stands where nobody waits for the writes: in a wait for other ranks, in a sleep, in a debugger.
"""

import math
from enum import StrEnum

import msgspec

from mldebug.capture.step_pauses import stands_in_pause
from mldebug.core.model import Role
from mldebug.stall.checkpoint_writes import FAST, WriteRate
from mldebug.stall.signals import ActivitySum, RankLook

SLICE = 1.0  # counters are compared over at least this long: a clock tick is 10 ms
CPU_STILL = 0.01
CPU_POLLS = 0.05  # more than a loop needs that only wakes up to look again
TICKS = 0.02
SWITCHES_STILL = 3  # a DataLoader's poll is one in 5 s, a training step on a GPU about one per step
SWITCH_RATE = 0.5
LOOK_RATE = 256  # bytes a second: a look for a file or at a lock moves none, the collectives of a small step do
IO_RATE = (
    64 * 1024
)  # bytes a second; a chatty thread writes less, a checkpoint more, also right behind one
COPY_RATE = 256 * 1024  # the same of its children; one that polls /proc reads less
OTHERS_BUSY = 0.2  # of one core, by the process's other threads
CHILDREN_BUSY = 0.05  # by its children: an idle one uses nothing, a working one little if crowded
STARVED = 0.35  # of the time ready to run with no CPU free: it works, however little CPU it gets
SAMPLES = 4
AWAY = 2  # samples in a row that may show a rank which polls in the midst of its look
STOPPED = ("T", "t")
POLLS = ("store", "init")  # waits that wake up now and then to look again
ITS_OWN = frozenset(("sleep", "debugger", "stdin", "terminal", "stopped", "traced", "storage", "uninterruptible"))  # fmt: skip
"""Classes of a main thread that no other thread and no child sets free."""
WAKES = frozenset(("poll", "gil", "lock", "sleep", "idle", "file_lock", "flock", "future", "thread_join"))  # fmt: skip
"""Classes of a main thread that may wake often to look again, 200 times a second for the interpreter's lock: in one
place, with little CPU time and no bytes moved it is as still as one that sleeps on. A job of small steps that sleeps between
them is found in its sleep by every sample: what its collectives send shows that it steps, and where that may not be read, nothing does."""
BACKWARD = ("backward", "backward_wait")
OF_ITS_CODE = frozenset(("sleep", "socket", "future", "thread_join", "child_wait", "dataloader", "lock", "poll", "pipe_read", "pipe_write", "file_lock", "flock"))  # fmt: skip
"""Classes of a main thread that waits for what the job's own code has begun: a pause of the program where all ranks do."""
ON_STORAGE = frozenset(("storage", "uninterruptible"))  # where fsync stands


class Condition(StrEnum):
    """Whether a rank was frozen, waited or moved during a whole window of time."""

    WAITING = "waiting"  # frozen in a wait that only others can end
    BLIND = "blind"  # spins in such a wait without a switch; its device cannot be read
    INERT = "inert"  # frozen anywhere else
    BUSY = "busy"  # moved
    GONE = "gone"


class _Rest(msgspec.Struct):
    """Where a rank rests between two looks at what it waits for, while samples show it elsewhere. Times as in `RankActivity`."""

    signature: str
    unchanged_since: float
    frames_unchanged_since: float
    frames_first_at: float
    samples: int
    away: int = 0  # samples elsewhere since


class RankActivity(msgspec.Struct, kw_only=True):
    """For one rank, since when it has shown no activity of each kind: changed frames, CPU time, context switches, I/O, GPU.

    All `…_since` and `…_at` are seconds of the caller's clock.
    """

    last: RankLook
    unchanged_since: float  # the same frames, no compiler, no device progress
    frames_unchanged_since: float  # as `unchanged_since`, but device progress is ignored
    no_switches_since: float  # at most a few context switches of its main thread
    cpu_idle_since: float  # the same, and no CPU time of its main thread
    cpu_low_since: float  # its main thread used little CPU time, and woke not or moved no bytes
    no_bytes_since: float  # next to no bytes read or written; where that may not be read, never
    asleep_since: float  # not a single context switch
    others_idle_since: float  # no other thread and no child worked or did I/O
    compared_at: float  # when counters were last compared
    compared: RankLook  # with the counters of that moment
    used: ActivitySum = msgspec.field(default_factory=ActivitySum)  # since `compared_at`
    looked_at: float = 0.0
    device_moves: bool | None = None  # the last reading of its GPU since the job moved
    role: Role | None = None
    classified: RankLook | None = None  # the last look with a stack sample
    signature: str | None = None
    samples: int = 0
    samples_missed: int = 0  # since the job moved, for lack of time to look at it
    sampled_at: float = 0.0
    frames_first_at: float = 0.0  # the first sample that showed the present frames
    changed: bool = False  # the last sample showed other frames than the one before
    rests: bool = False  # the last sample showed it in a wait of its own that wakes to look again
    rest: _Rest | None = None
    has_device: bool = True  # it may use a GPU: one that waits and spins may be computing there
    proved: RankLook | None = None  # with what a native stack showed of it, in the present frames
    backward_passes: int = 0  # in so many samples it stood in one, and elsewhere before
    in_backward: bool = False  # at the last sample, whether the job has moved since or not
    write_rate: WriteRate = msgspec.field(default_factory=WriteRate)
    written_before: int = 0  # bytes, when the job last moved
    checkpoint_grew_at: float = -math.inf  # when its bytes last grew as fast as a checkpoint's
    checkpoint_grew_since: float = -math.inf  # the look before that: they may have grown no later

    def note_device(self, has_device: bool) -> None:
        """Set whether the rank may use a GPU."""
        self.has_device = has_device

    def update(self, look: RankLook, now: float) -> None:
        """Add one more reading of the rank; `now` is the caller's clock in seconds."""
        self.used.add(look, max(0.0, now - self.looked_at))
        written = look.written_bytes - self.last.written_bytes
        grew = written > IO_RATE * max(0.0, now - self.looked_at)
        if (self.write_rate.take(now, look.written_bytes) or 0.0) >= FAST and grew:
            self.checkpoint_grew_at, self.checkpoint_grew_since = now, self.looked_at
        self.last, self.looked_at = look, now
        self._classify(look)
        if look.device_progress is not None:
            self.device_moves = look.device_progress
        if look.compiling or look.device_progress:
            self.unchanged_since, self.rest = now, None
        if look.compiling:
            self.frames_unchanged_since = now
        self._compare_frames(look.frames_signature, now)
        if now - self.compared_at >= SLICE:
            self._compare_counters(look, now)

    def forget(self, at: float) -> None:
        """Note that the job made progress at `at`: earlier activity of the rank does not count for a later stall. What the rank has
        done since then does: progress may be known late.
        """
        self.unchanged_since = max(self.unchanged_since, at)
        self.frames_unchanged_since = max(self.frames_unchanged_since, at)
        self.no_switches_since = max(self.no_switches_since, at)
        self.cpu_idle_since = max(self.cpu_idle_since, at)
        self.cpu_low_since = max(self.cpu_low_since, at)
        self.asleep_since = max(self.asleep_since, at)
        self.others_idle_since = max(self.others_idle_since, at)
        self.no_bytes_since = max(self.no_bytes_since, at)
        if self.looked_at <= at or self.frames_first_at <= at:
            self.signature = self.role = self.classified = self.device_moves = self.proved = None
            self.samples = self.samples_missed = 0
        self.sampled_at, self.rest = max(self.sampled_at, at), None
        if self.checkpoint_grew_since <= at:  # what a step sends to others counts as written, too
            self.written_before, self.checkpoint_grew_at = self.last.written_bytes, -math.inf

    def miss_sample(self) -> None:
        """Note that there was no time to sample its stack."""
        self.samples_missed += 1

    def checkpoint_moved_at(self, now: float, window: float) -> float:
        """When this rank last wrote as fast as a checkpoint is written (1 MiB/s), on the caller's clock; -inf where it has
        not since the job last made progress.

        While the rank has stood for `window` seconds in a wait for other ranks or a sleep, what its other threads write is
        ignored. `now`: the caller's clock, in seconds.
        """
        class_name = self.classified.class_name if self.classified else ""
        rests = class_name in ITS_OWN - ON_STORAGE and now - self.idle_since >= window
        stands = self.samples >= SAMPLES and now - self.frames_unchanged_since >= window
        for_nobody = stands and (rests or self.role is Role.WAITING)
        at = self.checkpoint_grew_at
        return min(at, self.frames_unchanged_since) if for_nobody else at

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes that the rank has written since the job last made progress; 0 unless it wrote at 1 MiB/s or more, as a checkpoint
        is written.
        """
        grew = self.checkpoint_grew_at > -math.inf
        return self.last.written_bytes - self.written_before if grew else 0

    @property
    def frozen_since(self) -> float:
        """Since when the rank has not moved, on the caller's clock. Of a rank that waits for others and may spin or poll
        meanwhile, only its frames are asked; of others also CPU time, context switches and I/O.
        """
        if self.role is Role.WAITING and self.polls:
            return self.same_frames_since
        spins = self.role is Role.WAITING and (self.device_moves is False or not self.has_device)
        return self.same_frames_since if spins else max(self.unchanged_since, self.idle_since)

    @property
    def idle_since(self) -> float:
        """Since when the rank does no work, on the caller's clock: neither its main thread (for one that polls, little work counts as
        none), nor the threads and children that it may wait for. For a rank that is stopped or waits for nobody, the time since
        its main thread last woke counts for these too.
        """
        class_name = self.classified.class_name if self.classified else ""
        alone = class_name in ITS_OWN or self.last.state in STOPPED
        return max(
            self.cpu_low_since if class_name in WAKES else self.cpu_idle_since,
            min(self.others_idle_since, self.asleep_since) if alone else self.others_idle_since,
        )

    @property
    def same_frames_since(self) -> float:
        """Since when the rank stands in the same frames, on the caller's clock: the first sample that showed them, or earlier,
        since its main thread had no context switches (this alone before the second sample). Progress of its GPU or a compiler
        starts it anew.
        """
        return max(
            self.unchanged_since,
            min(self.frames_first_at, self.no_switches_since)
            if self.samples > 1
            else self.no_switches_since,
        )

    @property
    def in_pause(self) -> bool:
        """Whether its last stack sample showed it in an evaluation or a checkpoint, where no step is due."""
        return self.signature is not None and stands_in_pause(self.signature)

    @property
    def own_place(self) -> str:
        """The rank's Python frames at the last stack sample, where it waits for something that the job's own code has begun to wait
        for; "" where it may wait for other ranks or for storage (so may its children, such as DataLoader workers), or for
        something unknown.
        """
        known = self.classified
        own = known is not None and self.role is Role.INERT and known.class_name in OF_ITS_CODE
        blocked = self.last.state in STOPPED or self.last.children_blocked
        return self.signature or "" if own and not blocked else ""

    @property
    def polls(self) -> bool:
        """Whether it waits for others in a way that wakes regularly to look again: then its context switches prove no movement."""
        return self.classified is not None and self.classified.class_name in POLLS

    @property
    def unmoved_since(self) -> float:
        """The time (seconds of the caller's clock) of the last sign that the rank moves: a change of its stack frames, work of its GPU, or
        context switches; now, or nearly so, for one that moves. Switches do not count where its GPU is known to be idle. CPU time
        never does: a rank that waits may spin.
        """
        idle_device = self.device_moves is False
        return max(self.unchanged_since, -math.inf if idle_device else self.no_switches_since)

    def condition(self, now: float, window: float, *, devices: bool = True) -> Condition:
        """What the rank did in the last `window` seconds. Too few stack samples count as BUSY. With `devices` False
        progress of its GPU is ignored. `now`: the caller's clock, in seconds.
        """
        if self.role in (Role.EXITED, Role.MISSING):
            return Condition.GONE
        steady = self.unchanged_since if devices else self.frames_unchanged_since
        if now - steady < window or not self._enough_samples(now, window):
            return Condition.BUSY
        still = now - self.idle_since >= window
        if self.role is not Role.WAITING:
            return Condition.INERT if still else Condition.BUSY
        same = now - self.same_frames_since >= window
        if still or (same and (self.polls or self.device_moves is False)):
            return Condition.WAITING
        if self.device_moves is False or now - self.no_switches_since < window:
            return Condition.BUSY
        if self.has_device:
            return Condition.BLIND
        return Condition.WAITING if now - self.no_bytes_since >= window else Condition.BUSY

    def is_open(self, now: float, window: float) -> bool:
        """Whether the rank stood in the same frames for `window` seconds while something of it used CPU, and its frames do
        not tell whether it waits or works. `now`: the caller's clock, in seconds.
        """
        steady = min(now - self.frames_first_at, now - self.unchanged_since)
        unclear = self.role in (Role.BUSY, Role.UNCLEAR) and self.samples > 1
        return unclear and steady >= window and now - self.idle_since < window

    def prove(self, found: RankLook) -> None:
        """Take over the role in `found`, which a native stack has shown; only where the Python frames left it open, and until
        they change.
        """
        if self.samples and self.role in (Role.BUSY, Role.UNCLEAR):
            self.proved = found
            self.role, self.classified = found.role, found

    def _classify(self, look: RankLook) -> None:
        if look.role is None:
            return
        if look.frames_signature != self.signature:
            self.proved = None
        known = self.proved if look.role in (Role.BUSY, Role.UNCLEAR) else None
        before, self.in_backward = self.in_backward, look.class_name in BACKWARD
        self.backward_passes += self.in_backward and not before
        self.classified = known or look
        self.role = self.classified.role

    def _compare_frames(self, signature: str | None, now: float) -> None:
        if signature is None:
            return
        if self.rest is not None and signature == self.rest.signature:
            self._return(self.rest)
        elif self.signature not in (None, signature):
            self._leave(now)
        elif self.signature is not None:
            self.changed = False
        class_name = self.classified.class_name if self.classified else ""
        self.rests = self.role is Role.INERT and class_name in WAKES
        if self.rest is not None:
            self.rest.away += 1
            if self.rests or self.rest.away > AWAY:  # it waits elsewhere now, or did more
                self.rest = None
        self.frames_first_at = self.frames_first_at if self.samples else now
        self.signature, self.sampled_at = signature, now
        self.samples += 1

    def _leave(self, now: float) -> None:
        """It moved since the sample before: when its counters last did, if they did."""
        if self.rests and self.signature is not None and self.samples > 1:
            before = self.unchanged_since, self.frames_unchanged_since, self.frames_first_at
            self.rest = _Rest(self.signature, *before, self.samples)
        worked = max(self.cpu_idle_since, self.others_idle_since)
        moved = worked if worked >= self.sampled_at else now
        self.unchanged_since = max(self.unchanged_since, moved)
        self.frames_unchanged_since = max(self.frames_unchanged_since, moved)
        self.samples, self.changed = 0, True

    def _return(self, rest: _Rest) -> None:
        """It has only looked whether it may go on, and waits again where it did."""
        self.unchanged_since = rest.unchanged_since
        self.frames_unchanged_since = rest.frames_unchanged_since
        self.frames_first_at, self.samples = rest.frames_first_at, rest.samples
        self.rest, self.changed = None, False

    def _compare_counters(self, look: RankLook, now: float) -> None:
        span = now - self.compared_at
        switches = look.switches - self.compared.switches
        moved = abs(look.io_bytes - self.compared.io_bytes)
        wakes = not 0 <= switches <= max(SWITCHES_STILL, SWITCH_RATE * span)
        if wakes:
            self.no_switches_since = self.cpu_idle_since = now
        if switches:
            self.asleep_since = now
        starved = self.used.delayed >= STARVED * span and self.used.main > CPU_STILL * span
        if self.used.main > max(TICKS, CPU_STILL * span):
            self.cpu_idle_since = now
        if moved > LOOK_RATE * span or not look.io_bytes:
            self.no_bytes_since = now
        steps = wakes and self.no_bytes_since == now
        if steps or starved or self.used.main > CPU_POLLS * span:
            self.cpu_low_since = now
        works = self.used.process >= OTHERS_BUSY * span or moved > IO_RATE * span
        works = works or self.used.children >= CHILDREN_BUSY * span
        starved = self.used.children_delayed >= STARVED * span
        starved = starved and self.used.children > CPU_STILL * span
        if works or starved or self.used.children_bytes > COPY_RATE * span:
            self.others_idle_since = now
        self.compared_at, self.compared, self.used = now, look, ActivitySum()

    def _enough_samples(self, now: float, window: float) -> bool:
        """Whether the samples suffice: a stopped rank needs none, one that cannot be sampled is judged by its counters, and two are
        enough where there was no time for more.
        """
        tried = now - self.sampled_at >= window / 2
        enough = self.samples + (self.samples_missed if self.samples > 1 else 0) >= SAMPLES
        return enough or self.last.state in STOPPED or tried


def new_activity(look: RankLook, now: float) -> RankActivity:
    """The activity of a rank after its first reading at `now` (caller's clock), which counts as movement."""
    activity = RankActivity(
        last=look,
        unchanged_since=now,
        frames_unchanged_since=now,
        no_switches_since=now,
        cpu_idle_since=now,
        cpu_low_since=now,
        no_bytes_since=now,
        asleep_since=now,
        others_idle_since=now,
        compared_at=now,
        compared=look,
        written_before=look.written_bytes,
        looked_at=now,
        sampled_at=now,
    )
    activity.update(look, now)
    return activity
