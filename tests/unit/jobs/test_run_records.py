"""Records of runs: taken once, kept after the run's end and over restarts, bounded, and read with the rights of the rank's user."""

import os
import queue
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.run_records.model import RunRecord, record_list, record_of
from mldebug.status.snapshot import Snapshot, encode
from mldebug_agents.jobs.ranks.libraries import Libraries, Program
from mldebug_agents.jobs.run_records import monitor
from mldebug_agents.jobs.run_records.monitor import MEMO, WORKER, RunRecordMonitor
from mldebug_agents.jobs.run_records.reader import RecordOrder, RunRecordReader, StartedWith
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result, Worker
from shared.goodput.memory_store import MemoryStore
from shared.system.hung import wait_until
from unit.jobs.test_ranks_live import started

BEGAN = 1_795_240_000.0
DAY = 86_400.0
TORCH = Libraries(torch="/venv/lib/python3.11/site-packages/torch")


def a_job(id: str = "run1", *, uid: int = 1000, name: str = "train.py", pid: int = 100) -> Job:
    ranks = tuple(
        RankIdentity(rank=rank, world_size=2, pid=pid + rank, uid=uid, script="train.py", argv=("python", "train.py"))
        for rank in (1, 0)
    )  # fmt: skip
    return Job(id=id, name=name, launcher="torchrun", world_size=2, uid=uid, user=f"u{uid}", ranks=ranks)  # fmt: skip


