"""Reads a Chrome trace as `torch.profiler` writes it: what ran on the host and on the device, and when.

Source of the form: the Trace Event Format, and libkineto's output_json.cpp (PyTorch 2.13). Times are microseconds there and here.
"""

import re
from typing import NamedTuple

import msgspec

from mldebug.capture.profile.intervals import Interval
from mldebug.core.errors import EvidenceError
from mldebug.core.redact import clean

MAX_BYTES = 96 << 20
MAX_NAME = 120  # characters
MAX_TIME = 1e18  # microseconds since 1970, or since the start of the node: thirty thousand years
MAX_OBJECTS = 2_000_000  # braces in all: an event of the hook's 200,000 has two, and names of kernels some. An empty event is three bytes
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
COMMUNICATION = re.compile(
    r"(?i)^(?:nccl|rccl|gloo|ucc|mpi|xccl):|^nccl(?:Dev)?Kernel|^rccl|^mscclpp|^record_param_comms"
)
WAITS = re.compile(r"^cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|^hip\w*Synchronize")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: str | int = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None


class _TraceFile(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - as it is spelt there


class Span(NamedTuple):
    """Something that ran: when, on which thread (or stream), and under which name."""

    name: str
    thread: tuple[int | str | None, int | str | None]
    begin: float
    end: float

    @property
    def interval(self) -> Interval:
        """The time from the begin of the operation to its end."""
        return self.begin, self.end


class ProfileTrace(NamedTuple):
    """One trace: operators and annotations of the host, calls of the GPU's runtime, and what ran on the GPU (`device`)."""

    operators: tuple[Span, ...] = ()
    annotations: tuple[Span, ...] = ()
    calls: tuple[Span, ...] = ()
    device: tuple[Span, ...] = ()

    @property
    def window(self) -> Interval:
        """From the first to the last of it; (0, 0) for an empty trace."""
        spans = [one for each in self for one in each]
        if not spans:
            return 0.0, 0.0
        return min(one.begin for one in spans), max(one.end for one in spans)


def parse_trace(data: bytes) -> ProfileTrace:
    """Parse a Chrome trace of `torch.profiler`. Events of other kinds are left out.

    Raises EvidenceError where it is no trace, or a broken one.
    """
    if len(data) > MAX_BYTES:
        raise EvidenceError(f"the trace has {len(data)} bytes", "profile fewer steps")
    if data.count(b"{") > MAX_OBJECTS:
        raise EvidenceError("the trace has more events than a hook writes", "profile fewer steps")
    try:
        events = msgspec.json.decode(data, type=_TraceFile).traceEvents
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"this is no whole trace of torch.profiler: {error}") from None
    found: dict[str, list[Span]] = {"cpu_op": [], "user_annotation": [], "calls": [], "device": []}
    for one in events:
        kind = "device" if one.cat in DEVICE else "calls" if one.cat in CALLS else one.cat or ""
        if one.ph == "X" and kind in found and _is_time(one):
            found[kind].append(_span(one))
    return ProfileTrace(*(tuple(one) for one in found.values()))


def _is_time(event: _Event) -> bool:
    """Whether its time can be: sums of 1e308 are infinite, and what is infinite cannot be read back from a report."""
    return abs(event.ts) <= MAX_TIME and 0 <= event.dur <= MAX_TIME


def _span(event: _Event) -> Span:
    name = clean(str(event.name), MAX_NAME)
    return Span(name, (event.pid, event.tid), event.ts, event.ts + event.dur)
