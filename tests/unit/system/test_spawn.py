"""spawn: programs that behave, programs that do not, and the helper between them."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mldebug_agents.system import spawn
from mldebug_agents.system.child.gpu_driver import MACHINE, inside_gpu_driver
from mldebug_agents.system.child.pipes import ChildProcess
from mldebug_agents.system.spawn import Completed, FakeSpawner, Spawner
from shared.system.hung import frozen_disk, hung_mount, missing, state, wait_until
from shared.system.patience import PATIENCE
from shared.system.users import ALICE, BOB, process


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as it:
        yield it


def sh(spawner: Spawner, script: str, timeout: float = 20.0, **more: Any) -> Completed:
    return spawner.run(["/bin/sh", "-c", script], timeout=timeout, **more)


class Background:
    """A run in a thread, so that the test can watch it from outside."""

    def __init__(self, spawner: Spawner, argv: list[str], timeout: float) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(spawner.run, argv, timeout=timeout)

    def result(self) -> Completed:
        completed = self._future.result(timeout=30)
        self._pool.shutdown()
        return completed


# --- programs that behave ------------------------------------------------------------------------


def test_output_and_exit_code_come_back(spawner: Spawner) -> None:
    done = sh(spawner, "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert (done.error, done.timed_out, done.truncated, done.abandoned) == ("", False, False, False)
    assert done.pid
    assert state(done.pid) == ""


def test_what_a_program_reads_is_what_it_was_given(spawner: Spawner) -> None:
    much = os.urandom(1 << 20)
    assert spawner.run(["/bin/cat"], timeout=20, stdin=much).stdout == much
    assert spawner.run(["/bin/cat"], timeout=20).stdout == b""
    assert sh(spawner, "exit 4", stdin=much).returncode == 4  # which it never reads


def test_death_by_signal_is_a_negative_code(spawner: Spawner) -> None:
    assert sh(spawner, "kill -SEGV $$").returncode == -signal.SIGSEGV


def test_output_larger_than_a_pipe_is_complete(spawner: Spawner) -> None:
    done = sh(spawner, "head -c 3000000 /dev/zero; head -c 1000000 /dev/zero >&2")
    assert (len(done.stdout), len(done.stderr), done.returncode) == (3_000_000, 1_000_000, 0)


def test_program_starts_clean(spawner: Spawner) -> None:
    """No stdin, no inherited files, no ignored signals, its own session, a directory that no mount can hang."""
    with open("/etc/passwd") as file:
        os.set_inheritable(file.fileno(), True)
        with Spawner() as late:
            done = late.run(["/bin/ls", "/proc/self/fd"], timeout=20)
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that ls reads
    done = sh(
        spawner, "cat; pwd; grep SigIgn /proc/self/status; ps -o sid= -p $$ | tr -d ' '; echo $$"
    )
    cwd, ignored, session, pid = done.stdout.decode().splitlines()
    assert cwd == "/"
    internal = (
        1 << 31 | 1 << 32
    )  # 32 and 33 are glibc's own: nobody can set them, a parent may have ignored them
    assert int(ignored.split()[1], 16) & ~internal == 0
    assert session == pid


def test_environment_is_inherited_or_replaced(
    monkeypatch: pytest.MonkeyPatch, spawner: Spawner
) -> None:
    monkeypatch.setenv("MLDEBUG_TEST", "inherited")
    with Spawner() as late:
        assert sh(late, "echo $MLDEBUG_TEST").stdout == b"inherited\n"
        assert sh(late, "echo $MLDEBUG_TEST$X", env={"X": "y"}).stdout == b"y\n"


# --- programs that cannot start ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["/no/such/program"], "No such file or directory"),
        (["no-such-program-in-path"], "No such file or directory"),
        (["/etc/passwd"], "Permission denied"),
        (["/bin/echo", "a\0b"], "Invalid argument"),
        ([], "no program was named"),
    ],
)
def test_what_cannot_start_says_why(spawner: Spawner, argv: list[str], error: str) -> None:
    done = spawner.run(argv, timeout=20)
    assert (done.error, done.returncode, done.timed_out) == (error, None, False)


def test_arguments_that_are_too_long_are_an_error(spawner: Spawner) -> None:
    assert spawner.run(["/bin/echo", "x" * 4_000_000], timeout=20).error
    assert sh(spawner, "echo still here").stdout == b"still here\n"


# --- programs that do not behave -----------------------------------------------------------------


def test_who_reads_a_process_has_so_much_memory_and_leaves_no_core(spawner: Spawner) -> None:
    limits = "ulimit -d; ulimit -c"
    own = sh(spawner, limits).stdout.split()
    assert sh(spawner, limits, looks_at=os.getpid()).stdout.split() == [b"1048576", b"0"]
    assert sh(spawner, limits).stdout.split() == own != [b"1048576", b"0"]


def test_deadline_kills_the_whole_group(spawner: Spawner) -> None:
    done = sh(spawner, "(sleep 1000 & echo $!; wait) & echo $!; wait", timeout=2.0)
    assert done.timed_out
    assert (done.returncode, done.abandoned, done.error) == (-signal.SIGKILL, False, "")
    assert done.seconds < 7 * PATIENCE
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(state, pids)))


def test_what_a_program_leaves_behind_is_killed(spawner: Spawner) -> None:
    """The leftover holds stdout open: the end of the program counts, not the end of its output."""
    done = sh(spawner, "sleep 1000 & echo $!")
    assert (done.returncode, done.timed_out) == (0, False)
    wait_until(lambda: not state(int(done.stdout)))


def test_flood_is_cut_and_ended(spawner: Spawner) -> None:
    done = spawner.run(["/usr/bin/yes"], timeout=20, max_output=1000)
    assert (len(done.stdout), done.truncated, done.timed_out) == (1000, True, False)
    assert done.returncode == -signal.SIGKILL


def test_exactly_the_limit_is_no_flood(spawner: Spawner) -> None:
    done = sh(spawner, "printf 12345", max_output=5)
    assert (done.stdout, done.truncated, done.returncode) == (b"12345", False, 0)


def test_endless_patience_is_allowed(spawner: Spawner) -> None:
    assert spawner.run(["/bin/true"], timeout=1e12).returncode == 0


def test_closed_outputs_do_not_spin(spawner: Spawner) -> None:
    before = time.process_time()
    done = sh(spawner, "exec >&- 2>&-; sleep 1")
    assert done.returncode == 0
    assert time.process_time() - before < 0.5


def test_program_on_a_hung_mount_does_not_stop_others(tmp_path: Path, spawner: Spawner) -> None:
    with hung_mount(tmp_path) as mount:
        shutil.copy("/bin/true", mount.source / "program")
        program = str(mount.target / "program")
        assert spawner.run([program], timeout=20).returncode == 0
        mount.hang()
        stuck = Background(spawner, [program], timeout=3)
        others = [spawner.run(["/bin/echo", "hi"], timeout=20) for _ in range(5)]
        assert [done.stdout for done in others] == [b"hi\n"] * 5
        done = stuck.result()
        assert (done.timed_out, done.returncode) == (True, -signal.SIGKILL)
        assert done.seconds < (3 + 2 * spawn.GRACE) * PATIENCE
        mount.recover()
        assert spawner.run([program], timeout=20).returncode == 0


VFORKED = """
import os, sys
fifo, started = sys.argv[1:]
os.mkfifo(fifo)
with open(started + ".new", "w") as file: file.write(str(os.getpid()))
os.rename(started + ".new", started)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
"""


def test_child_in_state_d_ends_at_the_deadline(tmp_path: Path, spawner: Spawner) -> None:
    started = tmp_path / "started"
    argv = [sys.executable, "-S", "-c", VFORKED, str(tmp_path / "fifo"), str(started)]
    run = Background(spawner, argv, timeout=4)
    wait_until(lambda: started.exists() and state(int(started.read_text())) == "D")
    assert sh(spawner, "echo quick").stdout == b"quick\n"
    done = run.result()
    assert (done.timed_out, done.abandoned, done.error) == (True, False, "")
    assert done.seconds < 6 * PATIENCE


def test_unkillable_child_is_abandoned_then_forgiven(tmp_path: Path, spawner: Spawner) -> None:
    with frozen_disk(tmp_path) as disk:
        done = sh(spawner, f"echo before; echo x > {disk}/file", timeout=1)
        assert (done.timed_out, done.abandoned, done.returncode) == (True, True, None)
        assert done.stdout == b"before\n"
        assert done.seconds < 4 * PATIENCE
        [(pid, ticks, argv)] = spawner.abandoned
        assert (pid, argv) == (done.pid, done.argv)
        assert str(ticks) in Path(f"/proc/{pid}/stat").read_text().split()
        assert sh(spawner, "echo quick").stdout == b"quick\n"
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        wait_until(lambda: spawner.abandoned == ())
        assert state(pid) == ""


def test_too_many_abandoned_start_no_more(
    monkeypatch: pytest.MonkeyPatch, spawner: Spawner
) -> None:
    """A stopped helper cannot kill, so the run looks like one that survives its kill."""
    monkeypatch.setattr(spawn, "MAX_ABANDONED", 1)
    os.kill(spawner.helper_pid, signal.SIGSTOP)
    try:
        done = spawner.run(["/bin/sleep", "1000"], timeout=0.1)
        assert (done.timed_out, done.abandoned) == (True, True)
        refused = spawner.run(["/bin/true"], timeout=20)
        assert "stuck" in refused.error
        assert refused.seconds < 5 * PATIENCE  # and not its twenty
    finally:
        os.kill(spawner.helper_pid, signal.SIGCONT)
    wait_until(lambda: spawner.abandoned == ())
    assert spawner.run(["/bin/true"], timeout=20).returncode == 0


def test_programs_that_are_stuck_at_processes_of_one_user_keep_none_from_another(
    monkeypatch: pytest.MonkeyPatch, spawner: Spawner
) -> None:
    """Sixteen py-spy that hung at one user's files left nobody on the node a stack."""
    monkeypatch.setattr(spawn, "MAX_ABANDONED", 1)
    if os.geteuid() != 0:
        missing("two users")
    with process(ALICE) as his, process(BOB) as hers:
        os.kill(spawner.helper_pid, signal.SIGSTOP)
        try:
            assert spawner.run(["/bin/sleep", "1000"], timeout=0.1, looks_at=his.pid).abandoned
            refused = spawner.run(["/bin/sleep", "1001"], timeout=20, looks_at=his.pid)
            assert "stuck in the kernel at processes of this owner" in refused.error
            for number, other in enumerate((hers.pid, None)):
                done = spawner.run(["/bin/sleep", f"{number}"], timeout=0.1, looks_at=other)
                assert (done.error, done.abandoned) == ("", True)  # it was given to the helper
        finally:
            os.kill(spawner.helper_pid, signal.SIGCONT)
        wait_until(lambda: spawner.abandoned == ())
        assert spawner.run(["/bin/true"], timeout=20, looks_at=his.pid).returncode == 0


