"""Storage that answers slowly: counters as the kernel writes them, what is slow and what is ordinary, and a real disk that is slowed down."""

import mmap
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import StorageConfig
from mldebug.core.model import Job, RankIdentity
from mldebug.storage.filesystems.latency import FilesystemLatency, latency_line
from mldebug.storage.filesystems.mmpmon import mmpmon_counts
from mldebug.storage.filesystems.operation_counters import (
    OperationCount,
    block_counts,
    lustre_counts,
    nfs_counts,
    pressure_seconds,
)
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.filesystems.latency import LatencyCollector
from mldebug_agents.storage.filesystems.mounts import UsedMount
from mldebug_agents.system.procfs import Mount
from shared.storage.disks import slow_disk

EVERY = 15.0
MIB = 1 << 20

# --- counters ----------------------------------------------------------------------------------------

MOUNTSTATS = """\
device /dev/vda mounted on / with fstype ext4
device nfs01:/export mounted on /data\\040sets with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576
	age:	7200
	bytes:	1 2 3 4 5 6 7 8
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	tcp 0 0 2 0 11 900 900 0 900 0 2 0 0
	per-op statistics
	        NULL: 1 1 0 44 24 0 0 0 0
	        READ: 400 400 0 80000 419430400 20 1180 1200 0
	       WRITE: 10 10 0 1048576 1600 0 118 120 0
	        OPEN: 40 40 0 9600 16000 0 38 40 3
	     GETATTR: 100 100 0 20000 24000 0 48 50 0
	      LOOKUP: 100 100 0 20000 24000 0 48 50 20
	      LAYOUT: x
device nfs02:/home mounted on /home with fstype nfs statvers=1.0
	per-op statistics
	        READ: 5 5 0 500 5000 0 9 10
"""
LUSTRE = """\
snapshot_time             1700000000.123 secs.nsecs
read_bytes                34 samples [bytes] 4096 1048576 33554432
write_bytes               10 samples [bytes] 0 1048576 1048576 1099511627776
read                      34 samples [usecs] 40 9000 102000 99999999
write                     10 samples [usec] 40 9000 50000
open                      57 samples [usecs] 20 300 5700
getattr                   3 samples [usecs] 1 2 6
close                     57 samples [regs]
"""


def test_nfs_counts_by_mount_point() -> None:
    found = nfs_counts(MOUNTSTATS)
    assert set(found) == {"/data sets", "/home"}
    assert found["/data sets"] == {
        "read": OperationCount(400, 1.2, 419430400),
        "write": OperationCount(10, 0.12, 1048576),
        "open": OperationCount(40, 0.04),
        "metadata": OperationCount(200, 0.1),
    }
    assert found["/home"] == {"read": OperationCount(5, 0.01, 5000)}


def test_lustre_counts_only_what_has_times() -> None:
    assert lustre_counts(LUSTRE) == {
        "read": OperationCount(34, 0.102, 33554432),
        "write": OperationCount(10, 0.05, 1048576),
        "open": OperationCount(57, 0.0057),
        "metadata": OperationCount(3, 6e-6),
    }


LUSTRE_2_12 = """\
snapshot_time             1637627183.394337 secs.usecs
dirty_pages_hits          76 samples [regs]
read_bytes                299768458 samples [bytes] 0 4194304 6895163247966
write_bytes               10208130 samples [bytes] 1 4194304 10917616761706 -4366299781827334380
osc_read                  1029 samples [bytes] 4096 1048576 1073762304
open                      57 samples [regs]
close                     55 samples [reqs]
getattr                   300 samples [regs]
statfs                    17 samples [regs]
inode_permission          5120 samples [regs]
"""


