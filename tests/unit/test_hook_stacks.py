"""Stacks without ptrace: a real process is asked by its signal, and none is ever harmed by being asked."""

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hooked import HOLDS, RANK, SHM, SLEEPS, process, state
from hung import wait_until
from mldebug.heartbeat import record_name
from mldebug.model import ThreadStack
from mldebug_agents.hooks.asking import Asking
from mldebug_agents.hooks.stacks import HookStacks, parse_faulthandler
from mldebug_agents.host import Host
from mldebug_agents.reader import Reader
from mldebug_agents.spawn import Spawner


@pytest.fixture
def asking() -> Iterator[HookStacks]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield HookStacks(Asking(Host(), reader), reader)


ASK = signal.SIGRTMIN + 15
TELL_RECORD = """
print(record.path, flush=True)
import signal
print(record.signal, record.stacks_fd, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
time.sleep(1000)
"""


@contextmanager
def asking_with(sent: list[int]) -> Iterator[HookStacks]:
    """And all signals it sends are noted."""

    def send(pidfd: int, number: int) -> None:
        sent.append(number)
        signal.pidfd_send_signal(pidfd, number)

    with Spawner() as spawner, Reader(spawner) as reader:
        yield HookStacks(Asking(Host(), reader, send), reader)


def told(one: "subprocess.Popen[str]") -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


# --- a rank that can be asked --------------------------------------------------------------------


def test_a_sleeping_rank_tells_all_its_threads_and_sleeps_on(asking: HookStacks) -> None:
    with process(SLEEPS) as one:
        wait_until(lambda: state(one.pid) == "S")
        before = Host().status(one.pid).voluntary_switches
        for _ in range(3):
            stacks = asking.dump(one.pid)
            assert stacks[0].name == "MainThread"
            assert stacks[0].tid == one.pid
            assert stacks[0].frames[0].function == "slow_data_loader"
            assert "background" in {stack.frames[-1].function for stack in stacks} | {
                frame.function for stack in stacks for frame in stack.frames
            }
        assert one.poll() is None
        assert state(one.pid) == "S"
        assert Host().status(one.pid).voluntary_switches == before


def test_c_code_that_holds_the_interpreter_lock_is_no_obstacle(asking: HookStacks) -> None:
    with process(HOLDS) as one:
        wait_until(lambda: state(one.pid) == "S")
        for _ in range(3):
            found: list[ThreadStack] = []
            wait_until(lambda: found.extend(asking.dump(one.pid)) or bool(found), 60)  # noqa: B023
            assert found[0].frames[0].function == "held"
        assert one.poll() is None


def test_a_rank_that_spins_tells_where(asking: HookStacks) -> None:
    code = RANK + "    print(record.path, flush=True)\n    while True: pass\n"
    with process(code) as one:
        assert asking.dump(one.pid)[0].frames[0].function == "<module>"


def test_its_file_does_not_grow_without_end(asking: HookStacks) -> None:
    code = RANK + (
        "    import select\n    print(record.path, flush=True)\n"
        "    step = 0\n    while True:\n        step += 1; own.beat(step); time.sleep(0.0005)\n"
    )
    with process(code) as one:
        [file] = SHM.glob(f"mldebug-{one.pid}-*.stacks")
        until = time.monotonic() + 3
        while time.monotonic() < until:
            asking.dump(one.pid)
        assert file.stat().st_size <= 300 << 10


# --- and those that must not be ------------------------------------------------------------------


