"""What mpirun, hydra and srun really write when a job of two ranks ends (tests/fixtures/exits), and what it is worth."""

from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, LauncherWords, RankError, RankExit
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.launcher_lines import launcher_words
from mldebug_agents.jobs.launchers import mpich, openmpi

RECORDED = Path(__file__).parents[2] / "fixtures" / "exits"
KILLED, TERMINATED, CRASHED = 9, 15, 11


def words_of(name: str) -> LauncherWords:
    return launcher_words((RECORDED / f"{name}.log").read_text().splitlines())


def exit_of(
    words: LauncherWords, *statuses: int | None, order: tuple[int | None, ...] = (2, 1)
) -> AttemptExit:
    """Of ranks 0 and 1, with these statuses, in this order."""
    ranks = tuple(
        RankIdentity(rank=rank, world_size=2, pid=100 + rank, node="n", launcher="x")
        for rank in range(2)
    )
    exits = tuple(
        RankExit(rank=rank, pid=100 + rank, status=status, moment=order[rank])
        for rank, status in enumerate(statuses)
    )
    job = Job(id="j", name="train.py", launcher="x", world_size=2, ranks=ranks)
    return AttemptExit(job=job, identities=ranks, exits=exits, words=words)


def blamed(one: AttemptExit) -> list[int | None]:
    finding = judge_exit(one).finding
    return [culprit.rank for culprit in finding.culprits] if finding else []


@pytest.mark.parametrize(
    ("name", "status", "followers"),
    [
        ("openmpi-sigkill", KILLED, []),
        ("openmpi-segfault", CRASHED, []),
        ("openmpi-exit-3", 3 << 8, []),
        ("openmpi-traceback", 1 << 8, []),
        ("srun-sigkill", KILLED, [(0, TERMINATED)]),
        ("srun-segfault", CRASHED, [(0, TERMINATED)]),
        ("srun-exit-3", 3 << 8, [(0, TERMINATED)]),
        ("srun-traceback", 1 << 8, [(0, TERMINATED)]),
    ],
)
def test_mpirun_and_srun_say_who_was_first_and_who_followed(
    name: str, status: int, followers: list[tuple[int, int]]
) -> None:
    words = words_of(name)

    assert [(one.rank, one.status) for one in words.failures] == [(1, status)]
    assert [(one.rank, one.status) for one in words.followers] == followers
    assert words.outside == ""
    assert words.cited


@pytest.mark.parametrize(
    ("line", "rank", "status"),
    [
        ("mpirun.openmpi noticed that process rank 1 with PID 0 on node n exited on signal 9 (Killed).", 1, 9),
        ("mpiexec noticed that process rank 12 with PID 7 on node n.x exited on signal 6 (Aborted).", 12, 6),
        ("prterun noticed that process rank 3 with PID 7 on node n exited on signal 15 (Terminated).", 3, 15),
    ],
)  # fmt: skip
def test_the_names_that_mpirun_goes_by(line: str, rank: int, status: int) -> None:
    assert [(one.rank, one.status) for one in launcher_words([line]).failures] == [(rank, status)]


def test_prrte_names_its_jobs_otherwise() -> None:
    words = launcher_words(["   Process name: [prterun-host-12@1,4] ", "   Exit code:    7"])

    assert [(one.rank, one.status) for one in words.failures] == [(4, 7 << 8)]


def test_an_exit_code_without_a_process_is_nobodys() -> None:
    assert launcher_words(["  Exit code:    7"]) == LauncherWords()


@pytest.mark.parametrize("name", ["hydra-sigkill", "hydra-segfault"])
def test_hydras_banner_is_cited_and_names_nobody(name: str) -> None:
    """Rank 1 was struck; hydra's banner names the pid of rank 0, which hydra itself had killed."""
    words = words_of(name)

    assert words.failures == words.followers == ()
    assert any("BAD TERMINATION" in line for line in words.cited)
    assert not any("PID" in line for line in words.cited)


def test_deepspeed_tells_the_code_of_the_first_and_not_its_rank() -> None:
    words = words_of("deepspeed-sigkill")

    assert words.failures == words.followers == ()
    assert any("exits with return code = -9" in line for line in words.cited)
    one = msgspec.structs.replace(exit_of(words, KILLED, KILLED), kernel_readable=True)
    assert blamed(one) == [1]  # deepspeed lived, so nobody killed everything at once


def test_hydras_victims_are_not_blamed() -> None:
    words = words_of("hydra-sigkill")

    one = exit_of(words, KILLED, KILLED)
    assert blamed(one) == [1]
    # nor is it taken for somebody who killed everything at once, where the kernel's log is readable
    assert blamed(msgspec.structs.replace(one, kernel_readable=True)) == [1]
    assert blamed(exit_of(words, None, None, order=(None, None))) == []


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (RankError(error="ValueError: bad shard 7", alone=True), [1]),
        (RankError(error="RuntimeError: Connection closed by peer", blames_peer=True), []),
        (None, []),
    ],
)
def test_hydra_lets_the_others_live_on_and_the_log_tells_why_one_ended(
    error: RankError | None, named: list[int]
) -> None:
    both = exit_of(LauncherWords(), 0, 1 << 8)
    one = msgspec.structs.replace(both, exits=both.exits[1:], living=(0,), shared_error=error)

    assert blamed(one) == named
    finding = judge_exit(one).finding
    assert finding is not None
    assert finding.confidence != "high"


