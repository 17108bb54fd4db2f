"""Logs that hold more than the last failure: what was caught, tried again, or is of an earlier attempt."""

from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Confidence
from mldebug.core.report_model import Report

Lines = tuple[str, ...]

OWN = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 88, in train_step',
    "    loss = model(batch)",
    "KeyError: 'labels'",
)
READ = (*OWN[:3], "OSError: [Errno 5] Input/output error: '/data/shard7'")
VICTIM = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 91, in reduce',
    "    dist.all_reduce(total)",
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711",
)
FINISHED = ("Training finished, model saved",)
NOBODY: list[int | None] = []


def steps(first: int, last: int, mark: str = "") -> Lines:
    return tuple(f"{mark}step {number} loss 2.0" for number in range(first, last))


def of(rank: int, lines: Lines, mark: str = "[rank{}]: ") -> Lines:
    return tuple(mark.format(rank) + line for line in lines)


def all_write(first: int, last: int, mark: str = "[rank{}]: ") -> Lines:
    return tuple(line for rank in range(2) for line in steps(first, last, mark.format(rank)))


def failed(local: int, pid: int, code: int = 1) -> Lines:
    return (f"E0101 10:00:05.123000 4000 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: python",)  # fmt: skip


def table(rank: int, local: int, code: int, pid: int, host: str = "n1") -> Lines:
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-03-05_07:01:51",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid})",
    )


