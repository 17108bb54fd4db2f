"""The watch: ranks that rename themselves, become something else, vanish in the middle; jobs that are slow or many."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mldebug.config.schema import AgentConfig, Config, load_config
from mldebug.core.model import Gap
from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.stillness import RunActivity
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.flight_recorder.collector import FlightRecorderCollector
from mldebug_agents.capture.stacks.pyspy import Dump
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.capture.trace.collector import TraceCollector
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.jobs.ranks.known_issues import KnownIssueFinder
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.watch.activity import (
    COMPILER,
    ChildWork,
    Work,
    read_activity,
    work_between,
)
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.watch import NodeLook, Watch
from shared.diagnosis.builders import stack
from shared.jobs.proctree import BOOT, DirectPaths, Tree
from shared.system.hung import hung_mount, wait_until
from shared.system.patience import PATIENCE

NOW = BOOT + 3600.0
RANK = "import time; print('step 4 loss 1', flush=True); time.sleep(600)"


def world(rank: int, size: int, **more: object) -> dict[str, str]:
    """The environment of a rank that somebody started by hand."""
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
    return {key: str(value) for key, value in (values | more).items()}


class SlowPySpy:
    """Takes its time; counts whom it was asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.requests: list[int] = []

    def dump(self, pid: int, *, timeout: float) -> Dump:
        """Nothing found, late."""
        self.requests.append(pid)
        time.sleep(min(self.seconds, timeout))
        return Dump(failure="timed out")


class SeesOneStack:
    """A py-spy that finds every process in one place."""

    def dump(self, pid: int, *, timeout: float) -> Dump:
        """Its main thread, asleep."""
        return Dump(stacks=(stack("sleep_for (train.py:7)", "<module> (train.py:50)", tid=pid),))


class FakeTools:
    """Tools over a made-up /proc: the reader and the process starter are real."""

    def __init__(self, host: Host, reader: Reader, pyspy: Any = None) -> None:
        self.context = SimpleNamespace(host=host, reader=reader, node="n1", config=Config())
        self.pyspy = pyspy or SlowPySpy(0.0)
        self.finder = RankFinder(host, DirectPaths(), "n1", create_all("launchers"))
        self.known_issues = KnownIssueFinder(host, reader)
        self.flight_recorders = FlightRecorderCollector(host, reader, self.known_issues.installed)
        self.traces = TraceCollector(host, reader)

    def log_parser(self) -> LogParser:
        """Built-in formats."""
        return LogParser(create_all("logs"))

    def capturer(self) -> "FakeTools":
        """For the number of workers."""
        return self

    def workers(self) -> int:
        """As many as cores."""
        return 2


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def watch(tools: FakeTools, clock: Callable[[], float] = time.monotonic) -> Watch:
    return Watch(cast(CaptureTools, tools), clock)


class Node:
    """A made-up job of some ranks, whose stdout is one file."""

    def __init__(self, root: Path, ranks: int = 3) -> None:
        root.mkdir(exist_ok=True)
        self.tree = Tree(root)
        self.log = root / "train.log"
        self.log.write_text("step 7 loss 2\n")
        self.tree.add(50, 1, "bash", exe="/bin/bash", argv=("bash",))
        self.size = ranks
        self.pids = [self.rank(rank, 100 + rank) for rank in range(ranks)]

    def rank(self, rank: int, pid: int, **more: Any) -> int:
        """Add one rank with its descriptors and main thread."""
        environ = world(rank, self.size, MASTER_PORT=29500)
        self.tree.add(pid, 50, **{"environ": environ, **more})
        folder = self.tree.root / f"proc/{pid}"
        for name in ("fd", "fdinfo", f"task/{pid}"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "fd/1").unlink(missing_ok=True)
        (folder / "fd/1").symlink_to(self.log)
        (folder / "fdinfo/1").write_text("flags:\t0100001\nmnt_id:\t1\n")
        (folder / f"task/{pid}/stat").write_text((folder / "stat").read_text())
        return pid

    def host(self, kind: Callable[..., Host] = Host) -> Host:
        """Its /proc."""
        return kind(str(self.tree.root), lambda: NOW)


