"""What the kernel and the driver said against the ranks of a job, beside what the verdict rests on already. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from mldebug.model import Diagnosis, Fault, NodeCapture

MAX_LINES = 20
NEAR = 900.0  # seconds before a capture in which what concerns nobody in particular is told, too


def hardware_lines(captures: Sequence[NodeCapture], diagnosis: Diagnosis) -> tuple[str, ...]:
    """`05:34:06 UTC: Xid 31 (…) on GPU 0000:4b:00.0, rank 3`: the oldest first, the newest 20."""
    told = " ".join((diagnosis.summary, *diagnosis.evidence))
    found = {fault: None for capture in captures for fault in _near(capture)}
    new = [fault for fault in sorted(found, key=lambda one: one.at) if fault.words not in told]
    return tuple(map(_line, new[-MAX_LINES:]))


def _near(capture: NodeCapture) -> Iterator[Fault]:
    faults: Iterable[Fault] = capture.faults
    yield from (one for one in faults if one.rank is not None or one.at >= capture.taken_at - NEAR)


def _line(fault: Fault) -> str:
    moment = datetime.fromtimestamp(fault.at, UTC).strftime("%H:%M:%S UTC")
    whose = f", {'a child of ' if fault.by == 'child' else ''}rank {fault.rank}" if fault.rank is not None else ""  # fmt: skip
    forged = "" if fault.trusted else " (written by a program and not by the kernel)"
    advice = f" → {fault.advice}" if fault.advice else ""
    return f"{moment}: {fault.words}{whose}{forged}{advice}"
