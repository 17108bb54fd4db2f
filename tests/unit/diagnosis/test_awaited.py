"""What a rank waits for outside of collectives is told with what that does: children, threads of its own, the GIL, file locks."""

import msgspec
import pytest

from mldebug.core.model import (
    Classification,
    FileLock,
    LockHolder,
    NodeCapture,
    ProcessCapture,
    RankCapture,
    Role,
    ThreadStack,
)
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import WAITER, capture, process, rank, stack, still

JOIN = ("poll (multiprocessing/popen_fork.py:27)", "wait (multiprocessing/popen_fork.py:43)",
        "join (multiprocessing/process.py:149)", "close (train.py:9)", "<module> (train.py:50)")  # fmt: skip
WRITES = ("write_shard (writer.py:12)", "_bootstrap (multiprocessing/process.py:314)", "main (train.py:3)")  # fmt: skip
TRACKER = ("main (multiprocessing/resource_tracker.py:230)",)


def child(pid: int, *frames: str, command: str = "", wchan: str = "hrtimer_nanosleep", **more: object) -> ProcessCapture:  # fmt: skip
    what = process(*frames, pid=pid, wchan=wchan, move=still(), kind="child", **more)  # type: ignore[arg-type]
    assert what.state is not None
    state = msgspec.structs.replace(what.state, ppid=102)
    return msgspec.structs.replace(what, state=state, command=command, python=bool(frames))


def waits_for(*children: ProcessCapture, syscall: str = "", args: tuple[int, ...] = ()) -> Classification:  # fmt: skip
    what = process(*JOIN, pid=102, wchan="do_wait", syscall=syscall, args=args, move=still())
    return classify(rank(2, what, *children))


# --- children --------------------------------------------------------------------------------------


def test_a_child_is_told_by_its_own_stack() -> None:
    found = waits_for(child(900, *WRITES))
    assert found.doing.endswith(": process 900 sleeps in write_shard (writer.py:12)")
    assert found.why[0] == "child 900 stands in write_shard (writer.py:12)"


def test_a_program_is_told_by_what_was_started() -> None:
    found = waits_for(child(900, command="aws s3 cp ckpt s3://b"))
    assert found.doing.endswith(": process 900 (aws s3 cp ckpt s3://b)")


def test_the_system_call_says_which_of_several() -> None:
    both = child(900, *WRITES), child(901, "upload (upload.py:7)")
    found = waits_for(*both, syscall="wait4", args=(901, 0, 0, 0))
    assert "process 901 sleeps in upload" in found.doing
    assert "900" not in found.doing
    found = waits_for(*both, syscall="waitid", args=(1, 900, 0, 4))
    assert "process 900" in found.doing
    assert "901" not in found.doing


@pytest.mark.parametrize("args", [(), (0xFFFFFFFF,), (0xFFFFFFFFFFFFFFFF,)])
def test_where_it_may_be_any_all_are_told(args: tuple[int, ...]) -> None:
    found = waits_for(child(900, *WRITES), child(901, "upload (upload.py:7)"), syscall="wait4", args=args)  # fmt: skip
    assert "process 900 sleeps" in found.doing
    assert "process 901 sleeps" in found.doing


def test_helpers_of_multiprocessing_are_not_waited_for() -> None:
    found = waits_for(child(900, *WRITES), child(901, *TRACKER))
    assert "901" not in found.doing


def test_a_child_that_computes_makes_its_rank_busy() -> None:
    works = process(*WRITES, state="R", wchan="", active=True, gil=True, kind="child", pid=900)
    assert waits_for(works).role is Role.BUSY


def test_without_children_it_stays_as_it_is() -> None:
    assert waits_for().doing == "waits for a child process in close (train.py:9)"


# --- what feeds a queue, or frees a lock --------------------------------------------------------------

