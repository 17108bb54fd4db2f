"""A scrape of 2,000 series through the agent's real HTTP door, beside that of an agent without runs, and the rendering."""

import http.client
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.table import Row, show
from mldebug.config.schema import AgentConfig
from mldebug.core.plugins import create_all
from mldebug_agents.web.server import AgentServer
from processes.harness import free_port
from shared.web.snapshots import big, snapshot

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "9")) * 40
ACCEPT = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}


class Scraper:
    """Asks as Prometheus does, over one kept connection."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def __call__(self) -> bytes:
        """One scrape."""
        self._link.request("GET", "/metrics", headers=ACCEPT)
        answer = self._link.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body


@contextmanager
def door() -> Iterator[tuple[AgentServer, Scraper]]:
    """A server on a free port, and somebody who asks it."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = AgentServer(AgentConfig(state_dir=Path(folder), listen=f"127.0.0.1:{port}"))
        server.start()
        try:
            yield server, Scraper(port)
        finally:
            server.stop()


def milliseconds(work: Callable[[], object]) -> float:
    """How long it takes once."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def measure(full: Scraper, empty: Scraper) -> dict[str, list[float]]:
    """Alternate the sides, so that this machine's noise hits all alike."""
    result = big(2000)
    (teller,) = create_all("expositions")
    sides: dict[str, Callable[[], object]] = {
        "ready": full,
        "http": empty,
        "render": lambda: teller.render(result, ACCEPT["Accept"]),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, work in sides.items():
            found[name].append(milliseconds(work))
    return found


def rows() -> Iterator[Row]:
    """What was measured, and the budget."""
    with door() as (one, full), door() as (other, empty):
        one.publish(big(2000))
        other.publish(snapshot())
        first = milliseconds(full)
        found = measure(full, empty)
        size = len(full())
    ready = statistics.median(found["ready"])
    yield Row("scrape of 2,000 series", _times(found["ready"]), "≤ 5 ms", ready <= 5)
    yield Row("scrape of an agent without runs", _times(found["http"]))
    yield Row("rendering 2,000 series, at most every 5 s", _times(found["render"]))
    yield Row("the first scrape, which renders", f"{first:.1f} ms")
    yield Row("size of one scrape", f"{size / 1e3:.0f} kB")


def _times(values: list[float]) -> str:
    late = sorted(values)[int(0.99 * len(values))]
    return f"{statistics.median(values):.2f} ms, 99 % within {late:.2f} ms"


def main() -> None:
    """Print the table."""
    show(f"scrapes, {os.cpu_count()} cores, median of {ROUNDS} alternating rounds", rows())


if __name__ == "__main__":
    main()
