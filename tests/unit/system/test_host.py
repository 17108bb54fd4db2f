"""Raw reads: of a tree that never was, and of real processes in states that hurt."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug_agents.system.host import Host
from mldebug_agents.system.process.details import exit_status
from mldebug_agents.system.procfs import Stat
from shared.jobs.proctree import BOOT, Tree, as_nobody
from shared.system.hung import state, wait_until

PTRACE_SEIZE = 0x4206


@contextmanager
def program(code: str, *, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that prints one line when it is ready; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.wait()


# --- a tree that never was -----------------------------------------------------------------------


def test_who_sets_the_clock_changes_no_age(tmp_path: Path) -> None:
    """The kernel tells another boot time then; what it tells differently by rounding is not taken."""
    Tree(tmp_path)
    now, steady = [BOOT + 100.0], [100.0]
    host = Host(str(tmp_path), lambda: now[0], lambda: steady[0])
    age = lambda: host.clock() - host.started_at(2500)
    assert age() == 75.0
    (tmp_path / "proc/stat").write_text(f"btime {int(BOOT) + 1}\n")
    now[0], steady[0] = now[0] + 10.5, steady[0] + 10.0
    assert age() == 85.5
    (tmp_path / "proc/stat").write_text(f"btime {int(BOOT) - 3600}\n")
    now[0] -= 3600.0
    assert abs(age() - 85.0) < 2.0


def test_everything_lies_below_one_root(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(7, 1, start=250)
    tree.add(8, 7, "worker")
    host = Host(str(tmp_path), clock=lambda: 5.0)
    assert host.pids() == [1, 7, 8]
    assert host.children() == {0: [1], 1: [7], 7: [8]}
    assert host.started_at(250) == BOOT + 2.5
    assert (host.user(1001), host.user(4)) == ("bob", "4")
    assert host.root_of(7) == f"{tmp_path}/proc/7/root"
    brief = host.brief(7)
    assert brief is not None
    assert (brief.name, brief.state, brief.ppid, brief.start_ticks) == ("python3", "S", 1, 250)


def test_what_somebody_has_just_read_of_all_processes_is_not_read_again(tmp_path: Path) -> None:
    now = [100.0]
    host = Host(str(tmp_path), steady=lambda: now[0])
    for pid in (1, 7):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (x) " + " ".join(["S", "0", *["0"] * 48]))
        now[0] += 6.0
        assert set(host.recent_briefs(5.0)) == set(host.briefs())  # the second time it is too old
    (tmp_path / "proc" / "7" / "stat").unlink()
    now[0] += 5.0
    assert set(host.recent_briefs(5.0)) == {1, 7}
    assert host.children() == {0: [1]}


def test_a_process_that_says_the_same_is_the_same_object_and_any_change_is_seen(
    tmp_path: Path,
) -> None:
    """Thousands that sleep cost a look nothing but the reads; a zombie, an exec or another process with that pid is another."""
    tree, host = Tree(tmp_path), Host(str(tmp_path))
    for pid in (7, 8, 9):
        tree.add(pid, 1)
    first = host.briefs()
    tree.add(8, 1, state="Z")
    tree.add(9, 1, start=first[9].start_ticks + 1)
    second = host.briefs()
    assert second[7] is first[7]
    assert (second[8].state, second[9].start_ticks) == ("Z", first[9].start_ticks + 1)
    shutil.rmtree(tmp_path / "proc/7")
    assert 7 not in host.briefs()
    tree.add(7, 1)
    assert host.briefs()[7] is not first[7]


def test_mounts_of_a_process(tmp_path: Path) -> None:
    Tree(tmp_path).add(7, 1)
    text = "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /d rw shared:1 - nfs4 y rw\n"
    (tmp_path / "proc/7/mountinfo").write_text(text)
    host = Host(str(tmp_path))
    assert host.mount_of(7, "/d/x") == ("/d", "nfs4")
    assert host.mount_of(9, "/d/x") == ("", "")


def test_a_node_without_proc_is_empty(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert host.pids() == []
    assert host.process_state(1, files=True, kernel_stacks=True) is None
    assert (host.boot_time(), host.link(1, "exe"), host.user(0)) == (0.0, "", "0")


def test_a_pid_that_changed_hands_midway_is_nobody(tmp_path: Path) -> None:
    """Between the first and the last read the process ended, and its number was given away."""
    tree = Tree(tmp_path)
    tree.add(7, 1, start=100)
    host = Host(str(tmp_path))
    look = host.status

    def replaced(pid: int) -> object:
        tree.add(7, 1, start=200)
        return look(pid)

    host.status = replaced  # type: ignore[method-assign, assignment]
    assert host.process_state(7) is None


def test_an_exit_status_that_may_be_hidden_is_not_a_zero() -> None:
    zombie = Stat(pid=7, state="Z", exit_status=0)
    assert exit_status(zombie, os.geteuid()) == 0
    assert exit_status(Stat(pid=7, state="S"), os.geteuid()) is None
    killed = Stat(pid=7, state="Z", exit_status=9)
    assert exit_status(killed, os.geteuid() + 1) == 9


# --- real processes ------------------------------------------------------------------------------


def test_a_sleeping_process_with_threads() -> None:
    code = (
        "import signal, threading, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    with program(code) as target:
        host = Host()
        wait_until(lambda: state(target.pid) == "S")
        process = host.process_state(target.pid, kernel_stacks=True)
        assert process is not None
        assert process.threads[0].tid == target.pid
        assert len(process.threads) == 2
        main = process.main
        assert main is not None
        assert main.wchan == "hrtimer_nanosleep"
        assert main.syscall in ("clock_nanosleep", "select", "pselect6")
        assert len(main.syscall_args) == 6
        assert process.caught_signals & 1 << signal.SIGUSR1 - 1
        assert (process.ppid, process.uid, process.tracer_pid) == (os.getpid(), os.geteuid(), 0)
        assert process.rss_bytes > 1 << 20
        assert process.io is not None
        assert process.io.read_chars > 0
        assert process.exit_status is None
        assert abs(host.started_at(process.start_ticks) - time.time()) < 30
        if os.geteuid() == 0:
            assert "hrtimer_nanosleep" in main.kernel_stack


def test_a_tracer_is_known_by_its_name() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with program("print('ready', flush=True)\nimport time; time.sleep(60)") as target:
        if libc.ptrace(PTRACE_SEIZE, target.pid, None, None):
            pytest.skip(os.strerror(ctypes.get_errno()))
        process = Host().process_state(target.pid)
        assert process is not None
        assert (process.tracer_pid, process.tracer_name) == (
            threading.get_native_id(),
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip(),
        )


def test_work_shows_as_cpu_time_without_a_system_call() -> None:
    with program("print('ready', flush=True)\nwhile True: pass") as target:
        host = Host()

        def cpu() -> float:
            process = host.process_state(target.pid)
            assert process is not None
            assert process.main is not None
            assert process.main.wchan == ""
            return process.main.cpu_seconds

        before = cpu()
        wait_until(lambda: cpu() > before + 0.05)


def test_a_stopped_process_has_its_state_and_its_wchan() -> None:
    with program("import time; print('ready', flush=True); time.sleep(60)") as target:
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: state(target.pid) == "T")
        process = Host().process_state(target.pid)
        assert process is not None
        assert process.state == "T"
        assert process.main is not None
        assert process.main.wchan == "do_signal_stop"
        os.kill(target.pid, signal.SIGCONT)


def test_a_zombie_tells_how_it_ended() -> None:
    target = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    host = Host()

    def ended() -> bool:
        brief = host.brief(target.pid)
        return brief is not None and brief.state == "Z"

    try:
        wait_until(ended)
        process = host.process_state(target.pid, files=True)
        assert process is not None
        assert (process.state, process.exit_status) == ("Z", 3 << 8)
        assert (process.main, process.threads, process.files) == (None, (), ())
    finally:
        target.wait()


def test_descriptors_by_kind_mode_and_mount(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "gone").write_text("x")
    code = (
        "import os, socket\n"
        f"a = open({str(tmp_path / 'log')!r}, 'w'); b = open({str(tmp_path / 'gone')!r}); os.unlink(b.name)\n"
        "s = socket.socket(); n = open('/dev/null', 'r+b', buffering=0)\n"
        f"f = os.open({str(tmp_path / 'fifo')!r}, os.O_RDWR)\n"
        "print(a.fileno(), b.fileno(), s.fileno(), n.fileno(), f, flush=True); os.read(f, 1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        try:
            log, gone, sock, null, fifo = map(int, process.stdout.readline().split())
            host = Host()

            def waits() -> bool:
                facts = host.process_state(process.pid)
                return bool(facts and facts.main and "pipe_read" in facts.main.wchan)

            wait_until(waits)
            observed = host.process_state(process.pid, files=True)
            assert observed is not None
            files = {file.fd: file for file in observed.files}
            assert (files[log].kind, files[log].mode) == ("file", "w")
            assert files[log].target == str(tmp_path / "log")
            assert files[log].mount in str(tmp_path)
            assert files[log].fstype
            assert (files[gone].kind, files[gone].mode) == ("deleted", "r")
            assert (files[sock].kind, files[sock].mount) == ("socket", "")
            assert (files[null].kind, files[null].mode) == ("device", "rw")
            assert (files[fifo].kind, files[fifo].mode) == ("fifo", "rw")
            assert files[1].kind == "pipe"
            assert host.mount_of(process.pid, files[log].target) == (
                files[log].mount,
                files[log].fstype,
            )
        finally:
            process.kill()
            process.wait()


def test_of_a_million_descriptors_a_few_thousand_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lists all of them takes seconds for each process and look."""
    folder = tmp_path / "proc/7/fd"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / str(number)).symlink_to("/dev/null")
    assert Host(str(tmp_path)).descriptors(7) == list(range(40))
    listed = 0
    scandir = os.scandir

    @contextmanager
    def counted(path: str) -> Iterator[Iterator["os.DirEntry[str]"]]:
        def each() -> Iterator["os.DirEntry[str]"]:
            nonlocal listed
            for entry in entries:
                listed += 1
                yield entry

        with scandir(path) as entries:
            yield each()

    monkeypatch.setattr("mldebug_agents.system.host.MAX_DESCRIPTORS", 10)
    monkeypatch.setattr(os, "scandir", counted)
    assert len(Host(str(tmp_path)).descriptors(7)) == 10
    assert listed == 10


def test_processes_that_vanish_midway_never_raise() -> None:
    """Look at short-lived processes as fast as we can while they come and go."""
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            subprocess.run(["/bin/true"], check=True)

    thread = threading.Thread(target=churn)
    thread.start()
    host, me, looked, last = Host(), os.getpid(), 0, time.monotonic() + 60
    try:
        while looked < 20 and time.monotonic() < last:
            for pid in host.children().get(me, []):
                host.process_state(pid, files=True, kernel_stacks=True)
                looked += 1
    finally:
        done.set()
        thread.join()
    assert looked >= 20


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_what_belongs_to_another_user_stays_at_its_defaults() -> None:
    def look() -> str:
        process = Host().process_state(1, files=True, kernel_stacks=True)
        assert process is not None
        thread = process.threads[0]
        return repr((process.ppid, process.io, process.files, thread.syscall, thread.kernel_stack))

    assert as_nobody(look) == "(0, None, (), '', ())"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_zero_of_another_users_zombie_is_unknown() -> None:
    look = lambda: repr(exit_status(Stat(pid=7, state="Z"), 1001))
    assert as_nobody(look) == "None"
