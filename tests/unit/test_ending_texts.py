"""The words of launchers, ranks and the kernel, read from texts that real jobs left (tests/fixtures/endings)."""

import signal
from pathlib import Path

import pytest

from mldebug.endings.errorfile import parse_error_file
from mldebug.endings.kernel import kernel_deaths
from mldebug.endings.launchers import launcher_words
from mldebug.endings.words import (
    blames_peer,
    is_out_of_memory,
    last_error,
    lost_worker,
    take_apart,
)

RECORDED = Path(__file__).parent.parent / "fixtures" / "endings"


def lines(name: str) -> list[str]:
    return (RECORDED / name).read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "local_rank", "status"),
    [
        ("traceback.log", 1, 1 << 8),
        ("sigkill.log", 1, signal.SIGKILL),
        ("sigterm-to-a-rank.log", 1, signal.SIGTERM),
        ("gloo-exit-0.log", 0, 1 << 8),
        ("error-file.log", 1, 1 << 8),
    ],
)
def test_torchrun_says_whom_it_saw_fail_first(name: str, local_rank: int, status: int) -> None:
    words = launcher_words(lines(name))

    assert [(one.local_rank, one.status) for one in words.failures] == [(local_rank, status)]
    assert words.failures[0].pid
    assert words.outside == ""


def test_torchrun_says_it_once_for_every_attempt() -> None:
    words = launcher_words(lines("restarts.log"))

    assert [one.local_rank for one in words.failures] == [1, 1, 1]
    assert len({one.pid for one in words.failures}) == 3
    assert len(words.ended) == 3


@pytest.mark.parametrize(("name", "number"), [("sigterm", 15), ("sigint", 2)])
def test_a_signal_to_torchrun_comes_from_outside(name: str, number: int) -> None:
    words = launcher_words(lines(f"{name}-to-torchrun.log"))

    assert words.outside == f"torchrun received signal {number}"
    assert words.failures == ()
    assert len(words.ended) == 2


def test_an_error_file_comes_through_torchruns_table() -> None:
    words = launcher_words(lines("error-file.log"))

    assert list(words.errors) == [1]
    assert words.errors[1].error == "ValueError: bad shard 7"
    assert any("in main" in line for line in words.errors[1].lines)


def test_an_error_file_itself() -> None:
    error = parse_error_file((RECORDED / "error.json").read_bytes())

    assert error is not None
    assert error.error == "ValueError: bad shard 7"
    assert error.lines[-1] == "ValueError: bad shard 7"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"message": "RuntimeError: x\\nmore", "errorCode": 1}', "RuntimeError: x"),
        (b'{"message": {"message": "E", "extraInfo": {"py_callstack": 7}}}', "E"),
        (b'{"message": {"message": "token=hunter2hunter2"}}', "token=***"),
        (b'{"message": {}}', None),
        (b'{"message": ""}', None),
        (b"[1]", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_any_error_file(data: bytes, error: str | None) -> None:
    told = parse_error_file(data)

    assert (told.error if told else None) == error


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("gloo-traceback.log", {0: True, 1: False}),
        ("gloo-cuda-out-of-memory.log", {0: True, 1: False}),
        ("gloo-exit-0.log", {0: True}),
        ("gloo-sigkill.log", {0: True}),
        ("gloo-timeout.log", {0: True}),
    ],
)
def test_marked_lines_tell_whose_error_is_whose(name: str, errors: dict[int, bool]) -> None:
    words = take_apart(lines(name), {})
    told = {rank: last_error(text, "log") for rank, text in words.by_rank.items()}

    assert {rank: error.blames_peer for rank, error in told.items() if error} == errors
    assert last_error(words.shared, "log") is None  # torchrun's own exception is nobody's


def test_an_error_without_a_mark_is_nobodys_in_particular() -> None:
    words = take_apart(lines("traceback.log"), {0: 0, 1: 1})
    error = last_error(words.shared, "the job's log")

    assert words.by_rank == {}
    assert error is not None
    assert error.error == "ValueError: bad shard 7"
    assert not error.blames_peer


def test_a_keyboard_interrupt_is_no_error() -> None:
    assert last_error(lines("sigint-to-torchrun.log"), "log") is None