QUEUE = ("wait (threading.py:355)", "get (queue.py:171)", "next_batch (train.py:33)", "<module> (train.py:50)")  # fmt: skip
ACROSS = ("wait (multiprocessing/connection.py:1136)", "_poll (multiprocessing/connection.py:447)", "get (multiprocessing/queues.py:117)", "next_batch (train.py:33)", "<module> (train.py:50)")  # fmt: skip
RECEIVES = ("_recv (multiprocessing/connection.py:395)", "recv (multiprocessing/connection.py:250)", "next_batch (train.py:33)")  # fmt: skip
FEEDS = stack("read_shard (data.py:9)", "fill (train.py:5)", tid=7, name="prefetcher")
TAKES = stack(*QUEUE[:2], "upload (upload.py:7)", tid=8, name="uploader")
BAR = stack("wait (threading.py:331)", "run (tqdm/_monitor.py:60)", tid=9, name="Thread-9")
FREE = stack("_worker (concurrent/futures/thread.py:81)", "run (threading.py:982)", tid=10, name="pool_0")  # fmt: skip
PRODUCES = ("read_shard (data.py:9)", "produce (data.py:4)", "_bootstrap (multiprocessing/process.py:314)", "main (train.py:3)")  # fmt: skip
POOLED = ("get (multiprocessing/queues.py:367)", "worker (multiprocessing/pool.py:114)", "_bootstrap (multiprocessing/process.py:314)", "main (train.py:3)")  # fmt: skip


def at_queue(*frames: str, wchan: str = "futex_do_wait", others: tuple[ThreadStack, ...] = (), children: tuple[ProcessCapture, ...] = ()) -> Classification:  # fmt: skip
    what = process(*frames, pid=102, wchan=wchan, move=still(), others=others)
    return classify(rank(2, what, *children))


def test_who_waits_on_a_queue_is_told_with_the_threads_that_may_fill_it() -> None:
    """A thread that waits on a queue itself stands last; those of frameworks and idle ones of a pool are left out."""
    doing = at_queue(*QUEUE, others=(FREE, BAR, TAKES, FEEDS)).doing
    assert doing.startswith("waits on a queue in next_batch (train.py:33): its thread prefetcher ")
    assert doing.index("prefetcher") < doing.index("uploader")
    assert "Thread-9" not in doing
    assert "pool_0" not in doing


def test_without_such_a_thread_nothing_is_added() -> None:
    assert at_queue(*QUEUE, others=(FREE, BAR)).doing == "waits on a queue in next_batch (train.py:33)"  # fmt: skip


@pytest.mark.parametrize(("frames", "wchan"), [(ACROSS, "do_poll"), (RECEIVES, "anon_pipe_read")], ids=["queue", "pipe"])  # fmt: skip
def test_who_waits_between_processes_is_told_with_its_children(frames: tuple[str, ...], wchan: str) -> None:  # fmt: skip
    """None of them is blamed: which one it waits for is not known."""
    found = at_queue(*frames, wchan=wchan, children=(child(900, *PRODUCES), child(901, *POOLED), child(902, *TRACKER)))  # fmt: skip
    assert found.doing.endswith(": its process 900 sleeps in read_shard (data.py:9)")
    assert found.why[0] == "child 900 stands in read_shard (data.py:9) < produce (data.py:4)"
    assert (found.worker_pid, found.mount) == (None, "")


def test_a_queue_between_threads_has_nothing_to_do_with_children() -> None:
    assert "900" not in at_queue(*QUEUE, children=(child(900, *PRODUCES),)).doing


def test_of_a_child_the_thread_in_the_jobs_code_is_told() -> None:
    """As in a worker of Grain, whose main thread waits for a pool of its own."""
    main = ("result (concurrent/futures/_base.py:451)", "__next__ (/e/lib/python3.11/site-packages/grain/prefetch.py:264)")  # fmt: skip
    reads = child(900, *main, others=(stack("__getitem__ (data.py:9)", tid=7, name="grain-prefetch_1"),))  # fmt: skip
    assert "its thread grain-prefetch_1" in at_queue(*ACROSS, children=(reads,)).doing