def judged(where: Path, **files: Lines) -> Report:
    """`files`: lines by name, in which `_` stands for a dot and `__` for a folder."""
    where.mkdir(exist_ok=True)
    for name, lines in files.items():
        path = where / name.replace("__", "/").replace("_", ".").replace("attempt.", "attempt_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return judge(read_evidence(where if len(files) > 1 else path)).report


def named(report: Report) -> tuple[list[int | None], Confidence]:
    return [one.rank for one in report.diagnosis.culprits], report.diagnosis.confidence


HEALTHY: dict[str, dict[str, Lines]] = {
    "a rank's marks": {"job_log": (*all_write(0, 9), *of(1, READ), *all_write(9, 20))},
    "tasks of srun": {"job_log": (*all_write(0, 9, "{}: "), *of(1, READ, "{}: "), *all_write(9, 20, "{}: "))},
    "a file of each rank": {"rank0_log": steps(0, 20), "rank1_log": (*steps(0, 9), *READ, *steps(9, 20))},
    "nearly at the end": {"job_log": (*steps(0, 9), *READ, *steps(9, 11), *FINISHED)},
    "words of Lightning": {"job_log": (*steps(0, 9), *READ, "`Trainer.fit` stopped: `max_epochs=3` reached.")},
    "words of transformers": {"job_log": (*steps(0, 9), *READ, "{'train_runtime': 120.1, 'train_loss': 0.5}")},
    "beside the end": {"job_log": (*steps(0, 9), *FINISHED, "Exception ignored in: <function Loader.__del__ at 0x7f>", *OWN[:3], "AssertionError: can only test a child process")},
    "tried again by torchrun": {"job_log": (*of(1, OWN), *failed(1, 4711), *steps(0, 20), *FINISHED)},
    "two streams": {"rank0_err": (), "rank0_out": (*steps(0, 9), *FINISHED), "rank1_err": READ, "rank1_out": (*steps(0, 9), *FINISHED)},
    "streams of one batch job": {"slurm-7_err": READ, "slurm-7_out": (*steps(0, 9), *FINISHED)},
    "rotated": {"rank0_log": steps(0, 20), "rank1_log": steps(9, 20), "rank1_log_1": (*steps(0, 9), *READ)},
}  # fmt: skip


GOES_ON = {
    "transformers": "{{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.{}}}",
    "tqdm": "  {}%|▎         | 3/100 [00:10<12:00,  1.2it/s]",
    "Keras": "{}/100 [==>......] - ETA: 12s",
    "detectron2": "[01/01 10:00:01 d2.utils.events]:  eta: 0:12:30  iter: {}",
    "glog": "I0101 10:00:01.123456 140 train.py:90] loss=0.{}",
    "Megatron-LM": " [2026-01-01 10:00:01] iteration        {}/  100000 | consumed samples: 8",
    "torchtitan": "[titan] 2026-01-01 10:00:01,123 - root - INFO - step: {}  loss:  2.0",
    "words": "loss=0.5 step={}",
}  # fmt: skip


@pytest.mark.parametrize("trainer", GOES_ON)
@pytest.mark.parametrize("mark", ["", "[rank1]: "])
def test_steps_are_known_as_trainers_print_them(tmp_path: Path, trainer: str, mark: str) -> None:
    lines = tuple(mark + GOES_ON[trainer].format(number) for number in range(10, 40))
    error = tuple(mark + line for line in READ)
    for name in ("job_log", "rank1_log"):
        with pytest.raises(EvidenceError):
            judged(tmp_path, **{name: (*lines, *error, *lines)})
        assert judged(tmp_path, **{name: (*lines, *error)}).kind == "abnormal_end"


def test_buffered_steps_below_every_error_are_no_proof_that_the_job_went_on(tmp_path: Path) -> None:
    """What a process had printed into a file appears as it ends, below its traceback."""
    files = {"rank0_log": (*VICTIM, *steps(0, 20)), "rank1_log": (*OWN, *steps(0, 20))}
    assert named(judged(tmp_path, **files)) == ([1], Confidence.LOW)


@pytest.mark.parametrize("how", HEALTHY)
def test_a_job_that_went_on_after_an_error_has_not_failed(tmp_path: Path, how: str) -> None:
    with pytest.raises(EvidenceError):
        judged(tmp_path, **HEALTHY[how])


FAILING: dict[str, tuple[dict[str, Lines], int]] = {
    "a rank's marks": ({"job_log": (*all_write(0, 9), *of(1, OWN))}, 1),
    "after it had finished": ({"job_log": (*steps(0, 9), *FINISHED, *of(1, OWN))}, 1),
    "a watchdog after it had finished": ({"job_log": (*of(1, OWN), *FINISHED, "[E101 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: x")}, 1),
    "a part had finished": ({"job_log": (*of(1, OWN), "epoch 3 training finished", *of(0, VICTIM))}, 1),
    "two streams": ({"rank0_err": VICTIM, "rank0_out": steps(0, 20), "rank1_err": OWN, "rank1_out": steps(0, 20)}, 1),
    "rotated": ({"rank0_log": VICTIM, "rank1_log": OWN, "rank1_log_1": steps(0, 20)}, 1),
    "what another rank had caught": ({"job_log": (*of(0, READ), *all_write(0, 20), *of(1, OWN))}, 1),
    "started again by torchrun": ({"job_log": (*of(1, OWN), *failed(1, 4711), *steps(0, 20), *of(3, READ), *failed(3, 5713), *table(3, 3, 1, 5713))}, 3),
    "started again by a loop": ({"job_log": (*of(1, OWN), *failed(1, 4711), *table(1, 1, 1, 4711), *steps(0, 20), *of(0, VICTIM), *failed(3, 5713, -9), *table(3, 3, -9, 5713))}, 3),
    "put back into srun's queue": ({"job_log": (*all_write(0, 9, "{}: "), *of(1, OWN, "{}: "), "srun: error: n1: task 1: Exited with exit code 1", *all_write(0, 9, "{}: "), *of(0, READ, "{}: "), "srun: error: n1: task 0: Exited with exit code 1")}, 0),
    "folders of attempts": ({"run__attempt_0__1__stderr_log": of(1, OWN), "run__attempt_1__0__stderr_log": of(0, READ)}, 0),
    "two nodes one after the other": ({"job_log": (*steps(0, 20), *of(1, OWN), *failed(1, 4711), *table(1, 1, 1, 4711, "n1"), *steps(0, 20), *of(4, VICTIM), *failed(0, 4999, -6), *table(4, 0, -6, 4999, "n2"))}, 1),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILING)
def test_the_last_attempt_counts(tmp_path: Path, how: str) -> None:
    files, rank = FAILING[how]
    assert named(judged(tmp_path, **files))[0] == [rank]


def test_an_error_before_many_steps_is_not_surely_that_of_the_last_attempt(tmp_path: Path) -> None:
    """A shell started the job again, and who failed the second time wrote nothing."""
    lines = (*of(1, OWN), *steps(0, 20), *of(0, VICTIM), *failed(3, 5713, -9), *table(3, 3, -9, 5713))  # fmt: skip
    assert named(judged(tmp_path, job_log=lines))[0] in (NOBODY, [3])
    caught = (*all_write(0, 9), *of(1, READ), *all_write(9, 20), *of(0, VICTIM))
    assert named(judged(tmp_path / "b", job_log=caught)) == ([1], Confidence.LOW)


def test_tasks_of_srun_that_start_ranks_are_no_ranks(tmp_path: Path) -> None:
    task = "srun: error: n2: task 1: Exited with exit code 1"
    silent = judged(tmp_path, job_log=(*steps(0, 9), *failed(3, 4711), task))
    assert named(silent)[0] == NOBODY
    of_mpi = ("  Process name: [[65037,1],2]", "  Exit code:    1")
    assert named(judged(tmp_path, job_log=(*failed(3, 4711), *of_mpi)))[0] == NOBODY
    report = judged(tmp_path, job_log=(*of(9, OWN), *failed(1, 4711), *table(9, 1, 1, 4711), task))
    assert named(report)[0] == [9]
    assert [one.rank for one in report.ranks] == [9]
    ranks = judged(tmp_path, job_log=(*steps(0, 9), task, "srun: Terminating StepId=7.0"))
    assert named(ranks)[0] == [1]


def test_an_error_beside_a_kill_whose_order_nobody_saw_is_a_guess(tmp_path: Path) -> None:
    """Whom torchrun saw first was killed; or the one with the error was the only one that it names."""
    killed_first = (*of(1, OWN), *failed(3, 4713, -9), *table(1, 1, 1, 4711), *table(3, 3, -9, 4713))  # fmt: skip
    found, confidence = named(judged(tmp_path, job_log=killed_first))
    assert found == NOBODY or confidence is Confidence.LOW
    failed_first = (*of(1, OWN), *failed(1, 4711), *table(3, 3, -9, 4713), *table(1, 1, 1, 4711))
    assert named(judged(tmp_path, job_log=failed_first)) == ([1], Confidence.MEDIUM)
    tasks = ("srun: error: n1: task 0: Killed", "srun: Terminating StepId=7.0", *OWN, "srun: error: n1: task 1: Exited with exit code 1")  # fmt: skip
    found, confidence = named(judged(tmp_path, job_log=tasks))
    assert found == NOBODY or confidence is Confidence.LOW


def test_numbers_of_a_group_or_of_pods_are_not_those_of_the_job(tmp_path: Path) -> None:
    """Where a local rank is taken for the rank, for it has the same number."""
    lines = ("[default0]:step 7", *of(1, OWN, "[default{}]:"), *failed(1, 4711))
    for words in ("n2:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2", "WORLD_SIZE=2"):
        assert named(judged(tmp_path, job_log=(words, *lines)))[0] == NOBODY
    assert named(judged(tmp_path, job_log=("world size: 2", *lines)))[0] == [1]


def test_an_unknown_pid_is_looked_for_nowhere(tmp_path: Path) -> None:
    report = judged(tmp_path, job_log=("srun: error: n1: task 1: Killed",))
    assert named(report)[0] == [1]
    assert not any("[^0-9]0[^0-9]" in step for step in report.diagnosis.next_steps)


STACK = (
    '  File "/job/train.py", line 10, in <module>',
    "    main()",
    '  File "/job/train.py", line 12, in main',
    '    log.warning("slow", stack_info=True)',
)
CRASH = ("Fatal Python error: Segmentation fault", "", "Thread 0x00007f1 (most recent call first):", '  File "/job/a.py", line 3 in f', '  File "/job/a.py", line 9 in <module>')  # fmt: skip
INSIDE: dict[str, tuple[Lines, Lines]] = {
    "a warning's stack": (("WARNING slow", "Stack (most recent call last):", *STACK, "step 7"), of(1, OWN)),
    "a time and a number": (("elapsed 0:12:30 100",), of(1, OWN)),
    "a metric": (("loss:train:5 10",), of(1, OWN)),
    "a container": (("web (nginx:1) 3",), of(1, OWN)),
    "a crash's own stacks": ((), (*CRASH, *failed(1, 4711, -11), *table(1, 1, -11, 4711))),
}  # fmt: skip


@pytest.mark.parametrize("what", INSIDE)
def test_what_looks_like_a_stack_in_a_log_hides_no_failure(tmp_path: Path, what: str) -> None:
    before, failure = INSIDE[what]
    assert named(judged(tmp_path, job_log=(*before, *failure)))[0] == [1]


@pytest.mark.parametrize("tail", [(), ("RuntimeError: late",), CRASH[:2]])
def test_stacks_that_a_tool_dumped_come_before_a_log(tmp_path: Path, tail: Lines) -> None:
    dump = ('Thread 4711 (idle): "MainThread"', "    main (train.py:10)", "    <module> (train.py:20)")  # fmt: skip
    report = judged(tmp_path, job_log=("Process 4711: python train.py", *dump, *tail))
    assert report.kind == "manual"
    aborted = (
        "Fatal Python error: Aborted",
        "Current thread (most recent call first):",
        *CRASH[3:],
    )
    assert judged(tmp_path, job_log=aborted).kind == "manual"
    hung = ("Timeout (0:00:30)!", *CRASH[2:], *steps(0, 2))
    assert judged(tmp_path, job_log=hung).kind == "manual"


def test_a_stack_with_many_steps_below_it_is_nobodys_place(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError):
        judged(tmp_path, job_log=("Stack (most recent call last):", *STACK, *steps(0, 20)))
    assert judged(tmp_path, job_log=(*steps(0, 20), *STACK, *steps(20, 22))).kind == "manual"


BEGINS = "2026-06-15T03:05:00Z W0615 03:05:00.201000 1 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"


@pytest.mark.parametrize(("after", "ranks"), [(steps(5, 6), NOBODY), ((), [1])])
def test_what_failed_before_torchrun_began_anew_is_old(
    tmp_path: Path, after: Lines, ranks: list[int | None]
) -> None:
    """Of a pod that was started again. Without a step below it may be another node's torchrun, which began late."""
    lines = (BEGINS, *steps(4, 5), *of(1, OWN), BEGINS, *after, *of(0, VICTIM))
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    found = judge(read_evidence(tmp_path / "job.log")).report.diagnosis
    assert [one.rank for one in found.culprits] == ranks