def until_job(looks: Watch, pid: int) -> JobLook:
    """The job of this pid, by the first look that gets as far: on a crowded machine some jobs are looked at next time."""
    look = looks.look()
    while any(
        job.id in look.later and pid in [one.pid for one in job.ranks] for job in look.found.jobs
    ):
        look = looks.look()
    return job_of(look, pid)


def job_of(look: NodeLook, pid: int) -> JobLook:
    return next(one for one in look.jobs if pid in [rank.pid for rank in one.job.ranks])


# --- who a rank is -------------------------------------------------------------------------------


def test_a_made_up_job_is_seen_whole(tmp_path: Path, reader: Reader) -> None:
    node = Node(tmp_path)
    (job,) = watch(FakeTools(node.host(), reader)).look().jobs
    assert [rank.rank for rank in job.look.ranks] == [0, 1, 2]
    assert (job.step, job.log, job.gaps) == (7, str(node.log), ())


def test_a_look_tells_by_when_it_had_read_the_step(tmp_path: Path, reader: Reader) -> None:
    """The log is read some time after the look begins; here the clock goes on by a second each time it is asked."""
    ticks = iter(range(10, 10_000))
    (job,) = watch(FakeTools(Node(tmp_path).host(), reader), lambda: float(next(ticks))).look().jobs
    assert job.step == 7
    assert job.step_read_at is not None
    assert job.step_read_at > job.look.at


@pytest.mark.parametrize("name", ["trainer: step 12", "pt_main_thread", ") R 1 2 3", "a\nb", ""])
def test_a_rank_that_renames_itself_is_the_same_rank(
    tmp_path: Path, reader: Reader, name: str
) -> None:
    """prctl changes the name, setproctitle also overwrites argv and what comes after it: the environment."""
    node = Node(tmp_path)
    looks = watch(FakeTools(node.host(), reader))
    before = looks.look().jobs[0].job
    node.rank(1, 101, name=name, argv=("trainer: step 12",), environ={})
    after = looks.look().jobs[0].job
    assert [rank.pid for rank in after.ranks] == node.pids
    assert after.id == before.id
    assert after.ranks[1].argv == before.ranks[1].argv


def test_a_rank_that_execs_into_something_else_is_no_rank_any_more(
    tmp_path: Path, reader: Reader
) -> None:
    node = Node(tmp_path)
    looks = watch(FakeTools(node.host(), reader))
    looks.look()
    node.rank(1, 101, name="sleep", argv=("sleep", "9"), exe="/bin/sleep", program=1)
    (job,) = looks.look().jobs
    assert [rank.rank for rank in job.look.ranks] == [0, 2]


def test_a_pid_that_came_again_between_two_looks_is_another_process(
    tmp_path: Path, reader: Reader
) -> None:
    node = Node(tmp_path)
    looks = watch(FakeTools(node.host(), reader))
    looks.look()
    node.tree.end(101)
    node.tree.add(101, 1, "sshd", exe="/usr/sbin/sshd", argv=("sshd",), start=99_000)
    (job,) = looks.look().jobs
    assert [rank.rank for rank in job.look.ranks] == [0, 2]
    assert [(lost.rank, lost.pid) for lost in job.job.lost] == [(1, 101)]


def test_a_pid_that_comes_again_during_the_look_is_not_read_as_the_rank(
    tmp_path: Path, reader: Reader
) -> None:
    node = Node(tmp_path)
    host = node.host()
    assert read_activity(host, 101, 101, 101) is not None
    node.tree.end(101)
    node.rank(1, 101, start=99_000)
    assert read_activity(host, 101, 101, 101) is None
    assert read_activity(host, 9999, 1, 9999) is None


