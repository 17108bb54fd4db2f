"""What readers of a job tell a user: never a line, a name or a size that he could not read himself. Real processes of two users."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mldebug.config.schema import AgentConfig, Config
from mldebug.core.model import Frame, Gap, Job, RankIdentity, ThreadStack
from mldebug.core.plugins import create_all
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.capture.stacks.blocked_call import line_of, source_text
from mldebug_agents.capture.stacks.pyspy import CLOSED, PySpy
from mldebug_agents.capture.trace.collector import SourceText
from mldebug_agents.incidents.exits.exit_evidence import ERROR_FILE, ExitEvidence
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.storage.checkpoints.reader import (
    CheckpointReader,
    CheckpointRequest,
    JobRequest,
)
from mldebug_agents.system.child.programs import Completed, FakeSpawner
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.system.users import ALICE, BOB, SECRET, homes, process, put

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def top() -> Iterator[Path]:
    with homes() as it:
        yield it


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def rank_of(pid: int, uid: int = BOB, **more: Any) -> RankIdentity:
    stat = Host().brief(pid)
    assert stat is not None
    return RankIdentity(
        rank=0, world_size=1, pid=pid, start_ticks=stat.start_ticks, uid=uid, **more
    )


@pytest.mark.parametrize("name", ["alice/model.py", "alice/key", "bob/link.py", "alice/key.py"])
def test_a_frame_may_name_any_file_as_its_source(top: Path, reader: Reader, name: str) -> None:
    put(top / "alice/key.py", SECRET, ALICE, 0o600)
    (top / "bob/link.py").symlink_to(top / "alice/model.py")
    put(top / "bob/train.py", "step()\n", BOB, 0o600)
    host = Host()
    with process(BOB) as running:
        state, rank = host.process_state(running.pid), rank_of(running.pid)

        def line(path: Path) -> str:
            frame = Frame(function="f", file=path.name, path=str(path), line=1)
            stacks = (ThreadStack(tid=running.pid, frames=(frame,)),)
            return line_of(source_text(host, reader, state, stacks))

        assert line(top / "bob/train.py") == "step()"
        assert line(top / name) == ""
        assert line(Path("/etc/passwd")) == ""  # no Python file
        source = SourceText(host, reader, rank)
        assert source.line(str(top / "bob/train.py"), 1) == "step()"
        assert source.line(str(top / name), 1) == ""
    dead = SourceText(host, reader, rank)  # by the node's root, with the same rights
    assert dead.line(str(top / "bob/train.py"), 1) == "step()"
    assert dead.line(str(top / name), 1) == ""


PLACES = "import os, sys; os.environ; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("whose", ["bob", "alice"])
def test_an_error_file_is_read_where_the_rank_could_have_written_it(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:  # fmt: skip
    error = '{"message": {"message": "ValueError: told by ' + whose + '", "extraInfo": {"py_callstack": "ValueError: told by ' + whose + '"}}}'  # fmt: skip
    uid = BOB if whose == "bob" else ALICE
    monkeypatch.setenv(ERROR_FILE, str(top / whose / "error.json"))
    with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "state", listen=""))) as tools:
        watched = ExitEvidence(tools.capture)
        with process(BOB) as running:
            rank = rank_of(running.pid)
            job = Job(id="a", name="t", launcher="x", uid=BOB, ranks=(rank,))
            watched.add_job(job)
            put(top / whose / "error.json", error, uid, 0o644)
        gone = RankExit(rank=0, pid=rank.pid, at=time.time(), moment=0.0)
        collected = watched.collect(AttemptExit(job=job, identities=(rank,), exits=(gone,)))
    assert bool(collected.errors) is (whose == "bob")


HOLDS = "import sys; file = open(sys.argv[1], 'a'); print('ready', flush=True); sys.stdin.read()"


def test_what_a_launcher_of_root_writes_is_told_where_bob_reaches_it(top: Path, tmp_path: Path) -> None:  # fmt: skip
    """A daemon of root has started his ranks: its own log is not his, even with a mode that lets everybody read."""
    folder = top / "daemon"
    folder.mkdir(mode=0o700)
    hidden, shown = put(folder / "slurmd.log", "", 0, 0o644), put(top / "job.log", "", BOB, 0o644)
    for path, lines in ((hidden, []), (shown, ["Traceback", "ValueError: bad shard"])):
        with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / path.name, listen=""))) as tools, process(0, HOLDS, str(path)) as launcher, process(BOB) as running:  # fmt: skip
            rank = rank_of(running.pid, launcher_pid=launcher.pid)
            job = Job(id="a", name="t", launcher="x", uid=BOB, ranks=(rank,), launcher_pid=launcher.pid)  # fmt: skip
            watched = ExitEvidence(tools.capture)
            watched.add_job(job)
            path.write_text("Traceback\nValueError: bad shard\n")
            collected = watched.collect(AttemptExit(job=job, identities=(rank,)))
            assert (list(collected.log.lines) if collected.log else []) == lines
    with process(0, HOLDS, str(shown)) as launcher:  # no rank has come yet, and it is root's
        job = Job(id="a", name="t", launcher="x", uid=BOB, launcher_pid=launcher.pid)
        state = Host().process_state(launcher.pid, files=True)
        assert state is not None
        with open_tools(Config(agent=AgentConfig(state_dir=tmp_path / "none", listen=""))) as tools:
            found = ExitEvidence(tools.capture)._rights(job, state)
        assert found.uid < 0
        places = LogFinder(Host()).find(state, rights=found).places
        assert {one.rights for one in places} == {found}


def test_a_report_has_nothing_that_could_not_be_read_of_another_user_s_job() -> None:
    """Names of her logs, programs and processes stood among what could not be had for Bob's report."""
    with open_tools(Config()) as tools, process(ALICE) as hers, process(BOB) as his, process(BOB) as reads:  # fmt: skip
        job = Job(id="a", name="t", launcher="x", uid=BOB, ranks=(rank_of(his.pid),))
        gaps = [Gap(what="log", reason=f"/x/{pid}.log: permission denied", pid=pid) for pid in (hers.pid, his.pid, reads.pid)]  # fmt: skip
        gaps.append(Gap(what="jobs", reason="no time was left for some"))
        taken = tools.capture.capturer(0.0).capture(job, {}, (), tuple(gaps))
    assert [gap for gap in taken.gaps if gap in gaps] == gaps[1:]
    assert f"/x/{hers.pid}.log" not in str(taken)


