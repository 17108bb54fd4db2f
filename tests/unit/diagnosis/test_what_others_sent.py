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
        ("row = self.rows[key]", "KeyError: 'rank 2'"),
        ("return table[ids]", "IndexError: index 50304 is out of range"),
        ("x = config['peer']", "KeyError: 'peer'"),
        ("part = received[src_rank]", "ZeroDivisionError: division by zero"),
    ],
)
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
