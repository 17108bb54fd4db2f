"""What works with GPUs on this node as this user, and how the GPUs are: the data of `doctor --gpus`. Pure."""

import time
from collections.abc import Iterator

import msgspec

from mldebug.core.errors import ExitCode
from mldebug.core.units import format_duration
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


class GpuExamination(msgspec.Struct, frozen=True, kw_only=True):
    """All that doctor tells of GPUs; as `--json` prints it."""

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
        """1 where something is unhealthy or does not answer, 3 where there is no library."""
        if self.glance.no_library:
            return ExitCode.MISSING
        ill = any(one.state is HealthState.UNHEALTHY for one in self.health)
        away = self.glance.gpu_gap is not None or missing(self.glance)
        return ExitCode.FOUND if ill or away else ExitCode.FINE


def examined(seen: GpuOverview, told: Snapshot | None, uid: int) -> GpuExamination:
    """Put together what was seen by an own look and what the agent told."""
    return GpuExamination(
        node=seen.node,
        uid=uid,
        checks=tuple(_checks(seen, told)),
        health=told.health if told and told.health else seen.health,
        xids=tuple(one for one in seen.events if is_gpu(one.burst.root.kind)),
        users=seen.users,
        unjoined=seen.unjoined,
        glance=seen,
    )


def _checks(seen: GpuOverview, told: Snapshot | None) -> Iterator[DoctorCheck]:
    yield _library(seen)
    if not seen.no_library:
        yield _answering(seen)
        yield _expected(seen)
        yield _readable(seen)
    yield _kernel(seen)
    yield _agent(told)


def _library(seen: GpuOverview) -> DoctorCheck:
    name = "NVML library"
    if seen.no_library:
        return DoctorCheck(
            name=name,
            state="missing",
            meaning="there is none: no NVIDIA GPU, or no driver",
            way_out=DRIVER_AWAY,
        )
    if seen.gpus is None:
        return DoctorCheck(name=name, state="limited", meaning="it was not asked for its version")
    versions = (
        f"{seen.gpus.library_version or 'unknown'}, driver {seen.gpus.driver_version or 'unknown'}"
    )
    return DoctorCheck(name=name, state="ok", meaning=versions)


def _answering(seen: GpuOverview) -> DoctorCheck:
    name = "GPUs"
    if seen.released_until is not None:
        left = format_duration(float(max(0, int(seen.released_until - time.time()))))
        told = f"the agent has let go of them for another {left}: they are not read"
        return DoctorCheck(
            name=name, state="limited", meaning=told, way_out="mldebug gpus release --end"
        )
    if seen.gpus is None:
        gap = seen.gpu_gap
        return DoctorCheck(
            name=name,
            state="missing",
            meaning=gap.reason if gap else "none can be asked",
            way_out=gap.way_out if gap else DRIVER_AWAY,
        )
    lost = [f"GPU {one.index} ({one.bus_id or 'address unknown'}): {one.reason}" for one in seen.gpus.lost]  # fmt: skip
    models = sorted({one.name for one in seen.gpus.gpus if one.name})
    here = f"{len(seen.gpus.gpus)} answer" + (f": {', '.join(models)}" if models else "")
    if lost:
        gone = any(seen.gone(one) for one in seen.gpus.lost)
        told = f"{here}; {'lost' if gone else 'no answer'}: {'; '.join(lost)}"
        return DoctorCheck(
            name=name, state="missing", meaning=told, way_out=REBOOT if gone else ASK_AGAIN
        )
    return DoctorCheck(name=name, state="ok", meaning=here)


def _expected(seen: GpuOverview) -> DoctorCheck:
    name, count = "expected GPUs", seen.count
    if count is None or not count.expected:
        told = "nobody remembers how many there were"
        return DoctorCheck(name=name, state="limited", meaning=told, way_out=REMEMBER)
    here = len(seen.gpus.gpus) if seen.gpus else count.present
    gone = [f"GPU {one.gpu.index} ({one.gpu.bus_id or one.gpu.uuid}): {one.reason}" for one in count.missing]  # fmt: skip
    told = f"{here} of {count.expected} are there"
    if here >= count.expected and not gone:
        return DoctorCheck(name=name, state="ok", meaning=told)
    return DoctorCheck(
        name=name,
        state="missing",
        meaning="; ".join([told, *gone]),
        way_out=f"{REBOOT}; mldebug gpus accept, where they were taken out"
        if gone or not count.silent
        else ASK_AGAIN,
    )


def _readable(seen: GpuOverview) -> DoctorCheck:
    """Which values this user may not read, or which did not come."""
    name = "readings"
    if seen.gpus is None:
        return DoctorCheck(name=name, state="limited", meaning="nothing was read")
    if seen.gpus.gaps:
        gap = seen.gpus.gaps[0]
        told = f"{gap.what}: {gap.reason}"
        return DoctorCheck(name=name, state="limited", meaning=told, way_out=gap.way_out)
    unread = sorted({what for gpu in seen.gpus.gpus for what in gpu.unreadable})
    if unread:
        told = f"not readable: {', '.join(unread[:12])}"
        return DoctorCheck(name=name, state="limited", meaning=told)
    cost = f"{seen.gpus.read_seconds * 1000:.0f} ms"
    return DoctorCheck(
        name=name, state="ok", meaning=f"all that these GPUs tell is readable, in {cost}"
    )


def _kernel(seen: GpuOverview) -> DoctorCheck:
    gap = seen.kernel_gap
    if gap is not None:
        return DoctorCheck(
            name="kernel log", state="limited", meaning=gap.reason, way_out=gap.way_out
        )
    return DoctorCheck(
        name="kernel log", state="ok", meaning="Xids and out-of-memory kills are seen"
    )


def _agent(told: Snapshot | None) -> DoctorCheck:
    if told is None:
        return DoctorCheck(
            name="agent",
            state="limited",
            meaning="none answers: nobody sees Xids that the kernel's log does not keep",
            way_out="mldebug agent",
        )
    return DoctorCheck(name="agent", state="ok", meaning="it watches the GPUs and the kernel's log")
