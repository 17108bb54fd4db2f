"""The doors for people, Prometheus and Alertmanager, fuzzed from a description of all their routes: whatever comes, none fails."""

import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from requests.adapters import HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from mldebug.cluster.messages import CLUSTER_PATH, DUMP_PATH
from mldebug.config.schema import AgentConfig
from mldebug.core.errors import UsageError
from mldebug.web import frame
from mldebug_agents.hardware.gpu.controller import ACCEPT, RELEASE
from mldebug_agents.web.alertmanager_route import PATH as ALERTS
from mldebug_agents.web.listeners import SOCKET, open_unix
from mldebug_agents.web.server import AgentServer
from shared.incidents import samples
from shared.web.webpages import hostile, shown, store, training

TOKEN = "0123456789abcdef0123"
PAGES = ("/", "/look.css", "/look.js", "/report", *(f"/{name}" for name in frame.pages()))
PUBLIC = ("/metrics", "/healthz", "/readyz")
FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
PLAIN = {"type": "string"}
CHECKS = [not_a_server_error, status_code_conformance]


def operation(method: str, codes: str, names: str = "", body: bool = False) -> dict[str, Any]:
    """What a route takes and answers. `names`: of parameters in the query."""
    query = [{"name": name, "in": "query", "schema": PLAIN} for name in names.split()]
    headers = [
        {"name": name, "in": "header", "schema": PLAIN | {"pattern": "^[ -~]{0,60}$"}}
        for name in ("Cookie", "Authorization", "If-None-Match", "Accept", "Sec-Fetch-Site")
    ]
    answer = {code: {"description": "as the page of doors says"} for code in codes.split()}
    table: dict[str, Any] = {"parameters": [*query, *headers], "responses": answer}
    if body:
        kinds = ("application/json", "text/plain")
        table["requestBody"] = {"content": {kind: {"schema": {}} for kind in kinds}}
    return {method: table}


def description(more: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI of what both doors have, and of `more` paths."""
    paths = {path: operation("get", "200 303 304 307 401 403 404 421 429 503", "id") for path in PAGES}  # fmt: skip
    paths |= {path: operation("get", "200 401 403 421 429 503") for path in PUBLIC}
    return {
        "openapi": "3.0.3",
        "info": {"title": "mldebug", "version": "1"},
        "paths": paths | dict(more),
    }


BY_TCP = description(
    {
        "/login": operation("post", "303 401 403 408 413 421 429 503", body=True)
        | operation("get", "200 303 403 421 429 503"),
        "/logout": operation("post", "303 403", body=True),
        ALERTS: operation("post", "200 400 401 403 408 413 429 503", body=True),
    }
)
AT_SOCKET = description(
    {
        "/api/v1/status": operation("get", "200 403 503"),
        "/api/v1/jobs": operation("get", "200 403 503"),
        "/api/v1/history": operation("get", "200 403 404 503", "run"),
        "/api/v1/records": operation("get", "200 403 404 503", "run"),
        **{
            path: operation("post", "200 400 403 404 409 423", "job uid minutes gpu")
            for path in (CLUSTER_PATH, DUMP_PATH, RELEASE, ACCEPT)
        },
    }
)


def refuse(parameters: Mapping[str, str], whose: int | None = None) -> object:
    """Does as a verb whose parameters are wrong."""
    raise UsageError(f"no run matches {dict(parameters)!r:.100}", "name one")


class UnixPool(HTTPConnectionPool):
    """Connections of requests to the agent's socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__("localhost")

    def _new_conn(self) -> HTTPConnection:
        made = HTTPConnection("localhost")
        made.sock = socket.socket(socket.AF_UNIX)
        made.sock.connect(str(self._folder / SOCKET))
        return made


class UnixAdapter(HTTPAdapter):
    """Sends all requests to the agent's socket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__()

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        return UnixPool(self._folder)


class Doors(NamedTuple):
    """Where the server answers, and what it has logged with a traceback."""

    folder: Path
    port: int
    errors: list[logging.LogRecord]


class Errors(logging.Handler):
    """Keeps what is logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records += [record] if record.exc_info else []


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    """A server with the pages of jobs whose words are hostile."""
    folder = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    store(folder, next(iter(samples.ALL)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    errors = Errors()
    logging.getLogger().addHandler(errors)
    listen = {"listen": f"127.0.0.1:{port}", "token_file": folder / "token"}
    server = AgentServer(AgentConfig(state_dir=folder, **listen))
    own = dict.fromkeys((CLUSTER_PATH, DUMP_PATH), refuse)
    server.serve_verbs(dict.fromkeys((RELEASE, ACCEPT), refuse), own, lambda _: (200, b"{}"))
    server.publish(shown(training(), hostile()))
    server.start()
    server.serve_socket(open_unix(folder))
    try:
        yield Doors(folder, port, errors.records)
    finally:
        logging.getLogger().removeHandler(errors)
        server.stop(5)
        shutil.rmtree(folder)


by_tcp = schemathesis.openapi.from_dict(BY_TCP)
at_socket = schemathesis.openapi.from_dict(AT_SOCKET)


@by_tcp.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_by_tcp_is_answered_as_described(case: Any, doors: Doors) -> None:
    with requests.Session() as session:
        case.call_and_validate(base_url=f"http://127.0.0.1:{doors.port}", session=session, checks=CHECKS)  # fmt: skip
    assert not doors.errors


@by_tcp.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_with_the_token_is_answered_as_described(case: Any, doors: Doors) -> None:
    """A right token always counts, though wrong ones come from the same address."""
    with requests.Session() as session:
        token = {"Authorization": f"Bearer {TOKEN}"}
        answer = case.call_and_validate(
            base_url=f"http://127.0.0.1:{doors.port}", session=session, headers=token, checks=CHECKS
        )
    assert answer.status_code != 429 or case.path == "/login"
    assert not doors.errors


@at_socket.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_at_the_socket_is_answered_as_described(case: Any, doors: Doors) -> None:
    with requests.Session() as session:
        session.mount("http://", UnixAdapter(doors.folder))
        case.call_and_validate(base_url="http://localhost", session=session, checks=CHECKS)
    assert not doors.errors


def test_the_description_has_every_route(doors: Doors) -> None:
    """So that a new one is fuzzed, too."""
    server = AgentServer(AgentConfig(state_dir=doors.folder, listen=""))
    tcp = {route.path for route in (*server._public(), *server.pages.by_tcp())} | {ALERTS}
    assert tcp == set(BY_TCP["paths"])
    server.serve_verbs({}, {}, lambda _: (200, b""))
    here = {route.path for route in (*server._public(), *server._private(), *server.pages.at_socket())}  # fmt: skip
    assert here <= set(AT_SOCKET["paths"])
