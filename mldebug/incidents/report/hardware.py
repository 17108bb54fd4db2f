"""What the kernel and the driver said against the ranks of a job, beside what the verdict rests on already. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from mldebug.capture.stacks import last_frame
from mldebug.core.model import Diagnosis, Fault, NodeCapture
from mldebug.hardware.kernel_log.attribution import whose

MAX_LINES = 20
NEAR = 900.0  # seconds before a capture in which what concerns nobody in particular is told, too


def hardware_lines(captures: Sequence[NodeCapture], diagnosis: Diagnosis) -> tuple[str, ...]:
    """`05:34:06 UTC: Xid 31 (…) on GPU 0000:4b:00.0, rank 3`: the oldest first, the newest 20."""
    told = " ".join((diagnosis.summary, *diagnosis.evidence))
    found = {_said(fault): fault for capture in captures for fault in _near(capture)}
    every = sorted(found.values(), key=lambda one: one.at)
    new = [fault for fault in every if fault.words not in told]
    recent = max((one.taken_at for one in captures), default=0.0) - NEAR
    ranks = {fault.rank for fault in new if fault.at >= recent}
    frames = dict(pair for one in captures for pair in _frames(one, ranks))
    return tuple(_line(one, frames if one.at >= recent else {}) for one in new[-MAX_LINES:])


def xid_catalogue(
    captures: Iterable[NodeCapture], diagnosis: Diagnosis, hardware: Iterable[str]
) -> str:
    """Which version of the catalogue judged the Xids that are told; "" where none is. Of old evidence, the old one."""
    told = "\n".join((diagnosis.summary, *diagnosis.evidence, *hardware))
    every = (fault for capture in captures for fault in capture.faults)
    found = {one.catalogue for one in every if one.catalogue and one.words in told}
    return ", ".join(sorted(found))


def _near(capture: NodeCapture) -> Iterator[Fault]:
    faults: Iterable[Fault] = capture.faults
    yield from (one for one in faults if one.rank is not None or one.at >= capture.taken_at - NEAR)


def _said(fault: Fault) -> Fault:
    """What a later capture knows better is the same fault."""
    return msgspec.structs.replace(fault, confirmed=True)


def _frames(capture: NodeCapture, ranks: Collection[int | None]) -> Iterator[tuple[int, str]]:
    for one in capture.ranks:
        if one.identity.rank in ranks:
            yield one.identity.rank, last_frame(one.process.stacks, one.process.pid)


def _line(fault: Fault, frames: Mapping[int, str]) -> str:
    moment = datetime.fromtimestamp(fault.at, UTC).strftime("%H:%M:%S UTC")
    who = f", {whose(fault.rank, fault.by)}" if fault.rank is not None else ""
    if fault.rank is not None and (frame := frames.get(fault.rank)):
        who += f", last Python frame {frame}"
    forged = "" if fault.trusted else " (written by a program and not by the kernel)"
    forged += "" if fault.confirmed else " (one read alone told it)"
    advice = f" → {fault.advice}" if fault.advice else ""
    return f"{moment}: {fault.words}{who}{forged}{advice}"