class VanishingHost(Host):
    """A /proc whose process 101 goes away just before the n-th read of anything of it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reads = 0
        self.last = -1
        self.vanish: Callable[[], None] = lambda: None

    def _count(self, pid: int) -> None:
        if pid == 101:
            if self.reads == self.last:
                self.vanish()
            self.reads += 1

    def text(self, pid: int, name: str) -> str:
        self._count(pid)
        return super().text(pid, name)

    def link(self, pid: int, name: str) -> str:
        self._count(pid)
        return super().link(pid, name)


def reads_of_a_look(folder: Path, reader: Reader, moment: int, *, sample: bool) -> int:
    """Look twice; in the second look the rank vanishes before its read number `moment`. Return the number of reads."""
    node = Node(folder)
    host = cast(VanishingHost, node.host(VanishingHost))
    looks = watch(FakeTools(host, reader))
    first = looks.look()
    host.reads, host.last, host.vanish = 0, moment, lambda: node.tree.end(101)
    look = looks.look({job.job.id for job in first.jobs} if sample else ())
    (job,) = look.jobs
    assert {rank.rank for rank in job.look.ranks} >= {0, 2}
    assert [rank.state for rank in job.look.ranks if rank.rank != 1] == ["S", "S"]
    assert job.step == 7
    assert not [gap for gap in look.found.gaps if gap.what.startswith("run ")], look.found.gaps
    reads, host.last = host.reads, -1
    (after,) = looks.look().jobs
    assert [rank.rank for rank in after.look.ranks] == ([0, 2] if moment < reads else [0, 1, 2])
    return reads


@pytest.mark.parametrize("sample", [False, True])
def test_a_rank_may_vanish_before_any_read(tmp_path: Path, reader: Reader, sample: bool) -> None:
    moments = reads_of_a_look(tmp_path / "whole", reader, 10**6, sample=sample)
    assert moments >= 8
    for moment in range(moments):
        reads_of_a_look(tmp_path / str(moment), reader, moment, sample=sample)


@pytest.mark.parametrize(("age", "started"), [(60.0, True), (2 * 3600.0, False)])
def test_a_job_has_started_when_a_step_was_written_since_its_ranks_came(
    tmp_path: Path, reader: Reader, age: float, started: bool
) -> None:
    """So a job that hung before the agent came is one; the ranks are an hour old."""
    node = Node(tmp_path)
    os.utime(node.log, (NOW - age, NOW - age))
    (job,) = watch(FakeTools(node.host(), reader)).look().jobs
    assert (job.step, job.look.started) == (7, started)


# --- one job must not cost the others -------------------------------------------------------------


def test_a_defect_that_one_job_brings_out_does_not_hide_the_others(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    for rank in range(2):
        node.tree.add(200 + rank, 1, environ=world(rank, 2, MASTER_PORT=29600))
    tools = FakeTools(node.host(), reader)
    bad = read_activity

    def activity(host: Host, pid: int, start: int, tid: int) -> object:
        if pid == 200:
            raise ZeroDivisionError("odd")
        return bad(host, pid, start, tid)

    monkeypatch.setattr("mldebug_agents.watch.job_watch.read_activity", activity)
    look = watch(tools).look()
    assert job_of(look, 100).step == 7
    broken = job_of(look, 200)  # still listed: a run that is not listed counts as ended
    assert [rank.rank for rank in broken.look.ranks] == [0, 1]
    assert look.found.gaps[-1].reason == "ZeroDivisionError: odd"


def test_stacks_have_one_deadline_for_all_ranks_and_the_late_ones_come_first_next_time(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.watch.watch.SAMPLES_ALONE", 0.5)
    node = Node(tmp_path, ranks=12)
    pyspy = SlowPySpy(0.2)
    looks = watch(FakeTools(node.host(), reader, pyspy))
    (job,) = looks.look().jobs
    began = time.monotonic()
    look = looks.look({job.job.id})
    assert time.monotonic() - began < 3.0 * PATIENCE
    (gap,) = look.jobs[0].gaps
    assert gap.what.endswith("of 12 ranks")
    first = list(pyspy.requests)
    assert 0 < len(first) < 12
    looks.look({job.job.id})
    following = pyspy.requests[len(first) : len(first) + 2]  # two at once, in any order
    assert 100 + len(first) in following


def test_a_sample_keeps_the_last_python_frame_of_each_rank(tmp_path: Path, reader: Reader) -> None:
    looks = watch(FakeTools(Node(tmp_path, ranks=2).host(), reader, SeesOneStack()))
    (job,) = looks.look().jobs
    assert job.frames == {}
    (sampled,) = looks.look({job.job.id}).jobs
    assert sampled.frames == {0: "sleep_for (train.py:7)", 1: "sleep_for (train.py:7)"}
    assert sampled.classes.keys() == sampled.frames.keys()


def test_many_gaps_become_a_few() -> None:
    look = Watch.__module__
    module = sys.modules[look]
    gaps = module._few([Gap(what=str(n), reason="r") for n in range(100)])
    assert len(gaps) == module.MAX_GAPS + 1
    assert gaps[-1].reason == "84 more things could not be looked at"


def test_800_ranks_on_one_node(tmp_path: Path, reader: Reader) -> None:
    node = Node(tmp_path, ranks=800)
    looks = watch(FakeTools(node.host(), reader))
    looks.look()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = []
    for _ in range(4):
        began = time.thread_time()
        (job,) = looks.look().jobs
        spent.append(time.thread_time() - began)
        assert len(job.look.ranks) == 800
    assert min(spent) < 1.0  # 0.2 s on the machine of 2026: 4 % of a core at one look in 5 s
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB


# --- real processes ------------------------------------------------------------------------------


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, environ: dict[str, str], **streams: Any) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-c", code]
        started.append(
            subprocess.Popen(
                argv, env={**os.environ, **environ}, stderr=subprocess.DEVNULL, **streams
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_pattern_of_the_config_reads_a_strange_log(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """The whole way: YAML, workbench, discovery, the rank's stdout, the user's pattern."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"agent: {{state_dir: {tmp_path / 'state'}}}\n"
        "logs:\n"
        "  ours:\n"
        "    kind: regex\n"
        r"    pattern: '^>> tick<(?P<step>\d+)>.*L~(?P<loss>\S+)'" "\n"
    )  # fmt: skip
    log = tmp_path / "odd"
    code = (
        "import time\nfor n in range(10**6):\n"
        "    print(f'>> tick<{n}> zz L~{n / 2}', flush=True); time.sleep(0.05)"
    )
    with log.open("wb") as file:
        rank = start(code, world(0, 1, MASTER_PORT=29701), stdout=file)
    with open_tools(load_config(config)) as tools:
        looks = Watch(tools.capture)
        wait_until(lambda: _step(looks, rank.pid) is not None)
        first = _step(looks, rank.pid)
        assert first is not None
        wait_until(lambda: (_step(looks, rank.pid) or 0) > first)
        job = until_job(looks, rank.pid)
        assert job.loss is not None
        assert job.step == job.loss * 2
    with open_tools(
        Config(agent=AgentConfig(state_dir=tmp_path))
    ) as tools:  # nothing else reads it
        assert _step(Watch(tools.capture), rank.pid) is None