def test_lustre_before_2_13_counts_operations_and_bytes_without_times() -> None:
    """As on GPFS: throughput is known, and how long an operation takes is not. Squares of sums may have run over."""
    assert lustre_counts(LUSTRE_2_12) == {
        "read": OperationCount(299768458, 0.0, 6895163247966, timed=False),
        "write": OperationCount(10208130, 0.0, 10917616761706, timed=False),
        "open": OperationCount(57, timed=False),
        "metadata": OperationCount(372, timed=False),
    }


def test_what_a_timed_kind_of_lustre_counts_without_times_is_left_out() -> None:
    """A mean would be too small otherwise."""
    text = "getattr 3 samples [usecs] 1 2 6\nclose 900 samples [regs]\nread 0 samples [usec]\nread_bytes 5 samples [bytes] 1 2 10\n"
    assert lustre_counts(text) == {
        "metadata": OperationCount(3, 6e-6),
        "read": OperationCount(5, 0.0, 10, timed=False),
    }


def test_lustre_of_newer_servers_begins_with_more_times() -> None:
    """The form of 2.15 and later: squares of the sums behind, and operations that are none of ours."""
    text = """\
snapshot_time             1783960164.279418700 secs.nsecs
start_time                1783705564.331211471 secs.nsecs
elapsed_time              254599.948207229 secs.nsecs
read_bytes                10 samples [bytes] 4096 1048576 5242880 9223372036854775807
read                      10 samples [usecs] 210 9100 31000 99123456
statfs                    16977 samples [usecs] 2 3904 16809097 16988546393
inode_permission          5 samples [usecs] 2 3137 3657 10096913
getxattr                  2 samples [usecs] 594 796 1390 986452
ioctl                     3 samples [reqs]
"""
    found = lustre_counts(text)
    assert found["read"] == OperationCount(10, 0.031, 5242880)
    assert set(found) <= {"read", "metadata"}


def test_block_devices_count_sectors_of_512_bytes() -> None:
    line = "  100  0  800  300  7  1  64  14  0  310  314  0 0 0 0 0 0\n"
    assert block_counts(line) == {
        "read": OperationCount(100, 0.3, 409600),
        "write": OperationCount(7, 0.014, 32768),
    }


@pytest.mark.parametrize("read", [nfs_counts, lustre_counts, block_counts])
def test_what_is_no_such_file_counts_nothing(read: Callable[[str], object]) -> None:
    digits = "9" * 5000
    for text in ("", "\0" * 99, "x " * 9, "1 2 3", f"{digits} " * 8, f"\t READ: {digits}", "device", f"read {digits} samples [usecs] 1 2 3"):  # fmt: skip
        found = read(text)
        assert not found or read is block_counts


# --- what is slow ------------------------------------------------------------------------------------


class Disk:
    """The counters of one filesystem, read every 15 seconds."""

    def __init__(self, kind: str = "read") -> None:
        self.kind, self.at = kind, 0.0
        self.latency = FilesystemLatency()
        self.counts = {kind: OperationCount()}
        self.latency.add(self.at, self.counts)

    def window(
        self, milliseconds: float, operations: int = 300, size: int = MIB, kind: str = ""
    ) -> list[str]:
        """One window; returns the sentences of what is slow."""
        self.at += EVERY
        self.more(milliseconds, operations, size, kind or self.kind)
        self.latency.add(self.at, self.counts)
        return [one.sentence("/data (nfs01:/data)") for one in self.latency.slow(self.at)]

    def more(self, milliseconds: float, operations: int, size: int, kind: str) -> None:
        before = self.counts.get(kind, OperationCount())
        self.counts = self.counts | {
            kind: before.plus(operations, operations * milliseconds / 1000, operations * size)
        }

    def usual(self, windows: int = 40, milliseconds: float = 3.0, **more: int) -> "Disk":
        for _ in range(windows):
            assert self.window(milliseconds, **more) == []
        return self


