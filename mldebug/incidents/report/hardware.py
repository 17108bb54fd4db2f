"""Lines of a report about hardware: what the kernel and the driver reported about a job's ranks, and the state of their GPUs.

Faults that the verdict already cites are left out. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from mldebug.capture.frames import last_frame
from mldebug.core.model import Diagnosis, Fault, NodeCapture, RankDevice
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import GpuView
from mldebug.hardware.kernel_log.attribution import rank_words

MAX_FAULT_LINES = 20
NEAR = 900.0  # seconds before a capture in which faults of no rank in particular are listed, too


def hardware_lines(captures: Sequence[NodeCapture], diagnosis: Diagnosis) -> tuple[str, ...]:
    """One line for each fault that the diagnosis does not quote, as `05:34:06 UTC: Xid 31 (…) on GPU 0000:4b:00.0, rank 3`: the newest
    20, the oldest of them first.
    """
    cited = " ".join((diagnosis.summary, *diagnosis.evidence))
    found = {_confirmed(fault): fault for capture in captures for fault in _near(capture)}
    every = sorted(found.values(), key=lambda one: one.at)
    new = [fault for fault in every if fault.words not in cited]
    recent = max((one.taken_at for one in captures), default=0.0) - NEAR
    ranks = {fault.rank for fault in new if fault.at >= recent}
    frames = dict(pair for one in captures for pair in _frames(one, ranks))
    return tuple(
        _fault_line(one, frames if one.at >= recent else {}) for one in new[-MAX_FAULT_LINES:]
    )


def xid_catalogue(
    captures: Iterable[NodeCapture], diagnosis: Diagnosis, hardware: Iterable[str]
) -> str:
    """The version of the Xid catalogue by which the Xids in the report were judged (stored with the evidence); "" without Xids."""
    cited = "\n".join((diagnosis.summary, *diagnosis.evidence, *hardware))
    every = (fault for capture in captures for fault in capture.faults)
    found = {one.catalogue for one in every if one.catalogue and one.words in cited}
    return ", ".join(sorted(found))


def _near(capture: NodeCapture) -> Iterator[Fault]:
    faults: Iterable[Fault] = capture.faults
    yield from (one for one in faults if one.rank is not None or one.at >= capture.taken_at - NEAR)


def _confirmed(fault: Fault) -> Fault:
    """The fault as a later capture may confirm it: the same fault."""
    return msgspec.structs.replace(fault, confirmed=True)


def _frames(capture: NodeCapture, ranks: Collection[int | None]) -> Iterator[tuple[int, str]]:
    for one in capture.ranks:
        if one.identity.rank in ranks:
            yield one.identity.rank, last_frame(one.process.stacks, one.process.pid)


def _fault_line(fault: Fault, frames: Mapping[int, str]) -> str:
    moment = datetime.fromtimestamp(fault.at, UTC).strftime("%H:%M:%S UTC")
    who = f", {rank_words(fault.rank, fault.by)}" if fault.rank is not None else ""
    if fault.rank is not None and (frame := frames.get(fault.rank)):
        who += f", last Python frame {frame}"
    forged = "" if fault.trusted else " (written by a program and not by the kernel)"
    forged += "" if fault.confirmed else " (one read alone told it)"
    advice = f" → {fault.advice}" if fault.advice else ""
    return f"{moment}: {fault.words}{who}{forged}{advice}"


MAX_LINES = 8


ALIKE = 0.1  # of the time busy: GPUs within one step stand in one line


TRAFFIC = 0.01  # share of the time with memory traffic


def gpu_views(captures: Sequence[NodeCapture]) -> tuple[GpuView, ...]:
    """The GPUs of a report, in order of rank. Of several captures of one node the latest is used."""
    latest = {one.node: one for one in sorted(captures, key=lambda each: each.taken_at)}
    found = (view for one in latest.values() for view in _of_node(one))
    return tuple(sorted(found, key=lambda one: one.rank))


def _of_node(capture: NodeCapture) -> Iterator[GpuView]:
    """Of ranks that were captured there, one for each."""
    here = {one.identity.rank for one in capture.ranks}
    devices = {one.rank: one for one in capture.gpus if one.rank in here}
    yield from filter(None, (_view(capture.node, one) for one in devices.values()))


def _view(node: str, one: RankDevice) -> GpuView | None:
    if not one.samples:
        return None
    busy = [each.busy_ratio for each in one.samples if each.busy_ratio is not None]
    memory = [each.memory_ratio for each in one.samples if each.memory_ratio is not None]
    watts = [each.power_watts for each in one.samples if each.power_watts is not None]
    return GpuView(
        rank=one.rank,
        node=node,
        gpu=one.index,
        sure=one.sure and not one.sliced,
        state=one.state,
        looks=len(one.samples),
        seconds=round(one.samples[-1].at - one.samples[0].at, 1),
        least_busy_ratio=min(busy, default=None),
        most_busy_ratio=max(busy, default=None),
        memory_traffic=any(each > TRAFFIC for each in memory) if memory else None,
        power_watts=watts[-1] if watts else None,
        usual_watts=one.usual_watts,
        sm_active_ratio=one.sm_active_ratio if one.sm_since >= one.samples[0].at else None,
        processes=len(one.pids),
    )


def gpu_lines(views: Sequence[GpuView]) -> tuple[str, ...]:
    """One line for each kind of GPU state: `rank 1: 0 % busy in 6 looks over 14 s, 125 W of usual 703 W`. The least busy
    come first, since those keep the others waiting.
    """
    groups: dict[object, list[GpuView]] = {}
    for one in sorted(views, key=_place):
        groups.setdefault(_kind(one), []).append(one)
    lines = [_gpu_line(group) for group in groups.values()]
    more = len(lines) - MAX_LINES
    return (*lines[:MAX_LINES], *((f"{more} more kinds in report.json",) if more > 0 else ()))


def _place(one: GpuView) -> tuple[bool, float, int]:
    return one.most_busy_ratio is None, one.most_busy_ratio or 0.0, one.rank


def _kind(one: GpuView) -> object:
    busy = (one.least_busy_ratio, one.most_busy_ratio)
    steps = tuple(None if each is None else round(each / ALIKE) for each in busy)
    return steps, one.memory_traffic, one.state, one.sure, one.processes


def _gpu_line(group: Sequence[GpuView]) -> str:
    first, many = group[0], len(group) > 1
    ranks = shorten_ranks(fold_ranks(one.rank for one in group), 60)
    doubt = "" if first.sure else ("; which GPU is theirs is not sure" if many else "; whether that GPU is its own is not sure")  # fmt: skip
    return f"rank{'s' if many else ''} {ranks}: {', '.join(_figures(group))}{doubt}"


def _figures(group: Sequence[GpuView]) -> Iterator[str]:
    first = group[0]
    least = [one.least_busy_ratio for one in group if one.least_busy_ratio is not None]
    most = [one.most_busy_ratio for one in group if one.most_busy_ratio is not None]
    looks = f"in {first.looks} look{'s' if first.looks != 1 else ''} over {first.seconds:.0f} s"
    busy = f"{_span([*least, *most], 100.0)} % busy" if most else "busy or not is not told"
    yield f"{busy} {looks}"
    if watts := [one.power_watts for one in group if one.power_watts is not None]:
        usual = [one.usual_watts for one in group if one.usual_watts is not None]
        yield f"{_span(watts, 1.0)} W" + (f" of usual {_span(usual, 1.0)} W" if usual else "")
    if first.memory_traffic is False and most and max(most) > TRAFFIC:
        yield "no memory traffic"
    if active := [one.sm_active_ratio for one in group if one.sm_active_ratio is not None]:
        yield f"{_span(active, 100.0)} % of the SMs active"
    if first.processes > 1:
        yield f"{first.processes} processes on it"


def _span(values: Sequence[float], scale: float) -> str:
    low, high = f"{min(values) * scale:.0f}", f"{max(values) * scale:.0f}"
    return low if low == high else f"{low} to {high}"
