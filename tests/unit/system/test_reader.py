"""reader: what may be read, what is refused, and what happens to a path that never answers."""

import ctypes
import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from mldebug_agents.system import reader_answers as reader_module
from mldebug_agents.system.child import job_paths, reader_child
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.reader import Reader, Tail, Unreadable
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import HungMount, hung_mount, state, wait_until
from shared.system.patience import PATIENCE
from shared.system.whose import MINE

PATIENT = 60.0  # seconds; a loaded machine must not fail a test that is not about time


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as it:
        yield it


@pytest.fixture
def reader(spawner: Spawner) -> Iterator[Reader]:
    with Reader(spawner) as it:
        yield it


def reason(answer: object) -> str:
    assert isinstance(answer, Unreadable), answer
    assert not answer.stuck
    return answer.reason


# --- job-chosen files ----------------------------------------------------------------------------


def test_reads_a_whole_file_up_to_the_limit(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 200_000)
    assert (
        reader.read_file(str(path), max_bytes=200_000, timeout=PATIENT, rights=MINE)
        == b"x" * 200_000
    )
    assert "larger" in reason(
        reader.read_file(str(path), max_bytes=199_999, timeout=PATIENT, rights=MINE)
    )


def test_missing_and_odd_paths_are_named(tmp_path: Path, reader: Reader) -> None:
    def why(path: str) -> str:
        return reason(reader.read_file(path, max_bytes=10, timeout=PATIENT, rights=MINE))

    assert why(str(tmp_path / "none")) == "no such file"
    assert why("/etc/passwd/below") == "no such file"
    assert why(str(tmp_path)) == "not a regular file"
    assert why("/dev/zero") == "not a regular file"
    assert why("a\0b") == "not a path"
    assert why("\ud800") == "not a path"
    assert why("") == "no such file"


def test_forbidden_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("secret")
    path.chmod(0)
    tmp_path.chmod(0o755)
    assert _as_nobody(str(path)) == b"13 0"


def _as_nobody(path: str) -> bytes:
    """Ask in a process without rights (root may read everything)."""
    script = (
        "import os, sys; from mldebug_agents.system.child import reader_child as r\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "answer = r.answer(r.ReadRequest(r.ReadOperation.FILE, (), 10), os.fsencode(sys.argv[1]))\n"
        "print(answer.status, len(answer.data), end='')"
    )
    return subprocess.run([sys.executable, "-c", script, path], check=True, stdout=-1).stdout


