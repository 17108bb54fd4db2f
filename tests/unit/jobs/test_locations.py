"""logs: where the output of real processes goes, and of those that no test machine has."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from mldebug.core.model import OpenFile, ProcessState
from mldebug_agents.jobs.logs.locations import LogFinder, RankLogs, container_marks
from mldebug_agents.jobs.logs.pipes import (
    FORGOTTEN_AFTER,
    LONG,
    MOST_SECONDS,
    PAUSE,
    Effort,
    PipeReaders,
    UnreadPipes,
)
from mldebug_agents.system.host import Host
from shared.system.hung import wait_until

SLEEPER = "import time; print('step 1 loss 1', flush=True); time.sleep(600)"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def run(argv: Sequence[str], **streams: object) -> "subprocess.Popen[bytes]":
            process = stack.enter_context(subprocess.Popen(argv, **streams))  # type: ignore[call-overload]
            stack.callback(process.kill)
            return process  # type: ignore[no-any-return]

        yield run


def find(pid: int) -> RankLogs:
    host = Host()
    state = host.process_state(pid, threads=False, files=True)
    assert state is not None
    return LogFinder(host).find(state, ())


def test_a_file_of_its_own(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "out"
    with log.open("wb") as file:
        rank = start([sys.executable, "-c", SLEEPER], stdout=file, stderr=file)
    (place,) = find(rank.pid).places
    assert (place.kind, place.target, place.pid) == ("stdout", str(log), rank.pid)
    assert place.path == f"/proc/{rank.pid}/fd/1"
    assert place.inode in (0, log.stat().st_ino)
    assert place.fstype
    assert place.parsed


def test_stdout_and_stderr_apart(start: Start, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as out, (tmp_path / "b").open("wb") as err:
        rank = start([sys.executable, "-c", SLEEPER], stdout=out, stderr=err)
    assert [place.kind for place in find(rank.pid).places] == ["stdout", "stderr"]


def test_a_deleted_file_is_still_found(start: Start, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as out:
        rank = start([sys.executable, "-c", SLEEPER], stdout=out, stderr=out)
    (tmp_path / "a").unlink()
    assert find(rank.pid).places[0].target.endswith("(deleted)")


@pytest.mark.parametrize("hops", [1, 2])
def test_through_tee_in_a_shell_pipeline(start: Start, tmp_path: Path, hops: int) -> None:
    log, mark = tmp_path / "train.log", tmp_path / "pid"
    through = "cat | " * (hops - 1)
    script = f"'{sys.executable}' -c \"import os; open('{mark}', 'w').write(str(os.getpid())); {SLEEPER}\""
    start(
        ["/bin/sh", "-c", f"{script} 2>&1 | {through}tee {log} > /dev/null"],
        start_new_session=True,
    )
    wait_until(lambda: mark.exists() and log.exists() and log.stat().st_size > 0)
    rank = int(mark.read_text())
    try:
        (place,) = find(rank).places
        assert (place.kind, place.target) == ("reader", str(log))
        assert place.via.startswith("tee (pid ")
    finally:
        os.kill(rank, 9)  # the others end with it


def test_through_a_launcher_that_copies_to_its_own_stdout(start: Start, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=-1)\n"
        "print(child.pid, flush=True)\n"
        "for line in child.stdout: print(line.decode(), end='', flush=True)\n"
    )
    log = tmp_path / "job.out"
    with log.open("wb") as file:
        launcher = start([sys.executable, "-c", code, SLEEPER], stdout=file, stderr=file)
    wait_until(lambda: b"step 1" in log.read_bytes())
    rank = int(log.read_text().split()[0])
    try:
        place = find(rank).places[0]
        assert (place.target, place.pid) == (str(log), launcher.pid)
        assert place.kind == "reader"
    finally:
        os.kill(rank, 9)


def test_a_pipe_to_someone_who_writes_nothing_says_so(start: Start) -> None:
    rank = start([sys.executable, "-c", SLEEPER], stdout=-1, stderr=subprocess.DEVNULL)
    wait_until(lambda: rank.stdout is not None and rank.stdout.readline() != b"")
    logs = find(rank.pid)
    me = Path("/proc/self/comm").read_text().strip()
    if not logs.places:  # else the test runner itself writes to a file
        assert f"stdout is a pipe read by {me} (pid {os.getpid()}), which writes" in logs.reason
        assert "stderr is /dev/null" in logs.reason


def test_null_terminal_and_a_named_log(start: Start, tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        rank = start([sys.executable, "-c", SLEEPER], stdout=slave, stderr=subprocess.DEVNULL)
        logs = find(rank.pid)
        assert logs.places == ()
        assert logs.reason.startswith("no log found: stdout is a terminal (/dev/pts/")
        code = f"f = open({str(tmp_path / 'my.log')!r}, 'w'); print('on', flush=True); {SLEEPER}"
        other = start([sys.executable, "-c", code], stdout=slave, stderr=slave)
        wait_until(lambda: bool(find(other.pid).places))
        (place,) = find(other.pid).places
        assert (place.kind, place.target) == ("named", str(tmp_path / "my.log"))
    finally:
        os.close(master)
        os.close(slave)


# --- nodes that are made up ----------------------------------------------------------------------


class Node(Host):
    """Processes as data."""

    def __init__(self, root: Path, *states: ProcessState, cgroup: str = "") -> None:
        super().__init__(str(root))
        self.states = {state.pid: state for state in states}
        for state in states:
            folder = root / "proc" / str(state.pid)
            folder.mkdir(parents=True)
            fields = " ".join([state.state or "S", str(state.ppid), *["0"] * 48])
            (folder / "stat").write_text(f"{state.pid} ({state.name}) {fields}")
            (folder / "cgroup").write_text(cgroup)
            (folder / "fd").mkdir()
            for file in state.files:
                (folder / "fd" / str(file.fd)).symlink_to(file.target)

    def process_state(
        self, pid: int, *, threads: bool = True, files: bool = False, kernel_stacks: bool = False
    ) -> ProcessState | None:
        return self.states.get(pid)


def process(pid: int, ppid: int, name: str, *files: tuple[int, str, str, str]) -> ProcessState:
    opened = tuple(OpenFile(fd=fd, target=to, kind=kind, mode=mode) for fd, to, kind, mode in files)
    return ProcessState(pid=pid, ppid=ppid, name=name, state="S", files=opened)


RANK = process(10, 5, "python3", (1, "pipe:[7]", "pipe", "w"), (2, "pipe:[7]", "pipe", "w"))


def test_slurmstepd_writes_the_file_of_the_batch_job(tmp_path: Path) -> None:
    step = process(
        5, 2, "slurmstepd", (4, "/var/log/slurm/slurmd.log", "file", "w"), (8, "pipe:[7]", "pipe", "r"),
        (9, "/home/bob/slurm-12.out", "file", "w"),
    )  # fmt: skip
    (place,) = LogFinder(Node(tmp_path, step, RANK)).find(RANK).places
    assert (place.target, place.via) == ("/home/bob/slurm-12.out", "slurmstepd (pid 5)")


def test_slurmstepd_that_hands_on_to_srun(tmp_path: Path) -> None:
    step = process(5, 2, "slurmstepd", (8, "pipe:[7]", "pipe", "r"))
    srun = process(30, 2, "srun", (5, "/home/bob/job.log", "file", "w"))
    (place,) = LogFinder(Node(tmp_path, step, srun, RANK)).find(RANK).places
    assert place.target == "/home/bob/job.log"
    assert place.via == "slurmstepd (pid 5), srun (pid 30)"


POD = "0e3a1b2c-1111-2222-3333-444455556666"
CGROUP = f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'ab' * 32}.scope\n"


def test_containerd_writes_the_log_of_the_pod(tmp_path: Path) -> None:
    shim = process(
        5, 1, "containerd-shim", (8, "pipe:[7]", "pipe", "r"), (9, "/run/containerd/fifo/1/x-stdout", "file", "w"),
    )  # fmt: skip
    daemon = process(
        3, 1, "containerd", (20, "/var/log/pods/a_other_99/main/0.log", "file", "w"),
        (21, f"/var/log/pods/ml_train_{POD}/main/0.log", "file", "w"),
    )  # fmt: skip
    node = Node(tmp_path, daemon, shim, RANK, cgroup=CGROUP)
    (tmp_path / "proc/3/cgroup").write_text("0::/system.slice/containerd.service\n")
    (place,) = LogFinder(node).find(RANK).places
    assert (place.kind, place.target) == ("container", f"/var/log/pods/ml_train_{POD}/main/0.log")


@pytest.mark.parametrize(("namespace", "kinds"), [("", ["container"]), ("pid:[9]", [])])
def test_root_of_a_container_that_calls_itself_a_runtime_writes_no_log_of_another_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, kinds: list[str]
) -> None:
    """In a container without a name (systemd-nspawn, unshare) it was believed: what it wrote were the last words of another's rank."""
    shim = process(5, 1, "containerd-shim", (8, "pipe:[7]", "pipe", "r"))
    liar = process(6, 1, "containerd", (3, f"/tmp/{POD}.log", "file", "w"))
    node = Node(tmp_path, liar, shim, RANK, cgroup=CGROUP)
    (tmp_path / "proc/6/cgroup").write_text("0::/\n")
    monkeypatch.setattr(Node, "pid_namespace", lambda _, pid: namespace if pid == 6 else "")
    assert [place.kind for place in LogFinder(node).find(RANK).places] == kinds


