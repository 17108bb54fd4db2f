"""Real filesystems that fill up, run out of inodes, turn read-only, are covered, or do not answer."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CanaryConfig, StorageConfig
from mldebug.core.model import Job, RankIdentity
from mldebug.status.storage_lines import storage_json
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.child import server
from mldebug_agents.storage.child.messages import MountAnswer, MountRequest, MountRequests, Space
from mldebug_agents.storage.collectors import storage_collectors
from mldebug_agents.storage.filesystems import collector as filesystems
from mldebug_agents.storage.filesystems.canary import CanaryCollector as Writing
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.storage.filesystems.mounts import UsedMount, mount_table, used_mounts
from mldebug_agents.storage.monitor import look_once
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Mount, mount_of, parse_mountinfo
from shared.storage.nodetools import with_config
from shared.system.hung import wait_until

MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


def mount(
    folder: Path, options: str, source: str = "tmpfs", kind: str = "tmpfs", flags: int = 0
) -> None:
    words = (source.encode(), os.fsencode(folder), kind.encode(), flags, options.encode())
    if libc.mount(*words):
        if os.environ.get("CI") and os.geteuid() == 0:
            raise OSError(ctypes.get_errno(), "mount")
        pytest.skip("nobody may mount here")


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs; it goes lazily, so that nothing that is open keeps it."""
    folder.mkdir()
    mount(folder, options)
    try:
        yield folder
    finally:
        while not libc.umount2(os.fsencode(folder), 2):
            pass


def job(pid: int | None = None) -> Job:
    rank = RankIdentity(rank=0, world_size=1, pid=pid or os.getpid())
    return Job(id="j", name="train", launcher="environment", ranks=(rank,))


def part(tools: NodeTools, **settings: object) -> FilesystemCollector:
    config = Config(storage=StorageConfig(**settings))  # type: ignore[arg-type]
    return FilesystemCollector(with_config(tools.context, config), tools.filesystem_probe)


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def row(one: FilesystemCollector, folder: Path) -> dict[str, object]:
    (found,) = [row for row in one.status()["filesystems"] if row["mount"] == str(folder)]
    return dict(found)


def kinds(one: FilesystemCollector, folder: Path) -> set[str]:
    return {alarm.kind for alarm in one.alarms() if str(folder) in alarm.subject}


def test_a_filesystem_that_fills_is_foretold_before_it_is_full(
    tools: NodeTools, tmp_path: Path
) -> None:
    with mounted(tmp_path / "data", "size=64m") as folder:
        desk = part(tools, limits={str(folder): "0.99"})
        with open(folder / "log", "wb") as file:  # the job's open file is what leads to the mount
            for look in range(12):
                file.write(b"x" * 2 * MIB)
                file.flush()
                desk.look(1000.0 + 30 * look, [job()])
            assert kinds(desk, folder) == {"full_soon"}
            result = row(desk, folder)
            assert result["full_seconds"] == pytest.approx(
                20 * 30, rel=0.2
            )  # 40 MiB, 2 MiB every 30 s
            assert result["ranks"] == 1
            file.write(b"x" * 40 * MIB)  # the foretold end: not a byte more fits
            file.flush()
            with pytest.raises(OSError, match="No space left"):
                os.write(file.fileno(), b"x")
            desk.look(2000.0, [job()])
            assert "too_full" in kinds(desk, folder)
            os.ftruncate(file.fileno(), 0)