def _step(looks: Watch, pid: int) -> int | None:
    found = [one for one in looks.look().jobs if pid in [rank.pid for rank in one.job.ranks]]
    return found[0].step if found else None


def test_a_real_rank_with_another_name_and_argv(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    code = (
        "import ctypes, time, sys\n"
        "ctypes.CDLL(None).prctl(15, b'renamed')\n"
        "print('step 3 loss 1', flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        rank = start(code, world(0, 1, MASTER_PORT=29702), stdout=file)
    wait_until(lambda: Path(f"/proc/{rank.pid}/comm").read_text() == "renamed\n")
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path))) as tools:
        looks = Watch(tools.capture)
        wait_until(lambda: _step(looks, rank.pid) == 3)


def test_activity_counts_all_threads_and_tells_the_main_one_apart(
    start: Callable[..., "subprocess.Popen[bytes]"],
) -> None:
    code = (
        "import threading, time\n"
        "def spin():\n    open('/dev/null', 'wb', buffering=0).write(bytes(9000))\n    while True: pass\n"
        "open('/dev/null', 'wb', buffering=0).write(bytes(5000))\n"
        "threading.Thread(target=spin, daemon=True).start()\ntime.sleep(600)"
    )
    process = start(code, {})
    host = Host()
    ticks = host.brief(process.pid)
    assert ticks is not None

    def observed() -> tuple[float, float]:
        found = read_activity(host, process.pid, ticks.start_ticks, process.pid)
        assert found is not None
        return found.thread_cpu_seconds, found.cpu_seconds

    wait_until(lambda: observed()[1] > 0.5)
    assert observed()[0] < 0.3
    found = read_activity(host, process.pid, ticks.start_ticks, process.pid)
    assert found is not None
    assert (found.state, found.io_bytes > 0, found.switches >= 0) == ("S", True, True)
    assert 14_000 <= found.written_bytes <= found.io_bytes
    assert 5000 <= found.thread_written_bytes <= found.written_bytes - 9000