def test_marks_of_torchruns_tee_are_local_ranks() -> None:
    words = take_apart(
        ["[default1]:Traceback", "[default1]:[rank5]: x", "[trainer0]: y", "[2026]: z"], {1: 9}
    )

    assert words.by_rank == {9: ("Traceback",), 5: ("x",)}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 3"], "KeyError: 3"),
        (
            ["Traceback (most recent call last):", "  x", "ValueError: a", "", "During handling of the above exception, another exception occurred:", "", "Traceback (most recent call last):", "  y", "my.mod.Odd: b"],
            "my.mod.Odd: b",
        ),
        (["Traceback (most recent call last):", "  x", "AssertionError"], "AssertionError"),
        (["Traceback (most recent call last):", "  x"], None),
        (["Traceback (most recent call last):"], None),
        (["Fatal Python error: Segmentation fault", "Thread 0x1"], "Fatal Python error: Segmentation fault"),
        (["all is well"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_last_error_of_a_text(text: list[str], error: str | None) -> None:
    told = last_error(text, "log")

    assert (told.error if told else None) == error


@pytest.mark.parametrize(
    "text",
    [
        "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:1732: Connection reset by peer.",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed.",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    ],
)
def test_errors_that_only_blame_a_peer(text: str) -> None:
    assert blames_peer(text)


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("MemoryError", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: out of memory lane", False),
    ],
)
def test_errors_of_memory(text: str, yes: bool) -> None:
    assert is_out_of_memory(text) is yes


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: DataLoader worker (pid 123) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 123) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid(s) 123, 456) exited unexpectedly",
    ],
)
def test_the_death_of_a_data_loader_worker_tells_its_pid(text: str) -> None:
    assert lost_worker(text) == 123


@pytest.mark.parametrize("name", ["dmesg-oom.txt", "kmsg-oom.txt"])
def test_the_kernel_says_whom_it_killed_for_memory(name: str) -> None:
    deaths = kernel_deaths(lines(name))

    assert [(one.pid, one.kind) for one in deaths] == [(16601, "out_of_memory")]
    assert "Killed process 16601 (python3)" in deaths[0].text
    assert int(deaths[0].at) == 14353


def test_the_kernel_says_who_crashed() -> None:
    deaths = kernel_deaths(lines("dmesg-segfault.txt"))

    assert [(one.pid, one.kind) for one in deaths] == [(10346, "crash")]


@pytest.mark.parametrize(
    "text",
    [
        "3,1,2,-;Out of memory: Killed process 12 (python) total-vm:1kB",
        "3,1,2,-;Memory cgroup out of memory: Killed process 12 (a b) c) total-vm:1kB",
        "<3>[   12.5] Out of memory: Killed process 12 (python)",
        "[   12.5] Memory cgroup out of memory: Kill process 12 (python) score 9 or sacrifice child",
        "[   12.5] traps: python[12] general protection fault ip:7f sp:7f error:0 in x.so[7f+1]",
    ],
)
def test_other_kernels(text: str) -> None:
    assert [one.pid for one in kernel_deaths([text])] == [12]


@pytest.mark.parametrize(
    "text", ["", "x", ";", "3,1,2,-;", " SUBSYSTEM=x", "[9" * 5000, "Killed process 5 ("]
)
def test_lines_that_say_nothing(text: str) -> None:
    assert kernel_deaths([text]) == ()


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-21T09:00:00 ***", "the scheduler cancelled it"),
        (
            "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-21T09:00:00 DUE TO TIME LIMIT ***",
            "the scheduler cancelled it due to time limit",
        ),
    ],
)  # fmt: skip
def test_slurm_says_why_it_ends_a_job(line: str, outside: str) -> None:
    assert launcher_words([line]).outside == outside


def test_srun_says_which_task_failed() -> None:
    words = launcher_words(
        [
            "srun: error: n1: task 3: Exited with exit code 7",
            "srun: error: n1: task 2: Killed",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
        ]
    )

    assert [(one.rank, one.status) for one in words.failures] == [(3, 7 << 8), (2, 9)]
    assert "oom_kill" in words.out_of_memory


def test_mpirun_says_which_rank_a_signal_killed() -> None:
    line = "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed)."

    assert [(one.rank, one.status) for one in launcher_words([line]).failures] == [(1, 9)]


@pytest.mark.parametrize(
    ("error", "peer"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer while reading s3://bucket/shard-7", False),
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer", True),
        ("torch.distributed.DistBackendError: NCCL error: Broken pipe", True),
        ("RuntimeError: stopping: another rank reported an error", True),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", False),
    ],
)  # fmt: skip
def test_a_broken_socket_is_a_peer_s_only_in_torch_s_own_words(error: str, peer: bool) -> None:
    assert blames_peer(error) is peer
