"""Reads the kernel's log, /dev/kmsg: first the last hours, and what lasts from before, then what is new; each round within limits.

Opening and reading it needs no child: neither ever waits. Several readers do not disturb each other, so two agents on one node are
fine. journald is not used: it may lag, and drops lines of its own.
"""

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from mldebug.core.model import Gap
from mldebug.diagnosis.exits.kernel_lines import kernel_death
from mldebug.diagnosis.exits.model import KernelDeath
from mldebug.hardware.health.kernel_rules import outlasts
from mldebug.hardware.kernel_log.bursts import Burst, Folding
from mldebug.hardware.kernel_log.counts import (
    GpuLabel,
    KernelCounts,
    KernelEventCounter,
    LostRecords,
)
from mldebug.hardware.kernel_log.lines.nvidia import gpu_named
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug.hardware.kernel_log.parse import parse_event
from mldebug.hardware.kernel_log.records import (
    KERNEL_FACILITY,
    KernelClock,
    KernelRecord,
    parse_record,
)
from mldebug_agents.hardware.fabric_manager import FabricManagerLog
from mldebug_agents.hardware.zfs_pools import SuspendedPools
from mldebug_agents.system.context import Context
from mldebug_agents.system.host import Host

PATH = "/dev/kmsg"
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
DEVICE = os.makedev(1, 11)
RECORD = 16 << 10  # bytes of one read; a record has at most 8 KiB
PIECE = 256 << 10  # bytes of one read of a file or a FIFO
MAX_PARTIAL = 64 << 10  # bytes of a line without an end
MAX_DEATHS = 256
MAX_NAMED = 128  # GPUs whose UUID the driver printed
KTHREADD = 2  # the pid of the kernel's first thread
PF_KTHREAD = 0x00200000
LOOK_AT_CLOCK = 64  # records between two looks at the time


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many records, bytes and seconds one round of reading the kernel log may take."""

    records: int = 20_000
    bytes: int = 8 << 20
    seconds: float = 0.2


class KernelNews(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the kernel log after a round of reading. Never changes, so any thread may hold it."""

    bursts: tuple[Burst, ...] = ()  # the oldest first
    deaths: tuple[KernelDeath, ...] = ()  # processes that the kernel killed, or that crashed
    counts: KernelCounts = KernelCounts()
    named: dict[str, str] = {}  # PCI address -> UUID, where the driver printed it
    behind: bool = False  # the round ended before the log did: ask again soon
    records: int = 0  # read in this round
    seconds: float = 0.0  # that the round took
    gap: Gap | None = None  # why nothing can be read
    fabric_gap: Gap | None = None  # why the log of the Fabric Manager cannot be read
    loss: Gap | None = None  # records that were overwritten lately, before they were read