def test_a_stopped_rank_is_not_asked(asking: HookStacks) -> None:
    with process(SLEEPS) as one:
        os.kill(one.pid, signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T")
        assert asking.dump(one.pid) == ()
        pending = next(
            line for line in Path(f"/proc/{one.pid}/status").read_text().splitlines()
            if line.startswith("ShdPnd")
        )  # fmt: skip
        assert int(pending.split()[1], 16) >> 31 == 0  # no signal waits for its return


def test_a_process_that_has_become_another_program_lives_on(asking: HookStacks) -> None:
    """exec keeps pid and start time, so its record still looks right; the handlers are gone."""
    code = RANK + "    print(record.path, flush=True)\n    os.execvp('sleep', ['sleep', '1000'])\n"
    with process(code) as one:
        wait_until(lambda: Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n")
        for _ in range(20):
            assert asking.dump(one.pid) == ()
        assert one.poll() is None


def test_while_it_execs_again_and_again_no_process_dies(asking: HookStacks) -> None:
    """The worst moment: between a Python that catches the signal and one that does not yet."""
    code = RANK + (
        "    print(record.path, flush=True)\n    time.sleep(0.05)\n"
        "    os.execv(sys.executable, [sys.executable, '-S', '-c', "
        "'import os, sys, time; time.sleep(0.01); "
        'os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(1000)"])\'])\n'
    )
    for _ in range(8):
        with process(code) as one:
            until = time.monotonic() + 0.4
            while time.monotonic() < until:
                asking.dump(one.pid, timeout=0.02)
            assert one.poll() is None


def test_a_stale_record_of_a_reused_pid_is_not_obeyed(asking: HookStacks) -> None:
    victim = subprocess.Popen(["sleep", "1000"])
    try:
        with process(SLEEPS) as one:
            data = bytearray(next(SHM.glob(f"mldebug-{one.pid}-*[0-9]")).read_bytes())
        start = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[19])
        data[16:24] = victim.pid.to_bytes(8, "little")
        data[24:32] = start.to_bytes(8, "little")
        forged = SHM / record_name(victim.pid, start)
        forged.write_bytes(data)
        forged.chmod(0o600)
        try:
            assert asking.dump(victim.pid) == ()
        finally:
            forged.unlink()
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait(20)


def test_a_python_that_catches_the_signal_for_itself_is_not_sent_it(asking: HookStacks) -> None:
    """A record alone is no invitation: the file of the stacks must be open in that process, too."""
    code = RANK + (
        "    import signal\n    os.close(record.stacks_fd)\n    hits = []\n"
        "    print(record.path, flush=True)\n    time.sleep(1000)\n"
    )
    with process(code) as one:
        wait_until(lambda: state(one.pid) == "S")
        assert asking.dump(one.pid) == ()


def test_who_is_gone_or_has_no_record_gives_nothing(asking: HookStacks) -> None:
    assert asking.dump(os.getpid()) == ()
    done = subprocess.Popen(["true"])
    done.wait()
    assert asking.dump(done.pid) == ()


def test_c_code_that_computes_with_the_interpreter_lock_is_not_forced() -> None:
    """It may let go of the lock at any moment: then C code would walk the frames of Python that runs."""
    code = (
        RANK
        + "    print(record.path, flush=True)\n    import re; re.match('(a+)+$', 'a' * 60 + 'b')\n"
    )
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        wait_until(lambda: state(one.pid) == "R")
        for _ in range(2):
            assert asking.dump(one.pid, timeout=0.5) == ()
        assert one.poll() is None
    assert set(sent) <= {ASK}


UNBLOCK = "    import signal; signal.pthread_sigmask(signal.SIG_SETMASK, ())\n"


def test_a_rank_with_a_thread_that_is_open_to_the_signals_is_not_asked() -> None:
    code = RANK + UNBLOCK + "    slow_data_loader()\n"
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        wait_until(lambda: state(one.pid) == "S")
        assert asking.dump(one.pid) == ()
        assert one.poll() is None
    assert sent == []


def test_a_rank_whose_threads_were_there_before_its_record_has_no_signal() -> None:
    early = (
        "import signal, threading, time\n"
        "signal.pthread_sigmask(signal.SIG_SETMASK, ())\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    code = early + textwrap.dedent(RANK) + TELL_RECORD
    with process(code) as one:
        assert told(one) == "0 -1 []"  # and its main thread blocks no more than before


# --- and the job's own -----------------------------------------------------------------------------


def test_a_job_that_joins_all_threads_does_not_wait_for_the_hooks() -> None:
    code = (
        RANK
        + "    print(record.path, flush=True)\n    print(threading.active_count(), flush=True)\n"
    )
    with process(code + "    time.sleep(1000)\n") as one, asking_with([]) as asking:
        assert told(one) == "2"  # the main thread and `background`
        assert len(asking.dump(one.pid)) == 2


def test_a_handler_of_the_job_that_came_later_is_called() -> None:
    code = (
        RANK
        + f"""
    import signal
    hits = []
    signal.signal({ASK}, lambda number, frame: hits.append(number))
    print(record.path, flush=True)
    os.kill(os.getpid(), {ASK})
    until = time.monotonic() + 20
    while not hits and time.monotonic() < until: time.sleep(0.01)
    print(hits, flush=True)
"""
    )
    with process(code) as one:
        assert told(one) == str([ASK])


def test_a_signal_that_c_code_catches_is_left_to_it() -> None:
    early = f"import faulthandler, sys\nfaulthandler.register({ASK}, file=sys.stderr)\n"
    with process(early + textwrap.dedent(RANK) + TELL_RECORD) as one:
        assert told(one).split()[0] == str(ASK - 1)


def test_a_forked_child_finds_the_signals_as_without_the_hook() -> None:
    code = textwrap.dedent(RANK) + (
        "print(record.path, flush=True)\n"
        "if os.fork() == 0:\n"
        "    lines = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "    print([int(lines[name], 16) >> 33 for name in ('SigBlk', 'SigCgt', 'SigIgn')], flush=True)\n"
        "    os._exit(0)\n"
        "time.sleep(1000)\n"
    )
    with process(code) as one:
        assert told(one) == "[0, 0, 0]"


def test_at_its_end_nobody_is_asked_and_the_signals_are_ignored() -> None:
    code = textwrap.dedent(RANK) + (
        "print(record.path, flush=True)\n"
        "own.close()\n"
        "lines = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "print(record.signal, int(lines['SigCgt'], 16) >> 33, int(lines['SigIgn'], 16) >> 46 & 7, flush=True)\n"
    )
    with process(code) as one:
        assert told(one) == "0 0 7"


# --- its text ------------------------------------------------------------------------------------


def test_the_text_of_faulthandler_is_read() -> None:
    text = (
        "Thread 0x00007f1c2a7fc640 [pt_data_pin] (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 320 in wait\n'
        '  File "/x/site-packages/torch/utils/data/_utils/pin_memory.py", line 28 in do_one_step\n'
        "\n"
        "Current thread 0x00007f1c41d43740 (most recent call first):\n"
        '  File "/home/me/train.py", line 12 in load_\x1b[31mdata\n'
        "  ...\n"
    )
    main, other = parse_faulthandler(text, 77, 0x7F1C41D43740)
    assert (main.tid, main.name, main.frames[0].label) == (
        77,
        "MainThread",
        "load_data (train.py:12)",
    )
    assert (other.tid, other.name) == (0x7F1C2A7FC640, "pt_data_pin")
    assert [frame.file for frame in other.frames] == [
        "threading.py", "torch/utils/data/_utils/pin_memory.py",
    ]  # fmt: skip
    assert parse_faulthandler("", 1, 2) == parse_faulthandler("garbage\n  File x", 1, 2) == ()
