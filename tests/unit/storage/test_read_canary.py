"""Test reads where the kernel counts nothing: what is read, with whose rights, what is slow, and what hangs harms nobody."""

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CanaryConfig, StorageConfig
from mldebug.core.model import Job, RankIdentity
from mldebug.storage.filesystems.read_canary import CanaryReads, ReadCanaryTrend, middle
from mldebug.storage.write_rates import IoCounters, RankWrites, compare
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.filesystems.mounts import UsedMount, mount_table
from mldebug_agents.storage.filesystems.read_canary import TIMEOUT, ReadCanaryCollector
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from shared.storage.nodetools import with_config
from shared.storage.slow_fuse import slow_fuse
from shared.system.hung import HungMount, hung_mount, wait_until

MIB = 1 << 20
READER = "import sys, time\nfile = open(sys.argv[1], sys.argv[2])\nprint('open', flush=True)\ntime.sleep(600)\n"


@contextmanager
def opened(path: Path, mode: str = "rb") -> Iterator[int]:
    """A process that has a file open; yields its pid."""
    command = [sys.executable, "-c", READER, str(path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process.pid
        finally:
            process.kill()


def job_of(pid: int) -> Job:
    rank = RankIdentity(rank=0, world_size=1, pid=pid, uid=os.geteuid())
    return Job(id="j", name="t", launcher="x", world_size=1, ranks=(rank,), uid=os.geteuid())


class Canaries:
    """Makes collectors for one mount each, and ends their children."""

    def __init__(self, tools: NodeTools) -> None:
        self._tools = tools
        self._made: list[ReadCanaryCollector] = []

    def of(
        self, folder: Path, pid: int, counted: Collection[str] = (), *, reads: bool = True
    ) -> ReadCanaryCollector:
        mount = procfs.mount_of(mount_table(Host(), "self"), str(folder))
        assert mount is not None
        used = UsedMount(mount=mount, path=os.fsencode(folder), ranks={pid}, owners={1002})
        config = Config(storage=StorageConfig(canary=CanaryConfig(reads=reads)))
        context = with_config(self._tools.context, config)
        part = ReadCanaryCollector(context, lambda: (used,), lambda: counted, lambda *_: 0.0)
        self._made.append(part)
        return part

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture
def canaries() -> Iterator[Canaries]:
    with open_tools(Config()) as tools, closing(Canaries(tools)) as made:
        yield made


def device_of(folder: Path) -> str:
    number = os.stat(folder).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def read_seconds(part: ReadCanaryCollector) -> float:
    return next(one.value for one in part.samples() if one.labels[-1] == "read")


@contextmanager
def data(tmp_path: Path) -> Iterator[tuple[HungMount, int]]:
    """A FUSE mount with a file that a process has open for reading; yields its pid, too."""
    with hung_mount(tmp_path) as mount:
        (mount.source / "shard").write_bytes(os.urandom(MIB))
        with opened(mount.target / "shard") as pid:
            yield mount, pid


def test_it_reads_nowhere_unless_told_so(canaries: Canaries, tmp_path: Path) -> None:
    assert Config().storage.canary.reads is False
    with data(tmp_path) as (mount, pid):
        part = canaries.of(mount.target, pid, reads=False)
        part.look(1.0, [job_of(pid)])
        assert not list(part.samples())
        assert part.status() == {}


def test_no_command_reads() -> None:
    with open_tools(Config()) as tools:
        every = storage_collectors(tools.context, tools.filesystem_probe, canary=True)
        plain = storage_collectors(tools.context, tools.filesystem_probe)
    assert {one.name for one in every} - {one.name for one in plain} == {"test_reads", "canary"}


def test_a_block_of_an_open_file_is_read_past_the_caches_and_told(canaries: Canaries, tmp_path: Path) -> None:  # fmt: skip
    with data(tmp_path) as (mount, pid):
        (mount.target / "shard").read_bytes()  # all of it is in the page cache
        part = canaries.of(mount.target, pid)
        part.look(1.0, [job_of(pid)])
        assert part.gaps() == ()
        kinds = {one.labels[-1]: one for one in part.samples()}
        assert set(kinds) == {"read", "open", "metadata"}
        assert kinds["read"].uids == (1002,)
        (row,) = part.status()["test_reads"]
        assert str(row["line"]).startswith(f"{mount.target} ({mount.source}): 64 KiB read in ")


def test_how_long_a_read_takes_is_measured(canaries: Canaries, tmp_path: Path) -> None:
    with slow_fuse(tmp_path, MIB, 0.01) as (folder, delay), opened(folder / "shard") as pid:
        part = canaries.of(folder, pid)
        part.look(1.0, [job_of(pid)])
        assert read_seconds(part) >= 0.01
        delay.write_text("0.2")
        part.look(2.0, [job_of(pid)])
        assert read_seconds(part) >= 0.2
        (row,) = part.status()["test_reads"]
        assert str(row["line"]).startswith(f"{folder} (bucket): 64 KiB read in 2")


def test_what_the_kernel_counts_and_what_is_local_or_written_is_not_read(canaries: Canaries, tmp_path: Path) -> None:  # fmt: skip
    with data(tmp_path) as (mount, pid):
        counted = canaries.of(mount.target, pid, (device_of(mount.target),))
        counted.look(1.0, [job_of(pid)])
        assert counted.status() == {}
        with opened(mount.target / "ckpt", "wb") as writer:
            written = canaries.of(mount.target, writer)
            written.look(1.0, [job_of(writer)])
            assert written.status() == {}
        (tmp_path / "local").write_bytes(bytes(MIB))
        with opened(tmp_path / "local") as local:
            near = canaries.of(tmp_path, local)
            near.look(1.0, [job_of(local)])
            assert near.status() == {}


def test_a_read_that_hangs_is_told_is_not_repeated_and_is_forgiven(canaries: Canaries, tmp_path: Path) -> None:  # fmt: skip
    with data(tmp_path) as (mount, pid):
        part = canaries.of(mount.target, pid)
        part.look(1.0, [job_of(pid)])
        assert list(part.alarms()) == []
        mount.hang()
        part.look(2.0, [job_of(pid)])
        (alert,) = part.alarms()
        assert (alert.kind, alert.uids) == ("canary_stuck", (1002,))
        begun = time.monotonic()
        part.look(3.0, [job_of(pid)])
        assert time.monotonic() - begun < TIMEOUT / 2
        (again,) = part.alarms()
        assert again.kind == "canary_stuck"
        mount.recover()
        wait_until(lambda: part.look(4.0, [job_of(pid)]) or not list(part.alarms()))


def test_files_of_a_rank_that_has_ended_are_read_no_more(
    canaries: Canaries, tmp_path: Path
) -> None:
    with data(tmp_path) as (mount, pid):
        part = canaries.of(mount.target, pid)
        part.look(1.0, [job_of(pid)])
        assert part.status()
        trend = read_seconds(part)
        part.look(2.0, [])
        assert read_seconds(part) == trend


# --- what is slow ------------------------------------------------------------------------------------


def reads(seconds: float) -> CanaryReads:
    return CanaryReads(0.001, 0.001, seconds, 65536)


def usual(trend: ReadCanaryTrend, looks: int = 30, moved: float = 40.0 * MIB) -> float:
    for look in range(looks):
        trend.add(20.0 * look, reads(0.003 + 0.001 * (look % 3)), moved)
    return 20.0 * looks


def test_reads_that_take_long_three_times_in_a_row_are_slow() -> None:
    trend = ReadCanaryTrend(20.0)
    at = usual(trend)
    for look in range(2):
        trend.add(at + 20.0 * look, reads(0.048), 3.0 * MIB)
        assert not list(trend.slow(at + 20.0 * look))
    trend.add(at + 40.0, reads(0.048), 3.0 * MIB)
    (slow,) = trend.slow(at + 40.0)
    assert slow.sentence("/data (s3)").startswith(
        "reads of /data (s3) take 48 ms instead of 4 ms since "
    )
    assert "MiB/s" not in slow.sentence("/data (s3)")


def test_rare_looks_are_in_a_row_as_well() -> None:
    trend = ReadCanaryTrend(600.0)
    for look in range(33):
        trend.add(600.0 * look, reads(0.003 if look < 30 else 0.05), 0.0)
    assert [one.kind for one in trend.slow(600.0 * 32)] == ["read"]


@pytest.mark.parametrize("moved", [80.0, 400.0])
def test_while_the_job_itself_moves_much_more_a_long_read_is_no_fault(moved: float) -> None:
    trend = ReadCanaryTrend(20.0)
    at = usual(trend)
    for look in range(6):
        trend.add(at + 20.0 * look, reads(0.048), moved * MIB)
    assert not list(trend.slow(at + 100.0))


def test_the_middle_of_three_reads_counts_so_one_long_one_is_nothing() -> None:
    assert middle([(1, 1, 9, 10), (1, 1, 1, 10), (2, 1, 1, 10)]) == CanaryReads(1, 1, 1, 10)
    assert middle([]) is None


def test_the_line_has_throughput_and_what_is_usual() -> None:
    trend = ReadCanaryTrend(20.0)
    usual(trend)
    trend.add(900.0, reads(0.004), 0.0)
    assert trend.line("/data (s3)") == (
        "/data (s3): 64 KiB read in 4 ms (15.6 MiB/s), opened in 1 ms, found in 1 ms; usually read in 4 ms"
    )


def test_what_ranks_read_a_second_is_counted_for_those_that_lived_all_the_time() -> None:
    before = RankWrites(job="j", rank=0, at=0.0, bytes={}, calls={(1, 1): IoCounters(100, 0)})
    now = RankWrites(job="j", rank=0, at=2.0, bytes={}, calls={(1, 1): IoCounters(500, 0), (2, 2): IoCounters(10**9, 0)})  # fmt: skip
    assert compare(before, now, 0).read_rate == 200
