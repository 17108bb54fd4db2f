"""The GPUs of one run's ranks as a table: what each does, and what is not known. Pure."""

from collections.abc import Iterator

import msgspec

from mldebug.core.redact import clean
from mldebug.hardware.gpu.readings import GpuReading, GpuWatch
from mldebug.hardware.health.heat_rules import HOT_EVENTS
from mldebug.status.gpu_table import GIB, busy_of, power_of
from mldebug.status.snapshot import RunState, Snapshot

UNKNOWN = "–"  # noqa: RUF001 - as the pages print it
NO_SAMPLING = "The share of multiprocessors at work is not told by some of these cards (it needs Hopper or newer): busy alone also counts waiting in a collective."
MOST = 64


class RankGpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a rank, as the page of the run shows it.

    A figure that is not known is a dash. `hot`: heat or the power supply lowers its clocks.
    """

    rank: int
    gpu: str
    busy: str
    at_work: str  # share of its multiprocessors
    power: str
    clock: str
    kept_low: str
    memory: str  # of the rank's own process
    hot: bool = False


class RunGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a run's GPUs on its page, and in `note` a sentence on what cannot be known of them."""

    rows: tuple[RankGpuRow, ...] = ()
    more: int = 0
    note: str = ""


def run_gpus(snapshot: Snapshot, run: RunState) -> RunGpus:
    """The GPUs of the run's ranks on this node; empty where none is known."""
    gpus = {one.uuid: one for one in (snapshot.gpus.gpus if snapshot.gpus else ())}
    watched = {one.uuid: one for one in (snapshot.gpu_watch.gpus if snapshot.gpu_watch else ())}
    mine = [(rank, gpus[uuid], watched.get(uuid)) for rank, uuid in sorted(run.gpus.items()) if uuid in gpus]  # fmt: skip
    absent = [gpu for _, gpu, _ in mine if gpu.activity is None or gpu.activity.sm_active_ratio is None]  # fmt: skip
    return RunGpus(
        rows=tuple(_row(run, rank, gpu, watch) for rank, gpu, watch in mine[:MOST]),
        more=max(0, len(mine) - MOST),
        note=NO_SAMPLING if absent else "",
    )


def _row(run: RunState, rank: int, gpu: GpuReading, watch: GpuWatch | None) -> RankGpuRow:
    guessed = rank in run.gpus_guessed
    low = [one for one in gpu.clock_events or () if one != "gpu_idle"]
    at_work = gpu.activity.sm_active_ratio if gpu.activity else None
    return RankGpuRow(
        rank=rank,
        gpu=f"{'probably ' if guessed else ''}{gpu.index}",
        busy=_percent(busy_of(gpu, watch)),
        at_work=_percent(at_work),
        power=_of(power_of(gpu, watch), gpu.power_limit_watts, "W"),
        clock=_clock(gpu),
        kept_low=", ".join(clean(one, 60).replace("_", " ") for one in low) or ("no" if gpu.clock_events is not None else UNKNOWN),
        memory=UNKNOWN if guessed else _memory(run, rank, gpu),
        hot=any(one in HOT_EVENTS for one in low),
    )  # fmt: skip


def _clock(gpu: GpuReading) -> str:
    domain = next(iter(_domains(gpu)), "")
    now, most = gpu.clock_hertz.get(domain), gpu.clock_max_hertz.get(domain)
    return _of(now and now / 1e6, most and most / 1e6, "MHz")


def _domains(gpu: GpuReading) -> Iterator[str]:
    return (domain for domain in ("sm", "graphics") if domain in gpu.clock_hertz)


def _memory(run: RunState, rank: int, gpu: GpuReading) -> str:
    pid = run.ranks.get(rank)
    sizes = [one.memory_bytes for one in gpu.processes or () if one.pid == pid]
    known = [size for size in sizes if size is not None]
    total = gpu.memory_total_bytes
    return _of(sum(known) / GIB if known else None, total / GIB if total else None, "GiB")


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f} %"


def _of(value: float | None, most: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}{f' of {most:,.0f}' if most else ''} {unit}"
