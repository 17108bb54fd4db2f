"""The link between the agent and its children: whole messages of known types, whatever the other end does."""

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from mldebug_agents.system.child.link import HEAD, ChildLink, ask_once


class Count(msgspec.Struct):
    """A message."""

    number: int
    data: bytes = b""


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5.0)
        yield ours, theirs


def link(connection: socket.socket, max_body: int = 1 << 20) -> ChildLink[Count]:
    return ChildLink(connection, msgspec.msgpack.Decoder(Count), max_body=max_body)


def test_messages_come_whole_and_in_order(pair: Pair) -> None:
    ours, theirs = map(link, pair)
    for number in range(3):
        theirs.send(Count(number, b"x" * number * 1000))
    assert [ours.receive().number for _ in range(3)] == [0, 1, 2]


def test_what_came_before_the_time_was_over_is_kept(pair: Pair) -> None:
    here = link(pair[0])
    body = msgspec.msgpack.encode(Count(7, b"y" * 500))
    data = HEAD.pack(len(body), False) + body
    pair[0].settimeout(0.01)
    for cut in (3, HEAD.size, HEAD.size + 100):
        pair[1].sendall(data[:cut])
        with pytest.raises(TimeoutError):
            here.receive()
        data = data[cut:]
    pair[1].sendall(data)
    assert here.receive() == Count(7, b"y" * 500)


def test_a_descriptor_comes_beside_its_message_and_no_byte_of_the_next_is_lost(pair: Pair) -> None:
    ours, theirs = map(link, pair)
    read, write = os.pipe()
    theirs.send(Count(1), write)
    theirs.send(Count(2))
    os.close(write)
    message, descriptor = ours.receive_with_descriptor()
    assert message.number == 1
    assert descriptor is not None
    os.write(descriptor, b"!")
    os.close(descriptor)
    assert os.read(read, 9) == b"!"
    os.close(read)
    assert ours.receive_with_descriptor() == (Count(2), None)


def test_what_is_not_asked_for_is_closed(pair: Pair) -> None:
    ours, theirs = map(link, pair)
    read, write = os.pipe()
    theirs.send(Count(1), write)
    os.close(write)
    assert ours.receive() == Count(1)
    assert os.read(read, 1) == b""  # nobody has the other end
    os.close(read)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it hung up"),
        (HEAD.pack(9, False) + b"half", "it hung up"),
        (HEAD.pack(1 << 40, False), "a message without end"),
        (HEAD.pack(1, False) + b"\xc1", "makes no sense"),
        (HEAD.pack(1, False) + b"\x01", "makes no sense"),
    ],
)
def test_who_hangs_up_or_sends_nonsense_is_gone(pair: Pair, data: bytes, words: str) -> None:
    pair[1].sendall(data)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=words):
        link(pair[0]).receive()


def test_all_that_has_come_is_taken_without_waiting(pair: Pair) -> None:
    ours, theirs = map(link, pair)
    pair[0].setblocking(False)
    assert list(ours.arrived()) == []
    theirs.send(Count(1))
    theirs.send(Count(2))
    assert list(ours.arrived()) == [Count(1), Count(2)]
    theirs.send(Count(3))
    pair[1].close()
    taken = ours.arrived()
    assert next(taken) == Count(3)
    with pytest.raises(ConnectionError):
        next(taken)


class Worker:
    """A child for one question."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("answers", [True, False])
def test_one_question_has_one_answer_and_its_child_is_killed_either_way(
    pair: Pair, answers: bool
) -> None:
    worker = Worker(pair[0])
    decoder = msgspec.msgpack.Decoder(Count)
    if answers:
        link(pair[1]).send(Count(8))
        assert ask_once(worker, Count(4), decoder, 5.0) == Count(8)  # type: ignore[arg-type]
        assert link(pair[1]).receive() == Count(4)
    else:
        with pytest.raises(TimeoutError):
            ask_once(worker, Count(4), decoder, 0.01)  # type: ignore[arg-type]
    assert worker.killed
