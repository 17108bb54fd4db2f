"""Lines that are passed over because their like told nothing: the same records come out as without that."""

import random
import re
from collections.abc import Iterator

import pytest

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.lines.quiet_lines import MOST, QuietLines
from mldebug.jobs.logs.parser import LogParser
from mldebug.jobs.logs.records import LogRecord
from unit.jobs.test_field_logs import STACKS as POSTED
from unit.jobs.test_headed_tables import LINES as FROM_SOURCES
from unit.jobs.test_log_stacks import STACKS as COLLECTED
from unit.jobs.test_log_stacks import counted
from unit.jobs.test_looked_up_stacks import STACKS as LOOKED_UP

NOISE = (
    "[rank3]: INFO worker 12: read shard-00012.tar from the cache in 0.12 s, queue 7/16",
    "node-1:123:456 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "node-1:123:456 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",
    'DEBUG:urllib3.connectionpool:https://s3.amazonaws.com:443 "GET /bucket/key-12 HTTP/1.1" 200 1024',
    "12", "1e-05", "7 8 9", ", 0.0012", "0.5, 1e-05, 3", "", "  12   6.5   1e-05", "| 12 | 6.5 |", "12,6.5,1e-05",
    "some words without any figure", "sh4rd s7ep 12 of l0ss",
)  # fmt: skip


def texts() -> Iterator[str]:
    yield from (counted(line) for line, _ in POSTED.values())
    yield from (counted(one["text"]) for one in COLLECTED)
    yield from ("\n".join((one["before"], counted(one["text"]), one["after"])) for one in (*LOOKED_UP, *FROM_SOURCES))  # fmt: skip


def with_other_digits(line: str, dice: random.Random) -> str:
    return re.sub(r"\d", lambda _: str(dice.randint(0, 9)), line)


def mixed(seed: int) -> bytes:
    """Each text amid noise that comes again and again with other numbers."""
    dice, lines = random.Random(seed), list[str]()
    for text in dice.sample(list(texts()), 60):
        for line in text.split("\n"):
            lines += [with_other_digits(one, dice) for one in dice.choices(NOISE, k=dice.randint(0, 6))]  # fmt: skip
            lines.append(line if dice.random() < 0.8 else with_other_digits(line, dice))
    return "\n".join(lines).encode()


def read(data: bytes, *, quiet: bool) -> tuple[list[LogRecord], list[str], tuple[int, ...]]:
    parser = LogParser(create_all("logs"))
    if not quiet:
        parser._quiet = QuietLines((), re.compile("NCCL"))
    dice = random.Random(len(data))
    found, at = list[LogRecord](), 0
    while at < len(data):
        size = dice.randint(1, 5000)
        found += parser.feed(data[at : at + size])
        at += size
    return (
        found,
        parser.take_nccl(),
        (parser.lines, parser.records, parser.binary, parser.oversized),
    )


@pytest.mark.parametrize("seed", range(12))
def test_what_is_passed_over_changes_no_record_and_no_count(seed: int) -> None:
    data = mixed(seed)
    fast, slow = read(data, quiet=True), read(data, quiet=False)
    assert len(slow[0]) > 50
    assert slow[1] != []
    assert repr(fast) == repr(slow)  # nan is like no other


def test_a_line_is_passed_over_only_where_none_of_its_like_can_be_read() -> None:
    """The line before it lost its like to the third: digits alone make the difference."""
    parser = LogParser(create_all("logs"))
    noise = b"the cache holds 17 of 20 shards, 3 are on disk\n"
    parser.feed(noise * 5)
    assert len(parser._quiet.shapes) == 2
    parser.feed(b"node-7 lr 7e-71\n" * 5)
    (shape,) = set(parser._quiet.shapes) - {"", "the cache holds  of  shards,  are on disk"}
    assert parser._quiet.shapes[shape] is False
    assert parser._quiet.may_count("node-7 lr 7e-01")
    assert not parser._quiet.may_count("node-7 lr 7e-71")


def test_shapes_are_remembered_up_to_a_number() -> None:
    quiet = QuietLines(["step"], re.compile("NCCL"))
    for number in range(3 * MOST):
        for _ in range(2):
            quiet.learn("x" * (number % 300) + "y" * (number // 300))
    assert 0 < len(quiet.shapes) <= MOST
    quiet.learn("z" * 1000)
    assert "z" * 1000 not in quiet.shapes


def test_a_format_of_a_person_s_own_sees_each_line() -> None:
    class Own:
        generic, signs = False, ()
        lines = 0

        def parse(self, line: str) -> LogRecord | None:
            self.lines += 1
            return None

    own = Own()
    LogParser(create_all("logs"), {"mine": own}).feed(b"some words and 12\n" * 50)
    assert own.lines == 50
