"""Bursts: events of one GPU (process, server, link) in quick succession are one event with a count.

The first one is its root.

One error may be reported several times: by a log that is read again after a restart or an overrun
(same sequence number: ignored), by the log and by NVML (same GPU, Xid and time: counted once, in
either order), by an Xid line and a "fallen off the bus" line without a number. Memory is bounded.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

from mldebug.core.model import MeasuredData
from mldebug.core.redact import safe_line
from mldebug.hardware.kernel_log.burst_summary import (
    Worst,
    adds_to,
    completed,
    ends_it,
    follows,
    judged,
    made_safe,
    source_of,
    weight,
    worse,
)
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin, same_device
from mldebug.hardware.kernel_log.xids import Action, Tier

WINDOW = 5.0  # seconds without a line that end a burst
REPEAT = 60.0  # the same for a GPU error that comes again and again, as a driver that waits 6 s or 45 s each time writes it
LATE = 30.0  # seconds by which NVML may tell later than the kernel: it is asked now and then
LATER = (Origin.NVML, Origin.FABRIC_MANAGER)  # they are read after the kernel's log
LONGEST = 600.0  # seconds after which a burst that does not end is told anew
OPEN = 64  # bursts of one kind that can be open at once
KEPT = 64  # closed bursts of one kind
MAX_NUMBERS = 32  # different Xids that one burst counts apart
MAX_DISTINCT = 1024  # different texts of one burst that are told apart
OTHER = -1  # what further numbers are counted as

_FAMILY = {
    KernelEventKind.LINK_UP: KernelEventKind.LINK_DOWN,
    KernelEventKind.NFS_OK: KernelEventKind.NFS_NOT_RESPONDING,
    KernelEventKind.LUSTRE_RESTORED: KernelEventKind.LUSTRE_LOST,
    KernelEventKind.GPU_LOST: KernelEventKind.XID,
}
"""Kinds that belong to the story of another one."""
_OVER = frozenset(
    {KernelEventKind.LINK_UP, KernelEventKind.NFS_OK, KernelEventKind.LUSTRE_RESTORED}
)
"""Those of them that tell that it is over: they are no fault themselves, whichever came first."""

_ENDS = {
    KernelEventKind.NIC_OK: (
        KernelEventKind.NIC_FATAL,
        KernelEventKind.NIC_TIMEOUT,
        KernelEventKind.NIC_TX_TIMEOUT,
    ),
    KernelEventKind.FILESYSTEM_OK: (
        KernelEventKind.FILESYSTEM_ERROR,
        KernelEventKind.FILESYSTEM_READ_ONLY,
        KernelEventKind.FILESYSTEM_SHUTDOWN,
        KernelEventKind.POOL_FULL,
    ),
    KernelEventKind.DISK_OK: (KernelEventKind.DISK_GONE,),
    KernelEventKind.CEPH_OK: (KernelEventKind.CEPH_LOST,),
    KernelEventKind.WEKA_OK: (KernelEventKind.WEKA_LOST,),
    KernelEventKind.GPU_DRIVER_OK: (KernelEventKind.GPU_DRIVER_FAILED,),
    KernelEventKind.FABRIC_OK: (
        KernelEventKind.FABRIC_INCOMPLETE,
        KernelEventKind.FABRIC_MISMATCH,
        KernelEventKind.FABRIC_MULTICAST,
    ),
}
"""Kinds that say something only where one of these came before from the same device: each boot has plenty of them."""

AGAIN = {
    KernelEventKind.LOCKUP: 60.0,  # of one CPU: every 20 to 35 s while it lasts
    KernelEventKind.WORKQUEUE_STALL: 60.0,
    KernelEventKind.NIC_TX_TIMEOUT: 60.0,
    KernelEventKind.NIC_TIMEOUT: 150.0,  # a command of mlx5 waits for 60 s, one that is tried again for 120
    KernelEventKind.DISK_GONE: 90.0,  # NVMe: 25 to 60 s for each try to bring it back
    KernelEventKind.RCU_STALL: 240.0,  # after 21, 84 and then every 63 s; of SUSE and RHEL three times as long
    KernelEventKind.HUNG_TASK: 240.0,  # of one process: every 120 s
    KernelEventKind.CPU_THROTTLED: 300.0,  # of each processor, at moments of its own
    KernelEventKind.GPU_FIRMWARE_SILENT: 60.0,
    KernelEventKind.GPU_RING_TIMEOUT: 60.0,
    KernelEventKind.GPU_RESET_REQUIRED: 600.0,  # whenever a program wants the GPU
    KernelEventKind.GPU_UNREACHABLE: 600.0,
    KernelEventKind.GPU_DRIVER_FAILED: 600.0,
    KernelEventKind.FABRIC_INCOMPLETE: 120.0,  # at each try to start it again
    KernelEventKind.FABRIC_MISMATCH: 120.0,
    KernelEventKind.FABRIC_MULTICAST: 120.0,  # of each GPU of a job
}
"""Faults of which the kernel tells again while they last: seconds between two lines about one and the same."""

_OF_PROCESSES = frozenset(
    {KernelEventKind.OOM_KILL, KernelEventKind.CRASH, KernelEventKind.HUNG_TASK}
)


class Burst(MeasuredData, frozen=True, kw_only=True):
    """Errors of one device in quick succession, shown as one event. Its texts are safe to show."""

    root: KernelEvent  # the first one that is no consequence of another
    first_at: float
    last_at: float
    count: int  # errors, each counted once
    distinct: int = 1  # different lines among them; `MAX_DISTINCT`: so many or more
    xids: dict[
        int, int
    ] = {}  # Xid -> errors, in the order of their first; OTHER: all further numbers
    last_kind: KernelEventKind  # of the newest line: link_up or nfs_ok where it is over
    tier: Tier = Tier.INFORMATION  # the worst of all; of GPU events only
    worst: Worst | None = None  # the error that it comes from
    pids: tuple[int, ...] = ()  # named by the lines, in their order
    actions: tuple[Action, ...] = ()  # what its Xids ask for, of each number once
    recovery: str = ""  # what the driver asks for at the last (Xid 154), and has not taken back
    over: bool = False  # the driver asks for nothing any more: the GPU was reset since
    place: int = 0  # its newest line's place among all that was heard, as clocks may be set back; 0: not known


Key = tuple[str, int | None]  # device, and the pid where processes are told apart


class _OpenBurst:
    """A burst that may still grow."""

    __slots__ = (
        "_made",
        "_safe",
        "count",
        "counts",
        "first_at",
        "judged",
        "key",
        "last_at",
        "last_kind",
        "over",
        "pids",
        "place",
        "recovery",
        "root",
        "settled",
        "texts",
        "xids",
    )  # fmt: skip

    def __init__(self, event: KernelEvent, key: Key) -> None:
        self.key = key
        self.root = event
        self.settled = not self._leads_on(event)  # is the root the one that it will stay?
        self.first_at = self.last_at = event.at
        self.last_kind = event.kind
        self.count = self.place = 0
        self.texts: set[int] = set()
        self.xids: dict[int, int] = {}
        self.counts: dict[tuple[int, str], int] = {}  # (Xid, who says it) -> how often
        self.judged: dict[int, Worst] = {}  # Xid -> the worst of its lines
        self.recovery = ""
        self.over = False
        self.pids: dict[int, None] = {}
        self._made: Burst | None = None
        self._safe: tuple[KernelEvent, KernelEvent] | None = (
            None  # the root and what of it is shown
        )

    def takes(self, event: KernelEvent) -> bool:
        """Whether the event belongs to this burst, by its time."""
        if self.over or event.at - self.first_at > LONGEST:
            return False
        window = REPEAT if self._repeats(event) else AGAIN.get(event.kind, WINDOW)
        return self.first_at - WINDOW <= event.at <= self.last_at + window

    def _repeats(self, event: KernelEvent) -> bool:
        """The GPU goes on to report one error; not a second job that makes the same mistake."""
        before = self.judged.get(event.xid) if event.xid is not None else None
        if before is None or before.tier is Tier.APPLICATION:
            return False
        return before.tier is Tier.FATAL or event.pid is None or event.pid in self.pids

    def expects(self, event: KernelEvent) -> bool:
        """Whether another source (see `source_of`) has reported this error before, so that it is not new."""
        if event.xid is None or not self.first_at - LATE <= event.at <= self.last_at + LATE:
            return False
        count = self.counts.get((event.xid, source_of(event)), 0)
        return count < self.xids.get(event.xid, 0)

    def add(self, event: KernelEvent) -> int:
        """Add one event to the burst.

        Returns how many new errors it stands for: 0 where they are known from another source.
        """
        self._made = None
        if not self.settled and not self._leads_on(event):
            self.root, self.settled = event, True
            if event.xid is None:
                self.count = 0
        elif self.root is not event and adds_to(event, self.root):
            self.root = completed(self.root, event)
        if event.origin is not Origin.NVML or not self.count:
            self.first_at, self.last_at = min(self.first_at, event.at), max(self.last_at, event.at)
        self.last_kind = event.kind
        if len(self.texts) < MAX_DISTINCT:
            self.texts.add(hash(event.text))
        if event.pid is not None and len(self.pids) < MAX_NUMBERS:
            self.pids[event.pid] = None
        if event.recovery:
            self.recovery = "" if ends_it(event) else event.recovery
        if event.xid is None:
            return self._add_plain(event)
        return self._add_xid(event, event.xid)

    def end(self) -> None:
        """Mark the burst as over, because the GPU was reset: it takes no more events, and its errors no longer count against the GPU."""
        self.over, self.recovery, self._made = True, "", None

    @staticmethod
    def _leads_on(event: KernelEvent) -> bool:
        """Whether a line of a fault that comes after it is the root, and not this one."""
        return follows(event) or event.kind in _OVER

    def _add_plain(self, event: KernelEvent) -> int:
        more = event.number
        if event.kind is KernelEventKind.OOM_KILL and self.count:
            more = 0  # two or three lines tell of one kill
        if event.kind not in _OVER or not self.settled:
            self.count += more
        return more

    def _add_xid(self, event: KernelEvent, number: int) -> int:
        if number not in self.xids and len(self.xids) >= MAX_NUMBERS:
            number = OTHER
        if self._may_be_worse(event, number):
            line = judged(event, event.xid or number)
            earlier = self.judged.get(number)
            self.judged[number] = line if earlier is None else worse(earlier, line)
        key = (number, source_of(event))
        count = self.counts[key] = self.counts.get(key, 0) + 1
        before = self.xids.get(number, 0)
        if count <= before:
            return 0
        self.xids[number] = count
        self.count += 1
        return 1

    def _may_be_worse(self, event: KernelEvent, number: int) -> bool:
        """In a flood nearly no line is: a number that was seen says nothing new, unless its line says more."""
        before = self.judged.get(number)
        if before is None or number == OTHER or event.severity or event.recovery or event.cause:
            return True
        return event.at < before.at or not before.trusted or not before.in_words

    def worst(self) -> Worst | None:
        """The worst error, of equally bad ones the first; None where there is no Xid."""
        return max(self.judged.values(), key=weight, default=None)

    def burst(self) -> Burst:
        """The burst as it is shown; made anew only after something was added."""
        if self._made is None:
            if self._safe is None or self._safe[0] is not self.root:
                self._safe = (self.root, made_safe(self.root))
            worst = self.worst()
            self._made = Burst(
                root=self._safe[1],
                first_at=self.first_at,
                last_at=self.last_at,
                count=self.count,
                distinct=len(self.texts),
                xids=dict(self.xids),
                last_kind=self.last_kind,
                tier=worst.tier if worst else Tier.INFORMATION,
                worst=worst,
                pids=tuple(self.pids),
                actions=tuple(dict.fromkeys(line.action for line in self.judged.values())),
                recovery=safe_line(self.recovery, 64),
                over=self.over,
                place=self.place,
            )
        return self._made


class _KindBursts:
    """The bursts of one kind."""

    def __init__(self) -> None:
        self.open: OrderedDict[Key, _OpenBurst] = OrderedDict()
        self.closed: deque[_OpenBurst] = deque()  # at most KEPT

    def burst_for(self, event: KernelEvent, key: Key) -> _OpenBurst:
        """The open burst that the event belongs to; otherwise a new one, which closes the one before it."""
        if event.origin in LATER:
            open_burst = next(
                (one for one in self.bursts() if one.key == key and one.expects(event)), None
            )
            if open_burst is not None:
                return open_burst
        burst = self.open.get(key)
        if burst is not None and (burst.takes(event) or burst.expects(event)):
            self.open.move_to_end(key)
            return burst
        if burst is not None:
            self._close(self.open.pop(key))
        elif len(self.open) >= OPEN:
            self._close(self.open.popitem(last=False)[1])
        burst = self.open[key] = _OpenBurst(event, key)
        return burst

    def _close(self, burst: _OpenBurst) -> None:
        """Keep a closed burst. Where there are too many the oldest is dropped, but not one in which the driver asks for something that
        it has not taken back: a job's own errors on that GPU may be many.
        """
        if len(self.closed) >= KEPT:
            may_go = (number for number, one in enumerate(self.closed) if not one.recovery)
            del self.closed[next(may_go, 0)]
        self.closed.append(burst)

    def end(self, key: Key) -> None:
        """Mark all bursts of this device as over."""
        for burst in self.bursts():
            if burst.key == key:
                burst.end()

    def bursts(self) -> Iterator[_OpenBurst]:
        """All bursts that are kept, open or closed."""
        yield from self.closed
        yield from self.open.values()


class Folding:
    """Groups kernel events into bursts. For one thread; the values of `bursts` are immutable."""

    def __init__(self) -> None:
        self._by_kind: dict[KernelEventKind, _KindBursts] = {}
        self._sequence = -1  # the newest record that was taken in
        self._places = 0

    def add(self, event: KernelEvent) -> int:
        """Add an event of the kernel's log: to the burst that it belongs to, or as the first of a new one.

        Returns how many new errors it stands for: 0 for one that is known already, or says nothing.
        """
        if 0 <= event.sequence <= self._sequence:
            return 0
        self._sequence = max(self._sequence, event.sequence)
        if self._says_nothing(event):
            return 0
        family = _FAMILY.get(event.kind, event.kind)
        of_kind = self._by_kind.get(family)
        if of_kind is None:
            of_kind = self._by_kind[family] = _KindBursts()
        key = (event.device, event.pid if family in _OF_PROCESSES else None)
        self._places += 1
        burst = of_kind.burst_for(event, key)
        if event.origin is not Origin.NVML or not burst.place:  # NVML may tell late what is known
            burst.place = self._places
        new = burst.add(event)
        if ends_it(event):
            of_kind.end(key)
        return new

    def _says_nothing(self, event: KernelEvent) -> bool:
        """A good end of what never went wrong."""
        before = _ENDS.get(event.kind)
        if before is None:
            return False
        known = (self._by_kind[kind].bursts() for kind in before if kind in self._by_kind)
        return not any(same_device(burst.root, event) for bursts in known for burst in bursts)

    def bursts(self) -> tuple[Burst, ...]:
        """All bursts that are kept, at most `OPEN + KEPT` of each kind, the oldest first."""
        found = (one.burst() for of_kind in self._by_kind.values() for one in of_kind.bursts())
        return tuple(sorted(found, key=lambda burst: burst.first_at))
