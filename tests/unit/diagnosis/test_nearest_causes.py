"""Each verdict by the evidence that its definition in docs/verdicts.md names, and not by that of the nearest other cause.

`straggler` is the verdict of slowdowns, with a table of its own (tests/unit/goodput/test_nearest_causes_of_slowdowns.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from mldebug.core.model import (
    Diagnosis,
    Fault,
    FileLock,
    LockHolder,
    LogTail,
    LostRank,
    NodeCapture,
    OpenFile,
    ProcessCapture,
    QueriedNode,
    RankCapture,
    ThreadState,
    Verdict,
)
from mldebug.core.plugins import create_all
from mldebug.diagnosis.diagnose import diagnose
from shared.cluster.nodes import merged, run, silent
from shared.diagnosis.builders import WAITER, WRAPPER, capture, moving, process, rank, stack, still

TAKEN, QUIET = 1_700_000_000.0, 60.0
DETECTORS = Path(__file__).parents[3] / "mldebug/diagnosis/detectors"
HERE = ("load (train.py:7)", "<module> (train.py:50)")
SHARD = OpenFile(fd=7, target="/data/shard-17", kind="file", mode="r", mount="/data", fstype="nfs4", source="nfs01:/data")  # fmt: skip
SILENT = msgspec.structs.replace(SHARD, stuck_seconds=40.0)
FIFO = OpenFile(fd=-1, target="/data/settings.fifo", kind="file", mount="/data", fstype="nfs4")
LOADER = ("wait (multiprocessing/connection.py:900)", "_try_get_data (torch/utils/data/dataloader.py:1200)",
          "_next_data (torch/utils/data/dataloader.py:1400)", "train (train.py:20)")  # fmt: skip
WORKER = ("read_shard (data.py:54)", "__getitem__ (data.py:31)", "_worker_loop (torch/utils/data/_utils/worker.py:300)")  # fmt: skip
IDLE_WORKER = ("get (multiprocessing/queues.py:113)", "_worker_loop (torch/utils/data/_utils/worker.py:300)")  # fmt: skip
CHILD = ("poll (multiprocessing/popen_fork.py:27)", "wait (multiprocessing/popen_fork.py:43)", "close (train.py:9)")  # fmt: skip
INIT = ("init_process_group (torch/distributed/distributed_c10d.py:1700)", WRAPPER, "<module> (train.py:5)")  # fmt: skip
STORE = ("wait (torch/distributed/elastic/utils/store.py:90)", "first (train.py:8)")
RANK_1 = FileLock(tid=103, kind="flock", path="/data/cache.lock", holders=(LockHolder(pid=101, rank=1),))  # fmt: skip

RANK_3 = FileLock(tid=100, kind="flock", holders=(LockHolder(pid=103, rank=3),))


def of(
    odd: ProcessCapture | None,
    *children: ProcessCapture,
    rest: ProcessCapture | None = None,
    lost: tuple[LostRank, ...] = (),
    faults: tuple[Fault, ...] = (),
    log: tuple[str, ...] = (),
) -> NodeCapture:
    """Four ranks in all_reduce (or in `rest`), of which rank 3 does something else, or is gone where `odd` is None."""
    gone = {one.rank for one in lost}

    def one(n: int) -> RankCapture:
        mine = n == 3 and odd is not None
        what = rank(n, odd if mine and odd else rest or process(*WAITER, move=still()), *(children if mine else ()))  # fmt: skip
        return msgspec.structs.replace(what, log=LogTail(path="x", lines=log)) if mine and log else what  # fmt: skip

    taken = capture(*(one(n) for n in range(4) if n not in gone), lost=lost)
    return msgspec.structs.replace(taken, faults=faults, quiet_seconds=QUIET)


def stands(*frames: str, wchan: str = "futex_do_wait", **more: object) -> ProcessCapture:
    return process(*(frames or HERE), wchan=wchan, move=still(), **more)  # type: ignore[arg-type]


def loads(worker: ProcessCapture) -> tuple[ProcessCapture, ProcessCapture]:
    return stands(*LOADER, wchan="do_poll"), msgspec.structs.replace(worker, kind="worker", pid=900)


def load(*workers: ProcessCapture) -> tuple[ProcessCapture, ...]:
    """A rank that waits for its DataLoader, and several workers."""
    named = (msgspec.structs.replace(one, kind="worker", pid=900 + n) for n, one in enumerate(workers))  # fmt: skip
    return stands(*LOADER, wchan="do_poll"), *named


def child(what: ProcessCapture) -> tuple[ProcessCapture, ProcessCapture]:
    return stands(*CHILD, wchan="do_wait"), msgspec.structs.replace(what, kind="child", pid=900)


def xid(number: int | None = 3, code: str = "xid_79", tier: str = "fatal", at: float = TAKEN - QUIET, **more: object) -> Fault:  # fmt: skip
    facts = {"kind": "xid", "words": f"{code} on GPU 0000:3b:00.0", "by": "gpu", "bus_id": "0000:3b:00.0"} | more  # fmt: skip
    return Fault(rank=number, code=code, tier=tier, at=at, node="n1", **facts)  # type: ignore[arg-type]


def killed(by: str = "process", at: float = TAKEN - QUIET) -> Fault:
    words = "the kernel killed a process for memory, pid 4711 python"
    return Fault(kind="oom_kill", words=words, by=by, rank=3, tier="fatal", node="n1", at=at)


def port(at: float = TAKEN - QUIET, kind: str = "port_down", **more: object) -> Fault:
    facts = {"words": "port mlx5_3/1 was up and is DOWN", "code": kind, "tier": "fatal", "node": "n2"} | more  # fmt: skip
    return Fault(kind=kind, at=at, **facts)  # type: ignore[arg-type]


def on_two_nodes(taken: NodeCapture) -> NodeCapture:
    return msgspec.structs.replace(
        taken, job=msgspec.structs.replace(taken.job, nodes=("n1", "n2"))
    )


def locked(lock: FileLock, **more: object) -> ProcessCapture:
    what = stands(*HERE, wchan="locks_lock_inode_wait", syscall="flock", on=SHARD, **more)
    return msgspec.structs.replace(what, lock=lock)


def frozen(**more: object) -> ProcessCapture:
    what = stands(*HERE, wchan="get_signal", **more)
    assert what.state is not None
    return msgspec.structs.replace(what, state=msgspec.structs.replace(what.state, frozen_by="/docker/4f2a"))  # fmt: skip


def with_group(what: ProcessCapture) -> ProcessCapture:
    """With the threads of a gloo group that has come together."""
    assert what.state is not None
    loops = tuple(ThreadState(tid=800 + n, name="pt_gloo_runloop", state="S") for n in (1, 2))
    return msgspec.structs.replace(what, state=msgspec.structs.replace(what.state, threads=(*what.state.threads, *loops)))  # fmt: skip


FILELOCK = ("acquire (filelock/_api.py:330)", "__enter__ (filelock/_api.py:376)", "prepare (prep.py:30)", "<module> (train.py:20)")  # fmt: skip
BELOW_LOCK = ("barrier (torch/distributed/distributed_c10d.py:4818)", WRAPPER, "prepare (prep.py:31)", "<module> (train.py:20)")  # fmt: skip
GPU = "synchronize (torch/cuda/__init__.py:1040)"
DIED = LostRank(rank=3, pid=4711, exit_status=9, reason="killed by SIGKILL")
NEVER_CAME = LostRank(rank=3)
BRANCH = stands("barrier (torch/distributed/distributed_c10d.py:4000)", WRAPPER, "finish (train.py:9)")  # fmt: skip
ROOTED = stands("gather (torch/distributed/distributed_c10d.py:4000)", WRAPPER, "finish (train.py:9)")  # fmt: skip
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB is free."  # fmt: skip


class Causes(NamedTuple):
    """What gives a verdict, and the nearest other causes with the verdict that is theirs."""

    verdict: Verdict
    own: dict[str, NodeCapture]
    others: dict[str, tuple[NodeCapture, str]]


TABLE = (
    Causes(
        Verdict.GPU_FAULT,
        {"off the bus": of(None, faults=(xid(),)), "off the bus, its rank sleeps": of(stands(wchan="hrtimer_nanosleep"), faults=(xid(),))},
        {
            "an Xid that the job caused": (of(None, faults=(xid(code="xid_31", tier="application"),)), "unknown"),
            "an hour before the job stopped": (of(None, faults=(xid(at=TAKEN - 3600),)), "unknown"),
            "of a rank that is stopped": (of(stands(state="T", wchan="do_signal_stop"), faults=(xid(),)), "rank_stopped"),
            "of a rank that is frozen": (of(frozen(), faults=(xid(),)), "rank_stopped"),
            "of a rank that waits for another, which sleeps": (of(stands(wchan="hrtimer_nanosleep"), faults=(xid(1),)), "rank_waiting"),
            "of the node, and a rank sleeps": (of(stands(wchan="hrtimer_nanosleep"), faults=(xid(None, by="node"),)), "rank_waiting"),
        },
    ),
    Causes(
        Verdict.OUT_OF_MEMORY,
        {"killed by the kernel": of(None, lost=(DIED,), faults=(killed(),)), "its worker was": of(*loads(stands(*IDLE_WORKER)), faults=(killed("child"),))},
        {
            "killed by somebody": (of(None, lost=(DIED,)), "rank_exited"),
            "long after another kill": (of(None, lost=(DIED,), faults=(killed(at=TAKEN - 3600),)), "rank_exited"),
            "a child was killed, and it sleeps": (of(stands(wchan="hrtimer_nanosleep"), faults=(killed("child"),)), "rank_waiting"),
            "a child was killed, another one is stuck": (of(*loads(stands(*WORKER, wchan="wait_for_partner", on=FIFO)), faults=(killed("child"),)), "dataloader_stalled"),
            "an error that it caught": (of(stands(wchan="hrtimer_nanosleep"), log=(OOM, "step 4 loss 2.5")), "rank_waiting"),
        },
    ),
    Causes(
        Verdict.STORAGE_FAULT,
        {
            "a filesystem's wait channel": of(stands(wchan="rpc_wait_bit_killable", state="D", syscall="read", on=SHARD)),
            "FUSE, asleep": of(stands(wchan="request_wait_answer", syscall="openat", on=SHARD)),
            "state D, and it does not answer us": of(stands(wchan="wait_on_something", state="D", syscall="read", on=SILENT)),
            "of a worker": of(*loads(stands(*WORKER, wchan="rpc_wait_bit_killable", state="D", syscall="read", on=SHARD))),
            "of a child that it waits for": of(*child(stands(*WORKER[:1], wchan="rpc_wait_bit_killable", state="D", syscall="write", on=SHARD))),
            "a lock on a filesystem that does not answer us": of(stands(wchan="request_wait_answer", syscall="flock", on=SILENT)),
        },
        {
            "a worker that opens a FIFO": (of(*loads(stands(*WORKER, wchan="wait_for_partner", syscall="openat", on=FIFO))), "dataloader_stalled"),
            "a worker that wants a flock": (of(*loads(stands(*WORKER, wchan="locks_lock_inode_wait", syscall="flock", on=SHARD))), "dataloader_stalled"),
            "a worker that wants a lockf": (of(*loads(stands(*WORKER, wchan="fcntl_setlk", syscall="fcntl", args=(7, 7), on=SHARD))), "dataloader_stalled"),
            "a worker that wants a flock on FUSE": (of(*loads(stands(*WORKER, wchan="request_wait_answer", syscall="flock", on=SHARD))), "dataloader_stalled"),
            "a worker that sleeps beside an open file": (of(*loads(stands(*WORKER, wchan="hrtimer_nanosleep", on=SHARD))), "dataloader_stalled"),
            "a worker that is stopped": (of(*loads(stands(*WORKER, state="T", wchan="do_signal_stop", on=SHARD))), "dataloader_stalled"),
            "a rank that wants a lock on NFS": (of(stands(wchan="nfs4_proc_lock", syscall="fcntl", args=(7, 38), on=SHARD)), "rank_blocked_io"),
            "state D in a driver": (of(stands(wchan="os_acquire_mutex", state="D", syscall="ioctl", on=SHARD)), "rank_blocked_io"),
            "state D at a lock of memory": (of(stands(wchan="rwsem_down_read_slowpath", state="D", syscall="read", on=SHARD)), "rank_blocked_io"),
            "state D, frozen by its cgroup": (of(frozen(state="D", on=SHARD)), "rank_stopped"),
            "a pipe of a mount": (of(stands(wchan="pipe_read", syscall="read", on=FIFO)), "rank_blocked_io"),
        },
    ),
    Causes(
        Verdict.NETWORK_FAULT,
        {
            "a port went down": on_two_nodes(of(None, faults=(port(),))),
            "an adapter is broken": on_two_nodes(of(None, faults=(port(kind="nic_fatal", words="mlx5_core 0000:5e:00.0: health compromised"),))),
        },
        {
            "a job on one node": (of(None, faults=(port(),)), "unknown"),
            "an hour before": (on_two_nodes(of(None, faults=(port(TAKEN - 3600),))), "unknown"),
            "a warning only": (on_two_nodes(of(None, faults=(port(tier="warning"),))), "unknown"),
            "a rank sleeps": (on_two_nodes(of(stands(wchan="hrtimer_nanosleep"), faults=(port(),))), "rank_waiting"),
            "a rank was killed": (on_two_nodes(of(None, lost=(DIED,), faults=(port(),))), "rank_exited"),
            "a rank never came": (on_two_nodes(of(None, lost=(NEVER_CAME,), rest=stands(*INIT, wchan="do_poll"), faults=(port(),))), "init_incomplete"),
            "a GPU fell off the bus": (on_two_nodes(of(None, faults=(port(), xid()))), "gpu_fault"),
        },
    ),
    Causes(
        Verdict.RANK_EXITED,
        {"killed": of(None, lost=(DIED,))},
        {
            "it never came": (of(None, lost=(NEVER_CAME,), rest=stands(*INIT, wchan="do_poll")), "init_incomplete"),
            "it left well, and nobody waits": (of(None, lost=(LostRank(rank=3, pid=4711, exit_status=0),), rest=process("train (train.py:9)", move=moving())), "unknown"),
        },
    ),
    Causes(
        Verdict.RANK_STOPPED,
        {"by a signal": of(stands(state="T", wchan="do_signal_stop")), "by its cgroup": of(frozen()), "by a debugger": of(stands(state="t", wchan="ptrace_stop"))},
        {
            "it sleeps": (of(stands(wchan="hrtimer_nanosleep")), "rank_waiting"),
            "all are": (of(stands(state="T", wchan="do_signal_stop"), rest=stands(state="T", wchan="do_signal_stop")), "job_paused"),
            "its worker is": (of(*loads(stands(*WORKER, state="T", wchan="do_signal_stop"))), "dataloader_stalled"),
        },
    ),
    Causes(
        Verdict.DATALOADER_STALLED,
        {"a worker sleeps": of(*loads(stands(*WORKER, wchan="hrtimer_nanosleep")))},
        {
            "a worker computes": (of(*loads(process(*WORKER, state="R", wchan="", active=True, gil=True, move=moving(0.9)))), "rank_busy"),
            "a worker on a hung mount": (of(*loads(stands(*WORKER, wchan="rpc_wait_bit_killable", state="D", syscall="read", on=SHARD))), "storage_fault"),
            "it waits for a child that is no worker": (of(*child(stands(*WORKER[:1], wchan="hrtimer_nanosleep"))), "rank_waiting"),
            "its worker wants what rank 1 holds": (of(*loads(msgspec.structs.replace(stands(*WORKER, wchan="locks_lock_inode_wait", syscall="flock"), lock=RANK_1))), "rank_blocked_io"),
        },
    ),
    Causes(
        Verdict.RANK_BLOCKED_IO,
        {
            "a FIFO": of(stands(wchan="wait_for_partner", syscall="openat", on=FIFO)),
            "a lock of a stranger": of(locked(FileLock(tid=103, kind="flock", holders=(LockHolder(pid=77, command="python hold.py"),)))),
            "a circle": of(locked(RANK_1)),
        },
        {
            "it sleeps": (of(stands(wchan="hrtimer_nanosleep")), "rank_waiting"),
            "it waits for a lock of its own": (of(stands("wait (threading.py:327)", *HERE)), "rank_waiting"),
            "others want what it holds, and it sleeps": (of(stands(wchan="hrtimer_nanosleep"), rest=locked(RANK_3)), "rank_waiting"),
        },
    ),
    Causes(
        Verdict.COLLECTIVE_MISMATCH,
        {"another collective": of(BRANCH)},
        {
            "the same": (of(None), "unknown"),
            "it sleeps": (of(stands(wchan="hrtimer_nanosleep")), "rank_waiting"),
            "it wants a lock that another rank holds": (of(locked(RANK_1)), "rank_blocked_io"),
            "it wants a lock that others may hold": (of(stands(*FILELOCK), rest=process(*BELOW_LOCK, move=still())), "unknown"),
            "all wait for their GPU, at other lines": (of(stands(GPU, "log (train.py:99)"), rest=stands(GPU, "step (train.py:88)")), "unknown"),
            "a send of a pipeline": (of(stands("send (torch/distributed/distributed_c10d.py:2300)", WRAPPER, "step (train.py:88)")), "unknown"),
        },
    ),
    Causes(
        Verdict.INIT_INCOMPLETE,
        {
            "it never came": of(None, lost=(NEVER_CAME,), rest=stands(*INIT, wchan="do_poll")),
            "it works on something else first": of(process(*HERE, state="R", wchan="", active=True, gil=True, move=moving(0.9)), rest=stands(*INIT, wchan="do_poll")),
            "at the store, before there is a group": of(stands(wchan="hrtimer_nanosleep"), rest=stands(*STORE, wchan="do_poll")),
        },
        {
            "at the store in the middle of training": (of(with_group(stands(wchan="hrtimer_nanosleep")), rest=with_group(stands(*STORE, wchan="do_poll"))), "rank_waiting"),
            "it died in the middle of training": (of(None, lost=(DIED,)), "rank_exited"),
        },
    ),
    Causes(
        Verdict.RANK_WAITING,
        {
            "it sleeps": of(stands(wchan="hrtimer_nanosleep")),
            "it waits for a child": of(*child(stands(*WORKER[:1], wchan="hrtimer_nanosleep"))),
            "another thread keeps the GIL": of(stands(*HERE, others=(stack("sleep (lib.so)", "plugin (train.py:3)", tid=7, name="metrics", gil=True),))),
            "it polls": of(process(*HERE, wchan="hrtimer_nanosleep", move=still(cpu=0.02, switches=40))),
        },
        {
            "it computes": (of(process(*HERE, state="R", wchan="", active=True, gil=True, move=moving(0.9))), "rank_busy"),
            "it works slowly": (of(process(*HERE, wchan="hrtimer_nanosleep", move=still(cpu=0.11, switches=40))), "rank_busy"),
            "it waits for a file lock that others may hold": (of(stands(*FILELOCK), rest=process(*BELOW_LOCK, move=still())), "unknown"),
            "its child computes": (of(*child(process(*WORKER[:1], state="R", wchan="", active=True, move=moving(0.9)))), "rank_busy"),
            "its thread waits for the others": (of(stands("join (threading.py:1112)", "main (train.py:9)", others=(stack(*WAITER, tid=7, name="trainer"),))), "unknown"),
        },
    ),
    Causes(
        Verdict.RANK_BUSY,
        {"it computes": of(process(*HERE, state="R", wchan="", active=True, gil=True, move=moving(0.9)))},
        {
            "it only looks again, 200 times a second": (of(process(*HERE, wchan="futex_do_wait", move=still(cpu=0.01, switches=400), others=(stack("plugin (train.py:3)", tid=7, gil=True),))), "rank_waiting"),
            "it compiles, and nothing moves": (of(stands("_compile (torch/_dynamo/convert_frame.py:1000)", *HERE)), "rank_waiting"),
            "all compute": (of(None, rest=process("train (train.py:9)", state="R", wchan="", active=True, gil=True, move=moving(0.9))), "unknown"),
        },
    ),
    Causes(
        Verdict.JOB_PAUSED,
        {"all stopped": of(None, rest=stands(state="T", wchan="do_signal_stop")), "all frozen": of(None, rest=frozen())},
        {
            "all but one": (of(process(*WAITER, move=still()), rest=stands(state="T", wchan="do_signal_stop")), "rank_stopped"),
            "all in state D": (of(None, rest=stands(wchan="rpc_wait_bit_killable", state="D", syscall="read", on=SHARD)), "storage_fault"),
        },
    ),
    Causes(
        Verdict.UNKNOWN,
        {
            "all in one collective": of(None),
            "all compute": of(None, rest=process("train (train.py:9)", state="R", wchan="", active=True, gil=True, move=moving(0.9))),
            "two and two in two collectives": capture(*(rank(n, BRANCH if n > 1 else process(*WAITER, move=still())) for n in range(4))),
        },
        {
            "one of them sleeps": (of(stands(wchan="hrtimer_nanosleep")), "rank_waiting"),
            "one alone computes": (of(process(*HERE, state="R", wchan="", active=True, gil=True, move=moving(0.9))), "rank_busy"),
            "one is in another collective": (of(BRANCH), "collective_mismatch"),
            "one is gone": (of(None, lost=(DIED,)), "rank_exited"),
        },
    ),
)  # fmt: skip

OWN = [(one.verdict, name, taken) for one in TABLE for name, taken in one.own.items()]
OTHERS = [(one.verdict, name, *other) for one in TABLE for name, other in one.others.items()]


def verdict_of(taken: NodeCapture) -> tuple[str, Diagnosis]:
    diagnosis = diagnose([taken]).diagnosis
    return str(diagnosis.verdict), diagnosis


@pytest.mark.parametrize(("verdict", "name", "taken"), OWN, ids=[f"{v}-{n}" for v, n, _ in OWN])
def test_its_own_evidence_gives_it(verdict: Verdict, name: str, taken: NodeCapture) -> None:
    found, diagnosis = verdict_of(taken)
    assert found == verdict, (name, diagnosis.summary)


@pytest.mark.parametrize(("verdict", "name", "taken", "right"), OTHERS, ids=[f"{v}-{n}" for v, n, *_ in OTHERS])  # fmt: skip
def test_the_nearest_other_cause_does_not(
    verdict: Verdict, name: str, taken: NodeCapture, right: str
) -> None:
    found, diagnosis = verdict_of(taken)
    assert found != verdict, (name, diagnosis.summary)
    assert found == right, (name, diagnosis.summary)


@pytest.mark.parametrize("wchan", ["do_poll", "sk_wait_data", "poll_schedule_timeout.constprop.0"])
@pytest.mark.parametrize("line", ['store.get("written")', 'self._store.wait(["k"])', ""])
def test_most_ranks_that_may_wait_for_the_few_are_not_named(wchan: str, line: str) -> None:
    """Without a native stack a wait for a key of the store looks like one for a stranger."""
    client = stands("wait_for_writer (train.py:8)", wchan=wchan, syscall="poll", source=line)
    found = diagnose([of(process(*WAITER, move=still()), rest=client)]).diagnosis
    assert [one.rank for one in found.culprits] == [], found.summary
    asleep = diagnose([of(stands(wchan="hrtimer_nanosleep"), rest=client)]).diagnosis
    assert {one.rank for one in asleep.culprits} <= {3}, asleep.summary


@pytest.mark.parametrize(
    ("state", "given"), [("silent", True), ("down", True), ("unable", False), ("refused", False)]
)
def test_a_node_is_unreachable_only_where_nothing_comes_from_it(state: str, given: bool) -> None:
    captures = run(3, 2)
    del captures["a3"]
    failed: Sequence[QueriedNode] = [msgspec.structs.replace(silent("a3")[0], state=state)]
    (one,) = merged(captures, failed).runs
    found = diagnose(*one).diagnosis
    assert (found.verdict is Verdict.NODE_UNREACHABLE) is given, found.summary


def test_every_verdict_stands_in_a_table() -> None:
    """But for `node_unreachable`, whose nearest causes are the states of a node above."""
    slowdowns = Path(__file__).parents[1] / "goodput/test_nearest_causes_of_slowdowns.py"
    assert "Verdict.STRAGGLER" in slowdowns.read_text()
    tables = {one.verdict for one in TABLE} | {Verdict.NODE_UNREACHABLE, Verdict.STRAGGLER}
    assert tables == set(Verdict)
    assert [one.verdict for one in TABLE if not one.own or not one.others] == []
    files = {file.stem for file in DETECTORS.glob("[a-z]*.py")}
    assert files == {str(one) for one in set(Verdict) - {Verdict.UNKNOWN, Verdict.STRAGGLER}}
    assert len(create_all("detectors")) == len(files)
