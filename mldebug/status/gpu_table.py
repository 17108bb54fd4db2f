"""The GPUs of a node as a table of 80 columns, one row each. Pure.

`GPU  BUS ID        BUSY   MEMORY       POWER      TEMP   USED BY       HEALTH`
"""

from collections.abc import Iterable, Iterator, Sequence

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import clean
from mldebug.hardware.gpu.readings import GpuReading, GpuWatch, LostGpu
from mldebug.hardware.health.sentences import state_of_gpu
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.status.gpu_view import GpuOverview, GpuUser

HEADINGS = ("GPU", "BUS ID", "BUSY", "MEMORY", "POWER", "TEMP", "USED BY", "HEALTH")
RIGHT = (0, 2, 3, 4, 5)  # columns of numbers
GIB = 1 << 30
MAX_USER = 12

Row = tuple[str, ...]


def rows(overview: GpuOverview) -> list[Row]:
    """One table row for each GPU by index, including GPUs that do not answer."""
    watched = {one.uuid: one for one in overview.watch.gpus} if overview.watch else {}
    answering = overview.gpus.gpus if overview.gpus else ()
    found = [_row(one, watched.get(one.uuid), overview) for one in answering]
    found += [_gone(index, bus, uuid, overview) for index, bus, uuid in missing(overview)]
    return sorted(found, key=lambda row: int(row[0]))


def missing(overview: GpuOverview) -> list[tuple[int, str, str]]:
    """Index, PCI address and uuid of each GPU that is lost, not listed any more, or does not answer."""
    lost = _lost(overview)
    here = {one.uuid for one in overview.gpus.gpus} if overview.gpus else set()
    away = [one.gpu for one in overview.count.missing] if overview.count else []
    away += (
        [one.gpu for one in overview.count.silent if one.gpu.uuid not in here]
        if overview.count
        else []
    )
    gone = [(one.index, one.bus_id, one.uuid) for one in away]
    uuids = {uuid for *_, uuid in gone}
    indices = {index for index, *_ in gone}
    more = [
        (one.index, one.bus_id, one.uuid)
        for one in lost
        if (one.uuid not in uuids if one.uuid else one.index not in indices)
    ]
    return sorted((*gone, *more))


def _lost(overview: GpuOverview) -> tuple[LostGpu, ...]:
    newest = overview.watch or overview.gpus
    return newest.lost if newest else ()


def table(found: Sequence[Row]) -> Iterator[str]:
    """The table of GPUs in lines, with headings, as wide as necessary."""
    lines = [HEADINGS, *found]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    for line in lines:
        cells = [
            cell.rjust(width) if column in RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def users(gpu_users: Iterable[GpuUser], indices: dict[str, int]) -> Iterator[str]:
    """One line for each job: `train.py (1a2b3c): ranks 0-7 on GPUs 0-7`.

    `indices`: GPU index by uuid.
    """
    by_job: dict[tuple[str, str], list[GpuUser]] = {}
    for gpu_user in gpu_users:
        by_job.setdefault((gpu_user.job, gpu_user.job_id), []).append(gpu_user)
    for (job, job_id), some in by_job.items():
        ranks = {one.rank for one in some}
        gpus = {indices[one.uuid] for one in some if one.uuid in indices}
        where = f" on {_many('GPU', gpus)}" if gpus else ""
        yield f"{clean(job, 40)} ({clean(job_id, 40)}): {_many('rank', ranks)}{where}"


def _many(what: str, numbers: set[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {shorten_ranks(fold_ranks(numbers))}"


def _row(gpu: GpuReading, watch: GpuWatch | None, overview: GpuOverview) -> Row:
    busy, power = busy_of(gpu, watch), power_of(gpu, watch)
    return (
        str(gpu.index),
        bus_id(gpu.bus_id) or "-",
        "-" if busy is None else f"{busy * 100:.0f} %",
        out_of(gpu.memory_used_bytes, gpu.memory_total_bytes, GIB, "GiB"),
        out_of(power, gpu.power_limit_watts, 1, "W"),
        "-" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C",
        user_words(gpu.uuid, gpu, overview),
        state_of_gpu(overview.health, gpu.uuid).value,
    )


def busy_of(gpu: GpuReading, watch: GpuWatch | None) -> float | None:
    """The GPU's utilization (0 to 1) by the newest reading; None where it is not known."""
    return (watch or gpu).utilization_ratio


def power_of(gpu: GpuReading, watch: GpuWatch | None) -> float | None:
    """The GPU's power in watts by the newest reading; None where it is not known."""
    power = watch.power_watts if watch else gpu.power_instant_watts
    return gpu.power_average_watts if power is None else power


def _gone(index: int, bus: str, uuid: str, overview: GpuOverview) -> Row:
    missing_gpus = (
        [(one.gpu.index, one.gpu.uuid) for one in overview.count.missing] if overview.count else []
    )
    lost = [(one.index, one.uuid) for one in _lost(overview) if overview.gone(one)]
    state = "missing" if (index, uuid) in (*missing_gpus, *lost) else "unknown"
    return (str(index), bus_id(bus) or "-", *"----", user_words(uuid, None, overview), state)


def out_of(value: float | None, limit: float | None, scale: int, unit: str) -> str:
    """A figure and its limit in units of `scale`: `90/141 GiB`; "-" where the figure is not known."""
    if value is None:
        return "-"
    most = f"/{limit / scale:.0f}" if limit is not None else ""
    return f"{value / scale:.0f}{most} {unit}"


def user_words(uuid: str, gpu: GpuReading | None, overview: GpuOverview) -> str:
    """The ranks on it, or else the processes that the driver lists."""
    ranks = {user.rank for user in overview.users if user.uuid == uuid}
    if ranks:
        return shorten_ranks(_many("rank", ranks), MAX_USER)
    pids = [process.pid for process in gpu.processes or ()] if gpu else []
    if not pids:
        return "-"
    return f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