def test_reads_that_take_long_are_told_with_what_is_usual_and_since_when() -> None:
    disk = Disk().usual()
    found = [disk.window(48.0, operations=100) for _ in range(4)]
    assert found[:2] == [[], []]
    assert found[2] == [
        "reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 00:10 UTC (6.67 MiB/s instead of 20 MiB/s)"
    ]
    assert "since 00:10 UTC" in found[3][0]
    assert disk.window(3.0) == []


@pytest.mark.parametrize("kind", ["open", "metadata"])
def test_what_moves_no_bytes_is_judged_by_its_number(kind: str) -> None:
    disk = Disk(kind).usual(size=0)
    (found,) = [disk.window(48.0, size=0) for _ in range(3)][-1]
    assert found.endswith("take 48 ms instead of 3 ms since 00:10 UTC")
    disk = Disk(kind).usual(size=0)
    assert [disk.window(48.0, size=0, operations=3000) for _ in range(5)][-1] == []


def test_one_that_was_slow_from_the_start_is_not_slow() -> None:
    Disk().usual(milliseconds=80.0).usual(milliseconds=95.0)


@pytest.mark.parametrize(
    ("usual", "now"), [(3.0, 8.9), (0.2, 9.0), (0.05, 1.0), (50.0, 140.0)], ids=str
)  # fmt: skip
def test_less_than_three_times_or_ten_milliseconds_more_is_ordinary(
    usual: float, now: float
) -> None:
    disk = Disk().usual(milliseconds=usual)
    assert [disk.window(now) for _ in range(20)][-1] == []


def test_a_burst_is_ordinary() -> None:
    disk = Disk().usual()
    for _ in range(20):
        assert [disk.window(one) for one in (48.0, 48.0, 3.0, 3.0)] == [[]] * 4


def test_a_checkpoint_that_all_ranks_write_is_ordinary() -> None:
    """Each write waits for the others, and the filesystem moves far more than usual; reads beside it wait, too."""
    disk = Disk("write").usual(operations=50)
    assert [disk.window(400.0, operations=3000) for _ in range(12)] == [[]] * 12
    disk = Disk()
    for _ in range(40):
        disk.more(3.0, 30, MIB, "write")
        assert disk.window(3.0) == []
    for _ in range(12):
        disk.more(400.0, 3000, MIB, "write")
        assert disk.window(90.0, operations=100) == []


@pytest.mark.parametrize("kind", ["read", "metadata"])
def test_a_checkpoint_on_a_filesystem_that_is_seldom_written_is_ordinary(kind: str) -> None:
    """Nothing is known of usual writes there, so any of them are many: what they take from reads is the job's own doing."""
    disk = Disk(kind).usual()
    for number in range(3):
        for _ in range(8):
            disk.more(400.0, 3000, MIB, "write")
            assert disk.window(90.0, operations=100) == [], number
        disk.usual(windows=40)


def test_windows_that_lie_apart_are_not_in_a_row() -> None:
    disk = Disk().usual()
    for _ in range(6):
        assert disk.window(48.0, operations=100) == []
        for _ in range(100):  # served by the page cache
            assert disk.window(3.0, operations=5) == []


def test_one_that_is_not_used_any_more_is_not_slow() -> None:
    disk = Disk().usual()
    assert [disk.window(48.0, operations=100) for _ in range(4)][-1] != []
    assert [disk.window(3.0, operations=0) for _ in range(40)][-1] == []


def test_few_operations_and_few_windows_tell_nothing() -> None:
    disk = Disk().usual()
    assert [disk.window(500.0, operations=5) for _ in range(9)][-1] == []
    young = Disk().usual(windows=10)
    assert [young.window(500.0) for _ in range(9)][-1] == []


def test_after_an_hour_slow_is_what_is_usual() -> None:
    disk = Disk().usual()
    found = [disk.window(48.0, operations=100) for _ in range(300)]
    assert sum(map(bool, found)) == pytest.approx(238, abs=3)
    assert found[-1] == []
    assert [disk.window(200.0, operations=100) for _ in range(3)][-1] != []