# --- the helper ----------------------------------------------------------------------------------


def test_death_of_the_helper_is_an_error_and_no_hang(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with Spawner() as spawner:
        script = f"echo $$ > {started}.new; mv {started}.new {started}; exec sleep 1000"
        run = Background(spawner, ["/bin/sh", "-c", script], timeout=60)
        wait_until(started.exists)
        assert spawner.trouble == ""
        os.kill(spawner.helper_pid, signal.SIGKILL)
        done = run.result()
        assert "is gone; restart mldebug" in spawner.trouble
        assert "is gone" in done.error
        assert (done.returncode, done.timed_out, done.abandoned) == (None, False, False)
        wait_until(lambda: not state(int(started.read_text())))
        later = spawner.run(["/bin/true"], timeout=20)
        assert "is gone" in later.error
        assert later.seconds < 5 * PATIENCE
    assert spawner.trouble == ""


def test_no_program_outlives_a_helper_that_was_killed_while_it_forked() -> None:
    with Spawner() as spawner, ThreadPoolExecutor(20) as pool:
        argv = ["/bin/sleep", f"1000.{os.getpid()}"]
        runs = [pool.submit(spawner.run, argv, timeout=60) for _ in range(20)]
        wait_until(lambda: len(running(argv)) > 2)
        os.kill(spawner.helper_pid, signal.SIGKILL)
        assert all(run.result(timeout=30).returncode is None for run in runs)
        wait_until(lambda: not running(argv))


def running(argv: list[str]) -> list[Path]:
    words = "\0".join((*argv, "")).encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += [file] if file.read_bytes() == words else []
    return found


ORPHANING = """
import sys, threading, time
from mldebug_agents.system.spawn import Spawner
spawner = Spawner()
worker = spawner.fork_worker("reader")
script = "sleep 1000 & echo $$ $! > " + sys.argv[1] + ".new; mv " + sys.argv[1] + ".new " + sys.argv[1] + "; wait"
threading.Thread(target=spawner.run, args=(["/bin/sh", "-c", script],), kwargs={"timeout": 1000}).start()
while worker.pid is None: time.sleep(0.01)
print(spawner.helper_pid, worker.pid, flush=True)
"""


def test_nothing_outlives_a_killed_main_process(tmp_path: Path) -> None:
    started = tmp_path / "pids"
    argv = [sys.executable, "-c", ORPHANING, str(started)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout
        pids = [int(word) for word in main.stdout.readline().split()]
        wait_until(started.exists)
        pids += [int(word) for word in started.read_text().split()]
        assert len(pids) == 4
        assert all(map(state, pids))
        main.kill()
    wait_until(lambda: not any(map(state, pids)))


TAKING_BACK = """
import sys, time
from pathlib import Path
from mldebug_agents.system.spawn import Spawner

def hung_up(connection):
    connection.sendall(b"begun")
    connection.recv(1)
    time.sleep(0.3)
    Path(sys.argv[1], "back").touch()
    time.sleep(1000)

spawner = Spawner({"hung-up": hung_up})
worker = spawner.fork_worker("hung-up", leave=1.0)
worker.socket.recv(5)
while worker.pid is None: time.sleep(0.01)
print(spawner.helper_pid, worker.pid, flush=True)
time.sleep(1000)
"""


def test_a_worker_takes_back_what_it_has_begun_when_the_main_process_is_killed(
    tmp_path: Path,
) -> None:
    """And one that takes longer than it may is killed."""
    argv = [sys.executable, "-c", TAKING_BACK, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout
        pids = [int(word) for word in main.stdout.readline().split()]
        main.kill()
    wait_until((tmp_path / "back").exists)
    wait_until(lambda: not any(map(state, pids)))


def test_close_ends_helper_and_children() -> None:
    spawner = Spawner()
    run = Background(spawner, ["/bin/sleep", "1000"], timeout=60)
    wait_until(lambda: children(spawner.helper_pid))
    [pid] = children(spawner.helper_pid)
    spawner.close()
    spawner.close()
    assert run.result().error
    wait_until(lambda: not state(pid))
    assert state(spawner.helper_pid) == ""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_many_runs_at_once(spawner: Spawner) -> None:
    def one(number: int) -> Completed:
        return spawner.run(["/bin/echo", str(number)], timeout=60)

    with ThreadPoolExecutor(200) as pool:
        results = list(pool.map(one, range(200)))
    assert [done.stdout for done in results] == [b"%d\n" % number for number in range(200)]
    assert [done.returncode for done in results] == [0] * 200


def test_no_descriptor_leaks(spawner: Spawner) -> None:
    def counts() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), spawner.helper_pid)]

    spawner.run(["/bin/true"], timeout=20)
    gc.collect()  # what an earlier test left must not be closed in between
    before = counts()
    for number in range(60):
        spawner.run(["/bin/true" if number % 3 else "/no/such/program"], timeout=20)
    spawner.run(["/bin/sleep", "9"], timeout=0.05)
    spawner.run(["/usr/bin/yes"], timeout=9, max_output=10)
    wait_until(
        lambda: all(map(int.__le__, counts(), before))
    )  # the helper closes its end after it told of the death
    assert children(spawner.helper_pid) == []