def test_final_link_is_refused(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for read in (reader.read_file, reader.read_tail):
        answer = read(str(tmp_path / "link"), rights=MINE, max_bytes=1 << 20, timeout=PATIENT)
        assert "symbolic link" in reason(answer)


def test_fifo_is_never_opened(tmp_path: Path, reader: Reader) -> None:
    """Opening the reading end would wake a rank that waits in open() for a reader: the hang itself would change."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with subprocess.Popen(["/bin/sh", "-c", f"exec 3> {fifo}; echo opened"], stdout=-1) as writer:
        try:
            wait_until(lambda: _waits_for_a_reader(writer.pid))
            assert (
                reason(reader.read_file(fifo, max_bytes=9, timeout=PATIENT, rights=MINE))
                == "not a regular file"
            )
            assert (
                reason(reader.read_tail(fifo, max_bytes=9, timeout=PATIENT, rights=MINE))
                == "not a regular file"
            )
            assert (
                reason(reader.read_lines(fifo, 1, timeout=PATIENT, rights=MINE))
                == "not a regular file"
            )
            many = reader.read_many([fifo], max_bytes=9, timeout=PATIENT)
            assert reason(many[fifo]) == "not a regular file"
            assert reader.is_link(fifo, rights=MINE, timeout=PATIENT) is False
            assert writer.poll() is None
            assert state(writer.pid) == "S"
        finally:
            writer.kill()


def _waits_for_a_reader(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").read_text() in ("wait_for_partner", "fifo_open")


def test_tail_gives_the_end_size_and_time(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    os.utime(path, (5.0, 1234.5))
    tail = reader.read_tail(str(path), max_bytes=4, timeout=PATIENT, rights=MINE)
    assert tail == Tail(b"6789", 10, 1234.5)
    assert reader.read_tail(str(path), max_bytes=99, timeout=PATIENT, rights=MINE) == Tail(
        b"0123456789", 10, 1234.5
    )


def test_tail_of_an_open_file_works_after_it_was_deleted(tmp_path: Path, reader: Reader) -> None:
    with open(tmp_path / "log", "w+b") as file:
        file.write(b"last words")
        file.flush()
        os.unlink(tmp_path / "log")
        tail = reader.read_tail(
            f"/proc/{os.getpid()}/fd/{file.fileno()}", max_bytes=5, timeout=PATIENT, rights=MINE
        )
    assert isinstance(tail, Tail)
    assert (tail.data, tail.size) == (b"words", 10)


def test_tail_of_an_open_pipe_is_refused(reader: Reader) -> None:
    outlet, inlet = os.pipe()
    try:
        tail = reader.read_tail(
            f"/proc/{os.getpid()}/fd/{outlet}", max_bytes=5, timeout=PATIENT, rights=MINE
        )
        assert reason(tail) == "not a regular file"
    finally:
        os.close(outlet)
        os.close(inlet)


def test_source_line(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"first\r\n\n\xff\xc3\xa9" + b"y" * 500 + b"\nlast\n")
    around = reader.read_lines(str(path), 1, timeout=PATIENT, rights=MINE)
    assert around == (1, ("first", "", "\ufffd\u00e9" + "y" * 398))
    around = reader.read_lines(str(path), 4, timeout=PATIENT, rights=MINE)
    assert around == (2, ("", "\ufffd\u00e9" + "y" * 398, "last"))
    for line in (5, 0, -1, 1 << 40):
        assert (
            reason(reader.read_lines(str(path), line, timeout=PATIENT, rights=MINE))
            == "no such line"
        )
    path.write_bytes(b"\n" * (reader_child.MAX_SOURCE + 1))
    assert "larger" in reason(reader.read_lines(str(path), 1, timeout=PATIENT, rights=MINE))


# --- inside a job's root -------------------------------------------------------------------------


@pytest.fixture(params=["openat2", "by hand"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root below a fake /proc, resolved by the kernel and by our own walk."""
    if request.param == "by hand":
        monkeypatch.setattr(job_paths, "open_inside", job_paths.walk_inside)
    root = tmp_path / "proc/123/root"
    (root / "data/logs").mkdir(parents=True)
    (root / "data/logs/log").write_text("inside")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("inside")
    (tmp_path / "proc/123/secret").write_text("outside")
    return root


def there(root: Path) -> Rights:
    """My rights, for processes of the /proc that this root lies in."""
    return msgspec.structs.replace(MINE, root=str(root.parents[2]))


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("absolute", "/data/logs", "absolute/log"),
        ("relative", "data/./logs/", "relative/log"),
        ("data/up", "../../../../data", "data/up/logs/log"),
        ("chain", "/data/again", "chain/log"),
        ("etc2", "/etc", "etc2/passwd"),
        ("unused", "/", "../../../../../../../etc/passwd"),
        ("unused", "/", "data//logs/../logs/./log"),
        ("self", "/", "self/self/data/logs/log"),
    ],
)
def test_links_stay_inside_the_root(root: Path, link: str, target: str, path: str) -> None:
    (root / "data/again").symlink_to("logs")
    (root / link).symlink_to(target)
    with Spawner() as spawner, Reader(spawner) as reader:
        assert (
            reader.read_file(f"{root}/{path}", max_bytes=99, timeout=PATIENT, rights=there(root))
            == b"inside"
        )
        real = f"/proc/self/root{root}/data/logs/log"
        many = reader.read_many([real], max_bytes=99, timeout=PATIENT)
        assert "not read" in reason(many[real])  # without rights nothing opens there


def test_what_lies_outside_cannot_be_reached(root: Path) -> None:
    (root / "up").symlink_to("..")
    (root / "out").symlink_to("../secret")
    (root / "host").symlink_to("/usr/bin")
    (root / "loop").symlink_to("loop")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("up/secret", "../secret", "out", "host/env", "loop/x", "data/logs/log/x"):
        for operation in reader_child.ReadOperation:
            request = reader_child.ReadRequest(operation, (), 99, 1, there(root))
            # files of the kernel are read with the agent's own rights, and only the real /proc has them
            kernel = operation in (
                reader_child.ReadOperation.KERNEL,
                reader_child.ReadOperation.MEMORY,
            )
            place = f"/proc/self/root{root}" if kernel else str(root)
            reply = reader_child.answer(request, os.fsencode(f"{place}/{path}"))
            link = operation is reader_child.ReadOperation.LINK
            assert len(reply.data) == (link and path == "out"), path
            assert reply.status or link, path
    assert len(os.listdir("/proc/self/fd")) == before


