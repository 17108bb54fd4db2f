"""Frozen or moving: what the looks at one rank say, kept as the moments at which it last moved.

A rank is *frozen* when its frames were the same in all samples of a window and either it waits on a device that makes no
progress, or its main thread's CPU time and context switches stood still. Whoever waits but spins, on a device that
nobody can read, is `blind`: it may be computing. All times are seconds of the caller's clock.
"""

from enum import StrEnum

import msgspec

from mldebug.model import Role
from mldebug.stall.signals import Look, RankLook

SLICE = 1.0  # counters are compared over at least this long: a clock tick is 10 ms
CPU_STILL = 0.01
TICKS = 0.02
SWITCHES_STILL = 3  # a DataLoader's poll is one in 5 s, a training step on a GPU about one per step
SWITCH_RATE = 0.5
IO_RATE = 64 * 1024  # bytes a second; a chatty thread writes less, a checkpoint more
OTHERS_BUSY = 0.2  # of one core, by the process's other threads
CHILDREN_BUSY = (
    0.05  # by its children: an idle one uses nothing, a working one on a crowded node little
)
SAMPLES = 4
STOPPED = ("T", "t")
POLLS = ("store", "init")  # waits that wake up now and then to look again


class Condition(StrEnum):
    """What a rank has done for a whole window."""

    WAITING = "waiting"  # frozen in a wait that only others can end
    BLIND = "blind"  # spins in such a wait without a switch; its device cannot be read
    INERT = "inert"  # frozen anywhere else
    BUSY = "busy"  # moved
    GONE = "gone"


class Trail(msgspec.Struct, kw_only=True):
    """One rank: when it last moved, by kind of movement."""

    last: RankLook
    steady: float  # since then: the same frames, no compiler, no device progress
    calm: float  # no context switches
    still: float  # calm, and no CPU time or I/O
    marked: float
    mark: RankLook
    cpu_seconds: float = 0.0  # since the mark
    looked: float = 0.0
    device: bool | None = None  # the last reading since the job moved
    role: Role | None = None
    told: RankLook | None = None  # the last look that brought a class
    signature: str | None = None
    samples: int = 0
    sampled: float = 0.0
    shown: float = 0.0  # the first sample of these frames
    changed: bool = False  # the last sample showed other frames than the one before

    def see(self, look: RankLook, now: float) -> None:
        """Take one more look."""
        self.cpu_seconds += look.cpu_ratio * max(0.0, now - self.looked)
        self.last, self.looked = look, now
        if look.role is not None:
            self.role, self.told = look.role, look
        if look.device_progress is not None:
            self.device = look.device_progress
        if look.compiling or look.device_progress:
            self.steady = now
        self._compare_frames(look.frames_signature, now)
        if now - self.marked >= SLICE:
            self._compare_counters(look, now)

    def forget(self, now: float) -> None:
        """The job moved: what was seen before says nothing about the next stall."""
        self.steady = self.calm = self.still = self.sampled = now
        self.signature = self.role = self.told = self.device = None
        self.samples = 0

    @property
    def since(self) -> float:
        """Since when it stands where it stands."""
        if self.role is Role.WAITING and self.polls:
            return self.same
        spins = self.role is Role.WAITING and self.device is False
        return self.steady if spins else max(self.steady, self.still)

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

    def condition(self, now: float, window: float) -> Condition:
        """What this rank has done in the last `window` seconds."""
        if self.role in (Role.EXITED, Role.MISSING):
            return Condition.GONE
        if now - self.steady < window or not self._enough_samples(now, window):
            return Condition.BUSY
        still = now - self.still >= window
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
            self.steady = max(self.steady, self.still) if self.still >= self.sampled else now
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
        works = self.cpu_seconds > max(TICKS, CPU_STILL * span)
        works = works or look.children_cpu_ratio >= CHILDREN_BUSY
        if works or look.process_cpu_ratio >= OTHERS_BUSY or moved > IO_RATE * span:
            self.still = now
        self.marked, self.mark, self.cpu_seconds = now, look, 0.0

    def _enough_samples(self, now: float, window: float) -> bool:
        """A stopped rank needs no stack; one that cannot be sampled is judged by its counters."""
        tried = now - self.sampled >= window / 2
        return self.samples >= SAMPLES or self.last.state in STOPPED or tried