SAVES = """
import time
with open({path!r}, 'wb', buffering=0) as file:
    while True: file.seek(0); file.write(bytes({size})); time.sleep(0.1)
"""


@pytest.mark.parametrize(("size", "saves"), [(8 << 20, True), (1 << 10, False)])
def test_a_real_checkpoint_is_seen_to_grow_and_a_log_is_not(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[bytes]"], size: int, saves: bool
) -> None:
    """The whole way: /proc/PID/io, the looks at the rank, what the decision makes of them."""
    code = SAVES.format(path=str(tmp_path / "file"), size=size)
    rank = start(code, world(0, 1, MASTER_PORT=29703))
    wait_until(lambda: (tmp_path / "file").exists())
    ranks = RunActivity()
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path))) as tools:
        looks = Watch(tools.capture)
        for now in range(1, 4):
            ranks.update(until_job(looks, rank.pid).look, now)
            time.sleep(1.0)
    assert (ranks.checkpoint_moved_at(3, 10) > 0) == saves
    assert [rank.checkpoint_bytes > 0 for rank in ranks.checkpoint_writers] == [True] * saves


def test_a_look_tells_whether_the_run_goes_on_at_other_nodes(
    tmp_path: Path, reader: Reader
) -> None:
    def observed(folder: Path, size: int) -> bool:
        node = Node(folder)
        for rank, pid in enumerate(node.pids):
            here = world(rank, size, MASTER_ADDR="10.0.0.1", MASTER_PORT=29500, LOCAL_WORLD_SIZE=3)
            node.rank(rank, pid, environ=here)
        (job,) = watch(FakeTools(node.host(), reader)).look().jobs
        return job.look.elsewhere

    assert not observed(tmp_path / "one", 3)
    assert observed(tmp_path / "many", 16)


def test_what_a_child_copies_counts_for_the_rank_above_it(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    """As `aws s3 cp` of a checkpoint: hardly any CPU time, much I/O. What it read at its start is no work."""
    copy = "import time\nwith open('copy', 'wb', buffering=0) as file:\n"
    copy += "    while True: file.seek(0); file.write(bytes(1 << 20)); time.sleep(0.1)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {copy!r}])"
    rank = start(code, world(0, 1, MASTER_PORT=29703), cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "copy").exists())
        with open_tools(Config(agent=AgentConfig(state_dir=tmp_path))) as tools:
            looks = Watch(tools.capture)
            rates = []
            for _ in range(3):
                rates.append(until_job(looks, rank.pid).look.ranks[0].children_io_rate)
                time.sleep(1.0)
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
    assert rates[0] == 0.0
    assert all(1e5 < rate < 50e6 for rate in rates[1:]), rates  # 10 MB/s where it gets its turns


