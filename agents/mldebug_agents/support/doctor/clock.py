"""Asks the kernel whether this node's clock follows a time server (adjtimex, reading only, which needs no right)."""

import ctypes
from collections.abc import Callable

import msgspec

STA_UNSYNC = 0x40
TIME_ERROR = 5
_TIMEX_BYTES = (
    512  # struct timex has 208 on 64-bit Linux; zeroed, so `modes` is 0 and nothing is set
)

Adjtimex = Callable[[ctypes.Array[ctypes.c_char]], int]


class ClockState(msgspec.Struct, frozen=True):
    """Whether and how well the kernel says this node's clock is synchronised. `known` is False where it does not say; `error_seconds`: its bound for the error."""

    known: bool
    synchronised: bool = False
    error_seconds: float = 0.0


class _Timex(ctypes.Structure):
    """The head of struct timex (linux/timex.h), with native C types."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
    )


def clock_state(adjtimex: Adjtimex | None = None) -> ClockState:
    """How well the clock is synchronised, according to the kernel."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        call = adjtimex or ctypes.CDLL(None, use_errno=True).adjtimex
        state = call(buffer)
    except (OSError, AttributeError):
        return ClockState(known=False)
    if state < 0:
        return ClockState(known=False)
    timex = _Timex.from_buffer(buffer)
    synchronised = state != TIME_ERROR and not timex.status & STA_UNSYNC
    return ClockState(known=True, synchronised=synchronised, error_seconds=timex.maxerror / 1e6)
