"""The words of launchers, ranks and the kernel, read from texts that real jobs left (tests/fixtures/exits)."""

import signal
from pathlib import Path

import pytest

from mldebug.diagnosis.exits.kernel_lines import kernel_deaths
from mldebug.diagnosis.exits.words.last_words import (
    blames_peer,
    is_out_of_memory,
    last_error,
    lost_worker,
    stop_line,
)
from mldebug.diagnosis.exits.words.launcher_lines import launcher_words
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.output import (
    LogOutput,
    own_errors,
    own_lines,
    own_paths,
    parse_error_file,
    shared_lines,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "exits"


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
    result = parse_error_file(data)

    assert (result.error if result else None) == error


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
    by_name = {rank: last_error(text, "log") for rank, text in words.by_rank.items()}

    assert {rank: error.blames_peer for rank, error in by_name.items() if error} == errors
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


WATCHDOG_WORDS = (
    "Process group watchdog thread terminated with exception: CUDA error: misaligned address"
)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (f"  what():  [Rank 2] {WATCHDOG_WORDS}", 2),
        (f"  what():  [PG 0 Rank 2] {WATCHDOG_WORDS}", 2),
        (f"  what():  [PG 0 (default_pg) Rank 2] {WATCHDOG_WORDS}", 2),
        (f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] {WATCHDOG_WORDS}", 2),
        (f"  what():  [PG ID 0 PG GUID 0 Rank 2] {WATCHDOG_WORDS}", 2),
        # of two groups of four, and of pipeline stages: rank 2 of the group is another rank of the job
        (f"  what():  [PG 3 Rank 2] {WATCHDOG_WORDS}", None),
        (f"  what():  [PG ID 3 PG GUID 7 Rank 2] {WATCHDOG_WORDS}", None),
        (f"  what():  [PG ID 1 PG GUID 10(mesh_tp) Rank 2] {WATCHDOG_WORDS}", None),
        (f"[E ProcessGroupNCCL.cpp:1414] [PG 3 Rank 2] {WATCHDOG_WORDS}", None),
        # torch's own mark is always the job's number
        (f"[rank6]:[E904 1 ProcessGroupNCCL.cpp:1414] [PG 3 Rank 2] {WATCHDOG_WORDS}", 6),
    ],
)
def test_a_number_in_a_process_group_is_no_rank_of_the_job(line: str, rank: int | None) -> None:
    assert list(take_apart([line], {}).by_rank) == ([] if rank is None else [rank])


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
    result = last_error(text, "log")

    assert (result.error if result else None) == error


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


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_lines_about_an_oom_kill_the_one_with_its_memory_stays(turn: int) -> None:
    cases = (
        "[   12.5] Out of memory: Killed process 12 (python) total-vm:9kB, anon-rss:7kB, file-rss:1kB, shmem-rss:0kB",
        "[   12.6] Out of memory: Killed process 12 (python)",
    )
    (death,) = kernel_deaths(cases[::turn])
    assert "anon-rss:7kB" in death.text


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


# --- what stands before, in and after a traceback --------------------------------------------------------

PLAIN = ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "    main()", "ValueError: bad shard 7"]  # fmt: skip
RICH = [
    "╭──────────── Traceback (most recent call last) ────────────╮",
    "│ /w/train.py:7 in <module>                                 │",
    "╰───────────────────────────────────────────────────────────╯",
    "ValueError: bad shard 7",
]
GROUP = [
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "a.py", line 1, in <module>',
    "  | ExceptionGroup: boom (2 sub-exceptions)",
    "  +-+---------------- 1 ----------------",
    "    | ValueError: bad shard",
]
GROUP_OF_RAISED = [
    *GROUP[:4],
    "    | Traceback (most recent call last):",
    '    |   File "a.py", line 3, in f',
    "    | ValueError: bad shard",
    "    +------------------------------------",
]


@pytest.mark.parametrize(
    "prefix",
    [
        "[n1:1234] ", "2026-11-21T09:00:00.123456789Z stderr F ", "2026-11-21 09:00:00,123 ERROR ", "3: ", "[1,3]<stderr>:",
    ],
)  # fmt: skip
def test_an_error_is_found_behind_what_stands_before_each_line(prefix: str) -> None:
    results = [f"{prefix}{line}".replace(":00", f":0{at}") for at, line in enumerate(PLAIN)]
    error = last_error(take_apart([*results, "another line"], {}).shared, "log")

    assert error is not None
    assert error.error == "ValueError: bad shard 7"


def test_a_logged_traceback_has_its_prefix_on_the_first_line_only() -> None:
    error = last_error([f"2026-11-21 09:00:00 ERROR failed: {PLAIN[0]}", *PLAIN[1:]], "log")

    assert error is not None
    assert error.error == "ValueError: bad shard 7"


