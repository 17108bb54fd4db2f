"""The pure part of the promise: from captures to the right name, or to no name."""

from pathlib import Path

import msgspec
import pytest

from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.core.model import (
    LostRank,
    Movement,
    NodeCapture,
    OpenFile,
    ProcessCapture,
    ThreadState,
    Verdict,
)
from mldebug.diagnosis.classify.rank_states import wants_native
from mldebug.diagnosis.diagnose import diagnose
from mldebug_agents.storage.filesystems.evidence import with_stuck
from shared.capture.stacks import parse_pyspy_text
from shared.diagnosis.builders import (
    ALL_REDUCE,
    WAITER,
    WRAPPER,
    capture,
    moving,
    process,
    rank,
    stack,
    still,
)

H200 = Path(__file__).parents[2] / "fixtures" / "h200"

TRAIN = (
    "train (megatron/training.py:915)",
    "pretrain (megatron/training.py:187)",
    "<module> (pretrain_gpt.py:239)",
)
LEFT_BEHIND = (
    "broadcast (torch/distributed/distributed_c10d.py:1191)",
    "_aggregate_total_loss (deepspeed/runtime/pipe/engine.py:540)",
    "train_batch (deepspeed/runtime/pipe/engine.py:330)",
    "train_step (megatron/training.py:436)",
    "train (megatron/training.py:851)",
    "pretrain (megatron/training.py:187)",
    "<module> (pretrain_gpt.py:239)",
)


def waiter(**kw) -> ProcessCapture:
    return process(*WAITER, move=still(), **kw)


def job_with(
    odd: ProcessCapture, *children: ProcessCapture, at: int = 3, world: int = 4
) -> NodeCapture:
    """`world` ranks in all_reduce, but the one at `at`."""
    ranks = [
        rank(n, odd if n == at else waiter(), *(children if n == at else ()), world=world)
        for n in range(world)
    ]
    return capture(*ranks)


def outcome(taken: NodeCapture) -> tuple[str, list[int | None], str]:
    found = diagnose([taken]).diagnosis
    return str(found.verdict), [c.rank for c in found.culprits], str(found.confidence)


HERE = ("load (train.py:7)", "<module> (train.py:50)")
FUSE = OpenFile(
    fd=7, target="/data/shard-17", kind="file", mode="r", mount="/data", fstype="fuse.bindfs"
)

ODD_ONES = {
    "sleeps": (process(*HERE, wchan="hrtimer_nanosleep", move=still()), "rank_waiting", "medium"),
    "stopped": (
        process(*HERE, state="T", wchan="do_signal_stop", move=still()),
        "rank_stopped",
        "high",
    ),
    "traced": (
        process(*HERE, state="t", wchan="ptrace_stop", move=still()),
        "rank_stopped",
        "high",
    ),
    "fifo": (
        process(*HERE, wchan="wait_for_partner", syscall="openat", move=still()),
        "rank_blocked_io",
        "medium",
    ),
    "full pipe": (
        process(*HERE, wchan="anon_pipe_write", syscall="write", args=(1,), move=still()),
        "rank_blocked_io",
        "medium",
    ),
    "stdin": (
        process(*HERE, wchan="anon_pipe_read", syscall="read", args=(0,), move=still()),
        "rank_waiting",
        "high",
    ),
    "pdb": (
        process(
            "readline (pdb.py:3)", "interaction (pdb.py:9)", *HERE, wchan="n_tty_read", move=still()
        ),
        "rank_waiting",
        "medium",
    ),
    "D state": (
        process(*HERE, state="D", wchan="kernel_clone", move=still()),
        "rank_blocked_io",
        "high",
    ),
    "D state on disk, mount unknown": (
        process(*HERE, state="D", wchan="nfs_wait_bit_killable", move=still()),
        "rank_blocked_io",
        "high",
    ),
    "lock": (process("acquire (threading.py:9)", *HERE, move=still()), "rank_waiting", "medium"),
    "child": (
        process("wait (subprocess.py:1264)", *HERE, wchan="do_wait", move=still()),
        "rank_waiting",
        "medium",
    ),
    "loop": (
        process(*HERE, state="R", wchan="0", gil=True, move=still(cpu=1.0)),
        "rank_busy",
        "medium",
    ),
    "loop over many lines": (
        process(*HERE, state="R", wchan="0", gil=True, move=moving(1.0)),
        "rank_busy",
        "medium",
    ),
    "C code of its own": (
        process(*HERE, state="R", wchan="0", move=still(cpu=1.0)),
        "rank_busy",
        "low",
    ),
    "compiles": (
        process("wait (torch/_inductor/async_compile.py:9)", *HERE, move=still(cpu=0.9)),
        "rank_busy",
        "medium",
    ),
    "checkpoint": (
        process("save (torch/serialization.py:9)", *HERE, move=moving(0.6)),
        "rank_busy",
        "medium",
    ),
}