def test_helper_survives_the_terminal(spawner: Spawner) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(spawner.helper_pid, number)
    assert sh(spawner, "echo here").stdout == b"here\n"
    assert os.getsid(spawner.helper_pid) == spawner.helper_pid


def test_runs_from_threads_after_start(spawner: Spawner) -> None:
    """The thread that runs may end while another waits: nothing is tied to a thread."""
    results: list[Completed] = []
    thread = threading.Thread(target=lambda: results.append(sh(spawner, "echo one")))
    thread.start()
    thread.join(20)
    assert [done.stdout for done in [*results, sh(spawner, "echo two")]] == [b"one\n", b"two\n"]


# --- never kill inside a GPU driver --------------------------------------------------------------


@pytest.mark.parametrize(
    ("letters", "device", "spared"),
    [
        ("SD", "/dev/nvidia0", True),
        ("D", "/dev/kfd", True),
        ("SS", "/dev/nvidia0", False),
        ("D", "/data/file", False),
    ],
)
def test_state_d_with_a_gpu_open_is_spared(
    tmp_path: Path, letters: str, device: str, spared: bool
) -> None:
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/2").write_text("not a link: as if it had been closed meanwhile")
    (tmp_path / "7/fd/3").symlink_to(device)
    for tid, letter in enumerate(letters, start=7):
        (tmp_path / f"7/task/{tid}").mkdir(parents=True)
        (tmp_path / f"7/task/{tid}/stat").write_text(f"{tid} (a ) D b) {letter} 1 7 7 0\n")
    assert inside_gpu_driver(7, tmp_path) is spared
    assert inside_gpu_driver(8, tmp_path) is False


