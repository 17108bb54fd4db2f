"""The door for other agents, fuzzed from its own OpenAPI: whatever comes, it answers as the document says, and never with 500."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

import jsonschema
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.inspection import InspectOrder, NodeInspectOrder
from mldebug.cluster.messages import Announcement, CaptureOrder, DumpOrder, Welcome
from mldebug.config.schema import AgentConfig
from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.inspections import Inspections
from mldebug_agents.cluster.peers.net.identity import Identity, derive, identity
from mldebug_agents.cluster.peers.openapi import OPENAPI, document
from mldebug_agents.cluster.peers.remote_orders import TimedCapture
from mldebug_agents.cluster.peers.routes import app
from mldebug_agents.incidents.node_inspection import InspectionOutcome
from mldebug_agents.web.server import AgentServer
from shared.cluster.nodes import run
from unit.cluster.test_peers import key_file

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class Loop:
    """Answers as a main loop does, with a real coordinator's memory."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()

    def ask(self, what: object, address: str) -> "Future[Any]":
        answer: Future[Any] = Future()
        if isinstance(what, Announcement):
            answer.set_result(self._welcome(what, address))
        elif isinstance(what, CaptureOrder):
            answer.set_result(TimedCapture(run(1, 2)["a1"], 0.0) if what.incident else None)
        elif isinstance(what, DumpOrder | InspectOrder | NodeInspectOrder):
            answer.set_exception(MldebugError("no runs match"))
        else:
            answer.set_result(self.coordinator.view("n1", (), 2.0))
        return answer

    def _welcome(self, announcement: Announcement, address: str) -> Welcome:
        self.coordinator.update(announcement, address, 1.0)
        self.coordinator.update_relayed(announcement, 1.0)
        words = tuple(
            self.coordinator.word(news, announcement.node, 1.0) for news in announcement.runs
        )
        list(self.coordinator.due(1.0))
        return Welcome(node="n1", agent="me", runs=words)


def no_inspection(*_: object) -> InspectionOutcome:
    raise AssertionError


INSPECTIONS = Inspections(cast("Any", None), no_inspection)
door = app(Loop().ask, "n1", lambda _: b"", inspections=INSPECTIONS)


async def from_a_node(scope: Any, receive: Any, send: Any) -> None:
    """As by TCP: the test client has no address."""
    await door(scope | {"client": ("10.0.0.9", 40_000)}, receive, send)


schema = schemathesis.openapi.from_asgi(OPENAPI, from_a_node)


@schema.parametrize()
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.filterwarnings("default")
def test_whatever_is_sent_is_answered_as_the_document_says(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


def test_the_document_knows_every_part_that_it_names() -> None:
    text = msgspec.json.decode(document())
    parts = text["components"]["schemas"]
    assert {"Announcement", "RunNews", "CaptureOrder", "Welcome"} <= set(parts)
    for part in parts.values():
        jsonschema.Draft202012Validator.check_schema(part)
    assert set(text["paths"]) >= {"/peer/v1/announce", "/peer/v1/capture"}


# --- the same by TLS, as an agent serves it ------------------------------------------------------------


class Adapter(requests.adapters.HTTPAdapter):
    """Shows a certificate, or none."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more, ssl_context=self._context, assert_hostname=False)


class Counting(Loop):
    """Knows how much has come so far."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def ask(self, what: object, address: str) -> "Future[Any]":
        self.requests += 1
        return super().ask(what, address)


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(key_file(tmp_path_factory.mktemp("keys")), derive)


@pytest.fixture(scope="module")
def served(proof: Identity) -> Iterator[tuple[str, Counting]]:
    server, loop = AgentServer(AgentConfig(listen="")), Counting()
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server.serve_peers(
        app(loop.ask, "n1", lambda _: b"", inspections=INSPECTIONS), listening, proof.server
    )
    try:
        yield f"https://127.0.0.1:{port}", loop
    finally:
        server.stop(2.0)


def session(context: ssl.SSLContext) -> requests.Session:
    made = requests.Session()
    made.headers["Connection"] = "close"
    made.mount("https://", Adapter(context))
    return made


result = schemathesis.openapi.from_dict(msgspec.json.decode(document()))
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.long
@result.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_a_member_is_answered_as_the_document_says(
    case: Any, served: tuple[str, Counting], proof: Identity
) -> None:
    with session(proof.client) as member:
        case.call_and_validate(base_url=served[0], session=member, checks=CHECKS)


@pytest.mark.long
@result.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_a_stranger_is_answered_nothing_whatever_he_sends(
    case: Any, served: tuple[str, Counting]
) -> None:
    before = served[1].requests
    context = ssl._create_unverified_context()
    with session(context) as stranger, pytest.raises(requests.exceptions.ConnectionError):
        case.call(base_url=served[0], session=stranger, timeout=30)
    assert served[1].requests == before


PATHS = {one: min(how).upper() for one, how in msgspec.json.decode(document())["paths"].items()}
BODIES = (b"", b"{}", b"\xff\x00{", b"[" * 20_000, b'{"schema": "mldebug.peer/1", "node": 7}')


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.filterwarnings("default")
def test_some_questions_by_member_and_stranger(
    path: str, served: tuple[str, Counting], proof: Identity
) -> None:
    """The same in short."""
    where, loop = served
    codes = msgspec.json.decode(document())["paths"][path][PATHS[path].lower()]["responses"]
    with session(proof.client) as member:
        for body in BODIES:
            answer = member.request(PATHS[path], where + path, data=body, timeout=30)
            assert str(answer.status_code) in codes
    before = loop.requests
    with session(ssl._create_unverified_context()) as stranger:
        for body in BODIES:
            with pytest.raises(requests.exceptions.ConnectionError):
                stranger.request(PATHS[path], where + path, data=body, timeout=30)
    assert loop.requests == before
