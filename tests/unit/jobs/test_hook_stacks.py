"""Stacks without ptrace: a real process is asked by its signal, and none is ever harmed by being asked."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.model import RankIdentity, ThreadStack
from mldebug.jobs.heartbeat import Heartbeat, record_name
from mldebug_agents.jobs.hook.signals import HookSignals, SignalTarget
from mldebug_agents.jobs.hook.stacks import HookStacks, parse_faulthandler, whole_answer
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import ProcessStatus
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece
from mldebug_agents.system.spawn import Spawner
from shared.jobs.hooked import HOLDS, RANK, SHM, SLEEPS, process, state
from shared.system.hung import wait_until


@pytest.fixture
def asking() -> Iterator[HookStacks]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield HookStacks(HookSignals(Host(), reader), reader)


ASK = signal.SIGRTMIN + 15
OPEN = "import signal; signal.pthread_sigmask(signal.SIG_SETMASK, ()); "  # a signal would end it
WAITS = "print('there', flush=True); import time; time.sleep(1000)"
TELL_RECORD = """
print(record.path, flush=True)
import signal
print(record.signal, record.stacks_fd, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
time.sleep(1000)
"""


@contextmanager
def asking_with(sent: list[int], host: Host | None = None) -> Iterator[HookStacks]:
    """And all signals it sends are noted."""

    def send(pidfd: int, number: int) -> None:
        sent.append(number)
        signal.pidfd_send_signal(pidfd, number)

    with Spawner() as spawner, Reader(spawner) as reader:
        yield HookStacks(HookSignals(host or Host(), reader, send), reader)


def pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("ShdPnd")).split()[1], 16)


def next_line(one: "subprocess.Popen[str]") -> str:
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


DEEP = RANK + (
    "    def deep(n):\n        return deep(n - 1) if n else time.sleep(1000)\n"
    "    for _ in range(5): threading.Thread(target=deep, args=(140,), daemon=True).start()\n"
    "    time.sleep(0.2)\n    print(record.path, flush=True)\n    deep(140)\n"
)


def depths(stacks: tuple[ThreadStack, ...]) -> list[int]:
    """Of those that are deep in recursion."""
    return [len(stack.frames) for stack in stacks if len(stack.frames) > 9]


def test_the_file_of_a_rank_that_hangs_does_not_grow_either() -> None:
    """Nothing but the questions moves it; each answer is whole, also where the file begins again."""
    positions: list[int] = []
    with process(DEEP) as one, asking_with([]) as asking:
        wait_until(lambda: state(one.pid) == "S")
        [file] = SHM.glob(f"mldebug-{one.pid}-*.stacks")
        while sum(then < at for at, then in pairwise(positions)) < 2:
            assert depths(asking.dump(one.pid, timeout=20.0)) == [142, *[144] * 5]
            with asking._asking.hold(one.pid) as held:
                assert held is not None
                positions.append(held.position)
            assert len(positions) < 60
        assert file.stat().st_size == 256 << 10


def test_of_two_who_ask_at_once_nobody_gets_half_an_answer() -> None:
    with process(DEEP) as one, asking_with([]) as first, asking_with([]) as second:
        wait_until(lambda: state(one.pid) == "S")
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(who.dump, one.pid) for _ in range(15) for who in (first, second)]
            values = [depths(future.result()) for future in results]
    whole = [142, *[144] * 5]
    assert values.count(whole) > 15  # who comes in between the two may get nothing
    assert all(one in (whole, []) for one in values)


def test_half_an_answer_is_waited_for_wherever_it_begins() -> None:
    """Two have asked: the file began again, and at the first look the second answer is half there."""
    thread = (
        'Thread 0x0000000000000005 [] (most recent call first):\n  File "a.py", line 1 in here\n'
    )
    whole = f"Stacks 8:\n{thread}{thread.replace('5 []', '6 []')}End of stacks 8.\n".encode()
    old = b"Stacks 7:\n" + thread.encode() * 20 + b"End of stacks 7.\n"
    looks = [len(whole) // 2, len(whole)]

    class Fake:
        now = len(old)

        def ask(self, one: SignalTarget, number: int) -> bool:
            return number == 49

        def position(self, one: SignalTarget) -> int:
            self.now = looks.pop(0) if looks else self.now
            return self.now

        def path(self, one: SignalTarget, suffix: str) -> str:
            return suffix

        def rights(self, _: object) -> None:
            """Nobody's: nothing is opened."""

        def read_from(self, path: str, offset: int, *, rights: object, max_bytes: int) -> FilePiece:
            data = (whole[: self.now] + old[self.now :])[offset : offset + max_bytes]
            return FilePiece(data=data, size=len(data), mtime=0, inode=1, device=1)

    fake: Any = Fake()
    beat = Heartbeat(written_at=0.0, signal=49, stacks_fd=3, main_thread=5)
    identity = RankIdentity(rank=0, world_size=1, pid=7)
    stacks = HookStacks(fake, fake)._dump(SignalTarget(identity, -1, beat, "x", len(old)), 5.0)
    assert [one.tid for one in stacks] == [7, 6]
    assert looks == []


@pytest.mark.parametrize(("mode", "owner"), [(0o620, -1), (0o602, -1), (0o600, 12345)])
def test_an_answer_that_somebody_else_could_have_written_is_not_believed(
    asking: HookStacks, mode: int, owner: int
) -> None:
    if owner >= 0 and os.geteuid():
        pytest.skip("only root gives files away")
    with process(SLEEPS) as one:
        [file] = SHM.glob(f"mldebug-{one.pid}-*.stacks")
        file.chmod(mode)
        os.chown(file, owner, -1)
        assert asking.dump(one.pid, timeout=0.5) == ()


def test_who_stands_at_the_end_of_his_file_is_not_forced() -> None:
    """C code writes on where the file stands, and does not begin again."""
    code = RANK + (
        "    os.lseek(record.stacks_fd, 256 << 10, 0)\n    import ctypes\n"
        "    print(record.path, flush=True)\n    ctypes.PyDLL(None).sleep(1000)\n"
    )
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        wait_until(lambda: state(one.pid) == "S")
        for _ in range(2):
            assert asking.dump(one.pid, timeout=0.3) == ()
    assert set(sent) == {ASK}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Stacks 3:\na\nEnd of stacks 3.\n", "a\n"),
        (
            "of an older one\nStacks 3:\na\nEnd of stacks 3.\nStacks 4:\nb\nEnd of stacks 4.\n",
            "b\n",
        ),
        ("Stacks 3:\na\nEnd of stacks 3.\nStacks 4:\nhal", "a\n"),
        ("Stacks 4:\nb\nof an older one\nEnd of stacks 3.\n", None),
        ("the end of one\nEnd of stacks 3.\n", None),
        ("Stacks 3:\na\nStacks 4:\nb\nEnd of stacks 3.\n", None),
        ("", None),
    ],
)
def test_only_an_answer_that_is_whole_counts(text: str, found: str | None) -> None:
    assert whole_answer(text) == found