CHROOTED = """
import os, sys, time
os.chroot(sys.argv[1]); os.chdir("/")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chroot")
def test_root_of_a_real_process(tmp_path: Path, reader: Reader) -> None:
    """/proc/PID/root is a magic link: it must be followed, links below it must not lead to the host's files."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/log").write_text("inside")
    (tmp_path / "var").symlink_to("/logs")
    (tmp_path / "etc").symlink_to("/etc")
    argv = [sys.executable, "-c", CHROOTED, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        inside = f"/proc/{process.pid}/root"
        assert (
            reader.read_file(f"{inside}/var/log", max_bytes=9, timeout=PATIENT, rights=MINE)
            == b"inside"
        )
        assert "link" in reason(
            reader.read_file(f"{inside}/etc/passwd", max_bytes=9, timeout=PATIENT, rights=MINE)
        )
        process.communicate(b"")


# --- many kernel files ---------------------------------------------------------------------------


def test_many_files_in_one_go(reader: Reader) -> None:
    paths = [
        f"/proc/{os.getpid()}/{'./' * i}{name}"
        for i in range(700)
        for name in ("environ", "cmdline", "maps")
    ]
    before = time.monotonic()
    answers = reader.read_many(paths, max_bytes=1 << 16, timeout=PATIENT)
    assert time.monotonic() - before < 10 * PATIENCE
    assert list(answers) == paths
    assert not any(isinstance(answer, Unreadable) for answer in answers.values())
    assert answers[paths[1]] == Path("/proc/self/cmdline").read_bytes()
    assert answers[paths[2]]


def test_answers_that_are_too_large_together_are_left_to_the_next_question(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 processes with environments of 6 MiB took the agent from 57 to 290 MiB in one look, on a machine that was too slow for more."""
    monkeypatch.setattr(reader_module, "MAX_TOGETHER", 1000)
    paths = [str(tmp_path / f"{number}") for number in range(6)]
    for path in paths:
        Path(path).write_bytes(b"x" * 400)
    left = list(paths)
    for _ in range(2):
        answers = reader.read_many(left, max_bytes=1 << 20)
        assert [isinstance(answers[path], bytes) for path in left[:3]] == [True] * 3
        assert {one.errno for one in answers.values() if isinstance(one, Unreadable)} <= {
            errno.EAGAIN
        }
        left = [path for path in left if not isinstance(answers[path], bytes)]
    assert not left
    assert not reader.stuck


def test_kernel_files_are_cut_and_named(reader: Reader) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    paths = ["/proc/self/maps", f"/proc/{gone.pid}/environ", "/proc/self", "/proc/self/maps"]
    answers = reader.read_many(paths, max_bytes=100, timeout=PATIENT)
    assert len(answers["/proc/self/maps"]) == 100  # type: ignore[arg-type]
    assert reason(answers[paths[1]]) == "no such file"
    assert reason(answers["/proc/self"])
    assert reader.read_many([], max_bytes=1) == {}


def test_memory_of_a_process_up_to_the_end_of_its_mapping(reader: Reader) -> None:
    pid = os.getpid()
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        page[-5:] = b"path\0"
        view = ctypes.c_char.from_buffer(page, mmap.PAGESIZE - 5)
        address = ctypes.addressof(view)
        assert reader.read_memory(pid, address, max_bytes=5, timeout=PATIENT) == b"path\0"
        more = reader.read_memory(pid, address, max_bytes=9000, timeout=PATIENT)
        assert isinstance(more, bytes)
        assert more.startswith(b"path\0")
        del view
    assert reason(reader.read_memory(pid, 8, max_bytes=5, timeout=PATIENT))
    assert (
        reason(reader.read_memory(1 << 30, address, max_bytes=5, timeout=PATIENT)) == "no such file"
    )
    for odd in (0, -1, 1 << 63, 1 << 70):
        assert reason(reader.read_memory(pid, odd, max_bytes=5)) == "not an address"


def test_threads_take_turns(tmp_path: Path, reader: Reader) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text(str(number))

    def one(number: int) -> bytes | Unreadable:
        return reader.read_file(
            str(tmp_path / str(number % 20)), max_bytes=9, timeout=PATIENT, rights=MINE
        )

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(400))) == [b"%d" % (number % 20) for number in range(400)]


# --- what never answers --------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[HungMount]:
    with hung_mount(tmp_path) as it:
        (it.source / "sub").mkdir()
        for name in ("file", "other", "sub/file"):
            (it.source / name).write_text("content")
        yield it


def test_stuck_path_is_named_and_others_are_read(mount: HungMount, reader: Reader) -> None:
    path, other = str(mount.target / "file"), str(mount.target / "other")
    assert reader.read_file(path, max_bytes=9, timeout=PATIENT, rights=MINE) == b"content"
    mount.hang()
    paths = ["/proc/self/status", path, other, "/proc/self/cmdline"]
    answers = reader.read_many(paths, max_bytes=99, timeout=3.0)
    assert list(map(type, map(answers.get, paths))) == [bytes, Unreadable, Unreadable, bytes]
    assert answers[path] == Unreadable("timed out after 3.0 s", stuck=True)
    assert answers[other] == Unreadable("an earlier read there has not come back", stuck=True)
    assert reader.stuck == (path,)

    before = time.monotonic()
    again = reader.read_tail(path, max_bytes=9, timeout=PATIENT, rights=MINE)
    assert isinstance(again, Unreadable)
    assert again.stuck
    assert time.monotonic() - before < 1.0 * PATIENCE

    mount.recover()
    wait_until(lambda: not reader.stuck)
    assert reader.read_file(path, max_bytes=9, timeout=PATIENT, rights=MINE) == b"content"
    assert reader.read_file(other, max_bytes=9, timeout=PATIENT, rights=MINE) == b"content"


def test_every_question_has_its_deadline(mount: HungMount, spawner: Spawner) -> None:
    asks: list[Callable[[Reader, str], object]] = [
        lambda reader, path: reader.is_link(path, rights=MINE, timeout=0.3),
        lambda reader, path: reader.read_lines(path, 1, timeout=0.3, rights=MINE),
        lambda reader, path: reader.read_tail(path, max_bytes=1, timeout=0.3, rights=MINE),
    ]
    mount.hang()
    for ask in asks:
        with Reader(spawner) as reader:
            answer = ask(reader, str(mount.target / "file"))
            assert isinstance(answer, Unreadable)
            assert answer.stuck


def test_too_many_stuck_paths_start_no_more(
    mount: HungMount, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "MAX_STUCK_KERNEL", 2)
    mount.hang()
    paths = [str(mount.target / name) for name in ("file", "sub/file")] + ["/proc/self/status"]
    answers = reader.read_many(paths, max_bytes=9, timeout=0.3)
    assert [answers[path].stuck for path in paths] == [True, True, False]  # type: ignore[union-attr]
    assert "stuck already" in reason(answers[paths[2]])
    assert reader.read_file(
        "/etc/passwd", max_bytes=1 << 20, timeout=PATIENT, rights=MINE
    )  # has a limit of its own


def test_one_user_s_stuck_paths_leave_those_of_another_readable(
    mount: HungMount, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can make reads of his own processes and files hang, and as many of them as he has."""
    monkeypatch.setattr(reader_module, "MAX_OF_ONE_FILES", 1)
    theirs = Rights(2002, 2002)
    mount.hang()
    first, second = (str(mount.target / name) for name in ("file", "sub/file"))
    ask = lambda path, rights: reader.read_file(path, max_bytes=1 << 20, timeout=0.3, rights=rights)
    assert ask(first, MINE) == Unreadable("timed out after 0.3 s", stuck=True)
    assert "of the same user are stuck already" in reason(ask(second, MINE))
    assert isinstance(ask("/etc/passwd", theirs), bytes)


def test_one_question_has_a_deadline_for_all_its_paths_together(
    mount: HungMount, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "TOTAL", 0.5)
    mount.hang()
    paths = [str(mount.target / name) for name in ("file", "sub/file")] + ["/proc/self/status"]
    answers = reader.read_many(paths, max_bytes=9, timeout=0.6)
    assert [answers[path].stuck for path in paths] == [True, False, False]  # type: ignore[union-attr]
    late = answers[paths[2]]
    assert isinstance(late, Unreadable)
    assert (late.reason, late.errno) == ("not read: no time left", errno.EAGAIN)
    assert isinstance(reader.read_many(paths[2:], max_bytes=9)[paths[2]], bytes)


def test_close_kills_what_is_stuck(mount: HungMount, spawner: Spawner) -> None:
    reader = Reader(spawner)
    mount.hang()
    reader.read_file(str(mount.target / "file"), max_bytes=9, timeout=0.3, rights=MINE)
    reader.read_file("/etc/passwd", max_bytes=9, timeout=PATIENT, rights=MINE)
    assert len(children(spawner.helper_pid)) == 2
    reader.close()
    wait_until(lambda: not children(spawner.helper_pid))


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_dead_reader_costs_one_path(spawner: Spawner, reader: Reader) -> None:
    reader.is_link("/", rights=MINE, timeout=PATIENT)
    [pid] = children(spawner.helper_pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not children(spawner.helper_pid))
    answers = reader.read_many(
        ["/proc/self/stat", "/proc/self/status"], max_bytes=9, timeout=PATIENT
    )
    assert "reader process ended" in reason(answers["/proc/self/stat"])
    assert isinstance(answers["/proc/self/status"], bytes)


def test_dead_helper_is_an_answer(spawner: Spawner, reader: Reader) -> None:
    os.kill(spawner.helper_pid, signal.SIGKILL)
    os.waitpid(spawner.helper_pid, 0)
    answers = reader.read_many(["/proc/self/stat", "/proc/self/maps"], max_bytes=9, timeout=PATIENT)
    assert ["is gone" in reason(answer) for answer in answers.values()] == [True, True]


def test_no_descriptor_leaks(mount: HungMount, spawner: Spawner) -> None:
    def count() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), spawner.helper_pid)]

    assert spawner.run(["/bin/true"], timeout=PATIENT).returncode == 0  # the helper is at work
    gc.collect()  # what an earlier test left must not be closed in between
    before = count()
    for _ in range(3):
        with Reader(spawner) as reader:
            mount.hang()
            reader.read_file(str(mount.target / "file"), max_bytes=9, timeout=0.2, rights=MINE)
            reader.read_file("/etc/passwd", max_bytes=99, timeout=PATIENT, rights=MINE)
            mount.recover()
            wait_until(lambda: not reader.stuck)
    wait_until(lambda: all(map(int.__le__, count(), before)))


