"""A receiver of webhooks for the tests."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def sink(gate: threading.Event | None = None) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Its address, and what it has got; nothing is acknowledged while the `gate` is shut."""
    got: list[tuple[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            if gate is not None:
                gate.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