# --- and those that must not be ------------------------------------------------------------------


def test_a_stopped_rank_is_not_asked() -> None:
    sent: list[int] = []
    with process(SLEEPS) as one, asking_with(sent) as asking:
        with asking._asking.hold(one.pid) as held:
            assert held is not None
            os.kill(one.pid, signal.SIGSTOP)
            wait_until(lambda: state(one.pid) == "T")
            assert not asking._asking.ask(held, ASK)
        with asking._asking.hold(one.pid) as held:
            assert held is None
        assert asking.dump(one.pid) == ()
        assert pending(one.pid) >> 31 == 0  # no signal waits for its return
    assert sent == []


def test_a_process_that_has_become_another_program_lives_on() -> None:
    """exec keeps pid and start time, so its record still looks right; the handlers and the file are gone."""
    code = RANK + (
        "    print(record.path, flush=True)\n"
        f"    os.execv(sys.executable, [sys.executable, '-S', '-c', {OPEN + WAITS!r}])\n"
    )
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        assert next_line(one) == "there"
        for _ in range(20):
            assert asking.dump(one.pid) == ()
        assert (one.poll(), pending(one.pid)) == (None, 0)
    assert sent == []


def test_while_it_execs_again_and_again_no_process_dies() -> None:
    """And each has the file of the stacks open, as if it were the one that made it: the handlers alone are gone."""
    again = (
        OPEN
        + "import os, sys, time; n = int(sys.argv[2]); n == 20 and print('there', flush=True); "
        "time.sleep(0.02 if n else 1000); "
        "os.execv(sys.executable, [sys.executable, '-S', '-c', sys.argv[1], sys.argv[1], str(n - 1)])"
    )
    code = RANK + (
        f"    print(record.path, flush=True)\n    again = {again!r}\n    os.set_inheritable(record.stacks_fd, True)\n"
        "    os.execv(sys.executable, [sys.executable, '-S', '-c', again, again, '20'])\n"
    )
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        assert next_line(one) == "there"
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            asking.dump(one.pid, timeout=0.02)
        assert (one.poll(), pending(one.pid)) == (None, 0)
    assert sent == []


