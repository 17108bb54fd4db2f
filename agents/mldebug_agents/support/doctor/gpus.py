"""What works with GPUs on this node for this user, and the health of the GPUs: the data of `mldebug doctor --gpus`. Pure."""

import time
from collections.abc import Iterator

import msgspec

from mldebug.core.errors import ExitCode
from mldebug.core.units import duration_words
from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.model import is_gpu
from mldebug.status.gpu_table import missing
from mldebug.status.gpu_view import GpuOverview, GpuUser
from mldebug.status.snapshot import Snapshot
from mldebug_agents.support.doctor.rows import DoctorCheck

DRIVER_AWAY = "install the NVIDIA driver; in a container start it with --gpus all"
REBOOT = "drain the node and reboot it"
ASK_AGAIN = "look for Xid lines in the kernel log, and ask again in a minute"
REMEMBER = "run the agent, which remembers them, or set health.gpus in the config"

AMD = "amd"  # name of the vendor's file


class GpuExamination(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `doctor --gpus`, as `--json` prints it."""

    node: str
    uid: int
    checks: tuple[DoctorCheck, ...]
    health: tuple[ComponentHealth, ...]  # the agent's word where one told it: it compares over time
    xids: tuple[RankEvent, ...]  # of the last hours, the oldest first
    users: tuple[GpuUser, ...]
    unjoined: tuple[str, ...]  # ranks whose GPU is not known, and why
    glance: GpuOverview

    @property
    def code(self) -> ExitCode:
        """The exit code: 1 where a component is unhealthy or does not answer, 3 without a management library, else 0."""
        if self.glance.no_library:
            return ExitCode.MISSING
        ill = any(one.state is HealthState.UNHEALTHY for one in self.health)
        away = self.glance.gpu_gap is not None or missing(self.glance)
        return ExitCode.FOUND if ill or away else ExitCode.FINE


def examined(overview: GpuOverview, snapshot: Snapshot | None, uid: int) -> GpuExamination:
    """The checks of `mldebug doctor --gpus`, made from a direct reading of the GPUs and, where an agent answers, from its snapshot."""
    return GpuExamination(
        node=overview.node,
        uid=uid,
        checks=tuple(_checks(overview, snapshot)),
        health=snapshot.health if snapshot and snapshot.health else overview.health,
        xids=tuple(event for event in overview.events if is_gpu(event.burst.root.kind)),
        users=overview.users,
        unjoined=overview.unjoined,
        glance=overview,
    )


def _checks(overview: GpuOverview, snapshot: Snapshot | None) -> Iterator[DoctorCheck]:
    yield _library(overview)
    if not overview.no_library:
        yield _answering(overview)
        yield _expected(overview)
        yield _readable(overview)
    yield _kernel(overview)
    yield _agent(snapshot)


def _library(overview: GpuOverview) -> DoctorCheck:
    name = "NVML library"
    if overview.gpus is not None and {one.vendor for one in overview.gpus.gpus} == {AMD}:
        meaning = f"amdgpu {overview.gpus.driver_version or 'of the kernel'}, by /sys: from recordings, not tried on a card"
        return DoctorCheck(name="GPU driver", state="limited", meaning=meaning)
    if overview.no_library:
        return DoctorCheck(
            name=name,
            state="missing",
            meaning="there is none: no GPU of NVIDIA or AMD, or no driver",
            way_out=DRIVER_AWAY,
        )
    if overview.gpus is None:
        return DoctorCheck(name=name, state="limited", meaning="it was not asked for its version")
    versions = f"{overview.gpus.library_version or 'unknown'}, driver {overview.gpus.driver_version or 'unknown'}"
    return DoctorCheck(name=name, state="ok", meaning=versions)


def _answering(overview: GpuOverview) -> DoctorCheck:
    name = "GPUs"
    if overview.released_until is not None:
        left = duration_words(int(overview.released_until - time.time()))
        snapshot = f"the agent has let go of them for another {left}: they are not read"
        return DoctorCheck(
            name=name, state="limited", meaning=snapshot, way_out="mldebug gpus release --end"
        )
    if overview.gpus is None:
        gap = overview.gpu_gap
        return DoctorCheck(
            name=name,
            state="missing",
            meaning=gap.reason if gap else "none can be asked",
            way_out=gap.way_out if gap else DRIVER_AWAY,
        )
    lost = [f"GPU {one.index} ({one.bus_id or 'address unknown'}): {one.reason}" for one in overview.gpus.lost]  # fmt: skip
    models = sorted({one.name for one in overview.gpus.gpus if one.name})
    here = f"{len(overview.gpus.gpus)} answer" + (f": {', '.join(models)}" if models else "")
    if lost:
        gone = any(overview.gone(one) for one in overview.gpus.lost)
        snapshot = f"{here}; {'lost' if gone else 'no answer'}: {'; '.join(lost)}"
        return DoctorCheck(
            name=name, state="missing", meaning=snapshot, way_out=REBOOT if gone else ASK_AGAIN
        )
    return DoctorCheck(name=name, state="ok", meaning=here)


def _expected(overview: GpuOverview) -> DoctorCheck:
    name, count = "expected GPUs", overview.count
    if count is None or not count.expected:
        snapshot = "nobody remembers how many there were"
        return DoctorCheck(name=name, state="limited", meaning=snapshot, way_out=REMEMBER)
    here = len(overview.gpus.gpus) if overview.gpus else count.present
    gone = [f"GPU {one.gpu.index} ({one.gpu.bus_id or one.gpu.uuid}): {one.reason}" for one in count.missing]  # fmt: skip
    snapshot = f"{here} of {count.expected} are there"
    if here >= count.expected and not gone:
        return DoctorCheck(name=name, state="ok", meaning=snapshot)
    return DoctorCheck(
        name=name,
        state="missing",
        meaning="; ".join([snapshot, *gone]),
        way_out=f"{REBOOT}; mldebug gpus accept, where they were taken out"
        if gone or not count.silent
        else ASK_AGAIN,
    )


def _readable(overview: GpuOverview) -> DoctorCheck:
    """Which values this user may not read, or which did not come."""
    name = "readings"
    if overview.gpus is None:
        return DoctorCheck(name=name, state="limited", meaning="nothing was read")
    if overview.gpus.gaps:
        gap = overview.gpus.gaps[0]
        snapshot = f"{gap.what}: {gap.reason}"
        return DoctorCheck(name=name, state="limited", meaning=snapshot, way_out=gap.way_out)
    unread = sorted({what for gpu in overview.gpus.gpus for what in gpu.unreadable})
    if unread:
        snapshot = f"not readable: {', '.join(unread[:12])}"
        return DoctorCheck(name=name, state="limited", meaning=snapshot)
    cost = f"{overview.gpus.read_seconds * 1000:.0f} ms"
    return DoctorCheck(
        name=name, state="ok", meaning=f"all that these GPUs tell is readable, in {cost}"
    )


def _kernel(overview: GpuOverview) -> DoctorCheck:
    gap = overview.kernel_gap
    if gap is not None:
        return DoctorCheck(
            name="kernel log", state="limited", meaning=gap.reason, way_out=gap.way_out
        )
    return DoctorCheck(
        name="kernel log", state="ok", meaning="Xids and out-of-memory kills are seen"
    )


def _agent(snapshot: Snapshot | None) -> DoctorCheck:
    if snapshot is None:
        return DoctorCheck(
            name="agent",
            state="limited",
            meaning="none answers: nobody sees Xids that the kernel's log does not keep",
            way_out="mldebug agent",
        )
    return DoctorCheck(name="agent", state="ok", meaning="it watches the GPUs and the kernel's log")