def test_container_marks() -> None:
    assert container_marks(CGROUP) == (POD, "ab" * 6)
    assert container_marks("0::/user.slice\n") == ()


def test_root_of_a_container_gives_no_group_below_it_the_name_of_another_s() -> None:
    """Where it may make control groups, it got the log of the pod, or the container, whose name it gave to one."""
    other = "11111111-1111-2222-3333-444455556666"
    for named in (f"pod{other}", f"kubepods-pod{other.replace('-', '_')}.slice", "cd" * 32, f"docker-{'cd' * 32}.scope"):  # fmt: skip
        assert container_marks(f"{CGROUP.strip()}/{named}\n") == (POD, "ab" * 6)
        docker = f"0::/system.slice/docker-{'ab' * 32}.scope"
        assert "cd" * 6 not in container_marks(f"{docker}/{named}\n")
        assert "ab" * 6 in container_marks(f"{docker}/{named}\n")


def test_a_runtime_inside_of_a_container_writes_the_logs_of_those_inside() -> None:
    outer = f"0::/system.slice/docker-{'ab' * 32}.scope"
    inner = f"{outer}/docker/{'cd' * 32}\n"
    assert container_marks(inner, f"{outer}/init.scope\n") == ("cd" * 6,)
    assert container_marks(inner, "0::/system.slice/docker.service\n") == ("ab" * 6,)
    assert container_marks(inner, f"0::/system.slice/docker-{'ee' * 32}.scope\n") == ()


