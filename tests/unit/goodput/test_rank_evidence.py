"""What the kernel's files say of a rank while it is sampled: quotas in both versions of control groups, CPUs, faults, files, neighbours."""

import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading
from mldebug_agents.hardware.gpu.rank_evidence import with_gpu
from mldebug_agents.system.host import Host
from mldebug_agents.watch.rank_evidence import EvidenceReader, FileWaits, KernelCounters
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler
from shared.jobs.proctree import Tree

NO_FILES = FileWaits(0, 1, "")


class Kernel:
    """The files of one process 50 in control group /job, and the counters before."""

    def __init__(self, folder: Path, version: int) -> None:
        self.tree = Tree(folder)
        self.folder = folder
        self.version = version
        group = "0::/job\n" if version == 2 else "4:cpu,cpuacct:/job\n"
        self.tree.add(50, 1, cgroup=group)
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,cpu,cpuacct"
        (folder / "proc/self").mkdir()
        (folder / "proc/self/mountinfo").write_text(f"30 1 0:1 / /cg rw - {kind}\n")
        (folder / "cg/job").mkdir(parents=True)
        (folder / "proc/pressure").mkdir()
        self.reader = EvidenceReader(Host(str(folder)))

    def count(self, throttled: float, stalled: float = 0.0, delayed: float = 0.0, faults: int = 0) -> None:  # fmt: skip
        """Write the kernel's counters, in seconds."""
        stat = (
            f"nr_periods 9\nthrottled_usec {int(throttled * 1e6)}\n"
            if self.version == 2
            else f"nr_periods 9\nthrottled_time {int(throttled * 1e9)}\n"
        )
        (self.folder / "cg/job/cpu.stat").write_text(stat)
        pressure = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(stalled * 1e6)}\nfull avg10=0.00 total=9\n"
        (self.folder / "proc/pressure/memory").write_text(pressure)
        task = self.folder / "proc/50/task/50"
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"1 {int(delayed * 1e9)} 1\n")
        file = self.folder / "proc/50/stat"
        head, _, rest = file.read_text().rpartition(") ")
        fields = rest.split()
        fields[9] = str(faults)
        file.write_text(f"{head}) {' '.join(fields)}\n")

    def quota(self, cpus: float) -> None:
        group = self.folder / "cg/job"
        if self.version == 2:
            (group / "cpu.max").write_text(f"{int(cpus * 100000)} 100000\n")
        else:
            (group / "cpu.cfs_quota_us").write_text(f"{int(cpus * 100000)}\n")
            (group / "cpu.cfs_period_us").write_text("100000\n")

    def before(self) -> KernelCounters:
        """The counters now, as if they were of ten seconds ago."""
        return self.reader.counters(50)._replace(at=time.monotonic() - 10.0)


@pytest.mark.parametrize("version", [1, 2])
def test_shares_of_the_time_come_from_the_kernel_s_counters(tmp_path: Path, version: int) -> None:
    kernel = Kernel(tmp_path, version)
    kernel.quota(0.5)
    kernel.count(throttled=7.0, stalled=1.0, faults=100)
    before = kernel.before()
    kernel.count(throttled=11.0, stalled=3.0, faults=2100)
    with (tmp_path / "proc/50/status").open("a") as status:
        status.write("VmSwap:\t  2048 kB\nCpus_allowed_list:\t0-2,7\n")
    found = kernel.reader.evidence(50, before, FileWaits(3, 10, "/data (fuse)"), {50})
    assert found.throttled == pytest.approx(0.4, abs=0.01)
    assert found.memory_pressure == pytest.approx(0.2, abs=0.01)
    assert found.major_faults == pytest.approx(200.0, rel=0.02)
    assert (found.quota, found.cpus, found.swapped) == (0.5, 4, 2 << 20)
    assert (found.file_waiting, found.mount, found.neighbour) == (0.3, "/data (fuse)", "")


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_quota_there_is_none(tmp_path: Path, version: int) -> None:
    kernel = Kernel(tmp_path, version)
    kernel.count(throttled=0.0)
    none = "max 100000\n" if version == 2 else "-1\n"
    file = "cpu.max" if version == 2 else "cpu.cfs_quota_us"
    (tmp_path / "cg/job" / file).write_text(none)
    found = kernel.reader.evidence(50, kernel.before(), NO_FILES, {50})
    assert (found.quota, found.throttled) == (None, 0.0)