IOCTL = {"x86_64": 16, "aarch64": 29}


@pytest.mark.parametrize(
    ("call", "spared"),
    [
        ("{ioctl} 0x3 0xc020462a 0x7ffc0 0x0 0x0 0x0 0x7ffc1 0x7fed1", True),
        ("{ioctl} 0x2 0xc020462a 0x7ffc0 0x0 0x0 0x0 0x7ffc1 0x7fed1", False),  # another file
        ("45 0x3 0x0 0x7ffc0 0x0 0x0 0x0 0x7ffc1 0x7fed1", False),  # it waits for our question
        ("-1 0x7ffc1 0x7fed1", False),
        ("running", False),
        ("", False),
    ],
)
def test_a_call_on_a_gpu_is_spared_in_whatever_state(
    tmp_path: Path, call: str, spared: bool
) -> None:
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/2").symlink_to("/data/file")
    (tmp_path / "7/fd/3").symlink_to("/dev/nvidia0")
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/stat").write_text("7 (gpus) S 1 7 7 0\n")
    (tmp_path / "7/task/7/syscall").write_text(call.format(ioctl=IOCTL.get(MACHINE, 16)))
    assert inside_gpu_driver(7, tmp_path) is (spared and MACHINE in IOCTL)


class Vanishing(type(Path())):  # type: ignore[misc]
    """A /proc in which a process goes right after somebody has asked whether it is there."""

    def is_dir(self) -> bool:
        return True