def test_a_stranger_reads_the_pipe(tmp_path: Path) -> None:
    tee = process(77, 1, "tee", (0, "pipe:[7]", "pipe", "r"), (3, "/data/x", "file", "w"))
    (place,) = LogFinder(Node(tmp_path, tee, RANK)).find(RANK).places
    assert place.target == "/data/x"


def test_everybody_is_searched_for_a_reader_once_a_minute_only(tmp_path: Path) -> None:
    """Of a rank in a container who reads its pipe is often outside: it was searched for at each look, 1.3 % of a core."""
    now = [0.0]
    unread = UnreadPipes(lambda: now[0])
    LogFinder(Node(tmp_path / "a", RANK), unread).find(RANK)
    tee = process(77, 1, "tee", (0, "pipe:[7]", "pipe", "r"), (3, "/data/x", "file", "w"))
    node = Node(tmp_path / "b", tee, RANK)
    assert not LogFinder(node, unread).find(RANK).places
    now[0] += FORGOTTEN_AFTER
    (place,) = LogFinder(node, unread).find(RANK).places
    assert place.target == "/data/x"


def test_who_holds_the_writing_end_alone_is_not_looked_at() -> None:
    """Hundreds of processes may share the stdout of a container, and the reader of it is outside."""
    receive, send = os.pipe()
    pipe, host = f"pipe:[{os.fstat(send).st_ino}]", Host()
    sleep = "import time; time.sleep(60)"
    writer = subprocess.Popen([sys.executable, "-c", sleep], stdout=send)
    reader = subprocess.Popen([sys.executable, "-c", sleep], stdin=receive)
    readers = PipeReaders(host)
    looked: list[int] = []
    state = readers.state
    readers.state = lambda pid: looked.append(pid) or state(pid)  # type: ignore[method-assign, func-returns-value]  # fmt: skip
    assert reader.pid in readers._strangers(pipe, os.getuid(), lambda: True)
    assert writer.pid not in looked
    for one in (writer, reader):
        one.kill()
        one.wait()
    os.close(receive)
    os.close(send)