def test_one_that_is_mounted_again_begins_anew() -> None:
    disk = Disk().usual()
    disk.counts = {"read": OperationCount(5, 0.01, 4096)}
    disk.latency.add(disk.at + EVERY, disk.counts)
    assert list(disk.latency.slow(disk.at + EVERY)) == []
    assert Disk().latency.totals == {"read": OperationCount()}


def test_six_hours_of_noise_on_four_filesystems_are_ordinary() -> None:
    """Times that scatter over a factor of ten, as those of shared filesystems do, with loads that scatter, too."""
    chance = random.Random(7)
    found = 0
    for _ in range(4):
        disk = Disk()
        for _ in range(1440):
            took = 3.0 * chance.lognormvariate(0.0, 0.45)
            found += bool(disk.window(took, operations=max(1, round(300 * chance.lognormvariate(0, 0.7)))))  # fmt: skip
    assert found == 0


def test_the_row_shows_means_since_the_mount() -> None:
    totals = {"read": OperationCount(41200, 127.7), "write": OperationCount(), "open": OperationCount(3, 0.9)}  # fmt: skip
    assert latency_line("/data", totals) == "/data: read 3.1 ms (41,200), open 300 ms (3)"


# --- on this node ------------------------------------------------------------------------------------


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def read_blocks(file: int, count: int, daemon: "subprocess.Popen[bytes] | None" = None) -> None:
    """Read blocks past all caches; with a daemon each of them waits 30 ms for it."""
    buffer = mmap.mmap(-1, 4096)
    for number in range(count):
        if daemon is not None:
            daemon.send_signal(signal.SIGSTOP)
            threading.Timer(0.03, daemon.send_signal, [signal.SIGCONT]).start()
        os.preadv(file, [buffer], number * 4096)


def test_a_real_disk_that_becomes_slow_is_told(tools: NodeTools, tmp_path: Path) -> None:
    with slow_disk(tmp_path) as (disk, daemon):
        (disk / "data").write_bytes(os.urandom(MIB))
        os.sync()
        device = os.stat(disk).st_dev
        mount = Mount(id=1, point=str(disk), fstype="ext4", source="/dev/loop", device=f"{os.major(device)}:{os.minor(device)}")  # fmt: skip
        used = UsedMount(mount=mount, path=os.fsencode(disk), ranks={os.getpid()}, owners={1002})
        latency = LatencyCollector(tools.context, lambda: (used,))
        job = Job(id="j", name="t", launcher="x", world_size=1, ranks=(RankIdentity(rank=0, world_size=1, pid=os.getpid()),))  # fmt: skip
        file = os.open(disk / "data", os.O_RDONLY | os.O_DIRECT)
        try:
            for look in range(24):
                latency.look(EVERY * look, [job])
                assert list(latency.alarms()) == []
                read_blocks(file, 25)
            for look in range(24, 28):
                latency.look(EVERY * look, [job])
                read_blocks(file, 25, daemon)
            assert [(one.kind, one.uids) for one in latency.alarms()] == [("slow", (1002,))]
            (alert,) = latency.alarms()
            assert alert.sentence.startswith(f"reads of {disk} (/dev/loop) take ")
            (row,) = latency.status()["latency"]
            assert "read" in str(row["line"])
            totals = {one.metric: one.value for one in latency.samples() if one.labels[-1] == "read"}  # fmt: skip
            assert totals["mldebug_filesystem_operations"] >= 26 * 25
            assert totals["mldebug_filesystem_operation_seconds"] > 3 * 25 * 0.02
        finally:
            os.close(file)


