"""Real jobs that stop together: whoever asks, on whichever rank it is seen, all ranks obey at the same step."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from processes.harness import (
    JOBS,
    Plan,
    RunningJob,
    User,
    folder_for,
    fuse_mount,
    mldebug,
    wait_for,
)
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")

RANKS = 4


class Stopping(RunningJob):
    """`tests/jobs/stopping.py` under torchrun, which is started by way of `before`."""

    before: tuple[str, ...] = ()

    def _spawn(self, argv: list[str], extra: dict[str, str]) -> None:
        super()._spawn([*self.before, *argv], extra)

    def _script(self) -> list[str]:
        return [str(JOBS / "stopping.py"), "--events", str(self.events), *self.plan.options]

    @property
    def everyone(self) -> range:
        return range(self.plan.world_size)

    def end(self) -> None:
        super().end()
        for pid in self.ranks.values():  # a killed rank leaves its word to the next one
            for path in Path("/dev/shm").glob(f"mldebug-{pid}-*"):
                path.unlink()

    def actions(self, rank: int) -> list[tuple[str, str, str]]:
        """(step, action, reason) of all that a rank was answered."""
        path = self.events / f"actions.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(one[0], one[1], one[2]) for one in (line.split(" ", 2) for line in lines)]

    def agreed(self, count: int) -> list[tuple[str, str]]:
        """What all ranks were answered, once each has had `count` answers; they have to be the same."""
        self._wait(
            f"{count} answers", lambda: all(len(self.actions(r)) >= count for r in self.everyone)
        )
        values = [[(step, action) for step, action, _ in self.actions(r)] for r in self.everyone]
        assert all(one == values[0] for one in values), values
        return values[0]

    def end_code(self, seconds: float = 60.0) -> int:
        code = wait_for(
            "its end", lambda: (one := self.started[0].poll()) is not None and [one], seconds
        )
        return int(code[0])

    def weights(self) -> set[str]:
        return {(self.events / f"weights.{rank}").read_text() for rank in self.everyone}


@contextmanager
def stopping(
    *options: str, ranks: int = RANKS, user: User | None = None, before: tuple[str, ...] = ()
) -> Iterator[Stopping]:
    plan = Plan(world_size=ranks, struck=(), options=options, user=user or User())
    with folder_for(plan.user) as folder:
        job = Stopping(plan, folder)
        job.before = before
        try:
            job.start()
            yield job
        finally:
            job.end()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of switches."""
    folder = tmp_path / "switches"
    folder.mkdir(mode=0o700)
    return folder


def test_one_rank_that_sees_a_switch_is_enough_and_a_late_one_changes_nothing(
    tmp_path: Path,
) -> None:
    views = [tmp_path / f"view-{rank}" for rank in range(RANKS)]
    for view in views:
        view.mkdir()
    with stopping("--folder", str(tmp_path / "view-{rank}")) as job:
        job.wait_for_step(10)
        late = tmp_path / "late"
        late.touch()
        shutil.copy2(late, views[2] / "save")
        (first,) = job.agreed(1)
        assert first[1] == "save"
        assert job.actions(2)[0][2].startswith("rank 2: the save switch ")
        assert job.actions(0)[0][2] == "rank 2: the save switch is set"
        wait_for("it to be taken away", lambda: not (views[2] / "save").exists(), 20)
        for view in (views[0], views[3]):  # the same file, on nodes that see it only now
            shutil.copy2(late, view / "save")
        job.wait_for_step(job.step(0) + 100)  # some seconds, and looks, later
        assert job.agreed(1) == [first]
        (views[3] / "kill").touch()
        assert [action for _, action in job.agreed(2)] == ["save", "kill"]
        assert job.end_code() == 0
        assert len(job.weights()) == 1
        assert all(job.has("saved", rank) for rank in job.everyone)
        assert (views[3] / "kill").exists()


def test_a_signal_to_one_rank_stops_all_and_nobody_is_killed_by_it(place: Path) -> None:
    with stopping("--folder", str(place)) as job:
        job.wait_for_step(10)
        os.kill(job.ranks[3], signal.SIGUSR1)
        (last,) = job.agreed(1)
        assert last[1] == "kill"
        assert job.actions(3)[0][2] == "rank 3: SIGUSR1 came"
        assert job.end_code() == 0
        assert all(job.has("saved", rank) for rank in job.everyone)


def test_a_reason_of_one_rank_stops_all(place: Path) -> None:
    with stopping("--folder", str(place), ranks=2) as job:
        job.wait_for_step(10)
        (job.events / "reason.1").write_text("2 % of memory left")
        assert job.agreed(1)[0][1] == "kill"
        assert job.actions(1)[0][2] == "rank 1: 2 % of memory left"
        assert job.actions(0)[0][2] == "rank 1: it asked to stop"
        assert job.end_code() == 0


def test_the_end_of_its_time_finds_everything_saved(place: Path) -> None:
    with stopping("--folder", str(place), "--duration", "25s", "--save", "1") as job:
        assert job.agreed(1)[0][1] == "kill"
        assert "s of its time are left" in " ".join(job.actions(r)[0][2] for r in job.everyone)
        assert job.end_code() == 0
        assert all(job.has("saved", rank) for rank in job.everyone)
        began, newest = (
            max((job.events / f"{event}.{rank}").stat().st_mtime for rank in job.everyone)
            for event in ("started", "saved")
        )
        assert (
            newest < began + 25 + 5
        )  # their time runs since their processes began, which is earlier


def test_a_kill_switch_from_before_ends_a_job_that_starts(place: Path) -> None:
    (place / "kill").touch()
    with stopping("--folder", str(place), ranks=2) as job:
        assert job.agreed(1) == [("start", "kill")]
        assert job.end_code() == 0
        assert job.step(0) == -1
        assert "stops at this step" in job.tail()