def test_a_search_that_takes_long_ends_and_others_have_time_of_their_own(tmp_path: Path) -> None:
    """Each of thousands of processes may have thousands of pipes open; what was found in time counts."""
    now = [0.0]

    class Slow(Node):
        """Half a second for each process."""

        def process_state(self, pid: int, **what: bool) -> ProcessState | None:
            now[0] += MOST_SECONDS / 2
            return super().process_state(pid, **what)

    crowd = [process(100 + one, RANK.ppid, "x", (0, "pipe:[9]", "pipe", "r")) for one in range(50)]
    node = Slow(tmp_path, *crowd, RANK)
    readers = PipeReaders(node, effort=lambda: Effort(lambda: now[0], lambda: now[0]))
    assert readers.readers_of("pipe:[7]", RANK) == ()
    assert now[0] <= 2 * MOST_SECONDS
    before = now[0]
    assert readers.readers_of("pipe:[8]", RANK) == ()
    assert now[0] == before
    node.belongs_to = lambda _: (1, "another")  # type: ignore[method-assign]
    assert readers.readers_of("pipe:[9]", RANK)


def test_after_a_long_search_there_is_a_pause(tmp_path: Path) -> None:
    """A rank may take another pipe before each look."""
    now = [0.0]

    class Slow(Node):
        def process_state(self, pid: int, **what: bool) -> ProcessState | None:
            now[0] += LONG
            return super().process_state(pid, **what)

    tee = process(77, RANK.ppid, "tee", (0, "pipe:[7]", "pipe", "r"))
    node, unread = Slow(tmp_path, tee, RANK), UnreadPipes(lambda: now[0])
    effort = partial(Effort, lambda: now[0], lambda: now[0])
    look = lambda: PipeReaders(node, unread, effort).readers_of("pipe:[7]", RANK)  # fmt: skip
    assert look() == (77,)
    assert look() == ()
    now[0] += PAUSE * MOST_SECONDS
    assert look() == (77,)


@pytest.mark.parametrize(("passed", "found"), [(0.9, True), (1.1, False), (3.0, False)])
def test_a_crowded_node_makes_no_search_a_long_one(
    tmp_path: Path, passed: float, found: bool
) -> None:
    """Others have the cores meanwhile: a pause of 20 s followed where a search took a second, of which it worked for a twentieth."""
    now, used = [0.0], [0.0]

    class Crowded(Node):
        def process_state(self, pid: int, **what: bool) -> ProcessState | None:
            if pid == 77:
                now[0], used[0] = now[0] + passed, used[0] + 0.05
            return super().process_state(pid, **what)

    tee = process(77, RANK.ppid, "tee", (0, "pipe:[7]", "pipe", "r"))
    node, unread = Crowded(tmp_path, tee, RANK), UnreadPipes(lambda: now[0])
    effort = partial(Effort, lambda: now[0], lambda: used[0])
    look = lambda: PipeReaders(node, unread, effort).readers_of("pipe:[7]", RANK)  # fmt: skip
    assert look() == (77,)
    assert look() == ((77,) if found else ())