def test_mounts_are_joined_with_their_counters(tmp_path: Path) -> None:
    files = {
        "proc/77/mountstats": MOUNTSTATS,
        "sys/kernel/debug/lustre/llite/scratch-ffff9a00/stats": LUSTRE,
        "sys/kernel/debug/lustre/llite/scratch2-ffff9a01/stats": "",
        "sys/dev/block/253:0/stat": "100 0 800 300 7 1 64 14 0 310 314",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    mounts = (
        Mount(id=1, point="/data sets", fstype="nfs4", source="nfs01:/export", device="0:50"),
        Mount(id=2, point="/scratch", fstype="lustre", source="10.0.0.1@tcp:10.0.0.2@tcp:/scratch/a", device="0:51"),
        Mount(id=3, point="/", fstype="ext4", source="/dev/vda", device="253:0"),
        Mount(id=4, point="/mnt", fstype="fuse", source="s3", device="0:52"),
    )  # fmt: skip
    used = tuple(UsedMount(mount=one, path=b"", ranks={77, 80}, owners={5}) for one in mounts)
    with open_tools(Config(), root=str(tmp_path)) as tools:
        latency = LatencyCollector(tools.context, lambda: used)
        latency.look(0.0, [])
        rows = latency.status()["latency"]
    assert [row["mount"] for row in rows] == ["/data sets", "/scratch", "/"]
    assert rows[0]["read_seconds"] == pytest.approx(0.003)
    assert list(latency.alarms()) == []


# --- GPFS, and the node ------------------------------------------------------------------------------

FS_IO_S = "_fs_io_s_ _n_ 10.0.0.1 _nn_ n1 _rc_ 0 _t_ 1066660148 _tu_ 407431 _cl_ cl1.example.com _fs_ {fs} _d_ 2 _br_ {read} _bw_ 314572800 _oc_ 10 _cc_ 16 _rdc_ {reads} _wc_ 300 _dir_ 7 _iu_ 2\n"
RHIST = """\
_rhist_ _n_ 10.0.0.1 _nn_ n1 _req_ s _rc_ 0 _t_ 1066933849 _tu_ 93804 _k_ r
_R_ 65536 131071 _NR_ 100
_L_ 0.0 1.0 _NL_ 60
_L_ 1.1 10.0 _NL_ 40
_rhist_ _n_ 10.0.0.1 _nn_ n1 _req_ s _rc_ 0 _t_ 1066933849 _tu_ 93968 _k_ w
_R_ 0 255 _NR_ 2
_L_ 1000.1 0.0 _NL_ 2
_end_
"""


def test_gpfs_counts_each_filesystem_without_times() -> None:
    text = FS_IO_S.format(fs="gpfs0", read=6291456, reads=101) + FS_IO_S.format(
        fs="gpfs1", read=1, reads=1
    )
    found = mmpmon_counts(text + RHIST)
    assert list(found) == ["gpfs0", "gpfs1"]
    assert found["gpfs0"]["read"] == OperationCount(101, 0.0, 6291456, timed=False)
    assert found["gpfs0"]["write"].bytes == 314572800
    assert found["gpfs0"]["open"].operations == 10
    assert found["gpfs0"]["metadata"].operations == 16 + 7 + 2
    assert not any(one.timed for one in found["gpfs0"].values())


def test_the_histogram_of_a_node_with_one_filesystem_has_its_times() -> None:
    found = mmpmon_counts(FS_IO_S.format(fs="gpfs0", read=6291456, reads=101) + RHIST)["gpfs0"]
    assert found["read"] == OperationCount(100, pytest.approx(0.060 * 0.5 + 0.040 * 5.55), 6291456)
    assert found["write"].seconds == pytest.approx(2 * 1.0001)
    assert not found["open"].timed


@pytest.mark.parametrize(
    "text",
    ["", "mmpmon: not root\n", FS_IO_S.format(fs="x", read=1, reads=1).replace("_rc_ 0", "_rc_ 1"), RHIST,
     FS_IO_S.format(fs="x", read="9" * 30, reads=1), "_fs_io_s_ _n_ 1"],
)  # fmt: skip
def test_what_mmpmon_refuses_counts_nothing(text: str) -> None:
    assert mmpmon_counts(text) == {}


def test_operations_without_times_are_never_slow_and_show_what_moves() -> None:
    latency = FilesystemLatency()
    for look in range(40):
        counts = {"read": OperationCount(1000 * look, 0.0, 30 * MIB * 15 * look, timed=False)}
        latency.add(EVERY * look, counts)
    assert not list(latency.slow(EVERY * 39))
    line = latency_line("/gpfs (gpfs0)", latency.totals, latency.last)
    assert line == "/gpfs (gpfs0): read (39,000; now 30 MiB/s)"


def test_gpfs_is_asked_by_the_sites_command_and_a_failure_is_told(tmp_path: Path) -> None:
    tool, counter = tmp_path / "mmpmon", tmp_path / "count"
    tool.write_text(f"""#!/bin/sh
[ -e {tmp_path}/broken ] && exit 3
cat > {tmp_path}/asked
n=$(cat {counter} 2>/dev/null || echo 1); echo $((n + 1)) > {counter}
echo "_fs_io_s_ _n_ 1 _nn_ n _rc_ 0 _t_ 1 _tu_ 1 _cl_ c _fs_ gpfs0 _d_ 1 _br_ $((n * 15728640)) _bw_ 0 _oc_ 1 _cc_ 1 _rdc_ $((n * 100)) _wc_ 0 _dir_ 0 _iu_ 0"
""")
    tool.chmod(0o755)
    mount = Mount(id=1, point="/gpfs", fstype="gpfs", source="/dev/gpfs0", device="0:50")
    used = UsedMount(mount=mount, path=b"", ranks={7}, owners={5})
    config = Config(storage=StorageConfig(mmpmon=(str(tool), "-p")))
    with open_tools(config) as tools:
        latency = LatencyCollector(tools.context, lambda: (used,))
        latency.look(15.0, [])
        latency.look(30.0, [])
        (row,) = latency.status()["latency"]
        assert row["line"] == "/gpfs (/dev/gpfs0): read (200; now 1 MiB/s), open (1), metadata (1)"
        figures = {(one.metric, one.labels[-1]): one.value for one in latency.samples()}
        assert figures["mldebug_filesystem_operation_bytes", "read"] == 2 * 15728640
        assert ("mldebug_filesystem_operation_seconds", "read") not in figures
        assert latency.counted == frozenset()
        assert (tmp_path / "asked").read_bytes() == b"fs_io_s\nrhist s\n"
        assert latency.gaps() == ()
        (tmp_path / "broken").touch()
        latency.look(45.0, [])
        (gap,) = latency.gaps()
        assert gap.reason == "it ended with 3"
    with open_tools(Config()) as tools:
        silent = LatencyCollector(tools.context, lambda: (used,))
        silent.look(15.0, [])
        assert "latency" not in silent.status()


def test_how_long_tasks_wait_for_io_is_read_of_the_kernel(tmp_path: Path) -> None:
    text = "some avg10=1.27 avg60=1.27 avg300=15.26 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=407035849\n"
    assert pressure_seconds(text.format(2648289115)) == {"some": 2648.289115, "full": 407.035849}
    assert pressure_seconds("no such file") == {}
    file = tmp_path / "proc/pressure/io"
    file.parent.mkdir(parents=True)
    with open_tools(Config(), root=str(tmp_path)) as tools:
        latency = LatencyCollector(tools.context, lambda: ())
        file.write_text(text.format(1_000_000))
        latency.look(100.0, [])
        assert "io_pressure" not in latency.status()
        file.write_text(text.format(4_000_000))
        latency.look(115.0, [])
        (row,) = latency.status()["io_pressure"]
        assert row["line"] == "this node: tasks waited for I/O 20 % of the time"
        figures = {one.labels: one.value for one in latency.samples()}
        assert figures[("some",)] == 4.0
