"""Kinds of words that only tell of somebody else's end, absence or lateness: who writes them is a victim. Each kind with texts and what must not change."""

import pytest

from mldebug.diagnosis.exits.words.accusations import accusation_of
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.raised_in import RaisedIn

RAISED = RaisedIn(own_raise=True, stated=True)  # by a `raise` in the job's own code

VICTIMS = {
    "who serves them cannot be reached": (
        "TimeoutError: worker 5: could not reach master 10.0.0.9:29500 within 300 s",
        "ConnectionError: unable to contact the rollout server at 10.0.0.2:8000",
        "RuntimeError: cannot reach the coordinator",
        "ConnectionError: The reward server could not be reached after 12 tries",
        "Exception: timed out trying to connect to head node 10.0.0.1",
    ),
    "somebody did not come up": (
        "TimeoutError: workers did not register within 600 s",
        "RuntimeError: the leader 10.0.0.3 did not accept connections within 300 s",
        "TimeoutError: rollout-7 at http://10.0.0.8:8000 did not become healthy",
    ),
    "a wait for a peer was given up": (
        "RuntimeError: ring exchange gave up waiting for a neighbour, the data are incomplete",
        "TimeoutError: timed out waiting for its peer to map the buffer",
        "TimeoutError: rank 5 waited for rank 6 at layer 12",
    ),
    "too few came": (
        "RuntimeError: not all workers have joined",
        "RuntimeError: not all replicas acknowledged epoch 4",
        "ValueError: there are not enough peers for an average",
        "TimeoutError: fewer than 6 experts responded",
    ),
    "it failed on somebody": (
        "RuntimeError: stopping, someone has a NaN loss",
        "RuntimeError: stopping since the loss is NaN on some rank",
        "ValueError: peer decoder rank failed",
        "RuntimeError: peer 2 sent abort",
        "RuntimeError: rank 3 has requested a shutdown",
    ),
    "whoever serves it has closed": (
        "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
        "http.client.RemoteDisconnected: RemoteDisconnected('Remote end closed connection without response')",
        "urllib3.exceptions.ProtocolError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
    ),
    "it was only cancelled": (
        "RuntimeError: cancelled",
        "asyncio.exceptions.CancelledError: Canceled",
        "RuntimeError: Aborted.",
    ),
}
NOT_CHANGED = (
    ("OSError: [Errno 2] No such file or directory: '/data/leader/index.json'", Blame.OWN),
    ("RuntimeError: DataLoader worker (pid 4121) is killed by signal: Bus error.", Blame.OWN),
    ("ValueError: head_dim must be divisible by 8, got 100", Blame.OWN),
    ("ValueError: main batch has 31 rows, expected 32", Blame.OWN),
    ("ValueError: not all values of the batch are finite", Blame.OWN),
    ("ValueError: dataset does not have enough samples for one batch", Blame.OWN),
    ("KeyError: 'server'", Blame.OWN),
    (
        "requests.exceptions.HTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api",
        Blame.OWN,
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", Blame.OWN),
    (
        "F20260203 11:02:57.140058   812 s3.cc:77] Check failed: send(fd) == OK Connection reset by peer",
        Blame.UNCLEAR,
    ),
    ("RuntimeError: not all ranks used CUDA Graph", Blame.UNCLEAR),
    ("RuntimeError: CUTLASS SP peer copy failed: 700", Blame.UNCLEAR),
)


@pytest.mark.parametrize(("kind", "words"), [(kind, one) for kind, some in VICTIMS.items() for one in some])  # fmt: skip
def test_who_tells_of_anothers_end_is_a_victim(kind: str, words: str) -> None:
    assert blame_of(words, RAISED) is Blame.PEER


@pytest.mark.parametrize(("words", "blame"), NOT_CHANGED)
def test_what_is_ones_own_or_unclear_stays_so(words: str, blame: Blame) -> None:
    assert blame_of(words, RAISED) is blame


@pytest.mark.parametrize(
    ("inner", "accused"),
    [
        ("ValueError", (103,)),
        ("OutOfMemoryError", (103,)),
        ("DistBackendError", ()),
        ("DistNetworkError", ()),
        ("HorovodInternalError", ()),
    ],
)
def test_a_worker_that_has_lost_others_is_not_accused(inner: str, accused: tuple[int, ...]) -> None:
    """Ray passes on what a worker raised, with its pid."""
    words = f"ray.exceptions.RayTaskError({inner}): ray::RayTrainWorker.get_next() (pid=103, ip=10.0.0.19, actor_id=a3e4)"
    found = accusation_of(words)
    assert (found.pids if found else ()) == accused


LINES = {
    "watchdog": (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER) ran for 1804782 milliseconds before timing out.",
        "peer",
    ),
    "glog": ("F20260203 11:02:57.140058   812 ring.cc:77] Check failed: recv(peer) == OK Connection reset by peer", "peer"),
    "device": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal memory access was encountered",
        "own",
    ),
    "assertion": ("train: reader.cc:12: void read(): Assertion `size > 0' failed.", "own"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("end", ["", "\nFatal Python error: Aborted\n"])
def test_the_reason_of_an_abort_stands_above_pythons_word_for_it(name: str, end: str) -> None:
    """With Python's word below, which says nothing, and without."""
    text, whose = LINES[name]
    found = last_error((text + end).splitlines(), "log", rank=1)
    assert found is not None
    assert found.blames_peer == (whose == "peer"), found
    assert not (whose == "own" and found.blames_peer)


def test_an_abort_without_a_reason_stays_unclear() -> None:
    """Control."""
    found = last_error(["step 9 loss 2.0", "Fatal Python error: Aborted"], "log", rank=1)
    assert found is not None
    assert (found.blames_peer, found.unclear) == (False, True)