def test_a_stale_record_of_a_reused_pid_is_not_obeyed() -> None:
    """The worst victim: it has that very file open, under that number, and no handler."""
    with process(SLEEPS) as one:
        data = bytearray(next(SHM.glob(f"mldebug-{one.pid}-*[0-9]")).read_bytes())
    fd = int.from_bytes(data[76:80], "little")
    code = OPEN + (
        "import os; f = open('/proc/self/stat').read().rpartition(')')[2].split(); "
        f"at = os.open(f'{SHM}/mldebug-{{os.getpid()}}-{{f[19]}}.stacks', os.O_RDWR | os.O_CREAT, 0o600); "
        f"os.dup2(at, {fd}); " + WAITS
    )
    victim = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    sent: list[int] = []
    try:
        assert next_line(victim) == "there"
        start = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[19])
        data[16:24] = victim.pid.to_bytes(8, "little")
        data[24:32] = start.to_bytes(8, "little")
        forged = SHM / record_name(victim.pid, start)
        forged.write_bytes(data)
        forged.chmod(0o600)
        with asking_with(sent) as asking:
            with asking._asking.hold(victim.pid) as held:
                assert held is not None  # everything looks right but the handler
            assert asking.dump(victim.pid) == ()
        assert (victim.poll(), pending(victim.pid)) == (None, 0)
    finally:
        victim.kill()
        victim.communicate(timeout=20)
        for path in SHM.glob(f"mldebug-{victim.pid}-*"):
            path.unlink()
    assert sent == []


def test_a_pid_that_is_another_process_by_now_is_not_asked() -> None:
    sent: list[int] = []
    with (
        process(SLEEPS) as one,
        asking_with(sent) as asking,
        asking._asking.hold(one.pid) as held,
    ):
        assert held is not None
        later = held.identity.start_ticks + 1
        other = msgspec.structs.replace(held.identity, start_ticks=later)
        assert not asking._asking.ask(held._replace(identity=other), ASK)
    assert sent == []


@pytest.mark.parametrize(("at", "more"), [(16, 1), (24, 1)])
def test_a_record_of_another_pid_or_start_is_no_invitation(at: int, more: int) -> None:
    sent: list[int] = []
    with process(SLEEPS) as one, asking_with(sent) as asking:
        [path] = SHM.glob(f"mldebug-{one.pid}-*[0-9]")
        with path.open("r+b") as file:
            file.seek(at)
            number = int.from_bytes(file.read(8), "little") + more
            file.seek(at)
            file.write(number.to_bytes(8, "little"))
        assert asking.dump(one.pid) == ()
    assert sent == []


def test_a_record_of_another_user_is_no_invitation() -> None:
    class Another(Host):
        def status(self, pid: int) -> ProcessStatus:
            found = super().status(pid)
            return msgspec.structs.replace(found, uid=found.uid + 1)

    sent: list[int] = []
    with process(SLEEPS) as one, asking_with(sent, Another()) as asking:
        assert asking.dump(one.pid) == ()
    assert sent == []


@pytest.mark.parametrize("then", ["", "    os.dup2(os.open('/dev/null', os.O_RDWR), fd)\n"])
def test_a_python_that_catches_the_signal_for_itself_is_not_sent_it(then: str) -> None:
    """A record alone is no invitation: the file of the stacks must be open in that process, too."""
    code = RANK + (
        f"    fd = record.stacks_fd\n    os.close(fd)\n{then}"
        "    print(record.path, flush=True)\n    time.sleep(1000)\n"
    )
    sent: list[int] = []
    with process(code) as one, asking_with(sent) as asking:
        wait_until(lambda: state(one.pid) == "S")
        assert asking.dump(one.pid) == ()
    assert sent == []


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
        assert next_line(one) == "0 -1 []"  # and its main thread blocks no more than before


# --- and the job's own -----------------------------------------------------------------------------


def test_a_job_that_joins_all_threads_does_not_wait_for_the_hooks() -> None:
    code = (
        RANK
        + "    print(record.path, flush=True)\n    print(threading.active_count(), flush=True)\n"
    )
    with process(code + "    time.sleep(1000)\n") as one, asking_with([]) as asking:
        assert next_line(one) == "2"  # the main thread and `background`
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
    until = time.monotonic() + 60
    while not hits and time.monotonic() < until: time.sleep(0.01)
    print(hits, flush=True)
"""
    )
    with process(code) as one:
        assert next_line(one) == str([ASK])


def test_a_signal_that_c_code_catches_is_left_to_it() -> None:
    early = f"import faulthandler, sys\nfaulthandler.register({ASK}, file=sys.stderr)\n"
    with process(early + textwrap.dedent(RANK) + TELL_RECORD) as one:
        assert next_line(one).split()[0] == str(ASK - 1)


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
        assert next_line(one) == "[0, 0, 0]"


def test_at_its_end_nobody_is_asked_and_the_signals_are_ignored() -> None:
    code = textwrap.dedent(RANK) + (
        "print(record.path, flush=True)\n"
        "own.close()\n"
        "lines = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "print(record.signal, int(lines['SigCgt'], 16) >> 33, int(lines['SigIgn'], 16) >> 46 & 7, flush=True)\n"
    )
    with process(code) as one:
        assert next_line(one) == "0 0 7"


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
