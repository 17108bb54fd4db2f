"""What Prometheus gets of a hub: `mldebug_hub_*`, without names of nodes, jobs or users."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mldebug.fleet.hub_model import FleetStore, HubTransport
from mldebug_agents.fleet.hub.answerer import Answerer
from mldebug_agents.fleet.hub.intake import Intake

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HubMetrics(Collector):
    """Collects the figures of one hub at each scrape."""

    def __init__(
        self, store: FleetStore, transport: HubTransport, intake: Intake, answerer: Answerer
    ) -> None:
        self._store, self._transport = store, transport
        self._intake, self._answerer = intake, answerer
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format. Raises OSError where the store does not answer."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registration reads no database."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
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
        totals = self._store.totals()
        yield GaugeMetricFamily("mldebug_hub_stored_events", "Events in the database.", totals.events)  # fmt: skip
        yield GaugeMetricFamily("mldebug_hub_database_bytes", "Bytes of the database that are in use.", totals.bytes)  # fmt: skip
        yield GaugeMetricFamily("mldebug_hub_store_success", "1 while events can be stored.", float(not self._intake.trouble))  # fmt: skip
        excluded = self._answerer.all_lemons().excluded
        yield GaugeMetricFamily("mldebug_hub_excluded_nodes", "Nodes that are lemons, or ill now.", len(excluded))  # fmt: skip
