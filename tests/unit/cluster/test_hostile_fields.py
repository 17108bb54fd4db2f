"""Whatever stands in any field of a message of another agent, it is taken, cleaned, or refused with one error."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mldebug.capture.inspection import believed as believed_ranks
from mldebug.cluster.inspection import (
    Inspection,
    InspectOrder,
    NodeInspection,
    NodeInspectOrder,
    ranks_by_node,
    read_inspection,
    read_passed_on,
)
from mldebug.cluster.known_peers import of_user
from mldebug.cluster.messages import (
    SCHEMA,
    Announcement,
    CaptureOrder,
    ClusterView,
    DumpOrder,
    PeerMessage,
    Welcome,
    believed,
    believed_welcome,
    read,
)
from mldebug.core.errors import EvidenceError, MldebugError
from shared.cluster.hostile import worst_of

KEY = ["env", "abc", "10.0.0.1"]
RUN = {"key": KEY, "ranks": "0", "world_size": 4, "attempt": 0}
RIGHT = {
    Announcement: {"schema": SCHEMA, "port": 9, "node": "a", "relayed.0.node": "b", "relayed.0.port": 9, **{f"runs.0.{name}": value for name, value in RUN.items()}, **{f"relayed.0.runs.0.{name}": value for name, value in RUN.items()}},
    CaptureOrder: {"schema": SCHEMA, "key": KEY, "attempt": 0},
    Welcome: {"schema": SCHEMA, "port": 9, "node": "a", "runs.0.key": KEY, "relayed.0.runs.0.key": KEY},
}  # fmt: skip
BELIEVED = {Announcement: believed, Welcome: believed_welcome}


def of_a_node(body: bytes) -> object:
    """What a coordinator makes of a node's answer to an inspection."""
    found = believed_ranks(read_inspection(body).found, (1,), "n1")
    assert "\x1b" not in found.text()
    return found


def of_a_coordinator(body: bytes) -> object:
    """What a person's command makes of a coordinator's."""
    answer = read_passed_on(body)
    assert "\x1b" not in answer.found.text()
    return answer


def order_of(body: bytes) -> object:
    """What a coordinator makes of an order to inspect ranks."""
    order = read(body, InspectOrder)
    return ranks_by_node(order.ranks, {"n1": ((0, 99),)})


ANSWERS: dict[type[PeerMessage], Callable[[bytes], Any]] = {
    NodeInspection: of_a_node,
    Inspection: of_a_coordinator,
    InspectOrder: order_of,
    NodeInspectOrder: lambda body: read(body, NodeInspectOrder),
    DumpOrder: lambda body: read(body, DumpOrder),
    ClusterView: lambda body: of_user(read(body, ClusterView), 1000),
}
"""What is made of orders, and of answers to them."""
FILES = {"memory-rank1.json": "AAAA"}
FITTING = {
    NodeInspection: {"reply": "", "found.files": FILES},
    Inspection: {"replies": {"n1": "AAAA"}, "found.files": FILES},
    InspectOrder: {"ranks": "1"},
}


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_the_worst_of_every_field_is_one_error_at_most(kind: type[PeerMessage]) -> None:
    taken = refused = 0
    for place, body in worst_of(kind, RIGHT[kind]):
        begun = time.thread_time()
        try:
            message = read(body, kind)
            cleaned = BELIEVED[kind](message) if kind in BELIEVED else message  # type: ignore[operator]
            assert len(msgspec.json.encode(cleaned)) < 64_000, place
            taken += 1
        except EvidenceError:
            refused += 1
        assert time.thread_time() - begun < 2, place
    assert taken > 20
    assert refused > 20


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_the_worst_of_every_field_of_orders_and_answers_is_one_error_at_most(
    kind: type[PeerMessage],
) -> None:
    taken = refused = 0
    for place, body in worst_of(kind, {"schema": SCHEMA, **FITTING.get(kind, {})}):
        begun = time.thread_time()
        try:
            msgspec.json.encode(ANSWERS[kind](body))
            taken += 1
        except MldebugError:
            refused += 1
        assert time.thread_time() - begun < 2, place
    assert taken > 20
    assert refused > 20
