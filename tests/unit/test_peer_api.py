"""The door for other agents, fuzzed from its own OpenAPI: whatever comes, it answers as the document says, and never with 500."""

from concurrent.futures import Future
from typing import Any

import jsonschema
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from mldebug.across.coordinator import Coordinator
from mldebug.across.members import Announcement, CaptureOrder, DumpOrder, Welcome
from mldebug.errors import MldebugError
from mldebug_agents.members.door import app
from mldebug_agents.members.openapi import OPENAPI, document
from mldebug_agents.members.ordered import Taken
from nodes import run

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
            answer.set_result(Taken(run(1, 2)["a1"], 0.0) if what.incident else None)
        elif isinstance(what, DumpOrder):
            answer.set_exception(MldebugError("no runs match"))
        else:
            answer.set_result(self.coordinator.view("n1", (), 2.0))
        return answer

    def _welcome(self, told: Announcement, address: str) -> Welcome:
        self.coordinator.hear(told, address, 1.0)
        self.coordinator.hear_of(told, 1.0)
        words = tuple(self.coordinator.word(news, told.node, 1.0) for news in told.runs)
        list(self.coordinator.due(1.0))
        return Welcome(node="n1", agent="me", runs=words)


door = app(Loop().ask, "n1", lambda _: b"")


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
    told = msgspec.json.decode(document())
    parts = told["components"]["schemas"]
    assert {"Announcement", "RunNews", "CaptureOrder", "Welcome"} <= set(parts)
    for part in parts.values():
        jsonschema.Draft202012Validator.check_schema(part)
    assert set(told["paths"]) >= {"/peer/v1/announce", "/peer/v1/capture"}
