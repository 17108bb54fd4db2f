"""Directories that are watched because runs write there: which, within what bounds, and who sees their sizes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import DirSizesConfig
from mldebug.core.model import Job, RankIdentity
from mldebug.storage.dir_sizes import WATCHED
from mldebug.storage.filesystems.state import CollectorState, StorageState
from mldebug.storage.filesystems.visibility import of_user
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.dir_sizes import learned
from mldebug_agents.storage.dir_sizes.collector import DirSizeCollector
from mldebug_agents.storage.dir_sizes.learned import learned_folders
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Mount
from shared.storage.nodetools import with_config
from shared.system.hung import wait_until


def job(id: str = "j", uid: int = 1002) -> Job:
    rank = RankIdentity(rank=0, world_size=1, pid=os.getpid(), uid=uid)
    return Job(id=id, name="train", launcher="environment", uid=uid, ranks=(rank,))


def reasons(*paths: str, known: tuple[str, ...] = ()) -> dict[str, str]:
    return {one.path: one.why for one in learned_folders(Host(), [job()], {"j": paths}, known)}


def test_the_folders_that_a_run_writes_to_are_learned_each_once(tmp_path: Path) -> None:
    run, logs = f"{tmp_path}/run/ckpt", f"{tmp_path}/logs"
    assert reasons(run, f"{run}/step-1", logs, run) == {run: "", logs: ""}
    assert reasons(run, logs, known=(f"{tmp_path}/run",)) == {logs: ""}
    assert reasons() == {}


def test_a_log_in_a_shared_folder_does_not_keep_the_checkpoints_below_it_from_being_watched() -> (
    None
):
    assert reasons("/home/ada", "/home/ada/ckpt") == {"/home/ada/ckpt": "", "/home/ada": "more than this run lies there"}  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/tmp", "/home/ada", "/dev/shm", "/scratch", "/var/log"])
def test_what_is_not_one_runs_own_is_not_watched(path: str) -> None:
    assert reasons(path) == {path: "more than this run lies there"}


def test_only_local_filesystems_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [Mount(1, "/", "ext4", device="8:1"), Mount(2, "/nfs", "nfs4", device="0:52"), Mount(3, "/s3", "fuse.s3fs", device="0:53")]  # fmt: skip
    monkeypatch.setattr(learned, "mount_table", lambda host, pid: mounts)
    found = reasons("/nfs/me/run", "/s3/me/run", "/work/me/run")
    assert "nfs4" in found["/nfs/me/run"]
    assert "fuse.s3fs" in found["/s3/me/run"]
    assert found["/work/me/run"] == ""


def test_what_the_ranks_see_elsewhere_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [Mount(1, "/", "overlay", device="0:60"), Mount(2, "/out", "ext4", device="8:1", root="/srv/out")]  # fmt: skip
    ours = [Mount(1, "/", "ext4", device="8:1"), Mount(2, "/srv", "ext4", device="8:1", root="/srv")]  # fmt: skip
    monkeypatch.setattr(learned, "mount_table", lambda host, pid: ours if pid == "self" else theirs)
    elsewhere = "the agent does not see it where the ranks do"
    assert reasons("/out/me/run", "/work/me/run") == {"/out/me/run": elsewhere, "/work/me/run": elsewhere}  # fmt: skip


def test_there_are_bounds_and_what_is_beyond_is_told(tmp_path: Path) -> None:
    jobs = [job(f"j{number}") for number in range(learned.MOST)]
    writes = {one.id: [f"{tmp_path}/{one.id}/{name}" for name in "abcde"] for one in jobs}
    found = learned_folders(Host(), jobs, writes, ())
    assert len(found) == learned.MOST * learned.OF_RUN
    assert sum(not one.why for one in found) == learned.MOST
    assert found[-1].gap.reason == "8 directories are watched without configuration at most"
    assert found[-1].gap.pid == os.getpid()


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def collector(tools: NodeTools, **settings: object) -> DirSizeCollector:
    config = Config(trees=DirSizesConfig(**settings))  # type: ignore[arg-type]
    return DirSizeCollector(with_config(tools.context, config))


def test_they_are_watched_without_configuration_and_only_their_owner_sees_them(
    tools: NodeTools, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "ckpt"
    folder.mkdir(parents=True)
    part = collector(tools)
    part.follow({"j": (str(folder),)})
    mine = os.getuid()

    def rows() -> tuple[dict[str, object], ...]:
        part.look(time.time(), [job(uid=mine)])
        return tuple(dict(one) for one in part.status().get("trees", ()))

    wait_until(lambda: any(one["how"] == WATCHED for one in rows()))
    (folder / "model.pt").write_bytes(os.urandom(1 << 20))
    wait_until(lambda: rows()[0]["apparent_bytes"] == 1 << 20)
    rows_by_heading = part.status()
    measures = tuple(part.samples())
    state = StorageState(parts=(CollectorState(name="trees", at=0.0, rows=rows_by_heading, measures=measures),))  # fmt: skip
    assert of_user(state, mine, {"j"}).rows["trees"][0]["path"] == str(folder)
    other = of_user(state, mine + 1, {"k"})
    assert (other.rows, other.measures) == ({}, ())
    part.look(time.time() + 60, [])
    assert part.status() == {}


def test_nothing_is_learned_where_that_is_switched_off(tools: NodeTools, tmp_path: Path) -> None:
    part = collector(tools, learn=False)
    part.follow({"j": (str(tmp_path),)})
    part.look(time.time(), [job()])
    assert (part.status(), list(part.gaps())) == ({}, [])


def test_a_folder_that_becomes_a_link_tells_nothing_of_where_it_leads(
    tools: NodeTools, tmp_path: Path
) -> None:
    """Who may rename it could have any directory of the node counted for him."""
    secret, folder = tmp_path / "secret", tmp_path / "run" / "ckpt"
    secret.mkdir()
    (secret / "file").write_bytes(bytes(4096))
    folder.parent.mkdir()
    folder.symlink_to(secret)
    part = collector(tools)
    part.follow({"j": (str(folder),)})

    def rows() -> tuple[dict[str, object], ...]:
        part.look(time.time(), [job()])
        return tuple(dict(one) for one in part.status().get("trees", ()))

    wait_until(lambda: any(one["why"] for one in rows()))
    (row,) = rows()
    assert (row["why"], row["bytes"]) == ("a link stands in its path", None)
    part.look(time.time() + 60, [])  # nobody writes there any more


def test_a_folder_of_another_user_is_not_counted_for_who_may_write_there(
    tools: NodeTools, tmp_path: Path
) -> None:
    """Such as /mnt/scratch: below it lie private folders of others, which the agent can count and its owner cannot."""
    (tmp_path / "scratch" / "private").mkdir(parents=True)
    part = collector(tools)
    part.follow({"j": (str(tmp_path / "scratch"),)})

    def rows() -> tuple[dict[str, object], ...]:
        part.look(time.time(), [job(uid=os.getuid() + 1)])
        return tuple(dict(one) for one in part.status().get("trees", ()))

    wait_until(lambda: any(one["why"] or one["inodes"] for one in rows()))
    (row,) = rows()
    assert (row["why"], row["inodes"]) == ("it belongs to another user", None)
    part.look(time.time() + 60, [])


def test_links_in_the_path_of_a_configured_one_are_followed(
    tools: NodeTools, tmp_path: Path
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    part = collector(tools, paths=(str(link),), learn=False)
    wait_until(
        lambda: (
            part.look(time.time(), [])
            or any(one["bytes"] for one in part.status().get("trees", ()))
        )
    )
    part._client.close()
