"""Whatever stands in any field of a message of another agent, it is taken, cleaned, or refused with one error."""

import time

import msgspec
import pytest

from mldebug.cluster.messages import (
    SCHEMA,
    Announcement,
    CaptureOrder,
    PeerMessage,
    Welcome,
    believed,
    believed_welcome,
    read,
)
from mldebug.core.errors import EvidenceError
from shared.cluster.hostile import worst_of

KEY = ["env", "abc", "10.0.0.1"]
RUN = {"key": KEY, "ranks": "0", "world_size": 4, "attempt": 0}
RIGHT = {
    Announcement: {"schema": SCHEMA, "port": 9, "node": "a", "relayed.0.node": "b", "relayed.0.port": 9, **{f"runs.0.{name}": value for name, value in RUN.items()}, **{f"relayed.0.runs.0.{name}": value for name, value in RUN.items()}},
    CaptureOrder: {"schema": SCHEMA, "key": KEY, "attempt": 0},
    Welcome: {"schema": SCHEMA, "port": 9, "node": "a", "runs.0.key": KEY, "relayed.0.runs.0.key": KEY},
}  # fmt: skip
BELIEVED = {Announcement: believed, Welcome: believed_welcome}


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
