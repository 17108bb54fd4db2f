"""Records of /dev/kmsg and printed lines; and when they were written, although the kernel's clock drifts."""

import pytest

from mldebug.hardware.kernel_log.records import (
    KernelClock,
    KernelRecord,
    parse_printed,
    parse_record,
)


def test_a_record_with_everything() -> None:
    data = b"12,5140,98765432100,-,caller=T77;text; with a semicolon\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"

    assert parse_record(data) == KernelRecord(
        text="text; with a semicolon",
        seconds=98765.4321,
        sequence=5140,
        level=4,
        facility=1,
        device="+pci:0000:3b:00.0",
    )


def test_a_kernel_line_is_told_from_what_a_program_wrote() -> None:
    assert parse_record("6,1,1,-;x") == KernelRecord(text="x", seconds=1e-6, sequence=1)
    assert [one.facility for one in (parse_record("30,1,1,-;x"),) if one] == [3]


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"one\x0atwo", "one\ntwo"),
        (r"caf\xc3\xa9", "café"),
        (r"back\x5cslash", "back\\slash"),
        (r"half \xc3", "half �"),
        (r"no \xzz escape", r"no \xzz escape"),
        ("mixed € " + r"\x0a", "mixed € \n"),
    ],
)
def test_escapes_are_undone(escaped: str, text: str) -> None:
    record = parse_record(f"6,1,1,-;{escaped}\n")

    assert record is not None
    assert record.text == text


@pytest.mark.parametrize(
    "data",
    ["", ";", "6,1,1;x", "a,1,1,-;x", "6,-1,1,-;x", "6,1,٣,-;x", "6,1," + "9" * 30 + ",-;x", " DEVICE=x", "plain"],
)  # fmt: skip
def test_what_is_no_record(data: str) -> None:
    assert parse_record(data) is None
    assert parse_record(data.encode()) is None


def test_a_record_without_end_is_cut() -> None:
    record = parse_record(b"6,1,1,-;" + b"x" * (1 << 20))

    assert record is not None
    assert len(record.text) < 20_000


@pytest.mark.parametrize(
    ("line", "seconds", "level"),
    [
        ("[14353.581586] NVRM: hello", 14353.581586, 6),
        ("[    1.500000][ T1234] NVRM: hello", 1.5, 6),
        ("<3>[   12.5] NVRM: hello\n", 12.5, 3),
        ("Nov 21 09:00:00 node17 kernel: NVRM: hello", 0.0, 6),
        ("Nov 21 09:00:00 node17 kernel: [   12.5] NVRM: hello", 12.5, 6),
        ("1795276248.871391 node17 kernel: NVRM: hello", 0.0, 6),
    ],
)
def test_printed_lines(line: str, seconds: float, level: int) -> None:
    record = parse_printed(line)

    assert record == KernelRecord(text="NVRM: hello", seconds=seconds, level=level)


@pytest.mark.parametrize(
    "line", ["", "x", "Nov 21 09:00:00 node17 sshd[1]: hello", "[x] y", "[9" * 5000]
)
def test_lines_of_others(line: str) -> None:
    assert parse_printed(line) is None


# --- the clock -----------------------------------------------------------------------------------


def test_a_record_stands_at_boot_plus_its_seconds() -> None:
    clock = KernelClock()
    clock.begin(unix=10_000.0, monotonic=4_000.0)

    assert clock.unix(1_000.0) == 7_000.0


def test_no_record_comes_from_the_future_and_those_after_it_profit() -> None:
    clock = KernelClock()
    clock.begin(unix=10_000.0, monotonic=4_000.0)

    assert clock.unix(4_030.0) == 10_000.0  # the log's clock is 30 s ahead, at least
    clock.begin(unix=10_100.0, monotonic=4_100.0)
    assert clock.unix(4_120.0) == 10_090.0


def test_a_log_clock_that_lags_is_set_right_by_what_is_read_live() -> None:
    clock = KernelClock()
    clock.begin(unix=10_000.0, monotonic=4_000.0)
    clock.drained(4_000.0)
    clock.begin(unix=10_002.0, monotonic=4_002.0)

    assert clock.unix(3_940.0) == 10_000.0  # it says a minute ago, but was not there 2 s ago
    assert clock.unix(3_941.0) == 10_001.0


def test_before_the_end_was_seen_old_records_stay_old() -> None:
    clock = KernelClock()
    clock.begin(unix=10_000.0, monotonic=4_000.0)

    assert clock.unix(10.0) == 6_010.0


def test_a_step_of_the_wall_clock_moves_all_that_is_read_after_it() -> None:
    clock = KernelClock()
    clock.begin(unix=10_000.0, monotonic=4_000.0)
    clock.drained(4_000.0)
    clock.begin(unix=13_602.0, monotonic=4_002.0)  # an hour forward

    assert clock.unix(4_001.0) == 13_601.0