def test_a_process_that_is_gone_has_no_evidence(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 2)
    found = kernel.reader.evidence(77, kernel.reader.counters(77), NO_FILES, {77})
    assert found == RankEvidence()


def test_who_runs_on_the_cpus_of_a_rank_without_a_cpu_is_named(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 2)
    for pid, name, state, own in (
        (60, "stress", "R", False),
        (61, "sleeper", "S", False),
        (62, "mate", "R", True),
        (63, "kworker", "R", False),
    ):
        kernel.tree.add(pid, 1, name, state=state, kernel=name == "kworker")
        assert not own or pid == 62
    with (tmp_path / "proc/50/status").open("a") as status:
        status.write("Cpus_allowed_list:\t0-1\n")
    kernel.count(throttled=0.0, delayed=1.0)
    before = kernel.before()
    kernel.count(throttled=0.0, delayed=5.0)
    assert kernel.reader.evidence(50, before, NO_FILES, {50, 62}).neighbour == "stress (pid 60)"
    kernel.count(throttled=0.0, delayed=1.1)  # it gets its CPU
    assert kernel.reader.evidence(50, before, NO_FILES, {50, 62}).neighbour == ""


def test_the_agent_and_what_it_starts_are_no_neighbours(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 2)
    for pid, parent, name in ((70, 1, "mldebug"), (71, 70, "starter"), (72, 71, "py-spy")):
        kernel.tree.add(pid, parent, name, state="R")
    (tmp_path / "proc/self/stat").write_text((tmp_path / "proc/70/stat").read_text())
    with (tmp_path / "proc/50/status").open("a") as status:
        status.write("Cpus_allowed_list:\t0-1\n")
    kernel.count(throttled=0.0, delayed=1.0)
    before = kernel.before()
    kernel.count(throttled=0.0, delayed=5.0)
    assert kernel.reader.evidence(50, before, NO_FILES, {50}).neighbour == ""
    kernel.tree.add(60, 1, "st\x1b[31mress\n", state="R")
    assert kernel.reader.evidence(50, before, NO_FILES, {50}).neighbour.startswith("st")
    assert "\x1b" not in kernel.reader.evidence(50, before, NO_FILES, {50}).neighbour


def test_workers_of_a_fork_server_are_processes_of_their_rank(tmp_path: Path) -> None:
    """They are its grandchildren, as DataLoader workers are where processes are started by a server."""
    kernel = Kernel(tmp_path, 2)
    for pid, parent in ((51, 50), (52, 51), (60, 50), (61, 60)):
        kernel.tree.add(pid, parent)
    ranks = tuple(RankIdentity(rank=n, world_size=2, pid=pid) for n, pid in enumerate((50, 60)))
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=2, ranks=ranks)
    requests: list[tuple[int, ...]] = []
    tools = Mock()
    tools.context.host = Host(str(tmp_path))
    tools.pyspy.record.return_value = []
    sampler = WaitSampler(tools)
    with patch.object(EvidenceReader, "file_waits", lambda _, pids, __: requests.append(pids) or NO_FILES):  # fmt: skip
        sampler.take(SampleOrder(job, seconds=0))
    assert sorted(requests) == [(50, 51, 52), (60, 61)]


