"""The API between agents as OpenAPI, generated from the structs that decode its messages. `GET /peer/v1/openapi.json`."""

from functools import cache
from typing import Any

import msgspec

from mldebug import __version__
from mldebug.cluster.inspection import InspectOrder, NodeInspectOrder
from mldebug.cluster.messages import (
    Announcement,
    CaptureOrder,
    ClusterView,
    DumpOrder,
    Welcome,
)

ANNOUNCE, CAPTURE = "/peer/v1/announce", "/peer/v1/capture"
INSPECT, INSPECT_NODE = "/peer/v1/inspect", "/peer/v1/inspect-node"
VIEW, DUMP, OPENAPI = "/peer/v1/cluster", "/peer/v1/dump", "/peer/v1/openapi.json"
_REFUSALS = {
    "400": "it cannot be read, or cannot be",
    "408": "it was not complete in time",
    "409": "it cannot be done, or not in time",
    "413": "it is too large",
    "423": "the run is left alone, because a stall of it is open",
}
OUTER = {
    "NodeSamples": "how a node's ranks waited in one stretch: mldebug.goodput.shared_samples",
    "SharedFinding": "which ranks are slow, by the samples of all nodes: mldebug.goodput.shared_samples",
}
INNER = ("RankShares", "RankEvidence", "Slowness", "SlowRank", "Excess")  # parts of these alone
_ANY: dict[str, Any] = {"type": "string", "format": "binary"}


@cache
def document() -> bytes:
    """The OpenAPI 3.1 document of the API between agents, as JSON."""
    kinds = (
        Announcement,
        CaptureOrder,
        DumpOrder,
        Welcome,
        ClusterView,
        InspectOrder,
        NodeInspectOrder,
    )
    schemas, parts = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for name in INNER:
        parts.pop(name)
    parts |= {name: {"type": "object", "description": why} for name, why in OUTER.items()}
    announcement, order, dump, welcome, view, inspect, part = schemas
    paths = {
        ANNOUNCE: _post("A node tells of its runs", announcement, welcome),
        CAPTURE: _post("Capture a run on this node now; the answer is packed", order, _ANY),
        VIEW: _post("All nodes that have announced themselves", None, view),
        DUMP: _post("Capture a run on all its nodes; the answer is a report", dump, _ANY),
        INSPECT: _post(
            "Profile ranks of a run, or ask who holds their memory, wherever they are",
            inspect,
            _ANY,
        ),
        INSPECT_NODE: _post("The same for ranks of this node", part, _ANY),
        OPENAPI: {"get": {"responses": {"200": _answer("This document", {"type": "object"})}}},
    }
    info = {"title": "mldebug: agents among themselves", "version": __version__}
    openapi = {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": parts}}
    return msgspec.json.encode(openapi)


def _post(what: str, body: object, answer: dict[str, Any]) -> dict[str, Any]:
    post: dict[str, Any] = {
        "summary": what,
        "responses": {"200": _answer("done", answer)}
        | {code: _words(why) for code, why in _REFUSALS.items()},
    }
    if body is not None:
        content = {"application/json": {"schema": body}}
        post["requestBody"] = {"required": True, "content": content}
    return {"post": post}


def _answer(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    kind = "application/octet-stream" if schema is _ANY else "application/json"
    return {"description": what, "content": {kind: {"schema": schema}}}


def _words(why: str) -> dict[str, Any]:
    return {"description": why, "content": {"text/plain": {"schema": {"type": "string"}}}}