class KernelLogSource:
    """Reads the kernel log from where the last read stopped. Keep one object. For one worker thread."""

    def __init__(
        self,
        path: str = PATH,
        *,
        look_back: float = 6 * 3600.0,
        limits: ReadLimits | None = None,
        user_space: bool = False,
        pools: SuspendedPools | None = None,
        fabric: FabricManagerLog | None = None,
        unix: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fabric`: a second log, of the Fabric Manager. `user_space`: also obey what programs write into the log; any root program can forge that, so for drills only."""
        self._path = path
        self._look_back = look_back
        self._limits = limits or ReadLimits()
        self._user_space = user_space
        self._unix, self._monotonic = unix, monotonic
        self._fd = -1
        self._device = True
        self._partial = b""
        self._sequence = -1
        self._oldest = (
            0.0  # unix: what is older is passed over, but for what lasts until the next boot
        )
        self._clock = KernelClock()
        self._folding = Folding()
        self._counts = KernelEventCounter()
        self._losses = LostRecords()
        self._deaths: deque[KernelDeath] = deque(maxlen=MAX_DEATHS)
        self._named: dict[str, str] = {}
        self._pools = pools or SuspendedPools()
        self._fabric = fabric

    def read(self, events: Iterable[KernelEvent] = ()) -> KernelNews:
        """Read what is new in the kernel log, as far as the limits allow. `events`: Xids that NVML reported since the last round."""
        started = self._monotonic()
        for event in events:
            self._take(event)
        gap = self._open()
        records, behind = 0, False
        if gap is None:
            now = self._unix()
            self._oldest = now - self._look_back
            self._clock.begin(now, started)
            records, behind, gap = self._round(started)
            if not behind and gap is None:
                self._clock.drained(started)
        for event in self._from_elsewhere(behind=behind):
            self._take(event)
        return KernelNews(
            bursts=self._folding.bursts(),
            deaths=tuple(self._deaths),
            counts=self._counts.now(readable=gap is None),
            named=dict(self._named),
            behind=behind,
            records=records,
            seconds=self._monotonic() - started,
            gap=gap,
            fabric_gap=self._fabric.gap if self._fabric else None,
            loss=self._losses.gap(self._monotonic()),
        )

    def _from_elsewhere(self, *, behind: bool) -> tuple[KernelEvent, ...]:
        """What other files tell, after all that the kernel's log has said before."""
        pools = tuple(self._pools.back(self._folding.bursts(), self._unix()))
        if self._fabric is None or behind:
            return pools
        return *pools, *self._fabric.events()

    def close(self) -> None:
        """Close the log; a later `read` opens it again and returns no record twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._partial = -1, b""

    # --- reading -----------------------------------------------------------------------------------

    def _open(self) -> Gap | None:
        if self._fd >= 0:
            return None
        try:
            self._fd = os.open(self._path, FLAGS)
        except OSError as error:
            return _gap(self._path, error)
        found = os.fstat(self._fd)
        self._device = stat.S_ISCHR(found.st_mode)
        if self._device and found.st_rdev != DEVICE:  # some containers have a link to the console
            self.close()
            return _gap(self._path, OSError(errno.ENOENT, "Is not the kernel's log"))
        return None

    def _round(self, started: float) -> tuple[int, bool, Gap | None]:
        """Returns how many records were read, whether there are more, and what went wrong."""
        count = size = 0
        try:
            for data in self._records():
                count, size = count + 1, size + len(data)
                self._tell(data)
                if count >= self._limits.records or size >= self._limits.bytes:
                    return count, True, None
                late = count % LOOK_AT_CLOCK == 0 and self._late(started)
                if late:
                    return count, True, None
        except OSError as error:
            self.close()
            return count, False, _gap(self._path, error)
        return count, False, None

    def _late(self, started: float) -> bool:
        return self._monotonic() - started > self._limits.seconds

    def _records(self) -> Iterator[bytes]:
        return self._of_device() if self._device else self._of_stream()

    def _of_device(self) -> Iterator[bytes]:
        while True:
            try:
                yield os.read(self._fd, RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were overwritten before we came
                self._counts.add_overrun()
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: a record that does not fit, passed over
                    raise

    def _of_stream(self) -> Iterator[bytes]:
        """Lines of a file or a FIFO; one that is cut off by a limit is kept for the next round."""
        while True:
            *lines, self._partial = self._partial.split(b"\n")
            while lines:
                line = lines.pop(0)
                try:
                    yield line
                except GeneratorExit:
                    self._partial = b"\n".join((*lines, self._partial))
                    raise
            try:
                data = os.read(self._fd, PIECE)
            except BlockingIOError:
                return
            if not data:
                return
            self._partial = self._partial[-MAX_PARTIAL:] + data

    # --- understanding -----------------------------------------------------------------------------

    def _tell(self, data: bytes) -> None:
        record = parse_record(data)
        if record is None or record.sequence <= self._sequence:
            return
        if self._sequence >= 0:
            self._losses.add(record.sequence - self._sequence - 1, self._monotonic())
        self._sequence = record.sequence
        self._counts.add_record(self._losses.all)
        if record.facility != KERNEL_FACILITY and not self._user_space:
            return
        self._advance_clock(record)

    def _advance_clock(self, record: KernelRecord) -> None:
        at = self._clock.unix(record.seconds)
        event = parse_event(record, at)
        if at < self._oldest and not (event is not None and outlasts(event)):
            return
        if event is not None:
            uuid = self._named.get(event.device)
            self._take(msgspec.structs.replace(event, uuid=uuid) if uuid else event)
            if death := kernel_death(event, record.seconds):
                self._deaths.append(death)
        elif len(self._named) < MAX_NAMED and (name := gpu_named(record.text)):
            self._named[name[0]] = name[1]

    def _take(self, event: KernelEvent) -> None:
        self._counts.add(event, self._folding.add(event))


def kernel_log_of(context: Context) -> KernelLogSource:
    """The kernel's log of a node, and that of its Fabric Manager, which is read by the child that all share: it waits there for some
    seconds at most, and one of its own would cost 5 MB.
    """
    host = context.host
    fabric = FabricManagerLog(host.root, context.reader, host.boot_time, host.clock)
    return KernelLogSource(f"{host.root}/dev/kmsg", fabric=fabric)


def gpu_names(news: KernelNews) -> dict[str, GpuLabel]:
    """UUID and index of GPUs by PCI address, from the driver's own log lines; needed where NVML does not answer."""
    return {device: GpuLabel(uuid) for device, uuid in news.named.items()}


def sees_kernel_pids(host: Host) -> bool:
    """Whether the agent sees processes under the same pids as the kernel logs them. That is so only in the first pid
    namespace, which has the kernel's own threads.
    """
    fields = host.text(KTHREADD, "stat").rpartition(")")[2].split()
    return len(fields) > 6 and fields[6].isdigit() and bool(int(fields[6]) & PF_KTHREAD)


def _gap(path: str, error: OSError) -> Gap:
    """Name what is missing, and how to get it."""
    ways = {
        errno.EPERM: (
            "give the agent CAP_SYSLOG: AmbientCapabilities=CAP_SYSLOG in its unit, or --cap-add SYSLOG;"
            " a container's device rules have to let it in as well"
        ),
        errno.EACCES: f"let the agent's user read {path}, and set ProtectKernelLogs=no in its unit",
        errno.ENOENT: f"hand the node's {path} to the container: --device {path}",
    }
    return Gap(
        what="kernel log",
        reason=f"{path}: {(error.strerror or 'cannot be read').lower()}: Xids and OOM kills are not seen there",
        way_out=ways.get(
            error.errno or 0, f"see whether `head -c 200 {path}` works as the agent's user"
        ),
    )