def test_a_process_that_waits_for_a_file_is_found_so_and_one_that_sleeps_is_not(tmp_path: Path) -> None:  # fmt: skip
    kernel = Kernel(tmp_path, 2)
    folder = tmp_path / "proc/50"
    (folder / "fd").mkdir()
    (folder / "fd/3").symlink_to("/data/shard.bin")
    (folder / "mountinfo").write_text("1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /data rw - fuse.slow slow rw\n")  # fmt: skip
    (folder / "syscall").write_text("0 0x3 0x1 0x2 0x3 0x4 0x5 0x7 0x8\n")
    (folder / "wchan").write_text("request_wait_answer")
    found = kernel.reader.file_waits((50,), 0.3)
    assert (found.waited == found.looks > 0, found.mount) == (True, "/data (fuse.slow)")
    (folder / "wchan").write_text("hrtimer_nanosleep")
    assert kernel.reader.file_waits((50,), 0.3).waited == 0


def test_the_worker_that_waits_for_files_and_those_that_compute_are_counted(tmp_path: Path) -> None:  # fmt: skip
    kernel = Kernel(tmp_path, 2)
    for pid in (51, 52, 53):
        kernel.tree.add(pid, 50)
    (tmp_path / "proc/52/wchan").write_text("request_wait_answer")
    busy = iter(range(0, 10_000, 100))

    def cpu_seconds(_: EvidenceReader, pid: int) -> float:
        return float(next(busy)) if pid == 53 else 0.0

    with patch.object(EvidenceReader, "_cpu_seconds", cpu_seconds):
        found = kernel.reader.file_waits((50, 51, 52, 53), 0.3)
    assert (found.waited == found.looks > 0, found.worker, found.busy) == (True, 52, 1)
    (tmp_path / "proc/52/wchan").write_text("pipe_read")
    (tmp_path / "proc/50/wchan").write_text("request_wait_answer")
    found = kernel.reader.file_waits((50, 51, 52, 53), 0.3)
    assert (found.waited > 0, found.worker, found.busy) == (True, 0, 0)


def test_a_child_that_waits_once_while_the_rank_itself_reads_its_files_is_not_named(tmp_path: Path) -> None:  # fmt: skip
    """Whoever reads its data without workers may have a logger of charts, whose file is on the same mount."""
    kernel, looks = Kernel(tmp_path, 2), count()

    def waits(_: EvidenceReader, pid: int) -> bool:
        return next(looks) > 0 if pid == 50 else pid == 51

    kernel.tree.add(51, 50)
    with patch.object(EvidenceReader, "_waits_for_file", waits):
        found = kernel.reader.file_waits((50, 51), 0.9)
    assert (found.waited == found.looks > 2, found.worker) == (True, 0)


def test_the_cpu_time_of_a_process_is_read() -> None:
    reader, begun = EvidenceReader(Host()), time.process_time()
    used = reader._cpu_seconds(os.getpid())
    while time.process_time() < begun + 0.3:
        pass
    assert 0.2 < reader._cpu_seconds(os.getpid()) - used < 5.0
    assert reader._cpu_seconds(2**22 + 1) == 0.0


def test_this_machine_is_read() -> None:
    reader = EvidenceReader(Host())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        before = reader.counters(child.pid)
        found = reader.evidence(
            child.pid, before, reader.file_waits((child.pid,), 0.3), {child.pid}
        )
        assert found.cpus == len(os.sched_getaffinity(child.pid))
        assert found.throttled == 0.0
    finally:
        child.kill()
        child.wait()


def test_a_gpu_adds_clocks_limits_and_memory_of_the_rank_s_own_process() -> None:
    gpu = GpuReading(
        uuid="GPU-1", index=0, clock_hertz={"sm": 1.2e9, "memory": 2e9}, power_limit_watts=400.0,
        clock_events=("gpu_idle", "sw_power_cap"),
        processes=(GpuProcess(pid=9, memory_bytes=5), GpuProcess(pid=50, memory_bytes=7)),
    )  # fmt: skip
    found = with_gpu(RankShares(rank=0, samples=1, waiting=0.0), gpu, 50).evidence
    assert (found.gpu_clock, found.gpu_limits, found.gpu_power_limit, found.gpu_memory) == (1.2e9, ("sw_power_cap",), 400.0, 7)  # fmt: skip
    assert with_gpu(RankShares(rank=0, samples=1, waiting=0.0), gpu, 51).evidence.gpu_memory is None
