"""A pickle that names one value twice in another, and that one twice again, is small and has no end for whoever goes through all of it.

The interpreter is held meanwhile, where a tuple is hashed or a list written as text: no thread of the agent runs, nor its watchdog.
"""

import pickle
import resource
import time
from collections.abc import Callable
from typing import Any

import pytest

from mldebug.capture.flight_recorder.dump import limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.safe_load import load_plain, memo_of
from mldebug.capture.flight_recorder.status import parse_status
from shared.capture.dumps import calls, dump

DEEP = 28  # each level doubles the time: this many took 5 s, forty a day
SECONDS = 0.5  # of CPU


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def tuples(deep: int = DEEP) -> bytes:
    """Steps that leave one tuple on the stack, which holds the one before it twice, and so on."""
    first = b"K\x00K\x01\x86q\x00"
    return first + b"".join(b"0h%ch%c\x86q%c" % (n, n, n + 1) for n in range(deep))


def lists(deep: int = DEEP) -> bytes:
    first = b"]q\x00"
    return first + b"".join(b"0](h%ch%ceq%c" % (n, n, n + 1) for n in range(deep))


def whole(**fields: bytes) -> bytes:
    """A pickle of a dict of these fields, beside no calls."""
    pairs = b"".join(text(name) + steps for name, steps in fields.items())
    return b"\x80\x02}(" + text("entries") + b"]" + pairs + b"u."


CALL = b"](}(" + text("profiling_name") + text("nccl:all_reduce")
HOSTILE: dict[str, bytes] = {
    "a tuple as a key": b"\x80\x02}(" + tuples() + b"Nu.",
    "a version of lists": whole(version=lists()),
    "a version of tuples": whole(version=tuples()),
    "a description": whole(pg_config=b"}(" + text("0") + b"}(" + text("ranks") + text("[0, 1]") + text("desc") + lists() + b"uu"),
    "the number of a group": b"\x80\x02}(" + text("entries") + CALL + text("pg_id") + tuples() + b"ueu.",
    "the number of a group of an old dump": b"\x80\x02}(" + text("entries") + CALL + text("seq_id") + b"K\x01" + text("process_group") + text("") + text("pg_id") + lists() + b"ueu.",
    "the record's number": b"\x80\x02}(" + text("entries") + CALL + text("record_id") + tuples() + b"ueu.",
    "frames": b"\x80\x02}(" + text("entries") + CALL + text("frames") + lists() + b"ueu.",
    "sizes": b"\x80\x02}(" + text("entries") + CALL + text("input_sizes") + lists() + b"ueu.",
    "a list that holds itself": whole(version=b"]q\x00h\x00a"),
}  # fmt: skip


def cpu(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    try:
        work()
    except ValueError as error:
        assert str(error)  # noqa: PT017 - an answer or a reason, and soon
    return time.thread_time() - begun


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [parse_dump, parse_status, load_plain])
def test_it_is_refused_at_once(name: str, read: Callable[[bytes], Any]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cpu(lambda: read(HOSTILE[name])) < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_also_before_the_first_call_where_old_ones_are_left_out() -> None:
    assert cpu(lambda: memo_of(b"\x80\x02}(" + tuples() + b"Nu")) < SECONDS


def test_one_table_that_a_thousand_others_name_is_not_gone_through_a_thousand_times() -> None:
    inner = b"}q\x00(" + b"".join(text(f"{n}") + b"K\x01" for n in range(20_000)) + b"u"
    outer = b"".join(text(f"{n}") + b"h\x00" for n in range(20_000))
    config = b"}(" + text("0") + b"}(" + text("ranks") + text("[0]") + b"uu"
    data = b"\x80\x02" + inner + b"0}(" + text("pg_config") + config + text("pg_status") + b"}(" + outer + b"uu."  # fmt: skip
    assert cpu(lambda: parse_status(data)) < SECONDS


def test_what_pytorch_shares_is_read_as_before() -> None:
    """One stack, one name of a group, one list of sizes for all calls."""
    group, frames, sizes = ("0", "default_pg"), [{"name": "f", "filename": "a.py", "line": 1}], [[4, 4]]  # fmt: skip
    entries = [one | {"process_group": group, "frames": frames, "input_sizes": sizes} for one in calls(2000)]  # fmt: skip
    shared = dump(entries, {"0": range(4)})
    apart = dump([one | {"process_group": tuple(group)} for one in entries], {"0": range(4)})
    limits = limits_of_living_job(4)
    for protocol in range(2, 6):
        found = parse_dump(pickle.dumps(shared, protocol), limits)
        assert found == parse_dump(pickle.dumps(apart, 2), limits)
        assert found.groups[0].enqueued == 2000


def test_keys_of_one_hash_do_not_come_to_be() -> None:
    """Hashes of tuples of numbers can be chosen, and twenty thousand keys of one hash be compared two by two."""
    with pytest.raises(ValueError, match="malformed"):
        load_plain(pickle.dumps({(1, 2): 3}, 2))


PLACES = {
    "MEMOIZE": b"\x80\x04}" + b"\x94" * 7_000_000,
    "LONG_BINPUT": b"\x80\x02}" + b"".join(b"r%b" % n.to_bytes(4, "little") for n in range(1_600_000)),
}  # fmt: skip


@pytest.mark.parametrize("way", PLACES)
def test_one_value_that_is_numbered_a_million_times_is_not_written_down_as_often(way: str) -> None:
    """8 MiB, which a dump of a living job may have, became 730 MiB in the agent."""
    tail = text("entries") + b"]s." if way == "MEMOIZE" else b"."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = cpu(lambda: parse_dump(PLACES[way] + tail, limits_of_living_job(4)))
    taken += cpu(lambda: memo_of(PLACES[way][: 4 << 20]))
    assert taken < 4 * SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_dump_that_numbers_each_of_its_values_is_read() -> None:
    whole_dump = dump([one | {"thread_id": str(n)} for n, one in enumerate(calls(2000))], {"0": range(4)})  # fmt: skip
    data = pickle.dumps(whole_dump, 4)
    assert data.count(b"\x94") > 2000
    assert parse_dump(data, limits_of_living_job(4)).groups[0].enqueued == 2000