@pytest.mark.parametrize("name", ODD_ONES)
def test_the_rank_that_does_not_wait_is_named(name: str) -> None:
    odd, verdict, confidence = ODD_ONES[name]

    assert outcome(job_with(odd)) == (verdict, [3], confidence)


def test_the_sentence_says_who_does_what_and_who_waits() -> None:
    summary = diagnose([job_with(ODD_ONES["sleeps"][0])]).diagnosis.summary

    assert summary == (
        "Rank 3 sleeps in load (train.py:7); ranks 0-2 wait in all_reduce at sync (train.py:30)"
    )


def test_a_hung_mount_is_blamed_and_not_the_rank_that_touched_it() -> None:
    odd = process(*HERE, wchan="request_wait_answer", syscall="read", on=FUSE, move=still())
    found = diagnose([job_with(odd)]).diagnosis

    assert (found.verdict, found.culprits[0].kind, found.culprits[0].rank) == (
        Verdict.STORAGE_FAULT,
        "mount",
        3,
    )
    assert "/data/shard-17" in found.summary


def test_a_stopped_worker_is_blamed_and_not_its_idle_sibling() -> None:
    loader = (
        "_try_get_data (torch/utils/data/dataloader.py:1310)",
        "__next__ (torch/utils/data/dataloader.py:733)",
    )
    idle = process(
        "wait (multiprocessing/connection.py:930)",
        "get (multiprocessing/queues.py:113)",
        "_worker_loop (torch/utils/data/_utils/worker.py:275)",
        pid=900, kind="worker",
    )  # fmt: skip
    stopped = process("__getitem__ (data.py:4)", "_worker_loop (torch/utils/data/_utils/worker.py:349)",
                      pid=901, kind="worker", state="T", wchan="do_signal_stop")  # fmt: skip
    found = diagnose(
        [job_with(process(*loader, *HERE, wchan="do_poll", move=still()), idle, stopped)]
    ).diagnosis

    assert (found.verdict, [(c.kind, c.pid) for c in found.culprits]) == (
        Verdict.DATALOADER_STALLED,
        [("worker", 901)],
    )
    assert found.confidence == "high"


def test_the_published_bloom_hang() -> None:
    """Six ranks in train() without a frame that says why, two in broadcast: the two are named, and may be victims of a third."""
    ranks = [rank(n, process(*TRAIN, state="", active=True), world=8) for n in range(6)]
    ranks += [rank(n, process(*LEFT_BEHIND, state="", active=True), world=8) for n in (6, 7)]

    assert outcome(capture(*ranks)) == ("collective_mismatch", [6, 7], "low")


def test_six_ranks_in_a_python_loop_are_not_taken_for_waiters() -> None:
    """The mirror of BLOOM: whoever holds the GIL computes; then the two that wait are victims."""
    loop = process("spin (train.py:5)", state="R", wchan="0", gil=True, move=still(cpu=1.0))
    ranks = [rank(n, loop if n < 6 else waiter(), world=8) for n in range(8)]

    assert outcome(capture(*ranks)) == ("rank_busy", [0, 1, 2, 3, 4, 5], "medium")


def test_off_by_one_on_another_line_is_named() -> None:
    odd = process(ALL_REDUCE, WRAPPER, "sync (train.py:31)", "<module> (train.py:50)", move=still())

    assert outcome(job_with(odd)) == ("collective_mismatch", [3], "medium")


def test_off_by_one_on_the_same_line_names_nobody() -> None:
    assert outcome(job_with(waiter())) == ("unknown", [], "low")


