"""What the agent reads of a rank for the known traps: little, once, and never something that can hurt."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.model import Job, RankIdentity
from mldebug.core.plugins import create_all
from mldebug.jobs.known_issues.model import NodeFacts, Software
from mldebug.jobs.known_issues.nccl_log import NcclLogFacts
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.jobs.ranks.known_issues import AGAIN, KnownIssueFinder, read_node
from mldebug_agents.jobs.ranks.libraries import (
    MAX_READS,
    MAX_VERSION_FILE,
    InstalledSoftware,
    Libraries,
    Program,
    header_version,
    libraries,
    numbered,
    software,
)
from mldebug_agents.system.child.reader_child import ReadOperation
from mldebug_agents.system.fake_reader import FakeReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader, Unreadable
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.watch.watch import Watch
from shared.jobs.proctree import DirectPaths, Tree
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE

SITE = "/opt/torch/.venv/lib/python3.12/site-packages"
LOADED = Libraries(torch=f"{SITE}/torch", nccl=f"{SITE}/nvidia/nccl/lib/libnccl.so.2")
VERSION = "from typing import Optional\n\n__version__ = '2.7.0+cu126'\ndebug = False\nhip: Optional[str] = None\n"
HEADER = "#ifndef NCCL_H_\n#define NCCL_MAJOR 2\n#define NCCL_MINOR 26\n#define NCCL_PATCH 2\n#define NCCL_SUFFIX \"\"\n"  # fmt: skip


def maps(*paths: str) -> bytes:
    """/proc/PID/maps with these files."""
    lines = ["7f00-7f01 r-xp 00000000 fe:00 1                          /usr/bin/python3.12"]
    lines += [f"7f02-7f03 r-xp 00000000 fe:00 9    {path}" for path in paths]
    return "\n".join([*lines, "7ffc-7ffd rw-p 00000000 00:00 0   [stack]", ""]).encode()


# --- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ((f"{SITE}/torch/lib/libtorch_cpu.so", LOADED.nccl), LOADED),
        ((f"{SITE}/torch/_C.cpython-312-x86_64-linux-gnu.so", "/opt/conda/lib/libnccl.so.2.21.5"),
         Libraries(torch=f"{SITE}/torch", nccl="/opt/conda/lib/libnccl.so.2.21.5")),
        (("/home/a b/torch/lib/libtorch_python.so",), Libraries(torch="/home/a b/torch")),
        ((f"{SITE}/torch/lib/libtorch_cpu.so (deleted)", f"{LOADED.nccl} (deleted)"), Libraries()),
        (("/opt/conda/lib/libtorch_cpu.so",), Libraries()),
        (("/x/libnccl-net.so", "/x/libnccl.so.old", "torch/lib/libtorch.so"), Libraries()),
        (("/a\\012b/torch/lib/libtorch_cpu.so", "/" + "x" * 3000 + "/libnccl.so.2"), Libraries()),
        ((), Libraries()),
    ],
)  # fmt: skip
def test_libraries_are_found_among_the_mappings(paths: tuple[str, ...], found: Libraries) -> None:
    assert libraries(maps(*paths)) == found


def test_paths_that_are_made_to_be_searched_for_ever_are_not() -> None:
    """A job may map a file of any name; the search holds the interpreter, so it has to be over in a moment."""
    hostile = maps(*["/x" + " /" * 2000 for _ in range(200)])
    began = time.thread_time()
    assert libraries(hostile) == Libraries()
    assert time.thread_time() - began < 2, f"{len(hostile)} bytes"


@pytest.mark.parametrize(
    ("text", "nccl", "found"),
    [
        (VERSION, "2.26.2", Software(torch="2.7.0+cu126", nccl="2.26.2")),
        ("__version__ = '2.13.0a0+gitabc'\n", "", Software(torch="2.13.0a0+gitabc")),
        ('__version__: str = "2.8.0+rocm6.4"\nhip: str | None = "6.4.1"\n', "", Software(torch="2.8.0+rocm6.4", rocm=True)),
        ("__version__ = '2.7.\x1b[31m0'\n", "", Software(torch="2.7.0")),
        ("__version__ = 'unfinished", "", Software()),
        ("x = 1\n", "", Software()),
        ("__version__ = '" + "9" * 5000 + "'\n", "", Software()),
    ],
)  # fmt: skip
def test_a_version_file_is_read_and_not_run(text: str, nccl: str, found: Software) -> None:
    assert software(text, nccl) == found


def test_an_nccl_tells_its_version_in_its_name_or_its_header() -> None:
    assert numbered("/usr/lib/libnccl.so.2.19.3") == "2.19.3"
    assert numbered("/usr/lib/libnccl.so.2") == ""
    assert header_version(HEADER) == "2.26.2"
    assert header_version(HEADER.replace("PATCH 2", "PATCH two")) == ""
    assert header_version("") == ""


# --- files ---------------------------------------------------------------------------------------


class Counting(FakeReader):
    """Counts what is asked for."""

    requests = 0

    def _ask(self, operation: ReadOperation, paths, **more):  # type: ignore[no-untyped-def]
        self.requests += len(paths)
        return super()._ask(operation, paths, **more)


def job(ranks: int = 1, world: int | None = None, first: int = 100) -> Job:
    """A job whose ranks are processes that need not exist."""
    size = world or ranks
    here = tuple(RankIdentity(rank=n, world_size=size, pid=first + n) for n in range(ranks))
    return Job(id="1a2b", name="t", launcher="torchrun", world_size=size, ranks=here)


def loaded(one: Job, found: Libraries = LOADED) -> dict[int, Program]:
    """All its ranks have loaded the same."""
    return {rank.pid: Program(libraries=found) for rank in one.ranks}


def files(root: str, *pids: int) -> dict[str, bytes | Unreadable]:
    """What lies beside the libraries of these processes."""
    found: dict[str, bytes | Unreadable] = {}
    for pid in pids:
        found[f"{root}/proc/{pid}/root{SITE}/torch/version.py"] = VERSION.encode()
        found[f"{root}/proc/{pid}/root{SITE}/nvidia/nccl/include/nccl.h"] = HEADER.encode() * 1000
    return found


def shared(root: Path, ranks: int) -> Host:
    """A node where all these processes share one mount namespace."""
    for pid in range(100, 100 + ranks):
        (root / f"proc/{pid}/ns").mkdir(parents=True)
        (root / f"proc/{pid}/ns/mnt").symlink_to("mnt:[4026531841]")
    return Host(str(root))


def test_64_ranks_are_read_once_and_are_one_finding(tmp_path: Path) -> None:
    reader, one = Counting(files(str(tmp_path), 100)), job(64)
    finder = KnownIssueFinder(shared(tmp_path, 64), reader)
    first = finder.of(one, loaded(one))
    requests = reader.requests
    assert [(trap.name, len(trap.ranks)) for trap in first] == [("torch_device_id_hang", 64)]
    assert first[0].message.startswith("PyTorch 2.7.0 and NCCL 2.26.2: ")
    assert finder.of(one, loaded(one)) == first
    assert reader.requests == requests == 4  # the two files, /proc/cmdline, /etc/hosts
    finder.keep(())
    finder.of(one, loaded(one))
    assert reader.requests == requests + 2  # another job may find another PyTorch in the same place


def test_ranks_in_containers_of_their_own_are_read_each_but_not_without_end(tmp_path: Path) -> None:
    reader, one = Counting(files(str(tmp_path), *range(100, 200))), job(64)
    (trap,) = KnownIssueFinder(Host(str(tmp_path)), reader).of(one, loaded(one))
    assert trap.message.startswith("ranks 0-7: ")
    assert reader.requests == 2 * MAX_READS + 2


def test_at_hang_time_nothing_is_read(tmp_path: Path) -> None:
    reader, one = Counting(files(str(tmp_path), 100)), job()
    programs = {100: Program(libraries=LOADED, settings={"TORCH_NCCL_ENABLE_MONITORING": "0"})}
    finder = KnownIssueFinder(shared(tmp_path, 1), reader)
    assert [trap.name for trap in finder.of(one, programs, read=False)] == ["monitoring_off"]
    assert reader.requests == 0
    assert len(finder.of(one, programs)) == 2
    requests = reader.requests
    assert len(finder.of(one, programs, read=False)) == 2  # what is known stays known
    assert reader.requests == requests


def test_the_agents_log_adds_what_nccl_says(tmp_path: Path) -> None:
    one = job(2, world=16)
    facts = NcclLogFacts(interfaces={"docker0": "172.17.0.1"})
    (trap,) = KnownIssueFinder(Host(str(tmp_path)), FakeReader({})).of(one, loaded(one, Libraries()), facts)  # fmt: skip
    assert trap.name == "interface_of_one_node"


def test_a_file_that_hangs_is_asked_for_once(tmp_path: Path) -> None:
    found = files(str(tmp_path), 100)
    hung = f"{tmp_path}/proc/100/root{SITE}/torch/version.py"
    found[hung] = Unreadable("timed out", stuck=True)
    reader, one = Counting(found), job(64)
    finder = KnownIssueFinder(shared(tmp_path, 64), reader)
    assert finder.of(one, loaded(one)) == ()
    assert reader.requests == 3  # not even the header: the same mount, most likely
    assert finder.of(one, loaded(one)) == ()
    assert reader.requests == 3


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder torch/ with its libraries' neighbours."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "nccl/include").mkdir(parents=True)
    (tmp_path / "nccl/include/nccl.h").write_text(HEADER)
    (tmp_path / "torch/version.py").write_text(VERSION)
    return tmp_path


def software_of(reader: Reader, package: Path) -> Software:
    """What the real reader makes of it, through /proc/PID/root of a real process."""
    one = job(first=os.getpid())
    found = Libraries(torch=f"{package}/torch", nccl=f"{package}/nccl/lib/libnccl.so.2")
    return InstalledSoftware(Host(), reader).of(one.id, one.ranks[0].pid, found)


def test_real_files_are_read(reader: Reader, package: Path) -> None:
    assert software_of(reader, package) == Software(torch="2.7.0+cu126", nccl="2.26.2")


def test_a_rank_that_may_use_one_core_is_told_on_a_large_node(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["taskset", "--cpu-list", "0", "cat"], stdin=subprocess.PIPE) as pinned:
        wait_until(lambda: os.sched_getaffinity(pinned.pid) == {0})
        one = job(first=pinned.pid)
        programs = loaded(one, Libraries())
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        assert KnownIssueFinder(Host(), reader).of(one, programs, gpu=True) == ()
        monkeypatch.setattr(os, "cpu_count", lambda: 96)
        (trap,) = KnownIssueFinder(Host(), reader).of(one, programs, gpu=True)
        assert trap.name == "one_core"
        assert trap.message.startswith("1 of 96 cores: ")
        os.sched_setaffinity(pinned.pid, os.sched_getaffinity(0))
        assert KnownIssueFinder(Host(), reader).of(one, programs, gpu=True) == ()
        pinned.kill()
    monkeypatch.undo()
    assert KnownIssueFinder(Host(), reader).of(one, programs, gpu=True) == ()  # it is gone


@pytest.mark.parametrize("trick", ["fifo", "huge", "link", "folder", "binary", "none"])
def test_a_trick_gives_an_unknown_version_at_once(
    reader: Reader, package: Path, trick: str
) -> None:
    elsewhere = package / "secret"
    elsewhere.write_text(VERSION)
    for path in (package / "torch/version.py", package / "nccl/include/nccl.h"):
        path.unlink()
        if trick == "fifo":
            os.mkfifo(path)
        elif trick == "huge":
            with path.open("w") as file:
                file.write("\n" * (MAX_VERSION_FILE // 2))
                file.truncate(1 << 30)
        elif trick == "link":
            path.symlink_to(elsewhere)
        elif trick == "folder":
            path.mkdir()
        elif trick == "binary":
            path.write_bytes(os.urandom(4096))
    began = time.monotonic()
    assert software_of(reader, package) == Software()
    assert time.monotonic() - began < 5 * PATIENCE
    assert not reader.stuck


# --- how they come to it -------------------------------------------------------------------------


def test_discovery_tells_programs_and_settings_and_nothing_else(tmp_path: Path) -> None:
    tree, paths = Tree(tmp_path), DirectPaths()
    tree.add(
        50, 1, environ={"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "h", "NCCL_NET": "Socket", "HF_TOKEN": "hf_x",
        "TORCH_FR_DUMP_TEMP_FILE": "/scratch/t_", "HOME": "/home/ann"}
    )  # fmt: skip
    finder = RankFinder(Host(str(tmp_path)), paths, "n1", create_all("launchers"))
    (program,) = finder.find().programs.values()
    assert program == Program(
        libraries=Libraries(torch="/opt/env/lib/torch"),
        settings={"NCCL_NET": "Socket"},
        recorder={"TORCH_FR_DUMP_TEMP_FILE": "/scratch/t_", "HOME": "/home/ann"},
    )
    (tmp_path / "proc/50/maps").write_bytes(maps(f"{SITE}/torch/lib/libtorch_cuda.so", LOADED.nccl))
    assert finder.find().programs[50].libraries == LOADED  # NCCL came a moment later
    (tmp_path / "proc/50/maps").write_bytes(maps(f"{SITE}/torch/lib/libtorch_cuda.so"))
    assert finder.find().programs[50].libraries == LOADED
    assert sum(path.endswith("/maps") for path in paths.requests) == 2


def test_a_node_is_looked_at_seldom(tmp_path: Path, reader: Reader) -> None:
    tree = Tree(tmp_path)
    tree.add(100, 1)
    for device, state in {"mlx5_0": "4: ACTIVE\n", "mlx5_1": "1: DOWN\n"}.items():
        port = tmp_path / f"sys/class/infiniband/{device}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    (tmp_path / "sys/class/iommu/dmar0").mkdir(parents=True)
    (tmp_path / "proc/cmdline").write_text("BOOT_IMAGE=/vmlinuz iommu=pt\n")
    (tmp_path / "etc/hosts").write_text(
        "# a comment\n10.2.0.5 n5.example n5 # x\n10.2.0.5 late\n\x1b\n"
    )
    facts = read_node(Host(str(tmp_path)), reader)
    assert facts == NodeFacts(
        cores=os.cpu_count() or 0,
        machine=os.uname().machine, rdma=("mlx5_0",), iommu=True,
        kernel_arguments=("BOOT_IMAGE=/vmlinuz", "iommu=pt"), hosts={"10.2.0.5": "n5.example"},
    )  # fmt: skip
    now = [0.0]
    counting, one = Counting({}), job()
    finder = KnownIssueFinder(Host(str(tmp_path / "none")), counting, lambda: now[0])
    for second in (0.0, AGAIN - 1):
        now[0] = second
        finder.of(one, {})
    assert counting.requests == 2
    now[0] = AGAIN
    finder.of(one, {})
    assert counting.requests == 4


def test_a_node_without_any_of_it_is_no_trouble(tmp_path: Path) -> None:
    assert read_node(Host(str(tmp_path)), FakeReader({})) == NodeFacts(
        machine=os.uname().machine, cores=os.cpu_count() or 0
    )


def test_the_pytorch_of_a_real_process_is_told(reader: Reader) -> None:
    """It is imported there, never here."""
    code = "import torch, sys; print(torch.__version__, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        version = process.stdout.readline().strip()
        path = f"/proc/{process.pid}/maps"
        mapped = reader.read_many([path], max_bytes=8 << 20)[path]
        assert isinstance(mapped, bytes)
        one = job(first=process.pid)
        found = InstalledSoftware(Host(), reader).of(one.id, process.pid, libraries(mapped))
        process.communicate("")
    assert (found.torch, found.rocm) == (version, False)


# --- the whole way -------------------------------------------------------------------------------


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[tuple[list[int], Path]]:
    """Two real ranks of a world of four whose PyTorch calls itself 2.7.0; their pids, and the log they share."""
    library = tmp_path / "torch/lib/libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\0" * 4096)
    (tmp_path / "torch/version.py").write_text("__version__ = '2.7.0+cu126'\n")
    script, log = Path(__file__).parents[2] / "jobs/light.py", tmp_path / "train.log"
    common = {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.9.8.7",
        "MASTER_PORT": "29500",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    }
    processes = []
    with log.open("a") as out:
        for rank in range(2):
            environ = {
                "PATH": os.environ["PATH"],
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                **common,
            }
            argv = [sys.executable, str(script), str(library)]
            processes.append(subprocess.Popen(argv, env=environ, stdout=out))
    yield [process.pid for process in processes], log
    for process in processes:
        process.kill()
        process.wait()


def until_found(look: Callable[[], dict[str, str]], wanted: set[str]) -> dict[str, str]:
    """Look until these traps are found, for half a minute at most."""
    until = time.monotonic() + 30 * PATIENCE
    while not wanted <= (found := look()).keys() and time.monotonic() < until:
        time.sleep(0.1)
    return found


def test_status_and_agent_tell_the_traps_of_a_real_job(
    trapped: tuple[list[int], Path], tmp_path: Path
) -> None:
    pids, log = trapped
    config = tmp_path / "mldebug.yaml"
    config.write_text(f"agent: {{state_dir: {tmp_path / 'state'}}}\n")

    def by_status() -> dict[str, str]:
        argv = [sys.executable, "-m", "mldebug", "status", "--json", "--config", str(config)]
        answer = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        mine = [job["id"] for job in answer["jobs"] if job["ranks"][0]["pid"] in pids]
        return {trap["name"]: trap["message"] for one in mine for trap in answer["traps"][one]}

    assert set(until_found(by_status, {"debug_detail"})) == {"debug_detail"}

    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path))) as tools:
        watch = Watch(tools.capture)

        def by_agent() -> dict[str, str]:
            look = watch.look()
            mine = (one for one in look.jobs if {rank.pid for rank in one.job.ranks} & set(pids))
            traps = next(
                (one.traps for one in mine), ()
            )  # a busy machine may not read all in a look
            notes = {note.message for note in look.found.remarks if note.kind.startswith("trap_")}
            assert notes >= {f"known trap: {trap.line()}" for trap in traps}
            return {trap.name: trap.message for trap in traps}

        assert set(until_found(by_agent, {"debug_detail"})) == {"debug_detail"}
        head = f"{tools.context.node.partition('.')[0]}:{pids[1]}:77 [1] "
        with log.open("a") as out:
            out.write(f"{head}NCCL INFO NCCL version 2.26.2+cuda12.6\n")
            out.write(
                f"{head}NCCL WARN Connect to 10.148.3.247<56821> failed : Connection refused\n"
            )
            out.write("elsewhere:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.148.3.247<0>\n")
        found = until_found(by_agent, {"debug_detail", "torch_device_id_hang", "peer_refused"})
    assert set(found) == {"debug_detail", "torch_device_id_hang", "peer_refused"}
    assert found["torch_device_id_hang"].startswith("PyTorch 2.7.0 and NCCL 2.26.2: ")
    assert "10.148.3.247 (elsewhere)" in found["peer_refused"]