class Node:
    """A monitor whose clock is turned by hand, and whose worker answers when told."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.now = 100.0
        self.set_by = 0.0  # seconds by which the wall clock was set
        self.store = store or MemoryStore()
        self.jobs: dict[str, Job] = {}
        self.words: dict[str, dict[int, str]] = {}
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.orders: list[str] = []
        worker = Worker(WORKER, self._read, self.inbox, 5.0)
        self.monitor = RunRecordMonitor(worker, self.store, "n1", lambda: BEGAN + self.now + self.set_by, lambda: self.now)  # fmt: skip

    def _read(self, order: RecordOrder) -> StartedWith:
        self.orders.append(order.job.id)
        return StartedWith(run=order.job.id, environment={"NCCL_ALGO": "Ring"}, machine={"kernel": "6"})  # fmt: skip

    def look(self, seconds: float = 5.0, libraries: Libraries = TORCH) -> None:
        """One turn of the main loop, and all answers that are due."""
        self.now += seconds
        programs = {rank.pid: Program(libraries=libraries) for job in self.jobs.values() for rank in job.ranks}  # fmt: skip
        self.monitor.tick(self.jobs, programs, self._exits)
        wait_until(lambda: not self.monitor.worker.busy)
        while not self.inbox.empty():
            result = self.inbox.get()
            assert result is not None
            assert self.monitor.on_result(result)

    def _exits(self, id: str) -> Mapping[int, str]:
        return self.words.get(id, {})

    def records(self) -> dict[str, RunRecord]:
        shown = self.monitor.show(Snapshot(node="n1", at=0.0, started_at=0.0))
        return {one.summary.run: one.record() for one in shown.run_records}


def test_a_run_is_read_once_and_says_whose_it_is() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    for _ in range(4):
        node.look()
    assert node.orders == ["run1"]
    (found,) = node.records().values()
    assert (found.run, found.name, found.user, found.uid, found.world_size) == ("run1", "train.py", "u1000", 1000, 2)  # fmt: skip
    assert (found.rank, found.nodes, found.launcher) == (0, "n1", "torchrun")
    assert found.environment == {"NCCL_ALGO": "Ring"}


def test_a_run_without_pytorch_is_read_later() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look(libraries=Libraries())
    node.look(libraries=Libraries())
    assert node.orders == []
    node.look(20.0, libraries=Libraries())
    assert node.orders == ["run1"]


def test_its_end_is_recorded_and_outlives_the_agent() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.words["run1"] = {0: "exit 1", 1: "exit 1"}
    node.look()
    del node.jobs["run1"]
    for _ in range(40):
        node.look()
    (found,) = node.records().values()
    assert (found.is_over, found.outcome) == (True, "exit 1")
    later = Node(node.store)
    later.look()
    assert later.records() == node.records()
    assert later.orders == []


def test_how_it_ended_is_recorded_before_the_next_run_of_the_job_begins() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.look()
    node.words["run1"] = {0: "exit status 0"}
    node.look(1.0)
    assert node.records()["run1"].outcome == "", "a rank still runs"
    node.words["run1"] = {0: "exit status 0", 1: "exit status 0"}
    del node.jobs["run1"]
    node.look(1.0)
    found = node.records()["run1"]
    assert (found.is_over, found.outcome) == (False, "exit status 0")
    node.look(61.0)
    assert node.records()["run1"].is_over


def test_a_run_of_which_another_attempt_comes_is_not_over() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.words["run1"] = {0: "exit status 1", 1: "exit status 1"}
    job = node.jobs.pop("run1")
    node.look()
    assert node.records()["run1"].outcome == "exit status 1"
    node.jobs["run1"] = job
    node.words["run1"] = {}
    for _ in range(30):
        node.look()
    found = node.records()["run1"]
    assert found.is_over is False


def test_a_run_that_ended_while_no_agent_was_there_is_over() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.jobs["run2"] = a_job("run2")
    for _ in range(4):
        node.look()
    last = node.records()["run1"].last_at
    later = Node(node.store)
    later.now = node.now + 3_600.0
    later.jobs["run2"] = a_job("run2")
    for _ in range(60):
        later.look()
    found = later.records()
    assert (found["run1"].is_over, found["run1"].outcome, found["run1"].last_at) == (True, "", last)
    assert not found["run2"].is_over
    assert later.orders == []


def test_a_record_without_room_for_its_tables_says_so() -> None:
    node = Node()
    node.monitor.worker._work = lambda order: StartedWith(run=order.job.id, packages={f"p{number}": "1" * 60 for number in range(4_000)})  # fmt: skip
    node.jobs["run1"] = a_job()
    node.look()
    (found,) = node.records().values()
    assert (found.packages, found.user) == ({}, "u1000")
    assert "packages: more than there is room for" in found.gaps


def test_how_most_ranks_ended_is_told() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.words["run1"] = {0: "killed by SIGTERM (15)", 1: "exit 1", 2: "killed by SIGTERM (15)"}
    node.look()
    del node.jobs["run1"]
    node.look(200.0)
    assert node.records()["run1"].outcome == "killed by SIGTERM (15) (2 of 3 ranks)"


def test_one_user_s_crash_loop_takes_nobody_s_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "MOST", 8)
    node = Node()
    node.jobs["mine"] = a_job("mine", uid=1)
    node.look()
    node.jobs["steady"] = a_job("steady", uid=2, name="other.py")
    node.look()
    node.jobs.clear()
    for number in range(30):
        node.jobs = {f"loop{number}": a_job(f"loop{number}", uid=2)}
        node.look(150.0)
    kept = node.records()
    assert len(kept) <= 9
    assert {"mine", "steady", "loop29", "loop28"} <= kept.keys()
    assert len(node.store.memos(MEMO)) == len(kept)


def test_what_is_old_or_unreadable_is_forgotten() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.jobs.clear()
    node.store.values[f"{MEMO}bad"] = b"{no json"
    later = Node(node.store)
    later.look()
    assert set(later.records()) == {"run1"}
    assert f"{MEMO}bad" not in node.store.values
    later.look(31 * DAY)
    assert later.records() == {}
    assert node.store.memos(MEMO) == ()


@pytest.mark.parametrize("days", [40, 400, -400])
def test_a_clock_that_is_set_wrong_forgets_nothing(days: int) -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.jobs.clear()
    node.set_by = days * DAY
    node.look(150.0)
    assert set(node.records()) == {"run1"}
    later = Node(node.store)  # started anew while the clock is wrong
    later.set_by = node.set_by
    later.look()
    later.look(0.9 * DAY)
    assert set(later.records()) == {"run1"}


def test_what_a_clock_has_said_for_a_day_counts() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    node.jobs.clear()
    node.set_by = 40 * DAY
    node.look(150.0)
    node.look(DAY)
    assert node.records() == {}


def test_a_read_that_fails_leaves_a_record_that_says_so() -> None:
    node = Node()
    node.monitor.worker._work = lambda _: 1 / 0
    node.jobs["run1"] = a_job()
    node.look()
    (found,) = node.records().values()
    assert found.gaps == ("it could not be read: division by zero",)


def test_the_status_does_not_carry_them() -> None:
    node = Node()
    node.jobs["run1"] = a_job()
    node.look()
    shown = node.monitor.show(Snapshot(node="n1", at=0.0, started_at=0.0))
    assert "run_records" not in msgspec.json.decode(encode(shown))
    assert [one.run for one in record_list(shown.run_records).runs] == ["run1"]
    assert record_of(shown.run_records, "run1") is not None
    assert record_of(shown.run_records, "run") is None


# --- real processes --------------------------------------------------------------------------------

SLEEPS = "import time; print('ready', flush=True); time.sleep(300)"


def read(pid: int, folder: Path, *argv: str, torch: str = "") -> StartedWith:
    with Spawner() as spawner, Reader(spawner) as reader:
        host = Host()
        stat = host.brief(pid)
        assert stat is not None
        rank = RankIdentity(rank=0, world_size=1, pid=pid, start_ticks=stat.start_ticks, uid=os.geteuid(), argv=argv)  # fmt: skip
        job = Job(id="j", name="j", launcher="x", ranks=(rank,))
        return RunRecordReader(host, reader).look(RecordOrder(job=job, libraries=Libraries(torch=torch)))  # fmt: skip


def test_code_packages_and_environment_of_a_real_process(tmp_path: Path) -> None:
    work = tmp_path / "repo/src"
    work.mkdir(parents=True)
    git = tmp_path / "repo/.git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/other\n{'b' * 40} refs/heads/main\n")  # fmt: skip
    (work / "train.py").write_text(SLEEPS)
    site = tmp_path / "lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.9.0+cu128'\n")
    (site / "numpy-2.0.0.dist-info").mkdir()
    with started(sys.executable, "train.py", cwd=work, NCCL_ALGO="Ring", SECRET_THING="x") as one:
        found = read(one.pid, work, "python", "train.py", torch=str(site / "torch"))
    assert found.packages == {"numpy": "2.0.0", "python": "3.12", "torch": "2.9.0+cu128"}
    assert found.environment["NCCL_ALGO"] == "Ring"
    assert "SECRET_THING" not in found.environment
    assert found.code["commit"] == "b" * 12
    assert found.code["script"].startswith("sha256 ")
    assert found.directory == str(work)
    assert found.gaps == ()


def test_the_whole_of_a_long_command_line_is_recorded(tmp_path: Path) -> None:
    words = [word for number in range(200) for word in (f"--option-{number}", str(number))]
    words += ["--data", "/data/" + "x" * 400 + "/end", "--api-key", "geheim"]
    with started(sys.executable, "-c", SLEEPS, *words, cwd=tmp_path) as one:
        found = read(one.pid, tmp_path, *([sys.executable, "-c", SLEEPS, *words][:64]))
    assert found.arguments[3:] == (*words[:-1], "***")
    assert found.partial == ()


def test_a_process_that_has_given_itself_a_title_has_the_arguments_it_began_with(tmp_path: Path) -> None:  # fmt: skip
    began = ("python", "train.py", "--lr", "1", "--seed", "2")
    with started(sys.executable, "-c", SLEEPS, cwd=tmp_path) as one:
        found = read(one.pid, tmp_path, *began)
    assert (found.arguments, found.partial) == (began, ("arguments",))


def test_packages_of_a_folder_that_is_listed_in_part_are_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mldebug_agents.jobs.run_records.reader.MOST_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"package{number}-1.0.dist-info").mkdir()
    with started(sys.executable, "-c", SLEEPS, cwd=tmp_path) as one:
        found = read(one.pid, tmp_path, "python", torch=str(tmp_path / "torch"))
    assert "packages" in found.partial


def test_a_worktree_has_its_own_commit_not_that_of_the_repository_around_it(tmp_path: Path) -> None:
    main = tmp_path / ".git"
    (main / "worktrees/w").mkdir(parents=True)
    (main / "refs/heads").mkdir(parents=True)
    (main / "HEAD").write_text("ref: refs/heads/main\n")
    (main / "refs/heads/main").write_text("a" * 40 + "\n")
    (main / "refs/heads/try").write_text("b" * 40 + "\n")
    (main / "worktrees/w/HEAD").write_text("ref: refs/heads/try\n")
    (main / "worktrees/w/commondir").write_text("../..\n")
    work = tmp_path / "w"
    work.mkdir()
    (work / ".git").write_text(f"gitdir: {main}/worktrees/w\n")
    with started(sys.executable, "-c", SLEEPS, cwd=work) as one:
        assert read(one.pid, work, "python").code == {"commit": "b" * 12}
        (main / "worktrees/w/HEAD").unlink()
        assert read(one.pid, work, "python").code == {}


def test_a_large_file_of_references_is_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    others = "".join(f"{number:040x} refs/tags/{number}\n" for number in range(5000))
    (tmp_path / ".git/packed-refs").write_text(f"{others}{'b' * 40} refs/heads/main\n")
    with started(sys.executable, "-c", SLEEPS, cwd=tmp_path) as one:
        assert read(one.pid, tmp_path, "python").code == {"commit": "b" * 12}


@pytest.mark.parametrize("head", ["ref: refs/../../../../etc/shadow", "x" * 100_000, "", "ref: refs/heads/none"])  # fmt: skip
def test_a_hostile_repository_names_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text(head)
    with started(sys.executable, "-c", SLEEPS, cwd=tmp_path) as one:
        assert read(one.pid, tmp_path, "python", "-c").code == {}


def test_a_fifo_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")
    os.mkfifo(tmp_path / "train.py")
    with started(sys.executable, "-c", SLEEPS, cwd=tmp_path) as one:
        assert read(one.pid, tmp_path, "python", "train.py").code == {}


def test_a_script_that_its_user_may_not_read_is_not_read(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs another user")
    secret = tmp_path / "secret.py"
    secret.write_text("x")
    secret.chmod(0o600)
    tmp_path.chmod(0o755)
    code = f"import os; os.setgid(65534); os.setuid(65534); {SLEEPS}"
    with started(sys.executable, "-c", code, cwd=Path("/")) as one:
        wait_until(lambda: Host().status(one.pid).uid == 65534)
        host = Host()
        stat = host.brief(one.pid)
        assert stat is not None
        rank = RankIdentity(rank=0, world_size=1, pid=one.pid, start_ticks=stat.start_ticks, uid=65534, argv=("python", str(secret)))  # fmt: skip
        with Spawner() as spawner, Reader(spawner) as reader:
            order = RecordOrder(job=Job(id="j", name="j", launcher="x", ranks=(rank,)))
            assert "script" not in RunRecordReader(host, reader).look(order).code


def test_a_process_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    rank = RankIdentity(rank=0, world_size=1, pid=2**22 - 1, start_ticks=5, argv=("python",))
    with Spawner() as spawner, Reader(spawner) as reader:
        order = RecordOrder(job=Job(id="j", name="j", launcher="x", ranks=(rank,)))
        found = RunRecordReader(Host(), reader).look(order)
    assert found.gaps == ("its processes ended before they were read",)