def test_a_tie_is_a_split_and_never_a_name() -> None:
    odd = process(ALL_REDUCE, WRAPPER, "sync (train.py:31)", "<module> (train.py:50)", move=still())
    ranks = [rank(n, waiter() if n < 2 else odd) for n in range(4)]

    assert outcome(capture(*ranks)) == ("unknown", [], "low")


def test_pipeline_stages_differ_legitimately() -> None:
    odd = process(
        "recv (torch/distributed/distributed_c10d.py:2500)", "recv_forward (p2p.py:3)", move=still()
    )

    assert outcome(job_with(odd)) == ("unknown", [], "low")


def test_a_minority_on_one_node_of_many_is_only_low() -> None:
    odd = process(ALL_REDUCE, WRAPPER, "sync (train.py:31)", "<module> (train.py:50)", move=still())
    ranks = [rank(n, odd if n == 3 else waiter(), world=16) for n in range(8)]

    assert outcome(capture(*ranks, world=16)) == ("collective_mismatch", [3], "low")


def test_all_wait_here_and_the_rest_of_the_job_is_elsewhere() -> None:
    found = diagnose(
        [capture(*[rank(n, waiter(), world=16) for n in range(8)], world=16)]
    ).diagnosis

    assert (found.verdict, found.culprits) == (Verdict.UNKNOWN, ())
    assert "8 ranks of the job are not on this node" in found.summary


def test_a_job_that_moves_is_not_stuck_whoever_sleeps() -> None:
    """A snapshot of a healthy job: one rank loads data, the others are in all_reduce for some milliseconds."""
    restless = process(
        *WAITER, move=Movement(samples=8, span_seconds=2.0, same_frames=True, switches=80)
    )
    ranks = [rank(n, restless if n < 3 else ODD_ONES["sleeps"][0]) for n in range(4)]
    judged = diagnose([capture(*ranks)])

    assert (judged.diagnosis.verdict, judged.diagnosis.culprits, judged.stalled) == (
        Verdict.UNKNOWN,
        (),
        False,
    )


def test_all_stopped_is_a_pause_and_names_nobody() -> None:
    ranks = [rank(n, ODD_ONES["stopped"][0]) for n in range(4)]

    assert outcome(capture(*ranks)) == ("job_paused", [], "high")


def test_a_lost_rank_is_named_with_how_it_ended() -> None:
    lost = LostRank(rank=3, pid=77, reason="killed by signal 9 (SIGKILL)")
    found = diagnose([capture(*[rank(n, waiter()) for n in range(3)], lost=(lost,))]).diagnosis

    assert (found.verdict, found.culprits[0].rank, found.culprits[0].pid) == (
        Verdict.RANK_EXITED,
        3,
        77,
    )
    assert "SIGKILL" in found.summary


INIT = (
    "init_process_group (torch/distributed/distributed_c10d.py:1700)",
    WRAPPER,
    "<module> (train.py:5)",
)


def test_a_rank_that_never_came_has_no_pid() -> None:
    starting = process(*INIT, wchan="do_poll", move=still())
    found = diagnose(
        [capture(*[rank(n, starting) for n in range(3)], lost=(LostRank(rank=3),))]
    ).diagnosis

    assert (found.verdict, found.culprits[0].rank, found.culprits[0].pid) == (
        Verdict.INIT_INCOMPLETE,
        3,
        None,
    )


def test_a_rank_that_dawdles_before_init_is_named() -> None:
    starting = process(*INIT, wchan="do_poll", move=still())
    ranks = [rank(n, starting if n != 2 else ODD_ONES["sleeps"][0]) for n in range(4)]

    assert outcome(capture(*ranks)) == ("init_incomplete", [2], "medium")


def traced(found: ProcessCapture, name: str) -> ProcessCapture:
    """The same process in the hands of a tracer."""
    assert found.state is not None
    threads = tuple(
        msgspec.structs.replace(one, wchan="ptrace_stop") for one in found.state.threads
    )
    state = msgspec.structs.replace(
        found.state, state="t", tracer_pid=77, tracer_name=name, threads=threads
    )
    return msgspec.structs.replace(found, state=state)


def test_a_tracer_is_named_with_the_rank_that_it_holds() -> None:
    held = traced(process(*HERE, move=still()), "gdb")
    found = diagnose([job_with(held)]).diagnosis

    assert (str(found.verdict), str(found.confidence)) == ("rank_stopped", "high")
    assert "is held by the tracer gdb (pid 77)" in found.summary