def test_a_thread_between_whose_queue_and_a_child_is_told_with_both() -> None:
    between = stack(*ACROSS[:3], "refill (train.py:40)", tid=7, name="refiller")
    doing = at_queue(*QUEUE, others=(between,), children=(child(900, *PRODUCES),)).doing
    assert "its thread refiller" in doing
    assert doing.endswith("its process 900 sleeps in read_shard (data.py:9)")


# --- threads ---------------------------------------------------------------------------------------


def job(*odd: RankCapture, rest: ProcessCapture | None = None) -> NodeCapture:
    by_rank = {one.identity.rank: one for one in odd}
    waits = rest or process(*WAITER, move=still())
    return capture(*(by_rank.get(n) or rank(n, waits) for n in range(4)))


def test_of_two_threads_that_are_joined_both_are_told() -> None:
    others = (
        stack("recv (socket.py:7)", "upload (upload.py:7)", tid=7, name="uploader"),
        stack("put (queue.py:7)", "fill (train.py:7)", tid=8, name="filler"),
    )
    main = process("join (threading.py:1112)", "finish (train.py:9)", pid=102, move=still(), others=others)  # fmt: skip
    doing = classify(rank(2, main)).doing
    assert "its thread uploader" in doing
    assert "in upload (upload.py:7)" in doing
    assert "its thread filler" in doing


PARKED = ("main_loop (train.py:14)", "<module> (train.py:20)")


def parked(*thread: str, name: str = "TrainingThread", main: tuple[str, ...] = PARKED) -> ProcessCapture:  # fmt: skip
    return process(*main, wchan="hrtimer_nanosleep", move=still(), others=(stack(*thread, tid=7, name=name),))  # fmt: skip


def test_where_all_main_threads_are_parked_the_thread_that_trains_speaks() -> None:
    odd = rank(2, parked("read_batch (train.py:3)", "train_fn (train.py:9)"))
    found = diagnose([job(odd, rest=parked(*WAITER))]).diagnosis
    assert [one.rank for one in found.culprits] == [2]
    assert "in read_batch (train.py:3), in its thread TrainingThread" in found.summary


def test_the_number_in_a_threads_name_does_not_matter() -> None:
    odd = rank(2, parked("read_batch (train.py:3)", name="Thread-9 (train)"))
    found = diagnose([job(odd, rest=parked(*WAITER, name="Thread-4 (train)"))]).diagnosis
    assert [one.rank for one in found.culprits] == [2]


def test_a_main_thread_that_sleeps_elsewhere_is_the_odd_one() -> None:
    """A control: on three ranks the main thread is parked, on one it sleeps in a place of its own."""
    odd = rank(2, parked(*WAITER, main=("backoff (train.py:77)", "<module> (train.py:20)")))
    found = diagnose([job(odd, rest=parked(*WAITER))]).diagnosis
    assert "TrainingThread" not in found.summary


def test_a_thread_that_waits_for_nobody_trains_nobody() -> None:
    """A control: all sleep, and a thread of theirs only logs."""
    found = diagnose([job(rest=parked("emit (logger.py:3)", name="logger"))]).diagnosis
    assert "logger" not in found.summary


def test_two_threads_in_collectives_of_every_rank_are_told() -> None:
    gathers = stack("all_gather_object (torch/distributed/distributed_c10d.py:3100)", "plan (ckpt.py:5)", tid=7, name="saver_0")  # fmt: skip
    main = process(*WAITER, move=still(), others=(gathers,))
    found = diagnose([job(rest=main)]).diagnosis
    assert found.culprits == ()
    assert "a second thread of every rank (saver_0) waits in all_gather_object" in found.summary
    one_has_none = diagnose([job(rank(1, process(*WAITER, move=still())), rest=main)]).diagnosis
    assert "second thread" not in one_has_none.summary


# --- the GIL ---------------------------------------------------------------------------------------


HOLDER = stack("sleep (plugin.so)", "plugin (train.py:3)", tid=7, name="metrics", gil=True)
LINE = ("step (train.py:9)", "<module> (train.py:50)")