def test_a_relative_who_reads_the_pipe_is_always_found(tmp_path: Path) -> None:
    unread = UnreadPipes()
    LogFinder(Node(tmp_path / "a", RANK), unread).find(RANK)
    step = process(
        5, 2, "slurmstepd", (8, "pipe:[7]", "pipe", "r"), (4, "/data/slurm-1.out", "file", "w")
    )
    (place,) = LogFinder(Node(tmp_path / "b", step, RANK), unread).find(RANK).places
    assert place.target == "/data/slurm-1.out"


def test_pipes_in_a_circle_end(tmp_path: Path) -> None:
    one = process(5, 1, "a", (0, "pipe:[7]", "pipe", "r"), (1, "pipe:[8]", "pipe", "w"))
    two = process(6, 1, "b", (0, "pipe:[8]", "pipe", "r"), (1, "pipe:[7]", "pipe", "w"))
    logs = LogFinder(Node(tmp_path, one, two, RANK)).find(RANK)
    assert logs.places == ()
    assert "whose stdout is a pipe" in logs.reason


def test_the_stderr_of_a_launcher_is_found_beside_the_pipe_it_writes_to(tmp_path: Path) -> None:
    launcher = process(
        5, 1, "mpirun", (0, "pipe:[7]", "pipe", "r"), (1, "pipe:[8]", "pipe", "w"), (2, "/e", "file", "w")
    )  # fmt: skip
    tee = process(
        6, 1, "tee", (0, "pipe:[8]", "pipe", "r"), (2, "/shell", "file", "w"), (3, "/t", "file", "w")
    )  # fmt: skip
    logs = LogFinder(Node(tmp_path, launcher, tee, RANK)).find(RANK)
    assert [place.target for place in logs.places] == ["/e", "/t"]


def test_the_launcher_s_own_output_is_the_last_resort(tmp_path: Path) -> None:
    rank = process(10, 5, "python3", (1, "/dev/null", "device", "w"))
    launcher = process(5, 1, "torchrun", (1, "/data/launch", "file", "w"))
    (place,) = LogFinder(Node(tmp_path, launcher, rank)).find(rank, [launcher]).places
    assert (place.kind, place.target) == ("launcher", "/data/launch")


def test_an_event_file_alone_is_no_log(tmp_path: Path) -> None:
    events = "/runs/events.out.tfevents.1.host"
    rank = process(
        10, 5, "python3", (1, "/dev/null", "device", "w"), (7, events, "file", "w"), (2, "socket:[3]", "socket", "rw")
    )  # fmt: skip
    logs = LogFinder(Node(tmp_path, rank)).find(rank)
    assert [place.kind for place in logs.places] == ["tensorboard"]
    assert logs.reason == "no log found: stdout is /dev/null; stderr is a socket (socket:[3])"
    jsonl = process(11, 5, "python3", (1, "/dev/null", "device", "w"), (7, "/m.jsonl", "file", "w"))
    assert LogFinder(Node(tmp_path / "b", jsonl)).find(jsonl).places[0].kind == "named"


def test_a_process_that_we_may_not_look_at(tmp_path: Path) -> None:
    hidden = process(10, 5, "python3")
    assert "may not be read" in LogFinder(Node(tmp_path, hidden)).find(hidden).reason
    logs = LogFinder(Node(tmp_path / "b", RANK)).find(RANK)
    assert "no process we may look at reads" in logs.reason