@pytest.mark.parametrize("name", ["py-spy", "pystack", "mldebug"])
def test_a_profiler_that_passes_is_no_debugger(name: str) -> None:
    """Whoever else looks at the stacks just then has not caused the hang, nor has the rank that it holds."""
    held = traced(process("step (train.py:24)", "<module> (train.py:60)", move=still()), name)

    found = diagnose([job_with(held)]).diagnosis
    assert found.culprits == ()
    assert "debugger" not in found.summary


def test_a_rank_in_the_hands_of_a_profiler_is_judged_by_its_stack() -> None:
    held = traced(process("slow_data_loader (train.py:7)", move=still()), "py-spy")
    waits, sleeps = traced(waiter(), "py-spy"), ODD_ONES["sleeps"][0]

    assert outcome(job_with(held))[1] == []
    assert outcome(capture(rank(0, waits), rank(1, waiter()), rank(2, sleeps)))[1] == [2]


BACKWARD = (
    "_engine_run_backward (torch/autograd/graph.py:979)",
    "backward (torch/_tensor.py:6)",
    "step (train.py:40)",
)


def test_ddp_waiters_are_told_from_a_rank_that_computes_backward() -> None:
    """In Python both show the same frames; the counters and the wait channel tell."""
    waits = process(*BACKWARD, move=still())
    works = process(*BACKWARD, state="R", wchan="0", move=still(cpu=1.0))
    ranks = [rank(n, works if n == 1 else waits) for n in range(4)]

    assert outcome(capture(*ranks)) == ("rank_busy", [1], "medium")


@pytest.mark.parametrize(
    ("switches", "value"),
    [(1, ("rank_busy", [2], "medium")), (3, ("unknown", [], "low")), (20, ("unknown", [], "low"))],
)
def test_a_waiter_in_backward_that_was_woken_is_not_named(switches: int, value: object) -> None:
    """Beside the rank that does other work, one waiter's futex woke for nothing: it waits all the same, or the job goes on."""
    waits = process(*BACKWARD, move=still())
    woken = process(*BACKWARD, move=still(switches=switches))
    elsewhere = process("evaluate (faults.py:32)", "step (train.py:41)", move=moving(cpu=0.19))
    ranks = [rank(0, woken), rank(1, waits), rank(2, elsewhere), rank(3, waits)]

    assert outcome(capture(*ranks)) == value


def test_native_frames_of_one_waiter_hold_for_all_with_its_stand() -> None:
    spins = {"state": "R", "wchan": "0", "move": still(cpu=1.0)}
    line = ("step (train.py:24)", "<module> (train.py:60)")
    native = (
        "0x7f76 (libcuda.so)",
        "cuStreamSynchronize (libcuda.so)",
        "at::_ops::item::call (libtorch.so)",
        *line,
    )
    ranks = [rank(0, process(*line, native=native, **spins)), rank(1, process(*line, **spins))]
    ranks += [rank(2, process(*line, **spins)), rank(3, ODD_ONES["loop"][0])]

    assert outcome(capture(*ranks)) == ("rank_busy", [3], "medium")


def test_native_is_wanted_once_per_unclear_group_and_never_for_the_clear_ones() -> None:
    ranks = [rank(n, process(*BACKWARD, move=still())) for n in range(3)]

    assert wants_native(capture(*ranks, rank(3, ODD_ONES["stopped"][0]))) == (0,)


def recorded(which: str, number: int) -> ProcessCapture:
    data = (H200 / f"hang-{which}" / f"pyspy-{which}-r{number}.json").read_bytes()
    return ProcessCapture(
        pid=(620 if which == "sleep" else 860) + number, stacks=parse_pyspy_json(data)
    )


def test_h200_recording_of_a_sleeping_rank() -> None:
    ranks = [rank(n, recorded("sleep", n), world=2) for n in range(2)]

    assert outcome(capture(*ranks)) == ("rank_waiting", [1], "medium")


def test_h200_recording_of_a_desync_of_two_is_a_split() -> None:
    ranks = [rank(n, recorded("desync", n), world=2) for n in range(2)]

    assert outcome(capture(*ranks))[:2] == ("unknown", [])


