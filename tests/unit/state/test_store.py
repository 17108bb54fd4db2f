"""What survives a restart of the agent, whatever the disk does meanwhile."""

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from mldebug.core.errors import AccessError, MldebugError, UsageError
from mldebug.core.model import Job, NodeCapture, RankIdentity
from mldebug.diagnosis.exits.model import KnownExits, RankExit
from mldebug.incidents.incident import Incident
from mldebug.stall.progress_clock import StallMemory
from mldebug_agents.state import server
from mldebug_agents.state.client import StateClient
from mldebug_agents.state.folder import FolderLock
from mldebug_agents.state.messages import CheckState
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.child.leftovers import Leftover, children_of
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.web.listeners import open_unix
from shared.storage.disks import disk
from shared.system.hung import hung_mount, wait_until

INCIDENT = Incident(id="20261121T055041Z-job", key="job/0/7", job_id="job", detected_at=1.0)
ENDS = KnownExits(
    identities=(RankIdentity(rank=1, world_size=2, pid=7, start_ticks=9),),
    exits=(RankExit(rank=1, pid=7, moment=1, status=0),),
)


SPAWNERS: list[Spawner] = []


@pytest.fixture(autouse=True)
def starter() -> Iterator[None]:
    """What forks the state keepers of a test."""
    with Spawner({"state": server.serve}) as one:
        SPAWNERS.append(one)
        yield
        SPAWNERS.remove(one)


def unopened(folder: Path) -> StateStore:
    return StateStore(folder, SPAWNERS[-1], retry=0.01)


@contextmanager
def opened_store(folder: Path, timeout: float = 30.0) -> Iterator[StateStore]:
    one = unopened(folder)
    try:
        one.start(timeout)
        one.writer.release()
        yield one
    finally:
        one.close(30)


def test_memory_incident_and_leftovers_come_back(tmp_path: Path) -> None:
    left = (Leftover(7, 99, "py-spy dump"),)
    with opened_store(tmp_path) as first:
        first.keep("job", StallMemory(run="job", incidents=1), INCIDENT)
        first.keep("gone", StallMemory(run="gone"), None)
        first.forget("gone")
        first.leave(left)
    with opened_store(tmp_path) as second:
        assert second.opened
        assert second.memory("job") == StallMemory(run="job", incidents=1)
        assert second.incident("job") == INCIDENT
        assert set(second.found()) == {"job"}
        assert second.leftovers == left


def test_a_run_whose_id_has_changed_is_known_by_its_processes(tmp_path: Path) -> None:
    """Its launcher has died, and the agent was killed: the same stall keeps its incident."""
    job = Job(id="job", name="train.py", launcher="torchrun", ranks=tuple(
        RankIdentity(rank=rank, world_size=2, pid=100 + rank, start_ticks=7) for rank in range(2)))  # fmt: skip
    changed = msgspec.structs.replace(
        INCIDENT, captures=(NodeCapture(node="n1", taken_at=2.0, job=job),)
    )
    with opened_store(tmp_path) as first:
        first.keep("job", StallMemory(run="job", incidents=1), changed)
    left = msgspec.structs.replace(job, id="new", ranks=job.ranks[1:])
    stranger = msgspec.structs.replace(
        left, id="other", ranks=(msgspec.structs.replace(job.ranks[1], start_ticks=8),)
    )
    for _ in range(2):  # the second time from the disk
        with opened_store(tmp_path) as again:
            again.adopt(stranger)
            assert again.incident("other") is None
            again.adopt(left)
            known, memory = again.incident("new"), again.memory("new")
            assert known is not None
            assert (known.id, known.job_id) == (INCIDENT.id, "new")
            assert memory is not None
            assert memory.run == "new"
            assert set(again.found()) == {"new"}


