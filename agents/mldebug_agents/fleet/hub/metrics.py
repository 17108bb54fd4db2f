"""What Prometheus gets of a hub: `mldebug_hub_*`, without names of nodes, jobs or users."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mldebug.fleet.hub_model import FleetStore, HubTransport, StoreTotals
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.intake import Intake

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StoreFigures:
    """What metrics say of the store. Read by the hub's own loop: a scrape neither waits for the database nor weighs evidence."""

    def __init__(self, store: FleetStore, answerer: Answerer) -> None:
        self.totals: StoreTotals | None = None  # None: it did not answer
        self.excluded: int | None = None  # nodes
        self._store, self._answerer = store, answerer

    def refresh(self) -> None:
        """Read both anew. Raises OSError where the store does not answer."""
        self.totals = self.excluded = None
        self.totals = self._store.totals()
        self.excluded = len(self._answerer.all_lemons().excluded)


class HubMetrics(Collector):
    """Collects the figures of one hub at each scrape."""

    def __init__(self, figures: StoreFigures, transport: HubTransport, intake: Intake) -> None:
        self._figures, self._transport, self._intake = figures, transport, intake
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing. prometheus_client calls this when the collector is registered; without it, it would call `collect`, which reads the
        database.
        """
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics of the hub, for prometheus-client."""
        received, senders = self._intake.received, self._intake.senders()
        yield CounterMetricFamily("mldebug_hub_batches", "Batches that were taken.", received["batches"])  # fmt: skip
        events = CounterMetricFamily("mldebug_hub_events", "Events of these batches: stored, double (there already) or refused.", labels=("outcome",))  # fmt: skip
        for outcome in ("events", "doubles", "refused"):
            name = {"events": "stored", "doubles": "double"}.get(outcome, outcome)
            events.add_metric((name,), received[outcome])
        yield events
        refused = CounterMetricFamily("mldebug_hub_refused", "Connections, batches and events that were refused, by reason.", labels=("reason",))  # fmt: skip
        both = self._transport.refused(), self._intake.refused()
        for reason in sorted({*both[0], *both[1]}):
            refused.add_metric((reason,), sum(one.get(reason, 0) for one in both))
        yield refused
        lost = sum(sum(one.lost.values()) for one in senders)
        yield GaugeMetricFamily("mldebug_hub_agents_lost_events", "Events that agents had to drop since their start, as they say.", lost)  # fmt: skip
        yield GaugeMetricFamily("mldebug_hub_nodes", "Nodes that have sent since the hub's start.", len(senders))  # fmt: skip
        yield GaugeMetricFamily("mldebug_hub_store_success", "1 while events can be stored.", float(not self._intake.trouble))  # fmt: skip
        waiting = self._transport.waiting()
        if waiting is not None:
            yield GaugeMetricFamily("mldebug_hub_waiting_batches", "Batches that have left their agents and are stored by no hub yet.", waiting)  # fmt: skip
        yield from self._of_the_store()

    def _of_the_store(self) -> Iterator[Metric]:
        """Absent while the store does not answer."""
        totals, excluded = self._figures.totals, self._figures.excluded
        if totals is not None:
            yield GaugeMetricFamily("mldebug_hub_stored_events", "Events in the database.", totals.events)  # fmt: skip
            yield GaugeMetricFamily("mldebug_hub_database_bytes", "Bytes of the database that are in use.", totals.bytes)  # fmt: skip
        if excluded is not None:
            yield GaugeMetricFamily("mldebug_hub_excluded_nodes", "Nodes that are lemons, or ill now.", excluded)  # fmt: skip