def test_training_is_the_same_with_switches_and_without(place: Path) -> None:
    found = []
    for options in (["--without"], ["--folder", str(place)], ["--folder", "/proc/nowhere"]):
        with stopping("--steps", "60", "--pause", "0.005", *options, ranks=2) as job:
            assert job.end_code() == 0
            found.append(job.weights())
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


def test_a_rank_that_asks_less_often_costs_the_switches_and_not_the_training(place: Path) -> None:
    often = ("--folder", str(place), "--every", "1", "--timeout", "3")
    with stopping("--steps", "60", *often, "--seldom", "1", ranks=2) as job:
        assert job.end_code() == 0
        assert len(job.weights()) == 1
        assert "the switches are off, the training goes on" in job.tail()
        (weights,) = job.weights()
        assert weights.startswith("59 ")


@pytest.mark.parametrize("missing", [pytest.param("0", marks=pytest.mark.long), "1"])
def test_a_poll_missed_in_the_very_round_of_a_kill_costs_the_switches_and_not_the_training(
    place: Path, missing: str
) -> None:
    """Who polls would end, and the other one wait for it in the next step for ever."""
    at = ("--stop-at", "20", "--miss", missing, "--collectives", "30")
    often = ("--folder", str(place), "--every", "1", "--steps", "60")
    with stopping(*often, *at, ranks=2) as job:
        assert job.end_code(150) == 0
        assert [job.actions(rank) for rank in job.everyone] == [[], []]
        assert "the switches are off, the training goes on" in job.tail()
        (weights,) = job.weights()
        assert weights.startswith("59 ")


def test_who_works_alone_before_its_poll_is_waited_for(place: Path) -> None:
    """Longer than a poll waits otherwise."""
    options = ("--folder", str(place), "--every", "1", "--timeout", "2", "--alone", "6")
    with stopping(*options, "--stop-at", "20", ranks=2) as job:
        assert job.agreed(1) == [("21", "kill")]
        assert job.end_code() == 0


def test_a_folder_that_hangs_stops_no_step(tmp_path: Path) -> None:
    with ExitStack() as stack:
        file, server = stack.enter_context(fuse_mount(tmp_path, User()))
        options = ("--folder", str(file.parent), "--steps", "200")
        job = stack.enter_context(stopping(*options, ranks=2))
        job.wait_for_step(20)
        os.kill(server, signal.SIGSTOP)
        try:
            job.wait_for_event("weights", (0, 1))
        finally:
            os.kill(server, signal.SIGCONT)
        assert job.end_code() == 0


@pytest.mark.long  # of a pinned PyTorch
def test_torchrun_dies_of_the_signal_and_so_it_is_never_sent_to_it(place: Path) -> None:
    """What docs/training-helpers.md says of launchers; where this changes, the page has to."""
    with stopping("--folder", str(place), ranks=2) as job:
        job.wait_for_step(5)
        os.kill(job.pid, signal.SIGUSR1)
        assert job.end_code() == -signal.SIGUSR1


# --- mldebug switch ------------------------------------------------------------------------------


def test_the_command_line_saves_and_stops_a_job_of_any_user(user: User) -> None:
    with stopping(ranks=2, user=user) as job:
        job.wait_for_step(10)
        run = _run_of(job)
        job.plan.user = User()  # from here on whoever runs the tests asks, root for all others
        shown = mldebug(job, "switch", "status", "--run", run)
        assert shown.code == 0
        assert f"folder  {job.folder}/.mldebug-switch/" in shown.stdout
        entry = mldebug(job, "switch", "save", "--run", run, "--json").report["switches"][0]
        file = Path(entry["found"]["folder"], "save")
        assert job.agreed(1)[0][1] == "save"
        wait_for("it to be taken away", lambda: not file.exists(), 20)
        wait_for("its word", lambda: "by rank 0 of 2" in _status(job, run), 30)
        done = mldebug(job, "switch", "kill", "--run", run)
        assert done.code == 0
        assert job.agreed(2)[1][1] == "kill"
        assert job.end_code() == 0
        assert not (job.folder / ".mldebug-switch").exists() or list(file.parent.iterdir()) == [
            file.with_name("kill")
        ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something in a namespace of its own")
def test_the_folder_of_a_container_is_found_through_its_ranks(place: Path) -> None:
    mount = f'mount -t tmpfs -o mode=700 none {place} && exec "$@"'
    before = ("unshare", "-m", "sh", "-c", mount, "sh")
    with stopping("--folder", str(place), ranks=2, before=before) as job:
        job.wait_for_step(10)
        report = mldebug(job, "switch", "kill", "--run", _run_of(job), "--json").report
        assert report["switches"][0]["found"]["kill"]["by"]
        assert job.agreed(1)[0][1] == "kill"
        assert job.end_code() == 0
    assert list(place.iterdir()) == []  # ours was never touched


def _status(job: Stopping, run: str) -> str:
    return mldebug(job, "switch", "status", "--run", run).stdout


def _run_of(job: Stopping) -> str:
    """Its id, as `mldebug status` says."""
    pids = set(job.ranks.values())
    jobs = mldebug(job, "status", "--json").report["jobs"]
    return str(next(one["id"] for one in jobs if {rank["pid"] for rank in one["ranks"]} & pids))


def test_a_job_without_the_loop_is_told_in_one_sentence() -> None:
    with stopping("--without", ranks=2) as job:
        job.wait_for_step(2)
        run = _run_of(job)
        assert "nobody asks for switches" in _status(job, run)
        done = mldebug(job, "switch", "kill", "--run", run)
        assert done.code == 2
        assert "nobody asks for switches" in done.stderr
        assert job.started[0].poll() is None