@pytest.mark.parametrize(
    ("fault", "verdict", "culprits"),
    [
        ("sleep", "rank_waiting", [1]),
        ("loop", "rank_busy", [1]),
        (
            "kernel",
            "unknown",
            [],
        ),  # both wait for their GPU: only the GPU can tell which kernel never ends
    ],
)
def test_h200_native_recordings(fault: str, verdict: str, culprits: list[int]) -> None:
    ranks = []
    for number in range(2):
        text = (H200 / "signals" / f"{fault}-native-r{number}.txt").read_text()
        (pid, stacks), *_ = parse_pyspy_text(text).items()
        ranks.append(rank(number, ProcessCapture(pid=pid, stacks=stacks, native=stacks), world=2))

    assert outcome(capture(*ranks))[:2] == (verdict, culprits)


def test_a_gil_held_by_another_thread_is_said() -> None:
    holder = stack("crunch (native.py:3)", tid=555, name="Thread-7", gil=True)
    found = diagnose(
        [job_with(process(*HERE, wchan="futex_do_wait", others=(holder,), move=still()))]
    ).diagnosis

    assert (found.verdict, found.culprits[0].rank) == (Verdict.RANK_WAITING, 3)
    assert "held by its thread Thread-7 in crunch (native.py:3)" in found.summary


def test_a_job_of_one_rank_can_be_stuck_too() -> None:
    assert outcome(capture(rank(0, ODD_ONES["fifo"][0], world=1))) == (
        "rank_blocked_io",
        [0],
        "medium",
    )


def test_a_rank_without_any_evidence_is_not_named() -> None:
    assert outcome(job_with(process(state="S", wchan="")))[:2] == ("unknown", [])


def test_one_look_without_samples_is_never_high() -> None:
    """A sleep of a millisecond looks like one of an hour."""
    odd = process(*HERE, wchan="hrtimer_nanosleep")

    assert outcome(job_with(odd)) == ("rank_waiting", [3], "medium")


def test_a_job_of_one_rank_may_sleep() -> None:
    """A server that idles, a notebook, a trainer between two batches: nobody waits for it."""
    assert outcome(capture(rank(0, ODD_ONES["sleeps"][0], world=1)))[:2] == ("unknown", [])
    assert outcome(capture(rank(0, ODD_ONES["lock"][0], world=1)))[:2] == ("rank_waiting", [0])


def test_a_wait_that_was_woken_twice_is_no_hang() -> None:
    """Steps of a second: the same frames in every sample, but the futex was left in between."""
    woken = process(
        *WAITER, move=Movement(samples=8, span_seconds=2.0, same_frames=True, switches=2)
    )
    ranks = [rank(n, woken if n < 3 else ODD_ONES["sleeps"][0]) for n in range(4)]

    assert outcome(capture(*ranks))[:2] == ("unknown", [])


def test_a_store_that_polls_does_not_move() -> None:
    """Rank 0 wakes a thousand times a second in TCPStore::waitForWorkers."""
    polls = Movement(samples=8, span_seconds=2.0, same_frames=True, switches=2000)
    starting = process(*INIT, wchan="hrtimer_nanosleep", move=polls)
    taken = capture(*[rank(n, starting) for n in range(3)], lost=(LostRank(rank=3),))

    assert outcome(taken) == ("init_incomplete", [3], "high")


# --- what a hostile reader found: wrong names ------------------------------------------------------

SLEEPS = ODD_ONES["sleeps"][0]
LOOPS = ODD_ONES["loop"][0]
POLLS = process(
    *HERE,
    wchan="hrtimer_nanosleep",
    move=Movement(samples=8, span_seconds=2.0, same_frames=True, switches=4),
)
FLOCK = process(*HERE, wchan="flock_lock_inode_wait", syscall="flock", move=still())


def job_of(*what: ProcessCapture, **job) -> NodeCapture:
    return capture(*[rank(n, one, world=len(what)) for n, one in enumerate(what)], **job)


def test_what_was_quiet_for_long_is_high() -> None:
    """The agent has watched the silence; two seconds of sleep prove nothing."""
    taken = job_with(SLEEPS)

    assert outcome(msgspec.structs.replace(taken, quiet_seconds=60.0)) == (
        "rank_waiting",
        [3],
        "high",
    )