def new_trail(look: RankLook, now: float) -> Trail:
    """Begin with the first look at a rank: it counts as having moved just now."""
    trail = Trail(
        last=look, steady=now, calm=now, still=now, marked=now, mark=look, looked=now, sampled=now
    )
    trail.see(look, now)
    return trail


class Standing(msgspec.Struct, frozen=True):
    """The ranks of one run by condition, each with its trail, sorted by rank."""

    waiting: tuple[Trail, ...] = ()
    blind: tuple[Trail, ...] = ()
    inert: tuple[Trail, ...] = ()
    busy: tuple[Trail, ...] = ()
    gone: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def frozen(self) -> bool:
        """Nobody moves. Blind waiters count as frozen only beside somebody who does not wait."""
        if self.busy or not (self.waiting or self.blind or self.inert):
            return False
        return not self.blind or bool(self.inert or self.gone or self.missing)

    @property
    def somebody_stands(self) -> bool:
        """Somebody waits, or does nothing, while others work."""
        return bool(self.waiting or self.blind or self.inert)

    @property
    def stood(self) -> tuple[int, ...]:
        """Ranks that stand."""
        return tuple(trail.last.rank for trail in (*self.waiting, *self.blind, *self.inert))

    def stood_for(self, now: float) -> float:
        """Seconds since the last rank came to stand, or where somebody works, since the first did."""
        standing = (*self.waiting, *self.blind, *self.inert)
        spans = [now - (trail.steady if trail in self.blind else trail.since) for trail in standing]
        return (max if self.busy else min)(spans, default=0.0)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Ranks that do not wait."""
        found = [trail.last.rank for trail in (*self.inert, *self.busy)]
        return tuple(sorted((*found, *self.gone, *self.missing)))


class Ranks:
    """The trails of all ranks of one attempt."""

    def __init__(self) -> None:
        self._trails: dict[int, Trail] = {}
        self._exited: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()

    def see(self, seen: Look, now: float) -> None:
        """Take one look at every rank; a rank that is no longer listed is forgotten."""
        known, self._exited, self._missing = self._trails, seen.exited, seen.missing
        self._trails = {}
        for look in seen.ranks:
            trail = known.get(look.rank)
            if trail is None:
                trail = new_trail(look, now)
            else:
                trail.see(look, now)
            self._trails[look.rank] = trail

    def forget(self, now: float) -> None:
        """The job moved."""
        for trail in self._trails.values():
            trail.forget(now)

    def unmoved_for(self, now: float) -> tuple[float, float]:
        """Seconds for which all ranks, and for which some rank, showed no cheap sign of movement."""
        spans = [now - trail.unmoved for trail in self._trails.values()]
        return min(spans, default=0.0), max(spans, default=0.0)

    def steady_for(self, now: float) -> float:
        """Seconds for which every rank showed the same frames, counters aside."""
        return min((now - trail.same for trail in self._trails.values()), default=0.0)

    @property
    def changed(self) -> bool:
        """Whether the last sample showed a rank in other frames than the one before."""
        return any(trail.changed for trail in self._trails.values())

    def moved_since(self, ranks: tuple[int, ...], moment: float) -> bool:
        """Whether the frames of one of these ranks have changed after `moment`."""
        return any(trail.steady > moment for rank in ranks if (trail := self._trails.get(rank)))

    def standing(self, now: float, window: float) -> Standing:
        """Sort the ranks by what they did in the last `window` seconds."""
        found: dict[Condition, list[Trail]] = {condition: [] for condition in Condition}
        for _, trail in sorted(self._trails.items()):
            found[trail.condition(now, window)].append(trail)
        gone = {trail.last.rank for trail in found[Condition.GONE]} | set(self._exited)
        return Standing(
            waiting=tuple(found[Condition.WAITING]),
            blind=tuple(found[Condition.BLIND]),
            inert=tuple(found[Condition.INERT]),
            busy=tuple(found[Condition.BUSY]),
            gone=tuple(sorted(gone)),
            missing=self._missing,
        )

    def any_class(self, names: frozenset[str]) -> bool:
        """Whether a rank was last seen in one of these classes."""
        told = [trail.told for trail in self._trails.values()]
        return any(look.class_name in names for look in told if look)