def test_who_followed_is_not_blamed_where_only_srun_tells() -> None:
    words = words_of("srun-sigkill")

    assert blamed(exit_of(words, None, None, order=(None, None))) == [1]
    assert blamed(exit_of(words, KILLED, KILLED, order=(None, None))) == [1]


def test_a_rank_that_somebody_told_to_end_is_named_by_its_number() -> None:
    first, ending_others = (
        "srun: error: n2: task 1: Terminated",
        "srun: Force Terminated StepId=7.0",
    )
    words = launcher_words([first, ending_others, "srun: error: n1: task 0: Terminated"])

    assert blamed(exit_of(words, TERMINATED, TERMINATED)) == [1]


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("sbatch-scancel", "the scheduler cancelled it"),
        (
            "scancel-late",
            "the scheduler cancelled it",
        ),  # a task was gone before slurmstepd said why
        ("srun-sigterm", "srun was told to end"),
        ("hydra-sigint", "mpiexec was told to pass on Ctrl-C"),
        ("openmpi-sigusr1", "mpirun passed on signal 10"),
    ],
)
def test_an_end_from_outside_is_no_failure(name: str, outside: str) -> None:
    words = words_of(name)

    assert (words.outside, words.failures) == (outside, ())
    assert judge_exit(exit_of(words, TERMINATED, TERMINATED)).kind == "outside"


def test_a_signal_that_the_job_survived_explains_no_later_failure() -> None:
    lines = (RECORDED / "openmpi-sigkill.log").read_text().splitlines()
    words = launcher_words(["mpirun: Forwarding signal 10 to job", *lines])

    assert words.outside == ""
    assert [one.rank for one in words.failures] == [1]


def test_the_words_of_the_launcher_stand_in_the_evidence() -> None:
    finding = judge_exit(exit_of(words_of("openmpi-sigkill"), TERMINATED, KILLED)).finding

    assert finding is not None
    assert any("the launcher wrote: mpirun noticed" in fact for fact in finding.evidence)


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpiexec.openmpi", "mpirun", "orterun"])
def test_open_mpi_by_the_names_of_debian(name: str) -> None:
    assert openmpi.create(NoOptions()).is_launcher(name, ())


@pytest.mark.parametrize(
    "name", ["mpiexec.hydra", "hydra_pmi_proxy", "mpirun.mpich", "mpiexec.mpich"]
)
def test_mpich_by_the_names_of_debian(name: str) -> None:
    assert mpich.create(NoOptions()).is_launcher(name, ())


@pytest.mark.parametrize("name", ["srun-traceback", "openmpi-traceback", "hydra-traceback-sigint"])
def test_a_traceback_is_found_among_the_words_of_launchers(name: str) -> None:
    """srun writes its own lines between the first and the second line of the traceback."""
    lines = (RECORDED / f"{name}.log").read_text().splitlines()
    error = last_error(lines, "log")

    assert error is not None
    assert error.error == "ValueError: bad shard 7"


def test_another_rank_may_write_a_step_into_a_traceback() -> None:
    lines = [
        "Traceback (most recent call last):",
        "step 41 loss 0.5",
        '  File "a.py", line 1, in f',
    ]
    error = last_error([*lines, "step 42 loss 0.5", "    f()", "ValueError: bad"], "log")

    assert error is not None
    assert error.error == "ValueError: bad"


def test_what_follows_a_cut_traceback_is_no_error() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "all is well"]

    assert last_error([*lines, "ValueError: of another text"], "log") is None


def test_srun_folds_tasks_that_end_alike() -> None:
    """A line that names several tasks is of each of them: the one task of a later line was not alone, and not first."""
    folded = "srun: error: n1: tasks 2-4,7: Exited with exit code 1"
    alone = "srun: error: n2: task 5: Exited with exit code 1"
    words = launcher_words([folded, alone])
    assert [one.rank for one in words.failures] == [2, 3, 4, 7, 5]
    assert {one.status for one in words.failures} == {1 << 8}
    following = launcher_words([alone, "srun: Terminating StepId=7.0", folded])
    assert ([one.rank for one in following.failures], len(following.followers)) == ([5], 4)
    assert not launcher_words(["srun: error: n1: tasks 7-2: Exited with exit code 1"]).failures
    assert len(launcher_words(["srun: error: n1: tasks 0-999999: Terminated"]).failures) == 4096


def test_however_many_tasks_a_log_names_few_are_kept() -> None:
    """Two thousand such lines would be eight million tasks."""
    line = "srun: error: n1: tasks 0-4095: Exited with exit code 1"
    found = launcher_words([line] * 2000 + ["srun: Terminating StepId=7.0", line])
    assert len(found.failures) == len(found.followers) == 4096
    assert [one.rank for one in launcher_words([line.replace("0-4095", "2-3,7")]).failures] == [2, 3, 7]  # fmt: skip