def test_a_process_that_goes_while_it_is_asked_about_is_in_no_driver(tmp_path: Path) -> None:
    assert inside_gpu_driver(7, Vanishing(tmp_path)) is False


def test_fake_answers_and_remembers() -> None:
    fake = FakeSpawner(lambda argv: Completed(argv=argv, returncode=0, stdout=b"x"))
    assert fake.run(["a", "b"], timeout=1).stdout == b"x"
    assert fake.calls == [("a", "b")]


SHARES = """
import gc, re, pathlib
from mldebug_agents.agent import serving
from mldebug_agents.system.spawn import Spawner
with Spawner():
    gc.collect()
    told = pathlib.Path("/proc/self/smaps_rollup").read_text()
    print(*re.findall(r"^(?:Shared|Private)_Dirty: +(\\d+)", told, re.M))
"""


def test_what_the_agent_holds_when_it_forks_stays_shared_with_its_children() -> None:
    """A collection writes to every object that it looks at, and so to nearly every page."""
    argv = [sys.executable, "-c", SHARES]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    shared, private = map(int, done.stdout.split())
    assert shared > 2 * private, f"{shared} KiB are shared and {private} are not"


EARLY = """
import sys
from mldebug_agents.cli.commands.agent import agent
print(*sys.modules)
"""


