"""Whether nodes would find each other: who tries whom, what is said of it, and what strangers at the port may do."""

import asyncio
import errno
import gc
import socket
import threading
import warnings

import pytest

from mldebug.probes.preflight.rendezvous import (
    LATE,
    Endpoint,
    MeetingNode,
    MeetingResult,
    listed,
    meeting_check,
    parse_endpoint,
    tries,
)
from mldebug_agents.probes.preflight.rendezvous import (
    MeetingThread,
    NodeMeeting,
    holder_of,
    listener,
)
from shared.system.patience import PATIENCE

WHERE = Endpoint(host="n1", port=29500)


def sentences(found: MeetingResult, nodes: int = 4) -> list[tuple[str, str]]:
    return [(one.state, one.sentence) for one in meeting_check(WHERE, nodes, found, 1.0)]


@pytest.mark.parametrize(
    ("words", "host", "port"),
    [
        ("n1:29500", "n1", 29500),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[2001:db8::1]:65535", "2001:db8::1", 65535),
    ],
)
def test_an_endpoint_is_read_as_torchrun_takes_it(words: str, host: str, port: int) -> None:
    assert parse_endpoint(words) == Endpoint(host=host, port=port)
    assert parse_endpoint(words).words == words


@pytest.mark.parametrize(
    "words", ["", ":", "n1", "n1:", ":29500", "n1:0", "n1:65536", "n1:x", "a b:1", "n1:٣"]
)
def test_what_is_no_endpoint_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"port|host"):
        parse_endpoint(words)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 40, 1000, 1024])
def test_each_node_is_tried_by_others_and_none_by_itself(count: int) -> None:
    by_node = [tries(number, count) for number in range(count)]
    assert all(number not in others for number, others in enumerate(by_node))
    tried = [other for others in by_node for other in others]
    assert all(tried.count(number) == len(by_node[0]) for number in range(count))
    assert len(by_node[0]) <= max(15, count.bit_length())
    if count <= 16:
        assert all(len(others) == count - 1 for others in by_node), "all pairs"


def test_names_and_ports_tell_a_node_of_the_list() -> None:
    nodes = [MeetingNode(name="a", address="", port=port) for port in (1, 2, 3)]
    assert [one.port for one in listed(nodes, "a", 2)] == [1, 3]
    assert listed(nodes, "b", 2) == ()


def test_what_a_node_says() -> None:
    met = MeetingResult(own=True, came=4, tried=3)
    assert sentences(met) == [("fine", "n1:29500 is this node's, and its port is free: 4 of 4 nodes came, 3 others reached from here")]  # fmt: skip
    assert sentences(MeetingResult(own=True, came=1), 1) == [("fine", "n1:29500 is this node's, and its port is free")]  # fmt: skip
    lost = MeetingResult(came=4, tried=1, failed={"n4": LATE, "n3": LATE, "n2": errno.ECONNREFUSED})
    assert [one.partition(":")[0] for _, one in sentences(lost)] == ["cannot reach n[3-4]", "cannot reach n2"]  # fmt: skip
    assert {state for state, _ in sentences(lost)} == {"failed"}


def test_a_stranger_at_the_port_gets_nothing_and_keeps_nobody_apart() -> None:
    """Somebody connects and is silent, and another sends nonsense and a wrong token: two nodes meet all the same."""
    with listener(0) as place:
        port = place.getsockname()[1]
    where = Endpoint(host=socket.gethostname(), port=port)
    first = MeetingThread(where, "a", 2, "right", seconds=20)
    first.start()
    for _ in range(200):
        try:
            silent = socket.create_connection(("127.0.0.1", port), 1)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    with silent, socket.create_connection(("127.0.0.1", port), 1) as rude, socket.create_connection(("127.0.0.1", port), 1) as wrong:  # fmt: skip
        rude.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 100_000)
        wrong.sendall(b'{"token":"wrong","node":"c","port":1}\n')
        assert wrong.recv(100) == b""
        found = _second(where)
        assert first.result() == MeetingResult(own=True, came=2, tried=1)
        silent.settimeout(20 * PATIENCE)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            gc.collect()
        assert silent.recv(1) == b"", "it is hung up on when the nodes have met"
    assert found
    assert not [one.message for one in warned if one.category is ResourceWarning]


def _second(where: Endpoint) -> bool:
    """The other node, on the same machine: it comes as a visitor."""

    async def visit() -> MeetingResult:
        return await NodeMeeting(where, "b", 2, "right", 20)._visit("127.0.0.1")

    return asyncio.run(visit()) == MeetingResult(came=2, tried=1)


def test_who_has_a_port_is_seen_where_it_may_be() -> None:
    with listener(0) as place:
        assert holder_of(place.getsockname()[1]).startswith(("python", "pytest"))
    assert holder_of(1) == ""
