"""The thread of the state dir: order, retries, bounds, and an end that does not wait."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.core.errors import UsageError
from mldebug_agents.state import writer_thread as module
from mldebug_agents.state.folder import OccupiedError
from mldebug_agents.state.writer_thread import MAX_REPORTS, REPORT, WriterThread
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE

PLACE = Path("/var/lib/mldebug")


class Disk:
    """Writes names into a list; `full` makes it fail, `hung` makes it hang."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.full = False
        self.fails: list[OSError] = []  # one for each try
        self.tries = 0
        self.hung = threading.Event()
        self.hung.set()

    def write(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.hung.wait()
            self.tries += 1
            if self.fails:
                raise self.fails.pop(0)
            if self.full:
                raise OSError(28, "No space left on device")
            self.wrote.append(name)

        return work


@contextmanager
def started_writer(disk: Disk, retry: float = 0.01, release: bool = True) -> Iterator[WriterThread]:
    one = WriterThread(PLACE, disk.write("open"), retry=retry)
    if release:
        one.release()
    try:
        yield one
    finally:
        disk.full = False
        disk.hung.set()
        one.close(30)


def test_a_flood_of_one_owner_s_reports_drops_his_own() -> None:
    disk = Disk()
    with started_writer(disk, release=False) as one:
        one.put(f"{REPORT}a", disk.write("a"), owner=2001)
        for number in range(3 * MAX_REPORTS):
            one.put(f"{REPORT}b{number}", disk.write(f"b{number}"), owner=2002)
        one.release()
        one.start(30)
        wait_until(lambda: one.idle)
    last = [f"b{number}" for number in range(2 * MAX_REPORTS + 1, 3 * MAX_REPORTS)]
    assert disk.wrote == ["open", "a", *last]


def test_a_report_goes_before_hundreds_of_rows_and_those_of_who_has_many() -> None:
    """Also one that comes while they are being written; and after the rows of its own run, which a later agent needs to know it."""
    disk = Disk()
    with started_writer(disk, release=False) as one:
        one.put("prune", disk.write("prune"))
        for number in range(500):
            one.put(f"run:{number}", disk.write(f"run:{number}"))
        for name in "bcd":
            one.put(REPORT + name, disk.write(name), owner=2002)
        one.put("run:a", disk.write("run:a"))
        one.put("ends:a", disk.write("ends:a"))
        one.put(f"{REPORT}a", disk.write("a"), owner=2001, after=("run:a", "ends:a", "run:none"))
        one.put("run:0", lambda: one.put(f"{REPORT}e", disk.write("e"), owner=2001), last=False)
        one.release()
        one.start(30)
        wait_until(lambda: one.idle)
    assert disk.wrote[:8] == ["open", "b", "run:a", "ends:a", "a", "c", "d", "prune"]
    assert disk.wrote[8:10] == ["e", "run:1"]
    assert disk.wrote[10:] == [f"run:{number}" for number in range(2, 500)]


def test_a_run_is_not_deleted_before_the_report_of_its_end() -> None:
    """An agent that is killed between the two would have neither the run's row, which holds the incident, nor the report."""
    disk = Disk()
    with started_writer(disk, release=False) as one:
        one.put("run:a", disk.write("row"))
        one.put(f"{REPORT}a", disk.write("report"), owner=2001, after=("run:a", "ends:a"))
        one.put("run:a", disk.write("deletion"))
        one.release()
        one.start(30)
        wait_until(lambda: one.idle)
    assert disk.wrote == ["open", "report", "deletion"]


def test_a_report_that_fails_holds_nothing_else_up_and_is_tried_once_in_a_round() -> None:
    disk = Disk()
    with started_writer(disk, release=False) as one:
        failing = iter([OSError(5, "Input/output error")] * 2)

        def work() -> None:
            if (error := next(failing, None)) is not None:
                raise error
            disk.wrote.append("a")

        one.put(f"{REPORT}a", work, owner=2001)
        one.put("run:b", disk.write("run:b"))
        one.put(f"{REPORT}b", disk.write("b"), owner=2001)
        one.release()
        one.start(30)
        wait_until(lambda: one.idle)
    assert disk.wrote == ["open", "b", "run:b", "a"]


def test_work_is_done_in_order_after_the_opening() -> None:
    disk = Disk()
    with started_writer(disk) as one:
        assert one.start(30)
        for name in "abc":
            one.put(name, disk.write(name))
        wait_until(lambda: len(disk.wrote) == 4)
    assert disk.wrote == ["open", "a", "b", "c"]


def test_nothing_is_written_before_what_was_found_is_taken_in() -> None:
    disk = Disk()
    with started_writer(disk, release=False) as one:
        one.put("a", disk.write("a"))
        assert one.start(30)
        time.sleep(0.05)
        assert disk.wrote == ["open"]
        one.release()
        wait_until(lambda: disk.wrote == ["open", "a"])


def test_a_newer_state_takes_the_place_of_one_that_waits() -> None:
    disk = Disk()
    with started_writer(disk, release=False) as one:
        one.put("run", disk.write("run, incident open"), last=False)
        one.put(REPORT + "x", disk.write("report"))
        one.put("run", disk.write("run, later"), last=False)
        one.put("end", disk.write("end"))
        one.put(REPORT + "x", disk.write("report, closed"))
        one.start(30)
        one.release()
        wait_until(lambda: len(disk.wrote) == 4)
    assert disk.wrote == ["open", "report, closed", "run, later", "end"]


def test_a_full_disk_is_tried_again_until_it_has_room() -> None:
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.full = True
        one.put(REPORT + "x", disk.write("x"))
        wait_until(lambda: not one.state().success)
        assert "No space left" in one.state().error
        assert (one.waiting, one.lost) == (1, 0)
        disk.full = False
        wait_until(lambda: disk.wrote == ["open", "x"])
        wait_until(lambda: one.state().success)
    assert (one.waiting, one.lost) == (0, 0)


def test_a_disk_that_is_full_at_the_start_is_opened_later() -> None:
    disk = Disk()
    disk.full = True
    with started_writer(disk) as one:
        assert not one.start(30)
        one.put("a", disk.write("a"))
        disk.full = False
        wait_until(lambda: disk.wrote == ["open", "a"])
        assert one.opened


def test_a_hung_disk_costs_the_start_its_deadline_and_nothing_more() -> None:
    disk = Disk()
    disk.hung.clear()
    with started_writer(disk) as one:
        started = time.monotonic()
        assert not one.start(0.2)
        assert time.monotonic() - started < 2 * PATIENCE
        one.put(REPORT + "x", disk.write("x"))
        assert one.waiting == 1
        disk.hung.set()
        wait_until(lambda: disk.wrote == ["open", "x"])


def test_reports_that_wait_are_bounded_and_counted() -> None:
    disk = Disk()
    with started_writer(disk, release=False) as one:
        for number in range(MAX_REPORTS + 3):
            one.put(f"{REPORT}{number}", disk.write(str(number)))
        assert (one.waiting, one.lost) == (MAX_REPORTS, 3)
        one.start(30)
        one.release()
        wait_until(lambda: one.waiting == 0)
    assert disk.wrote[1:] == [str(number) for number in range(3, MAX_REPORTS + 3)]


def test_a_refusal_is_raised_and_nothing_is_done_after_it() -> None:
    def refuse() -> None:
        raise UsageError("another agent is here")

    done: list[str] = []
    one = WriterThread(PLACE, refuse)
    one.release()
    one.put("a", lambda: done.append("a"))
    with pytest.raises(UsageError, match="another agent"):
        one.start(30)
    one.close(30)
    assert done == []


def test_a_defect_costs_its_own_work_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("a defect")

    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        one.put(REPORT + "x", broken)
        one.put("a", disk.write("a"))
        wait_until(lambda: disk.wrote == ["open", "a"])
        assert (one.waiting, one.lost) == (0, 1)
    assert "a defect" in caplog.text


def test_the_end_waits_for_a_hung_disk_no_longer_than_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.hung.clear()
        one.put(REPORT + "x", disk.write("x"))
        one.put(REPORT + "y", disk.write("y"))
        started = time.monotonic()
        one.close(0.2)
        assert time.monotonic() - started < 2 * PATIENCE
        assert one.lost == 2
        assert (
            "2 reports could not be written to /var/lib/mldebug and are lost: it gives no answer"
            in (caplog.text)
        )


def test_stuck_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE", 0.05)
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.hung.clear()
        one.put("a", disk.write("a"))
        wait_until(lambda: one.state().stuck)
        disk.hung.set()
        wait_until(lambda: not one.state().stuck)


# --- words ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.full = True
        one.put(REPORT + "x", disk.write("x"))
        wait_until(lambda: disk.tries > 5)
        disk.full = False
        wait_until(lambda: one.idle)
        wait_until(lambda: one.state().success)
    (failing, working) = caplog.messages
    assert failing == (
        "the state dir /var/lib/mldebug cannot be written: No space left on device (ENOSPC). Jobs are watched and metrics"
        " served as before; reports wait in memory (the newest 16) and are lost if the agent ends now. They are written"
        " as soon as it works again. Look: df -h /var/lib/mldebug; df -i /var/lib/mldebug"
    )
    assert working.startswith("the state dir /var/lib/mldebug can be written again")


def test_what_failed_before_the_state_dir_was_made_anew_is_tried_again_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, again = Disk(), Disk()
    with started_writer(disk, retry=3600, release=False) as one:
        again.fails = [OSError(2, "No such file or directory")]
        one.put(f"{REPORT}a", again.write("a"))
        one.put("check", one.begin_anew)  # found it gone, and made it
        one.start(30)
        one.release()
        wait_until(lambda: one.idle)
    assert again.wrote == ["a"], "without the pause after a failure"
    assert caplog.text == ""


def test_what_fails_after_the_state_dir_was_made_anew_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, again = Disk(), Disk()
    with started_writer(disk, release=False) as one:
        again.fails = [OSError(2, "No such file or directory")]
        one.put("check", one.begin_anew)
        one.put("later", again.write("later"))
        one.start(30)
        one.release()
        wait_until(lambda: one.idle)
    assert caplog.text.count("cannot be written: No such file") == 1


def test_another_trouble_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.fails = [OSError(28, "x"), OSError(28, "y"), OSError(5, "z"), OSError(28, "x")]
        one.put("a", disk.write("a"))
        wait_until(lambda: one.idle)
    assert [text.partition(". ")[0].partition("written: ")[2] for text in caplog.messages] == [
        "No space left on device (ENOSPC): x",
        "Input/output error (EIO): z",
    ]


def test_dropped_reports_are_one_line_and_their_number_is_told_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.full = True
        one.put("a", disk.write("a"))
        wait_until(lambda: not one.state().success)
        for number in range(MAX_REPORTS + 3):
            one.put(f"{REPORT}{number}", disk.write(str(number)))
        disk.full = False
        wait_until(lambda: one.idle)
    assert sum("the oldest is dropped" in text for text in caplog.messages) == 1
    assert caplog.messages[-1].endswith("3 reports had to be dropped meanwhile")


def test_a_disk_that_hangs_later_is_told_once_and_its_return_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "DEADLINE", 0.05)
    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        disk.hung.clear()
        one.put("a", disk.write("a"))
        wait_until(lambda: one.state().stuck)
        one.log_if_stuck()
        one.log_if_stuck()
        disk.hung.set()
        wait_until(lambda: one.idle)
        wait_until(lambda: len(caplog.messages) > 1)
    assert ["no answer in 0.05 s" in text for text in caplog.messages] == [True, False]
    assert "can be written again" in caplog.messages[1]


def test_another_agent_in_our_place_is_a_refusal_at_any_time() -> None:
    def refuse() -> None:
        raise OccupiedError("another agent is here")

    disk = Disk()
    with started_writer(disk) as one:
        one.start(30)
        one.put("a", refuse)
        one.put("b", disk.write("b"))
        wait_until(lambda: one.refusal is not None)
        one.put("c", disk.write("c"))
        assert one.close(30)
    assert disk.wrote == ["open"]
