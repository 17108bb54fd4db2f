"""Measured collectives as lines of a terminal."""

from mldebug.core.units import format_size
from mldebug.probes.collectives import Collective

HEADER = (
    f"{'op':<14} {'bytes':>8} {'ranks':>5} {'median':>9} {'min':>9} {'max':>9} {'p99':>9}"
    f" {'algbw':>8} {'busbw':>8}  values"
)
UNITS = f"{'':<14} {'':>8} {'':>5} {'':>9} {'':>9} {'':>9} {'':>9} {'GB/s':>8} {'GB/s':>8}"


def row(one: Collective) -> str:
    """One result; GB are 10^9 bytes. Of one rank nothing travels: what looks like a bandwidth is left out."""
    time = one.time_seconds
    times = " ".join(f"{_time(each):>9}" for each in (time.median, time.min, time.max, time.p99))
    found = (one.algbw_bytes_per_second, one.busbw_bytes_per_second)
    speeds = " ".join(f"{each / 1e9:>8.2f}" if one.ranks > 1 else f"{'-':>8}" for each in found)
    return (
        f"{one.op:<14} {format_size(one.bytes):>8} {one.ranks:>5} {times} {speeds}  {_values(one)}"
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _values(one: Collective) -> str:
    if one.correct is None:
        return "-"
    bad = [str(each.rank) for each in one.per_rank if each.correct is False]
    return f"WRONG on rank {','.join(bad)}" if bad else "ok"
