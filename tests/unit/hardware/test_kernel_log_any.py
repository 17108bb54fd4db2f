"""Whatever bytes stand in the kernel's log: no reader raises, none is slow, and what is kept is bounded and safe."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.hardware.kernel_log.bursts import Burst, Folding
from mldebug.hardware.kernel_log.lines.reader import MAX_NAME, bus_id
from mldebug.hardware.kernel_log.model import MAX_TEXT, KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.parse import SIGNS, parse_event
from mldebug.hardware.kernel_log.records import KernelRecord, parse_printed, parse_record
from shared.hardware.kernellines import fold, parse_line

PIECES = st.sampled_from(
    [
        *(sign.word for sign in SIGNS), "NVRM: Xid (PCI:0000:3b:00): ", "79", ", pid=", "'", "<unknown>", ", name=", "Ch ",
        "(", ")", "[", "]", ":", ", ", " ", "\n", "Killed process ", "oom-kill:constraint=X,", "task=", "pid=1", "Link ",
        "down", "0000:3b:00.0", "GPU at ", "LustreError: ", "I/O error", "EDAC MC0: ", "999999999999", "x" * 40, "é", "\\x0a",
    ]
)  # fmt: skip
LINES = st.lists(PIECES | st.text(max_size=8), max_size=30).map("".join)


def held_in_bounds(event: KernelEvent) -> bool:
    texts = (event.process, event.channel, event.recovery, event.severity, event.scope)
    return (
        len(event.text) <= MAX_TEXT
        and all(len(text) <= MAX_NAME for text in texts)
        and len(event.device) <= 256
        and len(event.group) <= 512
        and event.number >= 1
    )


@given(st.binary(max_size=400))
@example(b"6,1,1,-;\\x")
@example(b"6,1,1,-;\xff\\xff")
def test_any_bytes(data: bytes) -> None:
    record = parse_record(data)
    if record is not None:
        parse_event(record)


@given(LINES)
@settings(max_examples=400)
def test_any_line(line: str) -> None:
    for found in (parse_line(line), parse_line(f"6,1,1,-;{line}"), parse_printed(line)):
        if isinstance(found, KernelEvent):
            assert held_in_bounds(found)
            bursts = fold([found])
            assert len(bursts) == 1 or found.kind.value.endswith(
                "_ok"
            )  # an end of what never began
            assert not any("\n" in sentence(RankEvent(burst=burst)) for burst in bursts)


@given(st.text(max_size=40))
def test_any_address(text: str) -> None:
    address = bus_id(text)

    assert address == "" or bus_id(address) == address


EVENTS = st.builds(
    KernelEvent,
    kind=st.sampled_from(list(KernelEventKind)),
    at=st.floats(0, 1e10) | st.floats(100, 140),
    text=st.sampled_from(["a", "b", "c"]),
    sequence=st.integers(-1, 40),
    origin=st.sampled_from(list(Origin)),
    device=st.sampled_from(["", "0000:3b:00.0", "0000:86:00.0"]),
    xid=st.none() | st.sampled_from([31, 43, 45, 79, 95, 4711]),
    pid=st.none() | st.integers(1, 5),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=300)
def test_any_events_fold_and_no_error_is_lost_or_doubled(events: list[KernelEvent]) -> None:
    folding = Folding()
    total = sum(folding.add(event) for event in events)
    bursts = folding.bursts()

    assert sum(burst.count for burst in bursts) == total <= len(events)
    assert all(_is_sound(burst) for burst in bursts)
    folding.bursts()


def _is_sound(burst: Burst) -> bool:
    counted = sum(burst.xids.values())
    return burst.first_at <= burst.last_at and burst.distinct >= 1 and counted <= burst.count


NASTY = (
    "oom-kill:constraint=X," + "oom_memcg=," * 300,
    "oom-kill:constraint=X," + "oom_memcg=/a,task_memcg=" * 150,
    "Kill process 1 (" + ")" * 4000,
    "Killed process 1 (" + "(),a " * 800,
    "INFO: task " + ":1" * 2000 + " blocked ",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=" + "a, " * 1300,
    "NVRM: GPU at " + "0" * 4000 + " fallen off the bus",
    "fallen off the bus " * 200,
    "Lustre: " + "-" * 4000,
    "LustreError: " + "a-OST0001" * 400 + ": operation ",
    "Lustre: " + "a:" * 2000,
    "mlx5_core 0000:1a:00.0" + ": Port module event" * 200,
    "EXT4-fs (" + "(" * 4000,
    "a" * 4000 + ": Link is down",
    "a-" * 2000 + "ink Link ink ",
    "EDAC MC0: 1 CE" + " on" * 1300,
    "[" * 2000 + "]: segfault at ",
    "MCE: Killing " * 300 + "due to hardware memory",
    "I/O error" * 450,
    "Oops: " + "[#1] " * 800,
    "libceph: osd1 " + "a " * 2000,
    "rbd: rbd0: " + "result " * 500,
    "BTRFS error (device " + "a: state " * 400,
    "amdgpu 0000:83:00.0: amdgpu: " + "ring timeout " * 300,
    "NVRM: Xid (PCI:0000:3b:00): 145, " + "RLW_RXPIPE Non-fatal " * 190,
    "NVRM: Xid (PCI:0000:3b:00): 145, " + "A" * 4000,
    "mlx5_core 0000:1a:00.0: wait_func:1:(pid 1):" + "A" * 4000,
    "[Hardware Error]: CPU:4 (19:21:2) MC5_STATUS[" + "-|" * 2000,
    "systemd[1]: " + "a" * 4000 + ": systemd-oomd killed",
    "Tasks in " + "/a" * 2000 + " memory.oom.group",
    "Buffer " + "a " * 2000 + "I/O error on dev x",
)


@pytest.mark.parametrize("text", NASTY, ids=lambda text: text[:24])
def test_no_line_takes_long(text: str) -> None:
    record = KernelRecord(text=text * 2)
    started = time.process_time()
    for _ in range(5):
        parse_event(record)

    assert time.process_time() - started < 0.25  # five lines; an ordinary one takes some µs