@pytest.mark.parametrize(
    "other", [POLLS, FLOCK, SLEEPS], ids=["polls for its file", "waits for its lock", "sleeps"]
)
def test_who_may_wait_for_a_busy_rank_is_not_blamed_alone(other: ProcessCapture) -> None:
    """Rank 0 prepares a data set; rank 1 waits until it is there, in a way that no stack can show."""
    assert outcome(job_of(LOOPS, other, waiter(), waiter())) == ("rank_busy", [0, 1], "low")


def test_a_stopped_rank_is_blamed_whoever_is_busy() -> None:
    assert outcome(job_of(LOOPS, ODD_ONES["stopped"][0], waiter())) == ("rank_stopped", [1], "high")


def test_a_poller_alone_is_named_but_never_high() -> None:
    assert outcome(job_of(waiter(), POLLS, waiter())) == ("rank_waiting", [1], "medium")


def test_a_poller_beside_a_rank_without_a_stack_is_not_named() -> None:
    """The one that no hook or dump showed may prepare what the other one polls for; who cannot be fed by it is named as ever."""
    blind = process(wchan="", move=still())

    assert outcome(job_of(waiter(), blind, POLLS, waiter())) == ("rank_waiting", [], "low")
    assert outcome(job_of(waiter(), blind, SLEEPS, waiter())) == ("rank_waiting", [2], "medium")


def test_a_poller_that_writes_is_at_work() -> None:
    move = Movement(samples=8, span_seconds=2.0, same_frames=True, switches=90, io_chars=1 << 20)
    writes = process(*HERE, wchan="hrtimer_nanosleep", move=move)

    assert outcome(job_of(writes, waiter(), waiter())) == ("rank_busy", [0], "medium")


def test_a_rank_whose_communication_thread_waits_is_a_victim() -> None:
    """Collectives submitted to a thread pool: the main thread waits for a future."""
    pool = stack(*WAITER, tid=555, name="ThreadPoolExecutor-0_0")
    main = process(
        "wait (threading.py:327)",
        "result (concurrent/futures/_base.py:451)",
        *HERE,
        others=(pool,),
        move=still(),
    )

    assert outcome(job_of(main, main, waiter(), LOOPS)) == ("rank_busy", [3], "medium")


def test_a_controller_that_polls_its_training_thread_is_a_victim() -> None:
    trainer = stack(*WAITER, tid=555, name="Thread-1 (train)")
    main = process(*HERE, wchan="hrtimer_nanosleep", others=(trainer,), move=POLLS.movement)

    assert outcome(job_of(main, main, waiter(), SLEEPS)) == ("rank_waiting", [3], "medium")


def test_a_futex_on_a_user_line_may_be_a_collective_handle() -> None:
    """`work.wait()` leaves no Python frame of its own; without a native stack nobody may be named for it."""
    handle = process(*HERE, move=still())

    assert outcome(job_of(waiter(), handle, waiter(), SLEEPS)) == ("rank_waiting", [3], "medium")
    assert outcome(job_of(waiter(), handle, waiter()))[1] == []


def test_a_receive_handle_of_a_pipeline_stage_has_no_vote() -> None:
    native = ("c10d::Work::wait (libtorch_cpu.so)", *HERE)
    stage = process(*HERE, native=native, move=still())
    other = process(
        "all_reduce (torch/distributed/distributed_c10d.py:3)", "step (p.py:9)", move=still()
    )

    assert outcome(job_of(stage, other, other, other))[:2] == ("unknown", [])


def test_several_process_groups_have_no_common_vote() -> None:
    """Tensor-parallel pairs: rank 0 left one out, rank 1 waits for it, ranks 2 and 3 are a step further."""
    threads = tuple(ThreadState(tid=n, name="pt_gloo_runloop") for n in range(4))
    taken = job_of(
        waiter(), process(ALL_REDUCE, WRAPPER, "tp (train.py:9)", move=still()), waiter(), waiter()
    )
    state = msgspec.structs.replace(
        taken.ranks[0].process.state, threads=(*taken.ranks[0].process.state.threads, *threads)
    )
    first = msgspec.structs.replace(taken.ranks[0].process, state=state)
    ranks = (msgspec.structs.replace(taken.ranks[0], process=first), *taken.ranks[1:])
    found = diagnose([msgspec.structs.replace(taken, ranks=ranks)])

    assert (found.diagnosis.verdict, found.diagnosis.culprits) == (Verdict.COLLECTIVE_MISMATCH, ())
    assert found.stalled


