"""Ports of the network by /sys: state, rate, bytes, errors by kind; flaps."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.hardware.ports.parse import COUNTERS
from mldebug.hardware.ports.state import PortState
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    known,
)

ABSENT = "where the kernel does not tell it"
TABLE = FamilyTable("port", "link", absent=ABSENT, importance=Importance.RUN)
INFO = TABLE.info(
    "port",
    "A port (mlx5_0/1, ens1np0) and its link (infiniband, roce, efa, ethernet): the model of its board, its firmware, its network interface.",
    "board",
    "firmware",
    "netdev",
)
UP = TABLE.gauge("port_up", "1 while the port is up (InfiniBand: ACTIVE), else 0.")
RATE = TABLE.gauge(
    "port_rate_bytes_per_second",
    "What the port can carry in each direction at the rate that it has now.",
)
RECEIVED = TABLE.counter("port_received_bytes", "Bytes received.")
SENT = TABLE.counter("port_sent_bytes", "Bytes sent.")
ERRORS = TABLE.counter(
    "port_errors",
    f"Errors by kind, as the adapter counts them: {', '.join(COUNTERS)}. Healthy ports have some of them: health judges how fast they"
    " come over ten minutes.",
    "kind",
)
USED = TABLE.gauge(
    "port_used",
    "0 where the jobs here name the ports that they use (NCCL_IB_HCA) and not this one, else 1.",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield the values of all network ports, as they were last read."""
    for one in snapshot.ports.ports if snapshot.ports else ():
        yield from _port(one)


def _port(one: PortState) -> Iterator[Sample]:
    now = one.now
    key = now.name, now.link
    yield Sample(INFO, (*key, now.board, now.firmware, now.netdev))
    yield Sample(USED, key, int(one.used))
    rate = now.gigabits * 1e9 / 8 if now.gigabits is not None else None
    yield from known(key, (UP, now.up), (RATE, rate))
    yield from known(key, (RECEIVED, now.received_bytes), (SENT, now.sent_bytes))
    for kind, count in now.errors.items():
        yield Sample(ERRORS, (*key, kind), count)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `ports`: ports of the network by /sys: state, rate, bytes, errors by kind; flaps."""
    return MetricGroup(TABLE.families, samples)