def test_the_agent_forks_its_helper_before_it_imports_what_no_child_needs() -> None:
    """Each child would have a copy of what the agent changes of it: 22 MiB with six children."""
    done = subprocess.run([sys.executable, "-c", EARLY], check=True, capture_output=True, text=True, timeout=60)  # fmt: skip
    modules = set(done.stdout.split())
    assert "mldebug_agents.state.server" in modules
    large = ("mldebug_agents.agent.loop", "mldebug_agents.web.server", "mldebug.diagnosis.diagnose", "starlette", "jinja2", "asyncio")  # fmt: skip
    assert not modules & set(large)


# --- what must be known before there are threads -------------------------------------------------

RACING = """
import sys, threading
import msgspec
from mldebug_agents.system.spawn import Spawner

def chain(length):
    kind = int
    for _ in range(length):
        kind = msgspec.defstruct("Link", [("a", int), ("b", dict[str, tuple[str, ...]], {}), ("c", list[kind], [])])
    return kind

def first(kind, start):
    start.wait()
    msgspec.json.decode(b'{"a": 1, "b": {}, "c": [{"a": 1}]}', type=kind)

kinds = [chain(20) for _ in range(20)]
if "known" in sys.argv:
    Spawner().close()
sys.setswitchinterval(1e-6)
for kind in kinds:
    start = threading.Barrier(3)
    threads = [threading.Thread(target=first, args=(kind, start)) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def raced(*words: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", RACING, *words], check=False, timeout=120
    ).returncode


def test_threads_may_decode_at_once_what_was_known_when_the_helper_was_forked() -> None:
    """Not so without: the day that the first of these is red, msgspec has mended it and `learn_structs` may go."""
    assert any(raced() == -signal.SIGSEGV for _ in range(10))
    assert [raced("known") for _ in range(3)] == [0] * 3


LATE = """
import msgspec
import mldebug_agents.agent.serving
import mldebug_agents.cli.commands.capture.dump
from mldebug.config.schema import Config
from mldebug_agents.system.child.structs import struct_classes
from mldebug_agents.agent.node_tools import open_tools
before = set(struct_classes(msgspec.Struct))
with open_tools(Config()): pass
print(*{one.__name__ for one in struct_classes(msgspec.Struct)} - {one.__name__ for one in before})
"""


def test_no_struct_class_comes_later_but_options_of_plugins() -> None:
    """Those are read while there is one thread."""
    argv = [sys.executable, "-c", LATE]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() in (["Options"], [])


def test_a_child_that_one_thread_lets_go_while_another_looks_at_it_is_no_error() -> None:
    """The descriptor of its pipe is gone then, and perhaps something else has its number."""
    errors: list[BaseException] = []
    looked = threading.Event()

    def look(child: ChildProcess) -> None:
        try:
            while not child.over:
                child.update()
                looked.set()
        except OSError as error:
            errors.append(error)

    for number in range(300):
        outlet, inlet = os.pipe()
        os.set_blocking(outlet, False)
        child = ChildProcess(number, outlet, ("x",))
        thread = threading.Thread(target=look, args=(child,))
        thread.start()
        looked.wait(10)
        looked.clear()
        child.close()
        thread.join(10)
        os.close(inlet)
    assert errors == []
