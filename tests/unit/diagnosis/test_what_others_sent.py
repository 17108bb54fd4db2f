"""Errors about what other ranks have sent: a part that is missing, a stream that ended. Who sent nothing may be to blame, and never surely who reads."""

import pytest

from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.raised_in import raised_in


def _raised_at(source: str, error: str) -> Blame:
    lines = ["Traceback (most recent call last):", '  File "/job/exchange.py", line 31, in merge', f"    {source}", error]  # fmt: skip
    return blame_of(error, raised_in(lines, 0, 3))


@pytest.mark.parametrize("error", ["KeyError: 2", "IndexError: list index out of range"])
@pytest.mark.parametrize(
    "source",
    ["part = received[src_rank]", "x = gathered[3]", "loss = losses_by_rank[r]", "return buf[peer_rank]", "a, b = self.recv_parts[n]"],
)  # fmt: skip
def test_a_part_that_is_missing_may_not_have_been_sent(source: str, error: str) -> None:
    assert _raised_at(source, error) is Blame.UNCLEAR


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("whole = torch.cat(gathered, 0)", "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 128 but got size 120 for tensor number 2 in the list."),
        ("total += received_loss", "RuntimeError: The size of tensor a (12) must match the size of tensor b (11) at non-singleton dimension 0"),
        ("x = np.stack(parts_by_rank)", "ValueError: all input arrays must have the same shape"),
        ("plan = json.loads(store.get('plan'))", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("obj = pickle.loads(self.store.get(key))", "_pickle.UnpicklingError: invalid load key, '\\x00'."),
        ("obj = comm.bcast(None, root=0)", "_pickle.UnpicklingError: invalid load key, 'x'."),
        ("return self.comm.recv(source=0)", "EOFError: Ran out of input"),
        ("parts = COMM.allgather(mine)", "ValueError: unsupported pickle protocol: 5"),
        ("name = client.key_value_try_get(key).decode()", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)  # fmt: skip
def test_what_does_not_fit_may_have_been_sent_so(source: str, error: str) -> None:
    assert _raised_at(source, error) is Blame.UNCLEAR


def test_the_frames_of_a_library_below_that_line_change_nothing() -> None:
    error = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    lines = [
        "Traceback (most recent call last):",
        '  File "/job/exchange.py", line 31, in merge', "    plan = json.loads(store.get('plan'))",
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode', '    raise JSONDecodeError("Expecting value", s, err.value) from None',
        error,
    ]  # fmt: skip
    assert blame_of(error, raised_in(lines, 0, 5)) is Blame.UNCLEAR
    lines[2] = "    plan = json.loads(text)"
    assert blame_of(error, raised_in(lines, 0, 5)) is Blame.OWN


@pytest.mark.parametrize("name", ["rank_0.done", "step7.ready", "shard-3.flag", "epoch.success"])
def test_a_mark_that_another_process_leaves_may_be_late(name: str) -> None:
    error = f"FileNotFoundError: [Errno 2] No such file or directory: '/scratch/{name}'"
    assert _raised_at("os.stat(flag)", error) is Blame.UNCLEAR


@pytest.mark.parametrize("who", ["worker 5", "rank 0", "the peer 7"])
@pytest.mark.parametrize("what", ["reported a failure", "has died", "was killed"])
def test_who_stops_because_of_another_is_a_victim(who: str, what: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/job/coord.py", line 8, in poll', "    raise RuntimeError(msg)", f"RuntimeError: aborting because {who} {what}"]  # fmt: skip
    assert blame_of(lines[-1], raised_in(lines, 0, 3)) is Blame.PEER


def test_a_marked_line_inside_the_text_is_of_another_rank() -> None:
    assert _raised_at("ask()", "RuntimeError: remote said: [rank3]: KeyError: 'x'") is Blame.PEER


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("batch = torch.cat(rows, 0)", "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 128 but got size 120 for tensor number 2 in the list."),
        ("os.stat(path)", "FileNotFoundError: [Errno 2] No such file or directory: '/data/rank_3.idx'"),
        ("x = gathered.to(dev)", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("x = gathered.sum()", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        ("f.write(received)", "OSError: [Errno 28] No space left on device"),
        ("row = self.rows[key]", "KeyError: 'rank 2'"),
        ("return table[ids]", "IndexError: index 50304 is out of range"),
        ("x = config['peer']", "KeyError: 'peer'"),
        ("part = received[src_rank]", "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_what_is_of_the_rank_alone_stays_its_own(source: str, error: str) -> None:
    """A control: data and settings of its own, and an error that is not about a missing part."""
    assert _raised_at(source, error) is Blame.OWN


@pytest.mark.parametrize(
    "error",
    [
        "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 8 expected bytes",
        "asyncio.exceptions.IncompleteReadError: 3 bytes read on a total of 65536 expected bytes",
        "RuntimeError: 0 bytes received",
        "OSError: unexpected end of stream",
    ],
)
def test_a_stream_that_ended_has_another_end(error: str) -> None:
    assert _raised_at("head = await reader.readexactly(8)", error) is Blame.UNCLEAR


def test_a_file_that_ended_is_the_readers_own() -> None:
    """A control: with a path it is a file."""
    error = "OSError: unexpected end of stream in /data/shard-7.tar"
    assert _raised_at("head = f.read(8)", error) is Blame.OWN
