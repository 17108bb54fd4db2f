"""Reads the record that the hook (mldebug's code in a training process) keeps in shared memory: step, phase, figures, and how to
ask for more.

`mldebug_training.hook.record` defines its layout. A job may have written anything into it, so every field is checked.
"""

import binascii
import math
import struct

from mldebug.core.model import HookState, MeasuredData
from mldebug.core.redact import clean

SIZE = 4096
MAGIC = b"mldebug\x01"
PREFIX, STACKS, FLIGHT, OOM = "mldebug-", ".stacks", ".flight", ".oom"
RECORD = "the hook's record"  # as gaps call it
MAX_SCALARS = 16
MAX_STEP = 2**53  # beyond it a metric could not hold it
MIN_SIGNAL, MAX_SIGNAL = (
    36,
    64,
)  # real-time ones, as their two neighbours below; whatever else a record names is not sent
LEGITIMATE = frozenset({"evaluate", "checkpoint_save", "checkpoint_load", "compile"})
"""Phases in which a job makes no step and nothing is wrong, as long as the rank moves."""

_HEAD = struct.Struct("<8sQQQ")
_STATE = struct.Struct("<QqQQiiIiQ32s")
_COUNT = struct.Struct("<I")
_SCALAR = struct.Struct("<24sd")
_STATE_AT, _COUNT_AT, _SCALARS_AT = 32, 120, 128
_MAIN_AT, _FLIGHT_AT, _SUM_AT = 640, 648, 660
_FLIGHT = struct.Struct("<III")
_NUMBER = struct.Struct("<Q")


class Heartbeat(MeasuredData, frozen=True, kw_only=True):
    """What mldebug's hook in one process of a job has written about it at one moment: step, phase, figures. Times are seconds
    of the monotonic clock, never in the future.
    """

    written_at: float
    step: int | None = None
    stepped_at: float = 0.0
    beats: int = 0
    rank: int | None = None
    world_size: int | None = None
    signal: int | None = (
        None  # asks for all stacks, the one below forces them; see mldebug_training.hook.stacks
    )
    stacks_fd: int | None = None
    main_thread: int = 0  # as the stacks call it
    flight_signal: int | None = None  # asks for the Flight Recorder
    flight_answers: int = 0  # how often it was asked, and has done what it could
    collective_timeout: float | None = (
        None  # seconds after which PyTorch ends a collective of all ranks
    )
    phase: str = ""
    phase_since: float = 0.0
    scalars: dict[str, float] = {}


class TornError(ValueError):
    """The hook's record was being written while it was read; reading it again helps."""


def record_name(pid: int, start_ticks: int) -> str:
    """The file name of a process's record. `pid` is the one that the process itself sees; `start_ticks`: field 22 of
    /proc/PID/stat.
    """
    return f"{PREFIX}{pid}-{start_ticks}"


def parse_record(data: bytes, pid: int, start_ticks: int, now: float) -> Heartbeat:
    """Parse the bytes of the record that a process with this pid and start keeps. Times later than `now` (monotonic
    seconds) become `now`. Raises ValueError with the reason, and TornError where the record was just being written.
    """
    if len(data) != SIZE:
        raise ValueError(f"it has {len(data)} bytes and not {SIZE}")
    magic, sequence, its_pid, its_start = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("it does not begin as a record does")
    if (its_pid, its_start) != (pid, start_ticks):
        raise ValueError(f"it is the record of pid {its_pid}, started at {its_start}")
    if _NUMBER.unpack_from(data, SIZE - _NUMBER.size)[0] != sequence:
        raise TornError("it was being written")
    if _COUNT.unpack_from(data, _SUM_AT)[0] not in (0, _checksum(data)):
        raise TornError("it was being written: its checksum is another one")
    return _heartbeat(data, now)


def _checksum(data: bytes) -> int:
    count = min(_COUNT.unpack_from(data, _COUNT_AT)[0], MAX_SCALARS)
    return binascii.crc32(data[_STATE_AT : _SCALARS_AT + count * _SCALAR.size])


def hook_summary(beat: Heartbeat, now: float) -> HookState:
    """The record's step, phase and figures for a capture. Times become ages in seconds, because the monotonic clock means
    nothing on other nodes. `now`: monotonic seconds.
    """
    return HookState(
        step=beat.step,
        step_age=_age(beat.stepped_at, now) if beat.step is not None else 0.0,
        phase=beat.phase,
        phase_age=_age(beat.phase_since, now) if beat.phase else 0.0,
        scalars=beat.scalars,
    )


def _age(moment: float, now: float) -> float:
    return round(max(0.0, now - moment), 3)


def _heartbeat(data: bytes, now: float) -> Heartbeat:
    written, step, stepped, beats, rank, size, signal, fd, since, phase = _STATE.unpack_from(
        data, _STATE_AT
    )
    has_step = 0 <= step <= MAX_STEP
    ask = signal if MIN_SIGNAL <= signal <= MAX_SIGNAL else None
    flight, answers, timeout = _FLIGHT.unpack_from(data, _FLIGHT_AT)
    return Heartbeat(
        written_at=_seconds(written, now),
        step=step if has_step else None,
        stepped_at=_seconds(stepped, now) if has_step else 0.0,
        beats=min(beats, MAX_STEP),
        rank=rank if rank >= 0 else None,
        world_size=size if size > 0 else None,
        signal=ask,
        stacks_fd=fd if fd >= 0 else None,
        main_thread=_NUMBER.unpack_from(data, _MAIN_AT)[0],
        flight_signal=flight if ask is not None and flight == ask - 2 else None,
        flight_answers=answers,
        collective_timeout=float(timeout) if timeout else None,
        phase=_text(phase),
        phase_since=_seconds(since, now),
        scalars=dict(_scalars(data)),
    )


def _scalars(data: bytes) -> list[tuple[str, float]]:
    count = min(_COUNT.unpack_from(data, _COUNT_AT)[0], MAX_SCALARS)
    fields = (_SCALAR.unpack_from(data, _SCALARS_AT + n * _SCALAR.size) for n in range(count))
    named = [(_text(name), value) for name, value in fields]
    return [(name, value) for name, value in named if name and math.isfinite(value)]


def _seconds(nanoseconds: int, now: float) -> float:
    return min(nanoseconds / 1e9, now)


def _text(data: bytes) -> str:
    return clean(data.partition(b"\0")[0].decode("utf-8", "replace")).strip()


def phase_words(phase: str, age: float | None) -> str:
    """A phase with its age in words: `in data_wait for 35 s`; "" for no phase."""
    return f"in {phase} for {span(age or 0.0)}" if phase else ""


def span(seconds: float) -> str:
    """A time span in words, `0.4 s`, `35 s`, `12 min`, rounded as people say it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