def test_reader_works_while_programs_run(spawner: Spawner, reader: Reader) -> None:
    thread = threading.Thread(
        target=spawner.run, args=(["/bin/sleep", "0.5"],), kwargs={"timeout": 20}
    )
    thread.start()
    assert reader.is_link("/", rights=MINE, timeout=PATIENT) is False
    thread.join()


# --- the fake ------------------------------------------------------------------------------------


def test_fake_reader_answers_like_the_real_one() -> None:
    stuck = Unreadable("timed out after 2.0 s", stuck=True)
    fake = FakeReader({"/a": b"one\ntwo\n", "/hung": stuck})
    assert fake.read_many(["/a", "/b"], max_bytes=3) == {
        "/a": b"one",
        "/b": Unreadable("no such file", errno=2),
    }
    assert fake.read_file("/a", max_bytes=8, rights=MINE) == b"one\ntwo\n"
    assert "larger" in reason(fake.read_file("/a", max_bytes=7, rights=MINE))
    assert fake.read_tail("/a", max_bytes=4, rights=MINE) == Tail(b"two\n", 8, 0.0)
    assert fake.read_lines("/a", 2, rights=MINE) == (1, ("one", "two"))
    assert reason(fake.read_lines("/a", 3, rights=MINE)) == "no such line"
    assert fake.is_link("/a", rights=MINE) is False
    assert (
        fake.read_file("/hung", max_bytes=1, rights=MINE)
        == fake.is_link("/hung", rights=MINE)
        == stuck
    )
    fake.files["/proc/7/mem"] = b"0123456789"
    assert fake.read_memory(7, 3, max_bytes=2) == b"34"
    assert fake.stuck == ("/hung",)
    fake.close()