def test_a_hung_mount_is_found_although_another_thread_writes_a_log() -> None:
    move = Movement(samples=8, span_seconds=2.0, same_frames=True, io_chars=400)
    odd = process(*HERE, wchan="request_wait_answer", syscall="write", on=FUSE, move=move)

    assert outcome(job_with(odd)) == ("storage_fault", [3], "high")


@pytest.mark.parametrize("cpu", [0.05, 0.2, 1.0])
def test_a_loop_on_a_crowded_node_is_busy_and_not_idle(cpu: float) -> None:
    odd = process(*HERE, state="R", wchan="", gil=True, move=still(cpu=cpu))

    assert outcome(job_with(odd)) == ("rank_busy", [3], "medium")


def test_a_child_that_computes_makes_its_rank_busy() -> None:
    child = process(pid=900, kind="child", state="R", wchan="", move=still(cpu=1.0))
    main = process("wait (subprocess.py:1264)", *HERE, wchan="do_wait", move=still())

    assert outcome(job_with(main, child)) == ("rank_busy", [3], "medium")


def test_a_worker_that_computes_is_busy_and_not_stalled() -> None:
    loader = (
        "_try_get_data (torch/utils/data/dataloader.py:1310)",
        "__next__ (torch/utils/data/dataloader.py:733)",
    )
    worker = process("__getitem__ (data.py:4)", "_worker_loop (torch/utils/data/_utils/worker.py:349)",
                     pid=901, kind="worker", state="R", wchan="", gil=True, move=still(cpu=1.0))  # fmt: skip

    assert outcome(job_with(process(*loader, *HERE, wchan="do_poll", move=still()), worker)) == (
        "rank_busy",
        [3],
        "medium",
    )


def test_the_line_of_the_job_and_not_of_a_lock_library_is_the_place() -> None:
    lock = ("acquire (filelock/_api.py:300)", "__enter__ (filelock/_api.py:400)")
    found = diagnose(
        [job_with(process(*lock, *HERE, wchan="hrtimer_nanosleep", move=POLLS.movement))]
    ).diagnosis

    assert "waits for a file lock in load (train.py:7)" in found.summary


def test_a_healthy_job_that_trains_in_a_thread_names_nobody() -> None:
    """The main thread always looks the same; the training thread goes on."""
    trainer = stack(*WAITER, tid=555, name="trainer")
    move = Movement(samples=8, span_seconds=2.0, same_frames=True, same_threads=False, switches=6)
    main = process(*HERE, wchan="hrtimer_nanosleep", others=(trainer,), move=move)
    loads = process(*HERE, wchan="hrtimer_nanosleep", move=move)

    assert outcome(job_of(main, main, main, loads))[:2] == ("unknown", [])


def test_a_rank_that_left_well_is_not_blamed_while_nobody_waits_for_it() -> None:
    done = LostRank(rank=1, pid=101, exit_status=0, reason="exit code 0")
    writes = process(
        "write (ckpt.py:9)", state="D", wchan="folio_wait_bit", syscall="write", move=still()
    )
    busy = diagnose([capture(rank(0, writes), lost=(done,))]).diagnosis
    missed = diagnose([capture(rank(0, waiter()), lost=(done,))]).diagnosis

    assert 1 not in [culprit.rank for culprit in busy.culprits]
    assert [culprit.rank for culprit in missed.culprits] == [1]


# --- who waits where others may have passed -----------------------------------------------------------


def called(operation: str) -> ProcessCapture:
    """A rank that waits in this collective."""
    frame = f"{operation} (torch/distributed/distributed_c10d.py:77)"
    return process(frame, WRAPPER, "collect (train.py:60)", "<module> (train.py:50)", move=still())


@pytest.mark.parametrize("operation", ["gather", "reduce", "broadcast", "scatter"])
def test_who_waits_alone_in_a_collective_with_a_root_is_not_named(operation: str) -> None:
    """Rank 3 left the gather out; its other senders went on, and the root is the victim, though it stands alone."""
    assert outcome(job_with(called(operation), at=0)) == ("collective_mismatch", [], "low")


