"""What a node sends: bounded, in lines that survive what stands around them, and refused in words where it cannot be."""

import base64
import random
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.cluster import slimming
from mldebug.cluster.slimming import ROOM, slim
from mldebug.cluster.wire import (
    MAX_BYTES,
    MAX_LINE,
    NodeReply,
    ReplyLines,
    decode,
    encode,
    read_line,
)
from mldebug.core.errors import EvidenceError
from mldebug.core.model import LogTail, OpenFile
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.diagnosis.diagnose import diagnose
from shared.cluster.nodes import node_capture, rank, replies, run, sleeper, waiter
from shared.diagnosis.builders import process, stack, still


def packed(value: object) -> bytes:
    return base64.b64encode(zlib.compress(msgspec.json.encode(value)))


def collected(lines: list[bytes]) -> ReplyLines:
    pieces = ReplyLines()
    for line in lines:
        if piece := read_line(line):
            pieces.add(piece)
    return pieces


REPLY = NodeReply(node="a1", captures=(run(1, 8, {3: sleeper()})["a1"],))


def test_a_reply_comes_as_it_was_sent() -> None:
    lines = list(encode(REPLY))

    assert max(map(len, lines)) <= MAX_LINE
    assert collected(lines).reply() == REPLY


def test_noise_labels_and_other_nodes_between_do_no_harm() -> None:
    random.seed(5)
    wide = msgspec.structs.replace(REPLY, version=str(random.getrandbits(9000)))
    sent = [b" 7: " + line.rstrip() + b"\r" for line in encode(wide) if line.strip()]
    other = [line for line in encode(NodeReply(node="a2")) if line.strip()]
    banner = [b"*** Welcome ***", b"\xff\xfe\x00", b"mldebug-node is great", b"x" * 100_000]
    mixed = [*banner, *sent[:1], *banner, *sent[1:], *other]
    random.shuffle(mixed)
    mine = [line for line in mixed if b" a2 " not in line]

    assert len(sent) > 2
    assert collected(mine).reply() == wide


def test_an_answer_that_is_cut_off_says_so() -> None:
    lines = [
        line for line in encode(msgspec.structs.replace(REPLY, version="x" * 4000)) if line.strip()
    ]
    with pytest.raises(EvidenceError, match=r"only 0 of 0 lines"):
        ReplyLines().reply()
    found = collected(lines[:-1])
    assert not found.complete or len(lines) == 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("mldebug.node/0", "older and speaks mldebug.node/0"),
        ("mldebug.node/2", "newer and speaks mldebug.node/2"),
        ("mldebug.report/1", "no capture of mldebug"),
        ("", "no capture of mldebug"),
        (7, "malformed"),
    ],
)
def test_another_version_is_refused_in_words(schema: object, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        decode(packed({"schema": schema, "node": "a1", "version": "9.9"}))


def test_fields_that_this_version_does_not_know_are_ignored() -> None:
    later = msgspec.to_builtins(REPLY) | {"schema": "mldebug.node/1", "css_class": "fine"}
    assert decode(packed(later)) == REPLY


def test_a_bomb_is_not_unpacked() -> None:
    bomb = base64.b64encode(zlib.compress(b" " * (20 * MAX_BYTES)))
    with pytest.raises(EvidenceError, match="larger than"):
        decode(bomb)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"!!!!", b"AAAA", base64.b64encode(b"no zlib"), packed([]), packed("x"), packed(None),
        packed({"schema": "mldebug.node/1"}), packed({"schema": "mldebug.node/1", "node": "a", "captures": [{}]}),
        base64.b64encode(zlib.compress(b"[" * 200_000)), base64.b64encode(zlib.compress(b"\xff")),
        packed(msgspec.to_builtins(REPLY) | {"schema": "mldebug.node/1"})[:-40],
    ],
)  # fmt: skip
def test_garbage_is_refused(text: bytes) -> None:
    with pytest.raises(EvidenceError):
        decode(text)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_line_is_a_piece_or_none(line: bytes) -> None:
    for one in (line, b"mldebug-node " + line):
        piece = read_line(one)
        assert piece is None or 0 <= piece.number < piece.count


# --- how much ------------------------------------------------------------------------------------


def big(count: int, lines: int) -> NodeReply:
    """Many ranks with many threads and long logs."""
    threads = tuple(stack("poll (pool.py:1)", "run (threading.py:9)", tid=t) for t in range(40))
    files = tuple(OpenFile(fd=n, target=f"/data/{n}", kind="file") for n in range(200))
    noise = random.Random(1)
    log = LogTail(path="/l", lines=tuple(f"{noise.getrandbits(400)}" for _ in range(lines)))
    ranks = []
    for number in range(count):
        plain = sleeper() if number == 3 else waiter()
        state = msgspec.structs.replace(plain.state, files=files)
        full = msgspec.structs.replace(plain, stacks=(*plain.stacks, *threads), state=state)
        ranks.append(msgspec.structs.replace(rank(number, full, count), log=log))
    return NodeReply(node="a1", captures=(node_capture("a1", ranks),))


def test_who_waits_like_another_is_cut_and_keeps_its_class() -> None:
    whole = big(8, 20)
    small = slim(whole)
    before, after = whole.captures[0], small.captures[0]

    assert [classify(one) for one in after.ranks] == [classify(one) for one in before.ranks]
    assert diagnose([after]).diagnosis == diagnose([before]).diagnosis
    assert after.ranks[3] == before.ranks[3]  # the suspect
    assert after.ranks[0] == before.ranks[0]  # who stands for the others
    assert [len(one.process.stacks) for one in after.ranks[4:]] == [1] * 4
    assert len(msgspec.json.encode(small)) < len(msgspec.json.encode(whole)) / 3


def test_a_reply_never_exceeds_its_room_and_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slimming, "ROOM", 40_000)
    small = slim(big(8, 400))

    assert len(msgspec.json.encode(small)) <= 40_000
    assert "log lines" in [gap.what for gap in small.captures[0].gaps]
    found = diagnose(small.captures).diagnosis
    assert [one.rank for one in found.culprits] == [3]


def test_what_does_not_fit_at_all_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slimming, "ROOM", 500)
    small = slim(big(8, 1))

    assert small.captures == ()
    assert [gap.what for gap in small.gaps] == ["the capture of train.py"]


def test_the_room_is_less_than_what_is_read() -> None:
    assert ROOM < MAX_BYTES
    assert all(decode(packed(one)) for one in map(slim, replies(run(2, 2)).values()))


def test_a_worker_that_holds_its_rank_up_is_sent_however_many_there_are() -> None:
    loader = process(
        "_next_data (torch/utils/data/dataloader.py:1400)", "main (train.py:5)", move=still()
    )
    worker = process(pid=77, kind="worker", state="T", wchan="do_signal_stop")
    ranks = [msgspec.structs.replace(rank(n, loader, 40), children=(worker,)) for n in range(40)]
    whole = node_capture("a1", ranks)
    (small,) = slim(NodeReply(node="a1", captures=(whole,))).captures

    before, after = ([classify(one) for one in each.ranks] for each in (whole, small))
    assert before[39].worker_pid == 77
    assert after == before


def test_a_capture_always_says_its_schema() -> None:
    """What is stored today is read by a later version, which has another default."""
    assert b'"schema":"mldebug.capture/1"' in msgspec.json.encode(REPLY.captures[0])