def test_lines_of_others_between_those_of_a_traceback_are_passed_over() -> None:
    values = [f"[n1:12] {line}" for line in PLAIN]
    error = last_error([*values[:3], "[node-17:99] KeyError: 3", values[3]], "log")

    assert error is not None
    assert error.error == "ValueError: bad shard 7"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RICH, "ValueError: bad shard 7"),
        (GROUP, "ExceptionGroup: boom (2 sub-exceptions)"),
        (GROUP_OF_RAISED, "ValueError: bad shard"),
        (
            ["python: foo.cc:12: void f(): Assertion `x>0' failed."],
            "python: foo.cc:12: void f(): Assertion `x>0' failed.",
        ),
    ],
)
def test_errors_that_look_otherwise(text: list[str], words: str) -> None:
    error = last_error(text, "log")

    assert error is not None
    assert error.error == words


def test_other_ranks_write_on_for_a_moment_in_a_log_that_all_share() -> None:
    moment, long = (last_error([*PLAIN, *["step 9"] * n], "log", shared=True) for n in (3, 6))

    assert moment is not None
    assert long is not None
    assert (moment.caught, long.caught) == (False, True)


@pytest.mark.parametrize(
    "label", ["{}: ", " {}: ", "[1,{}]<stdout>:", "[prterun-n1-7@1,{}]<stdout>: "]
)
def test_a_task_s_number_says_whose_line_it_is(label: str) -> None:
    values = [f"{label.format(0)}step {n}" for n in range(20)]
    values += [label.format(2) + line for line in PLAIN]
    values += ["srun: error: n1: task 2: Exited with exit code 1"]

    words = take_apart(values, {}, tasks=range(3))

    assert words.by_rank[2] == tuple(PLAIN)
    assert words.by_rank[0][0] == "step 0"


@pytest.mark.parametrize(
    ("texts", "tasks"),
    [
        ([f"1: {line}" for line in PLAIN], range(3)),  # one task: perhaps a whole node
        (["0: step 1", *(f"1: {line}" for line in PLAIN)], ()),  # tasks that start the ranks of a node
        (["0: cat", "1: dog", *(f"a line {n}" for n in range(9))], range(3)),  # a list that a job printed
        (["7: x", *(f"8: {line}" for line in PLAIN)], range(3)),  # no such ranks
    ],
)  # fmt: skip
def test_a_number_before_a_line_is_not_always_a_rank(
    texts: list[str], tasks: range | tuple[int, ...]
) -> None:
    assert take_apart(texts, {}, tasks).by_rank == {}


def test_a_mark_of_torch_counts_more_than_that_of_the_task() -> None:
    words = take_apart(["0: step", "1: [rank9]: x", "1: y"], {}, tasks=range(2))

    assert (words.by_rank[9], words.by_rank[1]) == (("x",), ("y",))


@pytest.mark.parametrize(
    ("after", "caught"),
    [
        ([], False),
        ([""], False),
        (["[W1121 09:06:20 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not called"], False),
        (["frame #0: c10::Error::Error()", "Compile with `TORCH_USE_CUDA_DSA`"], False),
        (["[2026-11-21 09:06:20] n1:7:9 [0] NCCL INFO comm 0x7 - Abort COMPLETE"], False),
        (["W1121 09:06:20.498000 29154 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7 closing signal SIGTERM", "ERROR x"], False),
        (["ERROR training failed: Connection closed by peer"], True),
        (["2026-11-21 09:06:20 | retry"], True),
        (["step 11 loss 0.5"], True),
    ],
)  # fmt: skip
def test_a_program_that_goes_on_after_a_traceback_had_caught_it(
    after: list[str], caught: bool
) -> None:
    error = last_error([*PLAIN, *after], "log")

    assert error is not None
    assert error.caught is caught


def test_a_traceback_far_from_the_end_is_no_last_word() -> None:
    assert last_error([*PLAIN, *["x"] * 201], "log") is None


def test_how_often_a_log_tells_of_an_error() -> None:
    chain = [*PLAIN, "", "During handling of the above exception, another exception occurred:", "", *PLAIN[:3], "KeyError: 3"]  # fmt: skip
    alone, both = last_error(chain, "log"), last_error([*PLAIN, *PLAIN], "log")

    assert alone is not None
    assert both is not None
    assert (alone.error, alone.alone, alone.copies) == ("KeyError: 3", True, 1)
    assert (both.alone, both.copies) == (False, 2)


