"""The hub's doors, fuzzed from a description of all their routes: for people over TCP and at the socket, and for batches of agents, whose schema is that of the types."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from mldebug.config.schema import Config
from mldebug.core.errors import EvidenceError
from mldebug.fleet.batches import FleetBatch, batch_of
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import BatchRefusedError, ReceivedBatch
from mldebug_agents.fleet.hub.people import socket_app
from mldebug_agents.fleet.hub.process import Hub
from mldebug_agents.fleet.places import (
    HOURS,
    HUB_SOCKET,
    INCIDENTS,
    JOBS,
    LEMONS,
    NODE,
    NODES,
    NOTES,
    RETRY,
    SENDERS,
    SIMILAR,
    hub_dir,
)
from mldebug_agents.web.listeners import SOCKET
from unit.fleet.test_people import TOKEN, config, hub
from unit.web.test_http_fuzz import FEW, Errors, UnixAdapter, operation

__all__ = ["config", "hub"]

CHECKS = [not_a_server_error, status_code_conformance]
ASKS = "job node incident by since until words verdict user"
OPEN, ANSWERS = "200 403 421", "200 303 400 401 403 404 421 429"
PATHS: dict[str, Any] = {
    **{path: operation("get", ANSWERS, ASKS) for path in ("/", "/incidents", "/goodput", LEMONS, JOBS, NODE, RETRY, SENDERS, NODES, INCIDENTS, SIMILAR, HOURS)},
    **{path: operation("get", OPEN) for path in ("/metrics", "/healthz", "/look.css", "/look.js")},
    NOTES: operation("post", f"{ANSWERS} 413", body=True),
}  # fmt: skip
BY_TCP = {
    **PATHS,
    "/login": operation("post", "303 401 403 408 413 421 429", body=True) | operation("get", "200 303 401 403 421 429"),
    "/logout": operation("post", "303 403", body=True),
}  # fmt: skip
(BATCH, EVENT), PARTS = msgspec.json.schema_components(
    [FleetBatch, AnyEvent], ref_template="#/components/schemas/{name}"
)
PARTS["FleetBatch"]["properties"]["events"]["items"] = EVENT
BATCHES = {
    "/batch": {
        "post": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": BATCH}}},
            "responses": {"200": {"description": "taken, or told why not"}},
        }
    }
}


def description(paths: Any, parts: Any = None) -> dict[str, Any]:
    """OpenAPI of these routes."""
    about = {"title": "mldebug hub", "version": "1"}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"schemas": parts or {}}}  # fmt: skip


class HubDoors(NamedTuple):
    """A hub that answers, and what was logged with a traceback meanwhile."""

    made: Hub
    address: str
    errors: list[logging.LogRecord]


@pytest.fixture
def doors(hub: Hub, config: Config) -> Iterator[HubDoors]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    (hub_dir(config) / SOCKET).symlink_to(HUB_SOCKET)  # where the adapter looks
    try:
        yield HubDoors(hub, f"http://{config.hub.pages}", errors.records)
    finally:
        logging.getLogger().removeHandler(errors)


by_tcp = schemathesis.openapi.from_dict(description(BY_TCP))
at_socket = schemathesis.openapi.from_dict(description(PATHS))
batches = schemathesis.openapi.from_dict(description(BATCHES, PARTS))


@by_tcp.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_by_tcp_is_answered_as_described(case: Any, doors: HubDoors) -> None:
    with requests.Session() as session:
        answer = case.call_and_validate(base_url=doors.address, session=session, checks=CHECKS)
    assert "/api/" not in case.path or answer.status_code != 200
    assert not doors.errors


@by_tcp.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_with_the_token_is_answered_as_described(case: Any, doors: HubDoors) -> None:  # fmt: skip
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with requests.Session() as session:
        case.call_and_validate(base_url=doors.address, session=session, headers=headers, checks=CHECKS)  # fmt: skip
    assert not doors.errors


@at_socket.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_comes_at_the_socket_is_answered_as_described(case: Any, doors: HubDoors, config: Config) -> None:  # fmt: skip
    with requests.Session() as session:
        session.mount("http://", UnixAdapter(hub_dir(config)))
        case.call_and_validate(base_url="http://localhost", session=session, checks=CHECKS)
    assert not doors.errors


@batches.parametrize()
@FEW
@pytest.mark.filterwarnings("default")
def test_whatever_a_batch_holds_is_taken_or_refused_in_words(case: Any, hub: Hub) -> None:
    """As the door for agents takes it, behind the handshake."""
    plain = isinstance(case.body, dict | list | str | int | float | None)
    body = msgspec.json.encode(case.body) if plain else b""
    refused, counted, sent = "", 0, 0
    try:
        batch = batch_of(body)
        answer = hub.intake.take(ReceivedBatch(batch, "", "10.0.0.1"))
        counted, sent = answer.stored + answer.doubles + answer.refused, len(batch.events)
    except (EvidenceError, BatchRefusedError) as error:
        refused = str(error)
    assert refused or (counted == sent and body)


def test_the_description_has_every_route(hub: Hub) -> None:
    """So that a new one is fuzzed, too."""
    app = socket_app({}, None, {}, None, None)  # type: ignore[arg-type]
    here = {route.path for route in app.routes}  # type: ignore[attr-defined]
    assert here <= set(PATHS)
    assert set(PATHS) <= set(BY_TCP)