def test_only_the_agent_may_read_its_memory(tmp_path: Path) -> None:
    with opened_store(tmp_path / "state") as one:
        one.keep("job", StallMemory(), None)
        wait_until(lambda: (tmp_path / "state/agent.sqlite-wal").exists())
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()
        }
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o711


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "agent.sqlite").write_bytes(b"no database" * 1000)
    with opened_store(tmp_path) as one:
        assert one.opened
        one.keep("job", StallMemory(run="job"), None)
    with opened_store(tmp_path) as two:
        assert two.memory("job") == StallMemory(run="job")
    assert (tmp_path / "agent.sqlite.broken").read_bytes().startswith(b"no database")
    assert "is damaged" in caplog.text


def test_a_row_of_another_version_does_not_hide_the_others(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        one.keep("old", StallMemory(), None)
        one.keep("job", StallMemory(run="job"), None)
    link = sqlite3.connect(tmp_path / "agent.sqlite")
    link.execute("UPDATE runs SET memory = '{\"run\": 7}' WHERE job_id = 'old'")
    link.commit()
    link.close()
    with opened_store(tmp_path) as two:
        assert set(two.found()) == {"job"}


def test_a_second_agent_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with opened_store(tmp_path):
        other = unopened(tmp_path)
        with pytest.raises(UsageError, match=rf"another agent \(pid {os.getpid()}\) already uses"):
            other.start()
        other.close(30)


def test_an_agent_of_another_node_is_named_with_its_node(tmp_path: Path) -> None:
    with opened_store(tmp_path):
        (tmp_path / "agent.lock").write_text("123 other-node")
        other = unopened(tmp_path)
        with pytest.raises(UsageError, match=r"pid 123 on other-node"):
            other.start()
        other.close(30)


def test_a_killed_agent_leaves_no_lock(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from statistics import median
from typing import Any
from mldebug_agents.state import server
from mldebug_agents.state.client import StateClient
from mldebug_agents.state.folder import FolderLock
from mldebug_agents.state.messages import CheckState
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.spawn import Spawner
one = StateStore(Path({str(tmp_path)!r}), Spawner({{"state": server.serve}})); one.start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -9
    with opened_store(tmp_path) as one:
        assert one.opened


@pytest.mark.parametrize("kind", ["file", "below a file", "loop", "long", "proc", "dangling"])
def test_what_can_never_be_a_state_dir_is_a_sentence(tmp_path: Path, kind: str) -> None:
    place = {
        "file": tmp_path / "file",
        "below a file": tmp_path / "file/state",
        "loop": tmp_path / "loop",
        "long": tmp_path / ("x" * 300),
        "proc": Path("/proc/x"),
        "dangling": tmp_path / "dangling/state",
    }[kind]
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    one = unopened(place)
    with pytest.raises(UsageError, match=f"the state dir {place} ") as raised:
        one.start()
    assert "agent.state_dir" in raised.value.way_out
    one.close(30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("closed", ["state", "state/reports", "state with a lock of his own"])
def test_a_closed_state_dir_is_a_sentence(tmp_path: Path, closed: str) -> None:
    """As an ordinary user, in a child."""
    place = tmp_path / "state"
    place.mkdir(mode=0o500)
    shut = place
    if closed == "state/reports":
        os.chown(place, 65534, 65534)
        place.chmod(0o700)
        shut = place / "reports"
        shut.mkdir(mode=0o711)
    elif "lock" in closed:
        (place / "agent.lock").touch()
        os.chown(place / "agent.lock", 65534, 65534)
        place.chmod(0o755)
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        above.chmod(above.stat().st_mode | 0o011)
    receive, send = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            StateStore(place, Spawner({"state": server.serve})).start()
            send.send("started")
        except MldebugError as error:
            send.send(f"{type(error).__name__}: {error.message}")
        os._exit(0)
    os.waitpid(pid, 0)
    assert receive.recv() == f"{AccessError.__name__}: this user may not write the state dir {shut}"
    receive.close()
    send.close()


def remounted(place: Path, *options: str) -> bool:
    done = subprocess.run(["mount", "-o", *options, str(place)], check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_or_read_only_disk_lets_the_agent_run_and_takes_all_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=True)
    try:
        (place / "fill").write_bytes(b"x" * 65536)
        with opened_store(place) as one:
            one.keep("job", StallMemory(run="job"), INCIDENT)
            wait_until(lambda: not one.states()[0].success)
            assert "No space left on device (ENOSPC)" in one.states()[0].error
            text = f"the state dir {place} cannot be written: No space left"
            wait_until(lambda: text in caplog.text)  # the thread logs it after that
            assert f"df -h {place}" in caplog.text
            (place / "fill").unlink()
            wait_until(lambda: one.states()[0].success)
        assert f"the state dir {place} can be written again" in caplog.text
        for args in (["remount,ro"], ["remount,rw"]):
            wait_until(
                lambda a=args: remounted(place, *a)
            )  # not while the keeper before still ends
            with opened_store(place) as again:
                assert again.opened == (args == ["remount,rw"])
                text = "" if again.opened else "Read-only file system (EROFS)"
                assert again.states()[0].error == text
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_that_stopped_is_let_go_once_it_is_unmounted_and_taken_up_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who holds a file there keeps the stopped file system: a new mount of the device would show it again, read-only for ever."""
    with disk(tmp_path, "ext4") as place, opened_store(place / "state") as one:
        one.keep("job", StallMemory(run="job"), INCIDENT)
        wait_until(lambda: one.writer.idle)
        assert remounted(place, "remount,abort")
        one.keep("job", StallMemory(run="job", incidents=2), INCIDENT)
        wait_until(lambda: "EROFS" in one.states()[0].error)
        assert "umount -l" in caplog.text
        subprocess.run(["umount", "-l", str(place)], check=True)
        wait_until(
            lambda: "replaced while the agent ran" in caplog.text
        )  # not the advice to wait for it
        wait_until(lambda: not loops(tmp_path / "image"))
        subprocess.run(["mount", "-o", "loop", str(tmp_path / "image"), str(place)], check=True)
        wait_until(lambda: one.check_state_dir() or (place / "state" / "agent.sqlite").exists())
        one.check_state_dir()
        wait_until(lambda: one.writer.idle and one.states()[0].success)
        assert one.lost == 0
        one.close(30)
        with opened_store(place / "state") as again:
            assert again.memory("job") == StallMemory(run="job", incidents=2)


def loops(image: Path) -> str:
    """The loop devices of this image."""
    done = subprocess.run(["losetup", "-j", str(image)], check=True, capture_output=True, text=True)
    return done.stdout


def test_a_hung_disk_is_opened_when_it_comes_back(tmp_path: Path) -> None:
    with opened_store(tmp_path / "before") as first:
        first.keep("job", StallMemory(run="job"), INCIDENT)
    folder = tmp_path / "hung"
    folder.mkdir()
    with hung_mount(folder) as mount:
        for path in (tmp_path / "before").iterdir():
            (mount.source / path.name).write_bytes(path.read_bytes())
        mount.hang()
        late = unopened(mount.target)
        assert not late.start(0.3)
        assert late.found() == {}
        mount.recover()
        wait_until(lambda: late.opened)
        assert late.earlier_incident("job") == INCIDENT
        late.close(30)


def test_the_socket_file_goes_at_the_end_if_it_is_still_ours(tmp_path: Path) -> None:
    for taken_over in (False, True):
        doors: list[socket.socket] = []
        one = StateStore(tmp_path, SPAWNERS[-1], doors.append, retry=0.01)
        assert one.start(30)
        assert doors[0].getsockname() == str(tmp_path / "agent.sock")
        if taken_over:
            (tmp_path / "agent.sock").unlink()
            doors.append(open_unix(tmp_path))
        one.close(30)
        assert (tmp_path / "agent.sock").exists() == taken_over
        for listener in doors:
            listener.close()


def test_a_keeper_that_was_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        assert one.worker is not None
        assert one.worker.pid
        os.kill(one.worker.pid, signal.SIGKILL)
        one.keep("job", StallMemory(run="job"), INCIDENT)
        wait_until(lambda: one.writer.idle)
    with opened_store(tmp_path) as two:
        assert two.incident("job") == INCIDENT


def test_leftovers_are_known_by_pid_and_start() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        wait_until(lambda: any(one.pid == child.pid for one in children_of(os.getpid())))
        (mine,) = (one for one in children_of(os.getpid()) if one.pid == child.pid)
        assert mine.lives()
        assert not Leftover(mine.pid, mine.start_ticks + 1).lives()
        child.kill()
        wait_until(lambda: not mine.lives())  # a zombie is nobody


# --- the folder is lost while it is in use -------------------------------------------------------------

LOSSES: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved away": lambda state: state.rename(state.with_name("elsewhere")),
    "replaced": lambda state: (state.rename(state.with_name("elsewhere")), state.mkdir()),
    "database removed": lambda state: (state / "agent.sqlite").unlink(),
    "restored from a copy": lambda state: (
        shutil.copytree(state, state.with_name("copy"), ignore=lambda *_: {"agent.sock"}),
        shutil.rmtree(state),
        state.with_name("copy").rename(state),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_state_dir_is_made_and_filled_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    state, left = tmp_path / "state", (Leftover(7, 99, "py-spy dump"),)
    with opened_store(state) as one:
        one.keep("job", StallMemory(run="job"), INCIDENT)
        one.keep_ends("job", ENDS)
        one.leave(left)
        one.remember("gpus", b"{}")
        wait_until(lambda: one.writer.idle)
        assert not one.check_state_dir()
        wait_until(lambda: one.writer.idle)
        LOSSES[loss](state)
        wait_until(one.check_state_dir)
        assert one.losses == 1
        wait_until(lambda: one.writer.idle)
        assert not one.check_state_dir()
        other = unopened(state)
        with pytest.raises(UsageError, match="already uses"):
            other.start()
        other.close(30)
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"the state dir {state} ")
    with opened_store(state) as two:
        assert (two.incident("job"), two.ends("job"), two.leftovers) == (INCIDENT, ENDS, left)
        assert two.memo("gpus") == b"{}"
        assert two.losses == 0


def test_a_write_notices_a_lost_state_dir_without_being_told_to_look(tmp_path: Path) -> None:
    with opened_store(tmp_path / "state") as one:
        shutil.rmtree(tmp_path / "state")
        one.keep("job", StallMemory(run="job"), INCIDENT)
        wait_until(lambda: one.losses == 1)
    with opened_store(tmp_path / "state") as two:
        assert two.incident("job") == INCIDENT


def test_a_keeper_that_dies_with_its_folder_is_noticed_too(tmp_path: Path) -> None:
    with opened_store(tmp_path / "state") as one:
        one.keep("job", StallMemory(run="job"), INCIDENT)
        wait_until(lambda: one.writer.idle)
        assert one.worker is not None
        assert one.worker.pid
        shutil.rmtree(tmp_path / "state")
        os.kill(one.worker.pid, signal.SIGKILL)
        wait_until(one.check_state_dir)
    with opened_store(tmp_path / "state") as two:
        assert two.incident("job") == INCIDENT


def test_the_place_of_another_agent_is_left_to_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with opened_store(state) as one:
        state.rename(tmp_path / "elsewhere")
        with opened_store(state):
            (state / "agent.lock").write_text(f"1 {socket.gethostname()}")  # for a pid that lives
            one.check_state_dir()
            wait_until(lambda: one.refusal is not None)
    assert isinstance(one.refusal, UsageError)
    assert one.refusal.message == (
        f"another agent (pid 1) already uses {state}, which was removed or replaced while this agent held it"
    )


def test_the_socket_comes_back_with_the_folder(tmp_path: Path) -> None:
    state, doors = tmp_path / "state", list[socket.socket]()
    one = StateStore(state, SPAWNERS[-1], doors.append, retry=0.01)
    assert one.start(30)
    one.writer.release()
    shutil.rmtree(state)
    wait_until(one.check_state_dir)
    wait_until(lambda: len(doors) == 2)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(state / "agent.sock"))
    one.close(30)
    assert not (state / "agent.sock").exists()
    for listener in doors:
        listener.close()


def test_a_new_keeper_that_is_asked_for_the_socket_first_knows_the_folder(tmp_path: Path) -> None:
    """The keeper before had died while only the socket was missing: the new one knew no state dir, and nothing was written any more."""
    client = StateClient(SPAWNERS[-1], tmp_path / "state", lambda _: None)
    client.open()
    client.hang_up()
    listener = client.open_socket()
    assert listener is not None
    client.ask(CheckState())
    client.end()
    listener.close()


def test_a_folder_that_is_there_and_cannot_be_taken_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new keeper on a disk that is read-only, or that has to wait for the one before: the agent's socket is as good as before."""
    monkeypatch.setattr("mldebug_agents.state.folder.DYING", 0.0)
    state = tmp_path / "state"
    before = FolderLock(state, os.getpid())
    before.take()
    after = FolderLock(state, os.getpid(), before.held)
    with pytest.raises(OSError, match="still held by an agent"):
        after.take()
    assert not after.gone
    before.give_back()
    shutil.rmtree(state)
    state.write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        after.take()
    assert after.gone


def test_a_folder_that_is_closed_to_this_user_is_let_go_and_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system was unmounted, and root alone may look below: the lock kept that file system busy for ever."""
    lock, real = FolderLock(tmp_path / "state", os.getpid()), os.stat
    lock.take()

    def closed(path: Any, *args: Any, **more: Any) -> os.stat_result:
        if path == lock.path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **more)

    with monkeypatch.context() as below:
        below.setattr(os, "stat", closed)
        with pytest.raises(PermissionError):
            lock.take()
    assert lock._fd < 0
    assert lock.take() == ""
    lock.give_back()


def test_a_folder_that_hangs_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    with hung_mount(tmp_path) as mount:
        late = unopened(mount.target / "state")
        assert late.start(30)
        late.writer.release()
        mount.hang()
        spans = []
        for _ in range(20):
            started = time.monotonic()
            late.check_state_dir()
            late.keep("job", StallMemory(run="job"), INCIDENT)
            spans.append(time.monotonic() - started)
            time.sleep(0.01)
        mount.recover()
        assert (
            median(spans) < 0.1
        )  # who waits for the disk waits each time; a busy machine delays a few
        wait_until(lambda: late.writer.idle)
        assert late.losses == 0
        late.close(30)


def test_ends_without_a_run_are_forgotten(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        one.keep_ends("job", ENDS)
    with opened_store(tmp_path) as two:
        assert two.ends("job") == ENDS
        two.forget_others({"other"})
    with opened_store(tmp_path) as three:
        assert three.ends("job") is None


def test_memos_come_back_until_they_are_emptied(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        one.remember("gpus", b"{}")
        one.remember("gpus/job", b"[1]")
        one.remember("gone", b"1")
        one.remember("gone", b"")
        assert one.memo("gone") == b""
    with opened_store(tmp_path) as again:
        assert again.memo("gpus") == b"{}"
        assert again.memos("gpus/") == ("gpus/job",)
        assert again.memo("gone") == b""
        again.remember("gpus/job", b"")
    with opened_store(tmp_path) as last:
        assert last.memos("") == ("gpus",)


def test_a_lost_database_leaves_the_socket_as_it_is(tmp_path: Path) -> None:
    """Its file is there and serves: to open it anew was refused again and again, by ourselves, and no write counted as well done."""
    state, doors = tmp_path / "state", list[socket.socket | None]()
    one = StateStore(state, SPAWNERS[-1], doors.append, retry=0.01)
    assert one.start(30)
    one.writer.release()
    one.keep("job", StallMemory(run="job"), INCIDENT)
    wait_until(lambda: one.writer.idle)
    (state / "agent.sqlite").unlink()
    wait_until(one.check_state_dir)
    wait_until(lambda: one.writer.idle)
    assert one.states()[0].success
    assert len(doors) == 1
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(state / "agent.sock"))
    one.close(30)
    assert not (state / "agent.sock").exists()
    for listener in doors:
        assert listener is not None
        listener.close()