def test_inodes_run_out_while_there_is_space(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=64m,nr_inodes=100") as folder:
        for number in range(90):
            (folder / str(number)).touch()
        desk = part(tools, paths=(str(folder),))
        desk.look(1.0, [])
        assert kinds(desk, folder) == {"inodes"}


def test_what_must_be_left_is_an_amount(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=64m") as folder:
        desk = part(tools, paths=(str(folder),), limits={str(folder): "1GiB left"})
        desk.look(1.0, [])
        assert kinds(desk, folder) == {"too_full"}
        desk = part(tools, paths=(str(folder),), limits={str(folder): "nonsense"})
        desk.look(1.0, [])
        assert kinds(desk, folder) == set()
        assert any("nonsense" in gap.reason for gap in desk.gaps())


def test_one_that_turns_read_only_is_told(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=8m") as folder:
        desk = part(tools, paths=(str(folder),))
        desk.look(1.0, [])
        assert kinds(desk, folder) == set()
        mount(folder, "size=8m", flags=32 | 1)  # MS_REMOUNT, MS_RDONLY
        desk.look(2.0, [])
        assert kinds(desk, folder) == {"read_only"}


def test_a_name_with_spaces_newlines_and_odd_bytes_is_found(
    tools: NodeTools, tmp_path: Path
) -> None:
    with mounted(tmp_path / os.fsdecode(b"a b\n\\040\xff"), "size=8m") as folder:
        held = mount_of(mount_table(Host(), "self"), str(folder))
        assert held is not None
        assert held.point == str(folder)
        desk = part(tools, paths=(str(folder),))
        desk.look(1.0, [])
        (filesystem,) = desk.status()["filesystems"]
        assert filesystem["used_ratio"] == 0
        config = Config(storage=StorageConfig(paths=(str(folder),)))
        context = with_config(tools.context, config)
        state = look_once(storage_collectors(context, tools.filesystem_probe), [])
        assert "�" in msgspec.json.decode(storage_json(state))["filesystems"][0]["mount"]


def test_a_mount_that_another_covers_is_not_judged_by_it(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=8m") as folder, open(folder / "below", "wb"):
        mount(folder, "size=16m")
        desk = part(tools)
        desk.look(1.0, [job()])
        assert [gap.reason for gap in desk.gaps() if str(folder) in gap.what] == [
            "another mount lies over it"
        ]


def test_where_a_job_saves_is_watched_though_nothing_is_open_there(
    tools: NodeTools, tmp_path: Path
) -> None:
    with mounted(tmp_path / "data", "size=8m") as folder:
        desk = part(tools)
        desk.look(1.0, [job()])
        assert str(folder) not in {row["mount"] for row in desk.status()["filesystems"]}
        desk.follow({job().id: (f"{folder}/run/ckpt",)})
        desk.look(2.0, [job()])
        assert row(desk, folder)["ranks"] == 1


def test_a_mount_that_only_a_worker_of_a_rank_has_open_is_found_and_stays(
    tools: NodeTools, tmp_path: Path
) -> None:
    desk = part(tools)
    with mounted(tmp_path / "data", "size=8m") as folder, contextlib.ExitStack() as workers:
        (folder / "shard").write_bytes(b"x")
        rank = workers.enter_context(
            subprocess.Popen(
                ["sh", "-c", 'sleep 60 & sleep 60 < "$0" & sleep 60 & wait', folder / "shard"],
                start_new_session=True,
            )
        )
        workers.callback(os.killpg, rank.pid, signal.SIGKILL)
        wait_until(lambda: len(tools.context.host.children().get(rank.pid, ())) == 3)
        for look in range(3):
            desk.look(float(look), [job(rank.pid)])
        assert row(desk, folder)["ranks"] == 1
        desk.look(4.0, [job(rank.pid)])
        assert row(desk, folder)["ranks"] == 1


def test_a_mount_that_is_gone_is_forgotten(tools: NodeTools, tmp_path: Path) -> None:
    desk = part(tools, paths=(str(tmp_path / "data"),))
    with mounted(tmp_path / "data", "size=8m") as folder:
        desk.look(1.0, [])
        assert row(desk, folder)["used_ratio"] == 0
    desk.look(2.0, [])
    assert not [row for row in desk.status()["filesystems"] if row["mount"] == str(folder)]


def test_the_shared_memory_of_a_rank_is_watched_and_no_automount_is_touched() -> None:
    found = used_mounts(Host(), [job()], ())
    assert "/dev/shm" in {one.name for one in found.values()}
    assert not {one.mount.fstype for one in found.values()} & {"proc", "sysfs", "autofs"}


def test_a_line_of_mountinfo_has_its_server() -> None:
    line = "36 35 0:52 /a /data rw,noatime shared:1 - nfs4 nfs01:/data rw,vers=4.2"
    assert parse_mountinfo(line) == (
        Mount(36, "/data", "nfs4", "nfs01:/data", "0:52", "/a", "rw,vers=4.2"),
    )


class Stuck:
    """Mounts of which some hang until they are let go."""

    def __init__(self, dead: Sequence[int]) -> None:
        self.dead, self.gate = dead, threading.Event()

    def __call__(self, place: MountRequest) -> MountAnswer:
        if place.mount in self.dead:
            self.gate.wait(60)
        return MountAnswer(mount=place.mount, space=Space(size=1))


def test_two_hundred_mounts_of_which_five_are_dead_take_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = Stuck(dead=(3, 50, 51, 120, 199))
    monkeypatch.setattr(server, "ask", stuck)
    places = tuple(MountRequest(number, b"/") for number in range(200))
    asking = server.MountProber()
    for number in range(3):  # the dead are asked once, and hold up one thread each
        reply = asking.round(MountRequests(number, places, 0.5))
        assert [one.mount for one in reply.mounts if one.stuck] == [3, 50, 51, 120, 199]
        assert sum(one.space is not None for one in reply.mounts) == 195
    stuck.gate.set()
    for _ in range(100):  # those that come back are forgiven
        reply = asking.round(MountRequests(9, places, 0.5))
        if all(one.space is not None for one in reply.mounts):
            break
    assert all(one.space is not None for one in reply.mounts)


def test_no_more_than_sixteen_are_left_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck(dead=range(100))
    monkeypatch.setattr(server, "ask", stuck)
    asking = server.MountProber()
    for number in range(3):
        reply = asking.round(
            MountRequests(number, tuple(MountRequest(one, b"/") for one in range(100)), 0.2)
        )
        assert sum(one.stuck > 0 for one in reply.mounts) <= server.MOST_STUCK
    assert all(one.reason for one in reply.mounts)
    stuck.gate.set()


def test_figures_that_no_disk_has_do_not_end_the_child() -> None:
    """A server whose reserve is used tells a negative rest, which arrives as nearly 2^64 blocks."""
    result = os.statvfs_result(
        (4096, 4096, 1 << 30, 5, (1 << 64) - 7, 10, 5, (1 << 64) - 1, 0, 255)
    )
    space = server.space_of(result)
    assert (space.size, space.available, space.inodes_free) == (1 << 42, 0, 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(space), type=Space) == space


def test_a_filesystem_that_tells_no_size_is_neither_full_nor_empty(
    tools: NodeTools, tmp_path: Path
) -> None:
    with mounted(tmp_path / "data", "size=0,nr_inodes=0") as folder:
        desk = part(tools, paths=(str(folder),), limits={str(folder): "1GiB left"})
        for look in range(10):
            desk.look(30.0 * look, [])
        assert kinds(desk, folder) == set()
        assert row(desk, folder)["line"] == f"{folder} (tmpfs): tells no size"
        metrics = {one.metric for one in desk.samples() if str(folder) in one.labels}
        assert metrics == {"mldebug_filesystem_stuck_seconds", "mldebug_filesystem_read_only"}


def test_a_mount_that_was_asked_at_the_end_of_the_round_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slow ones took all the time: the last one had none."""
    gate, event = threading.Event(), threading.Event()

    def slow(place: MountRequest) -> MountAnswer:
        if place.mount == 1:
            event.set()
            gate.wait(60)
        else:
            until.wait(0.8)
        return MountAnswer(mount=place.mount, space=Space(size=1))

    until = threading.Event()
    monkeypatch.setattr(server, "AT_ONCE", 1)
    monkeypatch.setattr(server, "ask", slow)
    reply = server.MountProber().round(
        MountRequests(1, (MountRequest(0, b"/"), MountRequest(1, b"/")), 1.0)
    )
    assert event.is_set()
    assert (reply.mounts[1].stuck, reply.mounts[1].reason) == (
        0.0,
        "there was no time left to ask it",
    )
    gate.set()


def test_a_configured_folder_is_found_over_links(tools: NodeTools, tmp_path: Path) -> None:
    """On most clusters /scratch is a link."""
    with mounted(tmp_path / "data", "size=64m") as folder:
        (folder / "team").mkdir()
        (tmp_path / "scratch").symlink_to(folder / "team")
        desk = part(tools, limits={str(tmp_path / "scratch"): "1GiB left"})
        desk.look(1.0, [])
        assert kinds(desk, folder) == {"too_full"}
        assert not desk.gaps()


def test_below_another_root_a_link_means_what_it_means_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "proc").symlink_to("/proc")
    (tmp_path / "scratch").symlink_to("/data/team")
    with (
        mounted(tmp_path / "data", "size=64m") as folder,
        open_tools(Config(), root=str(tmp_path)) as there,
    ):
        (folder / "team").mkdir()
        limited = {"limits": {"/scratch": "1GiB left"}, "canary": CanaryConfig(paths=("/scratch",))}
        desk = part(there, **limited)
        desk.look(1.0, [])
        assert kinds(desk, folder) == {"too_full"}
        assert not desk.gaps()
        writing = Writing(
            with_config(there.context, Config(storage=StorageConfig(**limited))),  # type: ignore[arg-type]
            there.filesystem_probe,
        )
        writing.look(1.0, [])
        assert [row["outcome"] for row in writing.status()["test_writes"]] == ["ok"]


def test_a_configured_folder_that_is_not_there_is_a_gap(tools: NodeTools, tmp_path: Path) -> None:
    desk = part(tools, paths=(str(tmp_path / "gone"),))
    desk.look(1.0, [])
    assert [(one.what, one.reason) for one in desk.gaps()] == [
        (f"folder {tmp_path / 'gone'} of the config", "No such file or directory")
    ]


def test_a_limit_of_a_folder_counts_for_its_filesystem(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=64m") as folder:
        (folder / "team").mkdir()
        above = {str(folder): "0.99", str(folder / "team"): "1GiB left"}
        desk = part(tools, limits=above)
        desk.look(1.0, [])
        assert kinds(desk, folder) == {"too_full"}


def test_two_folders_of_one_filesystem_at_one_name_are_one_series(
    tools: NodeTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers have /data each: Prometheus refuses a page that tells a series twice."""
    mounts = [Mount(number, "/data", "nfs4", "nfs01:/", "0:52", f"/{number}") for number in (1, 2)]
    found = {("0:52", one.root): UsedMount(mount=one, path=b"/data") for one in mounts}
    spaces = [Space(size=100, free=left, available=left) for left in (10, 60)]
    answers = [MountAnswer(mount=1, space=one) for one in spaces]
    monkeypatch.setattr(filesystems, "used_mounts", lambda *_, **__: found)
    monkeypatch.setattr(tools.filesystem_probe, "ask", lambda places: answers if places else [])
    desk = part(tools)
    desk.look(1.0, [])
    pairs = [(one.metric, one.labels) for one in desk.samples()]
    assert len(pairs) == len(set(pairs))
    (share,) = [
        one.value for one in desk.samples() if one.metric == "mldebug_filesystem_used_ratio"
    ]
    assert share == 0.9  # the fullest
    assert len(desk.status()["filesystems"]) == 2
