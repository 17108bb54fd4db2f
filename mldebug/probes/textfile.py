"""Measured collectives for the textfile collector of node_exporter."""

from collections.abc import Callable, Iterable, Iterator

from mldebug.probes.collectives import Collective

_LABELS = 'op="{0.op}",bytes="{0.bytes}",ranks="{0.ranks}"'
_FAMILIES: tuple[tuple[str, str, Callable[[Collective], float | None]], ...] = (
    ("mldebug_probe_collective_bus_bandwidth_bytes_per_second", "Bus bandwidth of a collective, by nccl-tests' factors, from the median time.", lambda one: one.busbw_bytes_per_second),
    ("mldebug_probe_collective_algorithm_bandwidth_bytes_per_second", "Payload of a collective by its median time.", lambda one: one.algbw_bytes_per_second),
    ("mldebug_probe_collective_median_seconds", "Median over repetitions of the slowest rank's time.", lambda one: one.time_seconds.median),
    ("mldebug_probe_collective_p99_seconds", "99th percentile over repetitions of the slowest rank's time.", lambda one: one.time_seconds.p99),
    ("mldebug_probe_collective_correct", "1 where all values were right, 0 where one was not; absent where there are none.", lambda one: None if one.correct is None else float(one.correct)),
)  # fmt: skip
_MEASURED = "mldebug_probe_collective_timestamp_seconds"


def as_textfile(results: Iterable[Collective], at: float) -> str:
    """Prometheus text; `at`: unix time of the measurement, so that an old file is seen to be old."""
    return "\n".join(_lines(tuple(results), at)) + "\n"


def _lines(results: tuple[Collective, ...], at: float) -> Iterator[str]:
    for name, told, value in _FAMILIES:
        yield f"# HELP {name} {told}"
        yield f"# TYPE {name} gauge"
        for one in results:
            found = value(one)
            if found is not None:
                yield f"{name}{{{_LABELS.format(one)}}} {found:.9g}"
    yield f"# HELP {_MEASURED} Unix time of the measurement."
    yield f"# TYPE {_MEASURED} gauge"
    yield f"{_MEASURED} {at:.3f}"