def test_a_main_thread_that_asks_for_the_gil_200_times_a_second_waits_for_it() -> None:
    main = process(*LINE, pid=102, move=still(cpu=0.01, switches=400), others=(HOLDER,))
    found = classify(rank(2, main))
    assert (found.name, found.role) == ("gil", Role.INERT)
    assert found.doing.endswith("held by its thread metrics in sleep (plugin.so) at plugin (train.py:3)")  # fmt: skip


def test_it_waits_for_the_gil_also_where_it_is_found_ready_for_a_cpu() -> None:
    """On a machine without a free CPU: 423 switches in 2.2 s, and told as busy."""
    asks = still(samples=5, span=2.2, cpu=0.01, switches=423)
    found = classify(rank(2, process(*LINE, pid=102, state="R", wchan="0", move=asks, others=(HOLDER,))))  # fmt: skip
    assert (found.name, found.role) == ("gil", Role.INERT)


@pytest.mark.parametrize(
    "main",
    [
        process(*LINE, pid=102, state="R", wchan="0", move=still(cpu=0.01, switches=40), others=(HOLDER,)),  # it rarely wakes
        process(*LINE, pid=102, state="R", wchan="0", move=still(cpu=0.01, switches=400)),  # nobody holds it
        process(*LINE, pid=102, move=still(cpu=0.6, switches=400), others=(HOLDER,)),  # it computes
        process(*LINE, pid=102, move=still(cpu=0.01, switches=400)),  # nobody holds it
        process(*LINE, pid=102, wchan="do_poll", move=still(cpu=0.01, switches=400), others=(HOLDER,)),
    ],
)  # fmt: skip
def test_who_does_something_else_does_not_wait_for_the_gil(main: ProcessCapture) -> None:
    assert classify(rank(2, main)).name != "gil"


# --- file locks ------------------------------------------------------------------------------------


def wants(*holders: LockHolder, path: str = "/data/x.lock", number: int = 2) -> RankCapture:
    what = process(*LINE, pid=100 + number, wchan="locks_lock_inode_wait", syscall="flock", move=still())  # fmt: skip
    return rank(number, msgspec.structs.replace(what, lock=FileLock(tid=100 + number, kind="flock", path=path, holders=holders)))  # fmt: skip


HELD = {
    "a rank": ((LockHolder(pid=101, rank=1),), "held by rank 1"),
    "its child": ((LockHolder(pid=900, rank=1, child=True, command="python w.py"),), "held by process 900 of rank 1 (python w.py)"),
    "a stranger": ((LockHolder(pid=77, command="vim x"),), "held by process 77 (vim x), which is no part of the job"),
    "another user's": ((LockHolder(),), "held by a process of another user"),
    "not to be seen": ((), "whose holder is not to be seen from this node"),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_the_holder_is_told(name: str) -> None:
    holders, words = HELD[name]
    doing = classify(wants(*holders)).doing
    assert doing == f"waits for a file lock (/data/x.lock) in step (train.py:9), {words}"


def test_a_child_of_another_rank_that_holds_it_is_the_culprit() -> None:
    found = diagnose([job(wants(LockHolder(pid=900, rank=1, child=True)))]).diagnosis
    assert [(one.kind, one.rank, one.pid) for one in found.culprits] == [("worker", 1, 900)]


def test_two_that_hold_what_the_other_wants_are_a_circle_of_which_nobody_is_named() -> None:
    pair = wants(LockHolder(pid=103, rank=3)), wants(LockHolder(pid=102, rank=2), number=3)
    found = diagnose([job(*pair)]).diagnosis
    assert found.culprits == ()
    assert "in a circle" in found.summary


def test_at_the_end_of_a_chain_stands_the_one_that_holds_and_wants_nothing() -> None:
    chain = wants(LockHolder(pid=103, rank=3)), wants(LockHolder(pid=101, rank=1), number=3)
    found = diagnose([job(*chain)]).diagnosis
    assert [one.rank for one in found.culprits] == [1]
    assert found.confidence != "high"


def test_a_rank_that_wants_what_its_own_process_holds_is_no_victim() -> None:
    found = diagnose([job(wants(LockHolder(pid=102, rank=2)))]).diagnosis
    assert [one.rank for one in found.culprits] == [2]
