"""The history of probes as `mldebug probe history` prints it: what several series share, and a line for each.

Pure.
"""

from datetime import UTC, datetime

from mldebug.core.redact import clean
from mldebug.core.units import format_size
from mldebug.probes.history import CHANGED, JudgedSeries, ProbeSeries, figures

MOST = 4e9  # unix seconds; what a damaged file tells may be anything


def common(series: ProbeSeries) -> str:
    """The heading over series that differ only in op and size: nodes, ranks, device, dtype, versions of PyTorch and NCCL, settings."""
    nccl = f", NCCL {series.nccl}" if series.nccl else ""
    more = f", {series.settings}" if series.settings else ""
    what = f"{series.nodes}: {series.ranks} ranks on {series.device}, {series.dtype}"
    return clean(f"{what}, PyTorch {series.torch}{nccl}{more}", 400)


def row(one: JudgedSeries) -> str:
    """One series as a line: op, bytes, verdict, number of runs, time of the last one, its figures."""
    begin = f"  {one.series.op:<14} {format_size(one.series.bytes):>8}  {verdict(one):<14}"
    return f"{begin} {one.runs:>4} runs to {moment(one)}  {figures(one)}"


def verdict(one: JudgedSeries) -> str:
    """The verdict on a series: `steady`, or `shifted -12%` with the change of its speed."""
    change = f" {one.change:+.0%}" if one.standing in CHANGED and one.change is not None else ""
    return f"{one.standing.value}{change}"


def dated(one: JudgedSeries) -> bool:
    """Whether the time of the newest measurement in a series is after 1970 and can be printed; a damaged history file may contain any
    number.
    """
    return 0 <= one.last[-1].at < MOST


def moment(one: JudgedSeries) -> str:
    """The time of the newest measurement: `2026-11-21 05:50Z`."""
    if not dated(one):
        return "a moment that cannot be"
    return f"{datetime.fromtimestamp(one.last[-1].at, UTC):%Y-%m-%d %H:%M}Z"
