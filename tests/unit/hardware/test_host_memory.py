"""Memory: what counts as used, what is foretold, and what is no leak."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.hardware.host_memory.parse import (
    Level,
    RankMemory,
    parse_group,
    parse_host,
    parse_pss,
    parse_rank,
)
from mldebug.hardware.host_memory.state import NodeMemory, alarms, judged, left_words
from mldebug.hardware.host_memory.trend import Trend
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.host_memory.reader import (
    MemoryOrder,
    MemoryWatch,
    groups_of,
)
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.host import Host
from mldebug_agents.watch.cgroups import Cgroup
from mldebug_exporters.metrics.hardware.memory import UNREADABLE, samples
from shared.system.own_names import own_name
from shared.system.patience import PATIENCE

GIB, MIB = 1 << 30, 1 << 20
STATUS = "Name:\tpython\nVmRSS:\t 9000 kB\nRssAnon:\t 1000 kB\nRssFile:\t 7000 kB\nRssShmem:\t 1000 kB\nVmSwap:\t 24 kB\n"
STAT2 = (
    "anon 1000\nfile 5000\ninactive_file 3000\nactive_file 1000\nshmem 1000\nslab_reclaimable 500\n"
)
STAT1 = "cache 5000\ninactive_file 1\ntotal_inactive_file 3000\ntotal_active_file 1000\n"


def grown(value: Callable[[float], float], seconds: int = 1200, every: int = 10) -> Trend:
    trend = Trend()
    for at in range(0, seconds, every):
        trend.add(at, value(at))
    return trend


# --- reading ---------------------------------------------------------------------------------------


def test_pages_of_files_are_no_memory_of_a_rank() -> None:
    one = parse_rank(STATUS)
    assert one is not None
    assert (one.own, one.file) == (2024 << 10, 7000 << 10)
    assert parse_rank("") is None
    assert parse_rank("VmRSS: 5 kB\n") is None  # a kernel that does not tell them apart
    assert parse_pss("0-1 ---p\nRss: 9 kB\nPss: 4 kB\nPss_Dirty: 1 kB\n") == 4096


def test_the_page_cache_of_a_group_is_not_used() -> None:
    two = parse_group(
        2,
        "/a",
        {
            "memory.max": "9000\n",
            "memory.current": "6500\n",
            "memory.stat": STAT2,
            "memory.high": "max\n",
            "memory.events": "oom 1\noom_kill 2\n",
        },
    )
    assert two == Level(scope="cgroup", name="/a", limit=9000, used=2000, cached=4500, oom_kills=2)
    one = parse_group(
        1,
        "/a",
        {"memory.limit_in_bytes": "9000", "memory.usage_in_bytes": "6500", "memory.stat": STAT1},
    )
    assert one == Level(scope="cgroup", name="/a", limit=9000, used=2500, cached=4000)


@pytest.mark.parametrize("limit", ["max", "", "9223372036854771712", "-1", "x" * 50])
def test_a_group_without_a_limit_is_none(limit: str) -> None:
    assert parse_group(2, "/", {"memory.max": limit, "memory.current": "1"}) is None


def test_the_host_tells_what_is_available() -> None:
    result = parse_host("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n")
    assert result == Level(
        scope="host", name="", limit=1000 << 10, used=400 << 10, cached=500 << 10
    )
    assert parse_host("MemTotal: 1000 kB\n") is None


def node(folder: Path, groups: str) -> Host:
    """A host with one rank, pid 7, in these groups of version 2 below /sys/fs/cgroup."""
    (folder / "proc/7").mkdir(parents=True)
    (folder / "proc/self").mkdir()
    (folder / "proc/7/cgroup").write_text(groups)
    (folder / "proc/7/status").write_text(STATUS)
    (folder / "proc/self/mountinfo").write_text(
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    )
    (folder / "proc/meminfo").write_text(
        "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 3145728 kB\n"
    )
    return Host(str(folder))


def test_every_group_above_a_rank_is_looked_at(tmp_path: Path) -> None:
    host = node(tmp_path, "0::/slurm/job_5/step_0\n")
    root = f"{tmp_path}/sys/fs/cgroup"
    assert groups_of(host, [7, 7]) == [
        Cgroup(f"{root}/slurm/job_5/step_0", "/slurm/job_5/step_0", 2),
        Cgroup(f"{root}/slurm/job_5", "/slurm/job_5", 2),
        Cgroup(f"{root}/slurm", "/slurm", 2),
        Cgroup(root, "/", 2),
    ]
    assert groups_of(host, [99]) == []


@pytest.mark.parametrize(
    ("groups", "base"),
    [("0::/../trainer.scope\n", "/"), ("0::/docker/trainer\n", "/docker/agent")],
)
def test_the_limit_of_the_agents_own_container_is_not_that_of_a_neighbour(
    tmp_path: Path, groups: str, base: str
) -> None:
    host = node(tmp_path, groups)
    (tmp_path / "proc/self/mountinfo").write_text(
        f"30 23 0:26 {base} /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    )
    assert groups_of(host, [7]) == []


def test_a_limit_that_may_not_be_read_is_not_the_same_as_none(tmp_path: Path) -> None:
    host = node(tmp_path, "0::/slurm/job_5\n")
    folder = tmp_path / "sys/fs/cgroup/slurm/job_5"
    folder.mkdir(parents=True)
    (folder / "memory.max").symlink_to("memory.max")  # whoever opens it fails, root as well
    rank = RankIdentity(rank=0, world_size=1, pid=7)
    job = Job(id="j", name="gpt", launcher="single", ranks=(rank,))
    look = MemoryWatch(host, FakeReader({})).look(MemoryOrder(jobs=(job,)))
    assert [one.level.scope for one in look.levels] == ["host"]
    [gap] = look.gaps  # /slurm and / have no such file, and no limit
    assert gap.what == "memory of cgroup /slurm/job_5"
    snapshot = Snapshot(node="n", at=1.0, started_at=0.0, memory=look)
    unread = [one for one in samples(snapshot) if one.family is UNREADABLE]
    assert [(one.labels, one.value) for one in unread] == [(("rank",), 0), (("cgroup",), 1)]


def test_what_is_over_its_limit_has_no_time_left() -> None:
    state = judged(Level(scope="cgroup", name="/job", limit=GIB, used=2 * GIB), MIB, 60.0)
    assert state.seconds_left == 0


# --- foretelling -----------------------------------------------------------------------------------


def test_linear_growth_is_foretold_within_a_tenth() -> None:
    noise = random.Random(5)
    trend = grown(lambda at: 10 * GIB + at * MIB + noise.uniform(0, 20 * MIB))
    growth = trend.growth(GIB / 100)
    assert growth == pytest.approx(MIB, rel=0.1)
    state = judged(Level(scope="host", name="", limit=12 * GIB, used=11 * GIB), growth, 1800.0)
    assert state.seconds_left == pytest.approx(1024, rel=0.1)
    assert state.alarm


def test_a_leak_under_saves_and_evaluations_is_foretold_by_its_lows() -> None:
    trend = grown(lambda at: 10 * GIB + at * MIB + (20 * GIB if at % 300 >= 200 else 0))
    assert trend.growth(GIB / 100) == pytest.approx(MIB, rel=0.2)


@pytest.mark.parametrize(
    "value",
    [
        lambda at: 10 * GIB,
        lambda at: 10 * GIB + (20 * GIB if at % 300 >= 200 else 0),  # saves
        lambda at: 10 * GIB + (at % 240) * 50 * MIB,  # a sawtooth
        lambda at: 10 * GIB + min(at, 60) * GIB,  # a data set that was loaded
        lambda at: 10 * GIB + random.Random(at).uniform(0, 5 * MIB),
        lambda at: 30 * GIB - at * MIB,
        lambda at: 10 * GIB if at < 900 else 20 * GIB,  # one step, and then nothing
    ],
)
def test_what_does_not_leak_raises_no_alarm(value: Callable[[float], float]) -> None:
    assert grown(value).growth(GIB / 100) == 0.0


def test_nothing_is_foretold_of_what_was_just_met() -> None:
    assert grown(lambda at: at * GIB, seconds=100).growth() is None
    assert judged(Level(scope="host", name="", limit=100, used=10), None, 60.0).alarm is False
    assert judged(Level(scope="host", name="", limit=100, used=96), None, 60.0).alarm is True


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(519.6, "8 min 40 s"), (12_034, "3 h 21 min"), (1_327_145, "15 d 9 h"), (0, "0 s")],
)
def test_a_forecast_is_told_no_more_exactly_than_it_is_known(seconds: float, words: str) -> None:
    assert left_words(seconds) == words


def test_an_alarm_names_the_limit_the_pace_and_who_grows() -> None:
    level = judged(
        Level(scope="cgroup", name="/job", limit=4 * GIB, used=3 * GIB), 4.0 * MIB, 600.0
    )
    memory = NodeMemory(
        levels=(level,), ranks=(RankMemory(rank=0), RankMemory(rank=3, growth=3.9 * MIB))
    )
    assert list(alarms(memory)) == [
        (
            "memory of cgroup /job: 3 GiB of 4 GiB in use, 240 MiB more a minute: out of memory in 4 min 16 s;"
            " rank 3 grows most, 234 MiB a minute"
        )
    ]


# --- watching --------------------------------------------------------------------------------------


def test_a_leak_in_a_group_is_foretold_and_a_mapped_data_set_is_not(tmp_path: Path) -> None:
    host = node(tmp_path, "0::/job\n")
    job = Job(id="j", name="j", launcher="x", ranks=(RankIdentity(rank=0, world_size=1, pid=7),))
    folder = tmp_path / "sys/fs/cgroup/job"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{GIB}\n")
    now = [0.0]
    watch = MemoryWatch(host, FakeReader({}), lambda: now[0])
    memory = NodeMemory()
    for second in range(0, 400, 10):
        now[0] = float(second)
        anon, cache = second * MIB, second * 2 * MIB
        (folder / "memory.current").write_text(f"{anon + cache}\n")
        (folder / "memory.stat").write_text(f"active_file {cache}\ninactive_file 0\n")
        (tmp_path / "proc/7/status").write_text(
            f"RssAnon: {anon >> 10} kB\nRssFile: {cache >> 10} kB\n"
        )
        memory = watch.look(MemoryOrder(jobs=(job,)))
    group = next(one for one in memory.levels if one.level.scope == "cgroup")
    assert group.growth == pytest.approx(MIB, rel=0.01)
    assert group.seconds_left == pytest.approx(1024 - 390, rel=0.05)
    assert group.alarm
    assert memory.ranks[0].growth == pytest.approx(MIB, rel=0.01)
    assert next(one for one in memory.levels if one.level.scope == "host").growth == 0.0


LEAK = """
import mmap, sys, time
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 0)
held = []
sum(mapped[::4096])
for _ in range(1000):
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.05)
"""


def test_a_real_leak_is_foretold_long_before_the_end_and_mapped_pages_are_left_out(
    tmp_path: Path,
) -> None:
    """A process that leaks 20 MiB a second and maps 200 MiB of a file: its own growth is told, without the file."""
    data = tmp_path / "data"
    data.write_bytes(b"\1" * (200 * MIB))
    child = subprocess.Popen([sys.executable, "-c", LEAK, str(data)])
    rank = RankIdentity(rank=0, world_size=1, pid=child.pid)
    order = MemoryOrder(jobs=(Job(id="j", name="j", launcher="x", ranks=(rank,)),))
    watch = MemoryWatch(Host(), FakeReader({}), least=2.0, spacing=0.1)
    try:
        until, one = time.monotonic() + 40 * PATIENCE, RankMemory()
        while time.monotonic() < until and not (one.growth and one.file > 150 * MIB):
            time.sleep(0.1)
            one = next(iter(watch.look(order).ranks), one)
    finally:
        child.kill()
        child.wait()
    assert one.growth is not None
    assert MIB < one.growth < 60 * MIB
    assert one.own < 1000 * MIB
    assert one.file > 150 * MIB


GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.host
@pytest.mark.skipif(
    not os.access(GROUPS / "tasks", os.W_OK), reason="no control groups of version 1 to make"
)
def test_the_end_of_a_real_group_is_foretold_before_the_kernel_kills(tmp_path: Path) -> None:
    group = GROUPS / own_name()
    group.mkdir()
    (tmp_path / "data").write_bytes(b"\1" * MIB)
    child = None
    try:
        (group / "memory.limit_in_bytes").write_text(str(160 * MIB))
        start = f"echo $$ > {group}/tasks && exec {sys.executable} -c '{LEAK}' {tmp_path}/data"
        child = subprocess.Popen(["sh", "-c", start])
        rank = RankIdentity(rank=0, world_size=1, pid=child.pid)
        order = MemoryOrder(
            jobs=(Job(id="j", name="j", launcher="x", ranks=(rank,)),), horizon=60.0
        )
        watch = MemoryWatch(Host(), FakeReader({}), least=2.0, spacing=0.1)
        foretold = None
        while foretold is None and child.poll() is None:
            time.sleep(0.1)
            levels = [
                one for one in watch.look(order).levels if one.level.name.endswith(group.name)
            ]
            foretold = next((one for one in levels if one.seconds_left is not None), None)
        alive = child.poll() is None
        ended = child.wait(60)
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        group.rmdir()
    assert alive
    assert ended == -9  # the kernel has killed it, later
    assert foretold is not None
    assert foretold.alarm
    assert foretold.level.limit == 160 * MIB
