"""The Prometheus text of the agent's last snapshot.

Nothing is kept from one snapshot to the next, so a series that is gone vanishes at once.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mldebug.core.plugins import NoOptions, names
from mldebug.core.plugins import create as create_plugin
from mldebug.status.exposition import Exposition
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.collect import collect
from mldebug_exporters.exposition.families import MetricGroup
from mldebug_exporters.exposition.hidden_labels import HiddenLabels
from mldebug_exporters.exposition.text import write

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PACE = 5.0  # seconds between two renderings: as often as the agent looks
FORGOTTEN = 150.0  # seconds after which nobody scrapes any more


class Form(NamedTuple):
    """The form of a scrape's text: OpenMetrics or plain Prometheus text, with names of users and jobs or with pseudonyms."""

    openmetrics: bool
    names: bool


class Prometheus:
    """Holds the newest snapshot and serves it as Prometheus text. Thread-safe.

    `publish` sets the snapshot. While somebody scrapes, a separate thread renders it in the form
    that was asked for, at most every `pace` seconds, and `scrape` returns that text. Only the first
    scrape after a pause waits for rendering.
    """

    def __init__(self, pace: float = PACE, clock: Callable[[], float] = time.monotonic) -> None:
        self.groups = groups()
        self._pace = pace
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._ready: dict[Form, tuple[Snapshot, float, bytes]] = {}
        self._last_scrape: dict[Form, float] = {}
        self._pseudonyms = HiddenLabels()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._keep_ready, name="mldebug-metrics", daemon=True
        )

    def publish(self, snapshot: Snapshot) -> None:
        """Set the newest snapshot. It is not rendered while nobody scrapes."""
        if self._snapshot is None:
            self._thread.start()
        self._snapshot = snapshot
        self._news.set()

    def scrape(self, accept: str = "", *, names: bool = True) -> tuple[bytes, str] | None:
        """The metrics and their content type: OpenMetrics where the Accept header prefers it; None before the first snapshot.

        Without `names`, pseudonyms replace the names of users and jobs, and the paths of their
        folders.
        """
        snapshot, now = self._snapshot, self._clock()
        form = Form(prefers_openmetrics(accept), names)
        if snapshot is None:
            return None
        self._last_scrape[form] = now
        ready = self._ready.get(form)
        fresh = ready is not None and (ready[0] is snapshot or now - ready[1] < 2 * self._pace)
        text = ready[2] if ready and fresh else self._prepare(snapshot, form)
        return text, OPENMETRICS if form.openmetrics else PLAIN

    def render(self, snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
        """Render any snapshot at once, such as one user's own view."""
        openmetrics = prefers_openmetrics(accept)
        text = write(collect(self.groups, snapshot), openmetrics)
        return text, OPENMETRICS if openmetrics else PLAIN

    def _keep_ready(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            now = self._clock()
            for form, asked_at in list(self._last_scrape.items()):
                if now - asked_at < FORGOTTEN and self._snapshot is not None:
                    self._prepare(self._snapshot, form)
            time.sleep(self._pace)

    def _prepare(self, snapshot: Snapshot, form: Form) -> bytes:
        """Each snapshot once for each format."""
        with self._lock:
            ready = self._ready.get(form)
            if ready is None or ready[0] is not snapshot:
                page = collect(self.groups, snapshot, None if form.names else self._pseudonyms)
                text = write(page, form.openmetrics)
                ready = self._ready[form] = (snapshot, self._clock(), text)
            return ready[2]


def groups() -> dict[str, MetricGroup]:
    """The metric groups, one for each file of `metrics/`, by the file's name."""
    return {name: create_plugin("metrics", name) for name in names("metrics")}


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header wants OpenMetrics, at least as much as plain text."""
    wanted = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = [item.strip() for item in part.split(";")]
        if kind in wanted:
            wanted[kind] = max(wanted[kind], _quality(parameters))
    plain = wanted["text/plain"]
    return wanted["application/openmetrics-text"] >= max(plain, 0.001)


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def create(options: NoOptions) -> Exposition:
    """Build the renderer `prometheus`: the Prometheus text of the agent's last snapshot."""
    return Prometheus()