@pytest.mark.parametrize("operation", ["all_gather", "gather_object"])
def test_who_waits_alone_in_a_collective_of_all_is_named(operation: str) -> None:
    """gather_object has a root, and before it all ranks exchange the sizes: nobody passes it alone."""
    assert outcome(job_with(called(operation))) == ("collective_mismatch", [3], "medium")


def test_native_code_that_could_not_be_read_is_not_taken_for_a_wait() -> None:
    """Three ranks hash without the GIL while rank 0 waits for them: no native stack says so."""
    hashing = process("digest (train.py:9)", state="R", wchan="0", move=still(cpu=1.0))
    verdict, names, _ = outcome(job_of(waiter(), hashing, hashing, hashing))

    assert 0 not in names, (verdict, names)


def test_two_that_do_different_things_may_wait_for_one_another() -> None:
    sleeps = process(*HERE, wchan="hrtimer_nanosleep", move=still())
    locks = process("acquire (threading.py:9)", "handle (train.py:70)", move=still())

    assert outcome(job_of(locks, sleeps, waiter(), waiter())) == ("rank_waiting", [0, 1], "low")


def test_a_sleeping_main_thread_is_not_excused_by_a_thread_that_waits() -> None:
    control = stack(*WAITER, tid=555, name="control")
    main = process(*HERE, wchan="hrtimer_nanosleep", others=(control,), move=still())

    assert outcome(job_with(main)) == ("rank_waiting", [3], "medium")


def test_a_silent_peer_is_what_a_receiving_rank_waits_for() -> None:
    line = OpenFile(fd=9, target="socket:[9396227]", kind="socket")
    tcp = process(*HERE, wchan="wait_woken", syscall="recvfrom", on=line, move=still())
    found = diagnose([job_with(tcp)]).diagnosis

    assert (found.verdict, found.culprits[0].rank) == (Verdict.RANK_BLOCKED_IO, 3)
    assert "waits for a network peer in load (train.py:7)" in found.summary


def test_a_select_is_no_doing_nothing() -> None:
    select = process(*HERE, wchan="poll_schedule_timeout.constprop.0", move=still())

    assert "waits for a descriptor" in diagnose([job_with(select)]).diagnosis.summary


def test_where_every_rank_may_wait_for_another_nobody_is_named() -> None:
    """Whoever tells only the culprits on would name the victims too."""
    reads = process(
        "all_reduce (train.py:9)", wchan="anon_pipe_read", syscall="read", args=(5,), move=still()
    )
    sleeps = ODD_ONES["sleeps"][0]
    found = diagnose([capture(rank(0, reads), rank(1, sleeps), rank(2, reads))]).diagnosis

    assert (found.culprits, str(found.confidence)) == ((), "low")
    assert "one of them may wait for another" in found.summary


# --- storage that does not answer ----------------------------------------------------------------

NFS = msgspec.structs.replace(FUSE, fstype="nfs4", source="nfs01:/data", device="0:40")


def on_nfs(**kw) -> NodeCapture:
    return job_with(process(*HERE, syscall="read", on=NFS, move=still(), **kw))


def test_a_mount_is_named_with_its_source_and_for_how_long() -> None:
    taken = msgspec.structs.replace(on_nfs(state="D", wchan="rpc_wait_bit_killable"), quiet_seconds=74.0)  # fmt: skip
    found = diagnose([taken]).diagnosis
    assert found.verdict is Verdict.STORAGE_FAULT
    assert [(one.kind, one.rank) for one in found.culprits] == [("mount", 3)]
    assert found.evidence[0] == "rank 3 waits in read of /data/shard-17 on nfs01:/data, stuck 74 s"


def test_what_the_agent_saw_of_the_filesystem_is_joined_by_device() -> None:
    """A wait that could be anything is storage where the same filesystem does not answer the agent either."""
    taken = on_nfs(state="D", wchan="kernel_clone")
    assert outcome(taken)[0] == "rank_blocked_io"
    assert outcome(with_stuck(taken, {"0:41": 74.0}))[0] == "rank_blocked_io"  # another one
    diagnosis = diagnose([with_stuck(taken, {"0:40": 74.0})]).diagnosis
    assert diagnosis.verdict is Verdict.STORAGE_FAULT
    assert "nfs01:/data, which has not answered the agent for 74 s" in diagnosis.evidence[0]
