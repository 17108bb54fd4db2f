"""The agents of other nodes: how many requests were refused, by reason."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, MetricGroup, Sample

TABLE = FamilyTable("reason")
REFUSED = TABLE.counter(
    "cluster_refused",
    "Connections and messages at cluster.listen that were turned away, and strangers to whom a job would have sent this agent. network: of none of"
    " cluster.networks; certificate: none, expired, or not one of ours; handshake: not as an agent speaks; stranger: asked by us, and no agent of ours;"
    " slow: takes too long to say what it wants; name: not the one that it may have; malformed, size: a message that cannot be; incident: it names one that another run has; storm: it has had one run captured too often.",
    absent="where no cluster is configured",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """How many requests of other agents were refused, by reason."""
    for reason, count in snapshot.cluster_refused.items():
        yield Sample(REFUSED, (reason,), count)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `cluster`: how many requests of other nodes' agents were refused, by reason."""
    return MetricGroup(TABLE.families, samples)