SAVES = """
import os, sys
os.makedirs(sys.argv[1] + "/step_7")
file = open(sys.argv[1] + "/step_7/__0_0.distcp", "wb")
print("ready", flush=True)
sys.stdin.read()
"""


def test_checkpoints_behind_a_link_that_was_laid_later(top: Path, reader: Reader) -> None:
    """Bob's save is learned from his open file; then a folder above becomes a link into Alice's home."""
    hers = top / "alice/run/ckpt/step_99"
    hers.mkdir(parents=True)
    put(hers / "__0_0.distcp", "x" * 1000, ALICE, 0o644)
    watch = CheckpointReader(Host(), reader, create_all("checkpoints"))
    with process(BOB, SAVES, str(top / "bob/run/ckpt")) as running:
        rank = rank_of(running.pid)
        job = Job(id="a", name="t", launcher="x", uid=BOB, ranks=(rank,), started_at=time.time())

        def names() -> list[str]:
            request = JobRequest(job=job, pids=(rank.pid,), series=((str(top / "bob/run/ckpt"), "step_#"),))  # fmt: skip
            looks = watch.look(CheckpointRequest(jobs=(request,))).looks
            return [one.name for look in looks for one in look.readings]

        assert names() == ["step_7"]
        (top / "bob/run").rename(top / "bob/moved")
        (top / "bob/run").symlink_to(top / "alice/run")
        assert names() in ([], ["step_7"])  # his open file has moved along
        (top / "bob/run").unlink()
        (top / "bob/run").mkdir()
        (top / "bob/run/ckpt").symlink_to(top / "alice/run/ckpt")
        assert "step_99" not in names()


def test_a_job_that_names_another_user_s_folder_hides_nobody_s_checkpoints(top: Path, reader: Reader) -> None:  # fmt: skip
    """Whatever folders a job names, it was taken for one that may have written there: Alice's checkpoints were not found by their burst."""
    folder = top / "alice/out"
    (folder / "step_3").mkdir(parents=True)
    watch = CheckpointReader(Host(), reader, create_all("checkpoints"))
    with process(ALICE) as hers, process(BOB) as his, process(ALICE) as her_other:
        argv = ("train.py", "--output_dir", str(folder))

        def request(pid: int, uid: int) -> JobRequest:
            rank = rank_of(pid, uid, argv=argv)
            job = Job(id=str(pid), name="t", launcher="x", uid=uid, ranks=(rank,), started_at=time.time())  # fmt: skip
            return JobRequest(job=job, pids=(), burst=uid == ALICE)

        put(folder / "step_3/__0_0.distcp", "x" * 1000, ALICE, 0o600)
        mine, others = request(hers.pid, ALICE), request(his.pid, BOB)
        looks = watch.look(CheckpointRequest(jobs=(mine, others))).looks
        assert [one.name for look in looks for one in look.readings] == ["step_3"]
        hers_too = request(her_other.pid, ALICE)  # which of hers wrote it nobody can tell
        assert not watch.look(CheckpointRequest(jobs=(mine, hers_too))).looks


def test_a_pattern_of_the_operator_follows_no_link_of_a_user(top: Path, reader: Reader) -> None:
    """The agent's own rights hold for what the configuration names, and not for where a user's link leads."""
    for name in ("bob/step_1", "alice/step_99"):
        (top / name).mkdir()
    (top / "bob/in").symlink_to(top / "alice")
    watch = CheckpointReader(Host(), reader, create_all("checkpoints"))

    def names(pattern: str) -> list[str]:
        looks = watch.look(CheckpointRequest(patterns=(f"{top}/{pattern}",))).looks
        return [one.name for look in looks for one in look.readings]

    assert names("bob/step_*") == ["step_1"]
    assert names("*/in/step_*") == []
    assert names("bob/in/step_*") == ["step_99"]  # this one the operator has named himself


def test_a_closed_process_gives_no_stack() -> None:
    spawner = FakeSpawner(lambda _: Completed(error="was started"))
    dump = PySpy(spawner, "py-spy", closed=lambda pid: pid == 7).dump(7)
    assert (dump.failure, spawner.calls) == (CLOSED, [])