def test_only_children_seen_at_both_looks_have_worked() -> None:
    """A poller that starts a program again and again reads the libraries of that program again and again."""
    before = {(1, 10): Work(5.0, 1000), (2, 10): Work(9.0, 9000)}
    after = {(1, 10): Work(5.5, 1300), (2, 11): Work(1.0, 10**8), (3, 12): Work(1.0, 10**8)}
    assert work_between(before, after) == Work(0.5, 300)


def test_how_long_a_child_waited_for_a_free_cpu_counts_where_it_was_read_at_both_looks() -> None:
    slept, ready, later = (Work(5.0, 0, False, delay) for delay in (0.0, 3.0, 3.75))
    assert work_between({(1, 10): ready}, {(1, 10): later}).delay_seconds == 0.75
    assert work_between({(1, 10): slept}, {(1, 10): later}).delay_seconds == 0.0
    assert work_between({(1, 10): ready}, {(1, 10): slept}).delay_seconds == 0.0


def test_a_process_that_shares_a_cpu_waits_for_it() -> None:
    """Of three that compute on one CPU each waits for two thirds of the time; one that sleeps waits for nothing."""
    cpu, host = min(os.sched_getaffinity(0)), Host()
    programs = ("while True: pass",) * 3 + ("import time; time.sleep(60)",)
    started = [subprocess.Popen([sys.executable, "-c", one]) for one in programs]
    for one in started:
        os.sched_setaffinity(one.pid, {cpu})

    def delays() -> list[float]:
        starts = [host.brief(one.pid) for one in started]
        read = [read_activity(host, one.pid, start.start_ticks, one.pid) for one, start in zip(started, starts, strict=True) if start]  # fmt: skip
        return [one.thread_delay_seconds for one in read if one]

    try:
        time.sleep(1.0)
        before, below = delays(), ChildWork(host)
        below.work(1, [one.pid for one in started])
        time.sleep(2.0)
        waited = [new - old for old, new in zip(before, delays(), strict=True)]
        children = below.work(1, [one.pid for one in started]).delay_seconds
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert min(waited[:3]) > 0.5, waited
    assert waited[3] < 0.5, waited
    assert children > 1.5


def test_a_child_that_stands_in_the_kernel_from_one_look_to_the_next_is_blocked() -> None:
    still, worked = Work(5.0, 1000, True), Work(5.5, 1000, True)
    assert work_between({(1, 10): still}, {(1, 10): still}).blocked
    assert not work_between({(1, 10): still}, {(1, 10): worked}).blocked
    assert not work_between({(1, 10): Work(5.0, 1000)}, {(1, 10): still}).blocked
    assert not work_between({}, {(1, 10): still}).blocked


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("cc1plus", True), ("cc1", True), ("ptxas", True), ("ptxas-blackwell", True), ("cicc", True),
        ("gcc-12", True), ("g++", True), ("c++", True), ("clang++-17", True), ("ld.gold", True),
        ("ld", True), ("as", True), ("ninja", True), ("nvcc", True), ("cudafe++", True),
        ("ldm_data", False), ("ldap_sync", False), ("gccfuzz", False), ("assistant", False),
        ("python3", False), ("ninjatrader", False), ("", False),
    ],
)  # fmt: skip
def test_compilers_are_known_by_their_whole_name(name: str, compiles: bool) -> None:
    assert (COMPILER.fullmatch(name) is not None) is compiles


