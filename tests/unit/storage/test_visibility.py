"""What one user sees of the storage desk: never the mounts and figures of another's job."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import StorageConfig
from mldebug.core.model import Gap, Job, RankIdentity
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.status.storage_lines import NOTHING, storage_lines
from mldebug.storage.filesystems.state import CollectorState, Measure, StorageAlert, StorageState
from mldebug.storage.filesystems.visibility import of_user
from mldebug_agents.agent.node_tools import CurrentConfig, NodeTools, open_tools
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.web.peer_credentials import PeerCredentials, view
from unit.storage.test_filesystems import mounted

ALICE, BOB = 1001, 1002
STATE = StorageState(
    parts=(
        CollectorState(
            name="filesystems",
            at=1.0,
            measures=(
                Measure(metric="m", labels=("/home/bob/x",), value=1, uids=(BOB,)),
                Measure(metric="m", labels=("/",), value=1),
            ),
            rows={
                "filesystems": (
                    {"line": "/home/bob/x (nfs01:/secret)", "uids": f"{BOB} 0"},
                    {"line": "/shared", "uids": f"{ALICE} {BOB}"},
                    {"line": "/"},
                )
            },
            alarms=(
                StorageAlert(kind="stuck", subject="/home/bob/x", sentence="it hangs", uids=(BOB,)),
                StorageAlert(kind="too_full", subject="/", sentence="it is full", aside="bob's job does"),
            ),
            gaps=(Gap(what="filesystem /home/bob/x", reason="no", pid=7), Gap(what="/", reason="x")),
        ),
    )
)  # fmt: skip


def lines(state: StorageState) -> list[object]:
    return [row["line"] for row in state.rows["filesystems"]]


def test_others_mounts_are_hidden_and_what_is_everyones_stays() -> None:
    hers = of_user(STATE, ALICE, ())
    assert lines(hers) == ["/shared", "/"]
    assert [one.whole for one in hers.alarms] == ["it is full"]
    assert [one.labels for one in hers.measures] == [("/",)]
    assert [one.what for one in hers.gaps] == ["/"]
    assert len(lines(of_user(STATE, BOB, ()))) == 3
    assert STATE.alarms[1].whole == "it is full; bob's job does"


def test_the_socket_hides_them_from_a_plain_user_and_from_nobody_known() -> None:
    snapshot = Snapshot(node="n", at=1.0, started_at=0.0, storage=STATE)
    for peer in (PeerCredentials(pid=1, uid=ALICE, groups=frozenset()), None):
        storage = view(snapshot, peer, None).storage
        assert storage is not None
        assert "/home/bob/x (nfs01:/secret)" not in lines(storage)
    assert view(snapshot, PeerCredentials(pid=1, uid=0, groups=frozenset()), None).storage == STATE


def test_the_owner_of_a_job_is_told_what_could_not_be_seen_of_it() -> None:
    run = RunState(id="j", name="gpt", launcher="single", uid=BOB, ranks={0: 7})
    snapshot = Snapshot(node="n", at=1.0, started_at=0.0, runs=(run,), storage=STATE)
    for uid, wanted in ((BOB, ["filesystem /home/bob/x", "/"]), (ALICE, ["/"])):
        storage = view(snapshot, PeerCredentials(pid=1, uid=uid, groups=frozenset()), None).storage
        assert storage is not None
        assert [one.what for one in storage.gaps] == wanted


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def test_a_real_mount_is_its_users_until_it_is_configured(tools: NodeTools, tmp_path: Path) -> None:
    rank = RankIdentity(rank=0, world_size=1, pid=os.getpid(), uid=BOB)
    job = Job(id="j", name="train", launcher="environment", ranks=(rank,), uid=BOB)
    with mounted(tmp_path / "data", "size=1m") as folder, (folder / "open").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        current = CurrentConfig(Config())
        context = replace(tools.context, current_config=current.read)
        desk = FilesystemCollector(context, tools.filesystem_probe)
        desk.look(1.0, [job])
        rows = {str(row["mount"]): row for row in desk.status()["filesystems"]}
        assert rows[str(folder)]["uids"] == str(BOB)
        assert rows["/dev/shm"]["uids"] == ""
        assert [one.uids for one in desk.alarms() if one.kind == "too_full" and str(folder) in one.subject] == [(BOB,)]  # fmt: skip
        current.replace(Config(storage=StorageConfig(paths=(str(folder),))))
        desk.look(2.0, [job])
        rows = {str(row["mount"]): row for row in desk.status()["filesystems"]}
        assert rows[str(folder)]["uids"] == ""


def test_whoever_sees_no_job_is_told_so_and_why() -> None:
    unseen = CollectorState(
        name="jobs", at=1.0, gaps=(Gap(what="1 Python process", reason="denied"),)
    )
    state = StorageState(
        parts=(CollectorState(name="filesystems", at=1.0, rows={"filesystems": ()}), unseen)
    )
    assert [one.text for one in storage_lines(state)] == [
        NOTHING,
        "Not seen:",
        "  1 Python process: denied",
    ]