@pytest.mark.parametrize(
    ("line", "yes"),
    [
        ("caught SIGTERM, saving", True),
        ("Received signal 15, checkpointing", True),
        ("SIGUSR1 received: will save and exit", True),
        ("the node is being preempted", True),
        ("installed a handler for SIGTERM", False),
        ("step 15 loss 2", False),
    ],
)
def test_a_handler_says_that_it_was_told_to_stop(line: str, yes: bool) -> None:
    assert stop_line(["step 1", line, "saved"]) == (line if yes else "")
    assert stop_line([line, *["step"] * 60]) == ""


# --- whose lines they are --------------------------------------------------------------------------------


def output(owner: int | None, *lines: str, path: str = "/log") -> LogOutput:
    return LogOutput(path=path, owner=owner, words=take_apart(lines, {}))


def test_a_log_of_one_rank_is_its_own_and_so_is_its_path() -> None:
    logs = [output(rank, f"step {rank}", path=f"/log{rank}") for rank in range(2)]

    assert own_lines(logs) == {0: ["step 0"], 1: ["step 1"]}
    assert own_paths(logs) == {0: "/log0", 1: "/log1"}
    assert shared_lines(logs) == []


def test_steps_that_a_buffer_held_back_do_not_weaken_a_marked_traceback() -> None:
    cases = [*(f"[rank0]: {line}" for line in PLAIN), "step 59 loss 1"]

    assert not own_errors([output(0, *cases)])[0].caught
    assert own_errors([output(0, *PLAIN, "step 59 loss 1")])[0].caught


def test_a_number_in_a_log_of_one_rank_is_nobody_else_s() -> None:
    cases = ["0: a", *(f"1: {line}" for line in PLAIN)]
    log = LogOutput(path="/log", owner=0, words=take_apart(cases, {}, tasks=range(2)))

    assert {rank: one.error for rank, one in own_errors([log]).items()} == {
        0: "ValueError: bad shard 7"
    }
    assert own_paths([log]) == {0: "/log"}


@pytest.mark.parametrize("name", ["sigkill", "sigterm-to-a-rank", "srun-sigkill", "openmpi-sigkill", "hydra-sigkill", "deepspeed-sigkill"])  # fmt: skip
def test_a_launcher_that_ends_the_others_is_no_victim(name: str) -> None:
    assert last_error(take_apart(lines(f"{name}.log"), {}).shared, "log", shared=True) is None


def test_torn_tracebacks_of_several_ranks_still_tell_that_they_are_victims() -> None:
    """No marks, and the lines of two ranks fell into each other."""
    one = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
    last = "RuntimeError: Timed out receiving the shared seed from the distribtued store on Rank 2. (world_size=4)"
    torn = [f"node-7: {one[0]}", one[0], one[1], f"node-8: {last}", f"node-7: {one[1]}"]
    found = last_error(torn, "log", shared=True)
    assert found is not None
    assert found.blames_peer


WAIT = 'File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2924, in all_reduce'


@pytest.mark.parametrize(
    ("frame", "error", "unclear"),
    [
        (WAIT, "RuntimeError: something that no table knows", True),
        ('File "/opt/horovod/torch/mpi_ops.py", line 1282, in synchronize', "RuntimeError: x", True),
        # what is said of arguments, of the own device, and in the job's own code is the rank's own
        (WAIT, "ValueError: Tensors must be contiguous", False),
        (WAIT, "RuntimeError: CUDA error: an illegal memory access was encountered", False),
        (WAIT, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        ('File "/job/train.py", line 88, in train_step', "RuntimeError: bad shard 7", False),
        ('File "/opt/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 9, in forward', "RuntimeError: Expected to have finished reduction", False),
    ],
)  # fmt: skip
def test_an_unknown_error_from_within_a_library_that_talks_to_others_is_unclear(
    frame: str, error: str, unclear: bool
) -> None:
    call = "    loss = model(batch)" if "/job/" in frame else "    work.wait()"
    text = ["Traceback (most recent call last):", '  File "/job/train.py", line 3, in <module>', "    step()", f"  {frame}", call, error]  # fmt: skip
    found = last_error(text, "log")
    assert found is not None
    assert (found.unclear, found.blames_peer) == (unclear, False)


def test_intel_s_and_mpich_s_marks_name_ranks() -> None:
    text = [f"[{rank}] {line}" for rank in (0, 1) for line in ("Traceback (most recent call last):", '  File "x", line 1', f"KeyError: {rank}")]  # fmt: skip
    words = take_apart(text, {}, (0, 1))
    assert {rank: error.error for rank, error in own_errors([LogOutput(path="log", owner=None, words=words)]).items()} == {0: "KeyError: 0", 1: "KeyError: 1"}  # fmt: skip