def test_a_log_on_a_hung_mount_costs_the_other_jobs_one_deadline(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    with hung_mount(tmp_path) as mount:
        good = tmp_path / "good.log"
        ranks = []
        for number, log in enumerate((mount.target / "a.log", mount.target / "b.log", good)):
            with log.open("wb") as file:
                job = world(0, 1, MASTER_PORT=29710 + number)
                ranks.append(start(RANK, job, stdout=file).pid)
        for name in ("source/a.log", "source/b.log", "good.log"):
            wait_until(lambda name=name: (tmp_path / name).stat().st_size > 0)  # type: ignore[misc]
        mount.hang()
        with open_tools(Config(agent=AgentConfig(state_dir=tmp_path))) as tools:
            looks = Watch(tools.capture)
            began = time.monotonic()
            look = looks.look()
            first = again = time.monotonic() - began
            for _ in range(20):  # a busy machine may not read all processes in one look
                began = time.monotonic()
                look = looks.look()
                again = time.monotonic() - began
                if {rank.pid for one in look.jobs for rank in one.job.ranks} >= {*ranks}:
                    break
            assert job_of(look, ranks[2]).step == 4
            hung = [job_of(look, pid) for pid in ranks[:2]]
            assert [job.step for job in hung] == [None, None]
            assert [job.log[:20] for job in hung] == ["no log can be read: "] * 2
            assert all(gap in look.found.gaps for job in hung for gap in job.gaps)
            assert first < 6.0 * PATIENCE  # one read is waited for (2 s), for both jobs together
            assert again < 1.9
            ours = {
                str(rank) for rank in ranks
            }  # a test beside this one may have a mount that hangs, too
            stuck = [path for path in tools.context.reader.stuck if path.split("/")[2] in ours]
            assert len(stuck) == 1
            mount.recover()
            wait_until(lambda: _step(looks, ranks[0]) == 4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount over a file")
def test_processes_whose_environment_never_answers_do_not_hide_the_others(tmp_path: Path) -> None:
    """As /proc/PID/environ of a process that is stuck with its own memory map locked."""
    with hung_mount(tmp_path) as mount, ExitStack() as stack:
        node = Node(tmp_path / "node")
        mute = [node.tree.add(60 + n, 1, environ={}) for n in range(3)]
        for pid in mute:
            environ = node.tree.root / f"proc/{pid}/environ"
            (mount.source / str(pid)).write_text(f"RANK=0\0WORLD_SIZE=1\0MASTER_PORT={pid}\0")
            subprocess.run(["mount", "--bind", mount.target / str(pid), environ], check=True)
            stack.callback(subprocess.run, ["umount", "-l", environ], check=True)
        stack.callback(mount.recover)
        mount.hang()
        config = Config(agent=AgentConfig(state_dir=tmp_path))
        with open_tools(config, root=str(node.tree.root)) as tools:
            looks = Watch(tools.capture)
            spent = []
            for _ in range(4):
                began = time.monotonic()
                look = looks.look()
                spent.append(time.monotonic() - began)
            assert job_of(look, 100).step == 7
            assert (
                spent[0] < 8.0
            )  # 3 x 2 s, but no more than 4 s and the last wait for one question
            assert spent[-1] < 1.0
            silent = {gap.pid for gap in look.found.gaps if gap.what.startswith("identity of ")}
            assert set(mute) <= silent
            mount.recover()
            wait_until(lambda: set(mute) <= _ranks(looks.look()))


def _ranks(look: NodeLook) -> set[int]:
    return {rank.pid for one in look.jobs for rank in one.job.ranks}


def test_the_watch_runs_in_any_thread(tmp_path: Path, reader: Reader) -> None:
    node = Node(tmp_path)
    looks = watch(FakeTools(node.host(), reader))
    found: list[NodeLook] = []
    thread = threading.Thread(target=lambda: found.append(looks.look()))
    thread.start()
    thread.join(20)
    assert found[0].jobs[0].step == 7
