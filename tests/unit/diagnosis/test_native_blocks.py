"""A rank blocked in native code of no library of communication is `rank_waiting`, from its native stack; one in MPI waits for the others."""

import msgspec
import pytest

from mldebug.core.model import Diagnosis, NodeCapture, ProcessCapture, Role
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import capture, moving, process, rank, stack, still

AT = ("load (train.py:7)", "<module> (train.py:50)")
WAITER = process("all_reduce (torch/distributed/distributed_c10d.py:3252)", *AT, move=still())
ENDS = ("main (src/train.cpp)", "__libc_start_main (libc.so.6)")
MPI = ("ucp_worker_progress (libucp.so.0)", "opal_progress (libopen-pal.so.40)", "ompi_request_default_wait (libmpi.so.40)")  # fmt: skip


def dumped(*native: str, python: tuple[str, ...] = AT, active: bool = False) -> ProcessCapture:
    """One process as somebody else dumped it: of the kernel nothing is known."""
    frames = (*native, *python)
    return process(*(python or frames), state="", native=frames, active=active)


def whole(*native: str) -> ProcessCapture:
    """The same of a program in which there is no Python."""
    return dumped(*native, *ENDS, python=())


def beside(other: str, *native: str) -> ProcessCapture:
    """The same with a second thread."""
    found = dumped(*native)
    return msgspec.structs.replace(found, native=(*found.native, stack(other, tid=7, name="comm")))


def judged(odd: ProcessCapture, rest: ProcessCapture = WAITER) -> Diagnosis:
    return diagnose([job(odd, rest)]).diagnosis


def job(odd: ProcessCapture, rest: ProcessCapture) -> NodeCapture:
    return capture(*(rank(n, odd if n == 2 else rest) for n in range(4)))


BLOCKED = {
    "a queue of an extension": dumped("pthread_cond_wait@@GLIBC_2.3.2 (libc.so.6)", "tokens::Queue::pop (_fasttok.so)"),
    "its mutex": dumped("__lll_lock_wait (libpthread.so.0)", "pthread_mutex_lock (libpthread.so.0)", "Cache::get (_cache.so)"),
    "its semaphore": dumped("__futex_abstimed_wait_common64 (libc.so.6)", "__new_sem_wait_slow64 (libc.so.6)", "decode (libavcodec.so.60)"),
    "its thread": dumped("__pthread_clockjoin_ex (libc.so.6)", "std::thread::join (libstdc++.so.6)", "Pool::stop (_reader.so)"),
    "a file, below HDF5": dumped("pread64 (libc.so.6)", "H5FD__sec2_read (libhdf5.so.200)", "__pyx_f_read (h5py/h5d.so)"),
    "a file, below the interpreter": dumped("fsync (libc.so.6)", "os_fsync (python3.11)", "cfunction_vectorcall_O (python3.11)"),
    "a file, in eu-stack's form": dumped("fsync (?)", "os_fsync (?)", "_PyEval_EvalFrameDefault (?)", "main (?)", python=()),
    "a stream": whole("__read_nocancel (libc.so.6)", "_IO_file_underflow (libc.so.6)", "fread (libc.so.6)", "load_shard (src/data.cpp)"),
    "a sleep of an extension": dumped("clock_nanosleep (libc.so.6)", "usleep (libc.so.6)", "Throttle::wait_turn (_reader.so)"),
    "a program without Python": whole("pthread_cond_wait (libc.so.6)", "Prefetcher::next (src/data.cpp)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BLOCKED)
def test_native_code_of_its_own_in_which_a_rank_sleeps_is_what_the_others_wait_for(kind: str) -> None:  # fmt: skip
    found = judged(BLOCKED[kind])

    assert (found.verdict, [one.rank for one in found.culprits]) == ("rank_waiting", [2]), found.summary  # fmt: skip
    assert found.confidence == "medium"
    assert any("native stack" in line for line in found.evidence)


LIVE = process(*AT, native=("pthread_cond_wait (libc.so.6)", "tokens::Queue::pop (_fasttok.so)", *AT), move=still(span=20.0))  # fmt: skip


def test_a_futex_of_an_extension_is_no_proof_however_long_it_lasts() -> None:
    """The kernel says that the rank sleeps there, and not who would wake it: a thread of its own that waits for another rank, for one."""
    found = judged(LIVE)

    assert ([one.rank for one in found.culprits], found.confidence) == ([2], "medium")


def test_what_only_the_rank_itself_can_end_is_as_sure_as_before() -> None:
    asleep = process("nap (train.py:9)", *AT, wchan="hrtimer_nanosleep", syscall="clock_nanosleep", native=("clock_nanosleep (libc.so.6)", "time_sleep (python3.11)", *AT), move=still(span=20.0))  # fmt: skip

    assert judged(asleep).confidence == "high"


NOT_ITS_OWN = {
    "a socket": dumped("read (libc.so.6)", "sock_call_ex (python3.11)", "sock_recv (python3.11)"),
    "a raw read": dumped("__libc_read (libc.so.6)", "receive (_wire.so)"),
    "a poll": dumped("poll (libc.so.6)", "loop (_wire.so)"),
    "a library of transfers": dumped("pthread_cond_wait (libc.so.6)", "nixlAgent::getXferStatus (libnixl.so)"),
    "another one": dumped("pthread_cond_wait (libc.so.6)", "hcoll_wait (libhcoll.so.1)"),
    "frames without a name": dumped("pthread_cond_wait (libc.so.6)", "0x7f0011223344 (_fasttok.so)"),
    "a lock with nothing above": dumped("pthread_cond_wait (libc.so.6)"),
    "a thread that Python 3.13 joins, whose program has no name": dumped("__futex_abstimed_wait_common64 (libc.so.6)", "_PySemaphore_Wait.constprop.0 (?)", "_PyParkingLot_Park (?)", "PyEvent_WaitTimed (?)", "ThreadHandle_join (?)", "_PyEval_EvalFrameDefault.cold (?)", "run_eval_code_obj (?)", "pymain_run_python.constprop.0 (?)", "main (?)", python=()),
    "a stack that is cut": dumped("pthread_cond_wait (libc.so.6)", "Prefetcher::next (src/data.cpp)", python=()),
    "it computes": dumped("pread64 (libc.so.6)", "H5FD__sec2_read (libhdf5.so.200)", active=True),
    "a thread of it that waits": beside("PMPI_Allreduce (libmpi.so.40)", "pthread_cond_wait (libc.so.6)", "Comm::flush (_trainer.so)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_ITS_OWN)
def test_what_may_be_a_wait_for_others_is_not_called_its_own(kind: str) -> None:
    assert classify(rank(2, NOT_ITS_OWN[kind])).name not in ("native_lock", "sleep")


@pytest.mark.parametrize("call", ["nixlAgent::waitXfer (libnixl.so)", "mooncake::Transport::wait (libmooncake.so)", "hcoll_progress (libhcoll.so.1)", "ibv_poll_cq (libibverbs.so.1)"])  # fmt: skip
def test_a_library_of_transfers_without_a_row_is_for_a_peer_or_for_itself(call: str) -> None:
    found = judged(dumped("pthread_cond_wait (libc.so.6)", call))

    assert (found.verdict, found.culprits) == ("unknown", ())
    assert "for a peer or for itself" in found.summary


# --- MPI ---------------------------------------------------------------------------------------------

CALLS = {
    "MPI_Allreduce (libmpi.so.40)": ("collective", "all_reduce"),
    "PMPI_Allreduce (libmpi.so.12)": ("collective", "all_reduce"),
    "pmpi_allreduce__ (libmpi_mpifh.so.40)": ("collective", "all_reduce"),
    "MPI_Bcast (libmpi.so.40)": ("collective", "broadcast"),
    "PMPI_Reduce_scatter_block (libmpi.so.40)": ("collective", "reduce_scatter"),
    "MPI_Alltoallv (libmpi.so.40)": ("collective", "all_to_all"),
    "MPI_Gatherv (libmpi.so.40)": ("collective", "gather"),
    "MPI_Barrier (libmpi.so.40)": ("collective", "barrier"),
    "mpi_barrier_ (libmpi_mpifh.so.40)": ("collective", "barrier"),
    "MPI_Waitall (libmpi.so.40)": ("point_to_point", ""),
    "MPI_Recv (libmpi.so.40)": ("point_to_point", ""),
    "ompi_mpi_init (libmpi.so.40)": ("init", ""),
    "MPI_Comm_split (libmpi.so.40)": ("init", ""),
    "MPI_Finalize (libmpi.so.40)": ("destroy", ""),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_mpi_are_waits_in_c_in_fortran_and_below_python(call: str) -> None:
    for what in (whole(*MPI, call), dumped(*MPI, call, "__pyx_pw_Allreduce (mpi4py/MPI.so)")):
        found = classify(rank(0, what))
        assert (found.name, found.operation, found.role) == (*CALLS[call], Role.WAITING)


@pytest.mark.parametrize("call", ["MPI_Iallreduce", "MPI_Reduce_local", "MPI_Comm_rank", "MPI_Alloc_mem", "mpi_alloc_mem_", "MPI_Test", "MPI_Wtime"])  # fmt: skip
def test_calls_of_mpi_that_wait_for_nobody_are_none(call: str) -> None:
    assert classify(rank(0, whole(f"{call} (libmpi.so.40)"))).role is not Role.WAITING


def test_the_rank_beside_those_in_mpi_is_named() -> None:
    found = judged(BLOCKED["a stream"], whole(*MPI, "PMPI_Allreduce (libmpi.so.40)"))

    assert (found.verdict, [one.rank for one in found.culprits]) == ("rank_waiting", [2])


# --- what it may sleep for ---------------------------------------------------------------------------

BUSY = process("crunch (train.py:9)", *AT, state="", active=True, gil=True)
SAVES = dumped("pwrite64 (libc.so.6)", "_io_FileIO_write (python3.11)", python=("save (ckpt.py:7)", AT[1]))  # fmt: skip
LOOKS = dumped("stat64 (libc.so.6)", "os_stat (python3.11)", python=("wait_for (train.py:8)", AT[1]))  # fmt: skip
COMPUTES = process("crunch (train.py:9)", *AT, active=True, gil=True, move=moving())
FOR_ANOTHER = {
    "a queue whose futex the kernel knows, one computes": ({0: COMPUTES, 2: LIVE}, [0, 2]),
    "half of them wait at such a queue": ({1: LIVE, 2: LIVE}, []),
    "all but one wait at such a queue": (dict.fromkeys((1, 2, 3), LIVE), []),
    "it looks for a file, one computes": ({0: BUSY, 2: LOOKS}, [0, 2]),
    "it looks for a file, one writes": ({0: SAVES, 2: LOOKS}, []),
    "a queue, one computes": ({0: BUSY, 2: BLOCKED["a queue of an extension"]}, [0, 2]),
    "half of them look for a file": ({1: LOOKS, 2: LOOKS}, []),
    "all but one sleep and look again": (dict.fromkeys((1, 2, 3), dumped("clock_nanosleep (libc.so.6)", "time_sleep (python3.11)")), []),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOR_ANOTHER)
def test_who_may_wait_for_the_rank_beside_it_is_not_named_alone(kind: str) -> None:
    """A single look at a stack does not tell who is stuck in a file or a lock from who waits there for another rank."""
    odd, named = FOR_ANOTHER[kind]
    found = diagnose([capture(*(rank(n, odd.get(n, WAITER)) for n in range(4)))]).diagnosis

    assert found.confidence == "low", found.summary
    assert [one.rank for one in found.culprits] in ([], named)


def test_a_main_thread_that_sleeps_beside_one_that_waits_for_others_waits_as_well() -> None:
    """It looks after the thread that trains, of which no native frame says what it waits for."""
    main = dumped("clock_nanosleep (libc.so.6)", "time_sleep (python3.11)", python=("watch (run.py:9)", "<module> (run.py:20)"))  # fmt: skip
    trains = stack("all_reduce (torch/distributed/distributed_c10d.py:3252)", "step (train.py:4)", "run (threading.py:900)", tid=7, name="train")  # fmt: skip
    found = classify(rank(2, msgspec.structs.replace(main, stacks=(*main.stacks, trains))))

    assert (found.name, found.role, found.thread) == ("collective", Role.WAITING, "train")


MAY_BE_HELD_BY_ANOTHER = (
    "_multiprocessing_SemLock_acquire_impl (_multiprocessing.cpython-311-x86_64-linux-gnu.so)",
    "Semaphore_acquire (posix_ipc.cpython-311-x86_64-linux-gnu.so)",
    "mdb_txn_begin (cpython.cpython-311-x86_64-linux-gnu.so)",
    "boost::interprocess::interprocess_mutex::lock (_shared.so)",
    "ccl::v1::event::wait (libccl.so.1)",
    "synStreamSynchronize (libSynapse.so)",
    "zeEventHostSynchronize (libze_intel_gpu.so.1)",
    "sycl::_V1::event::wait (libsycl.so.7)",
    "muStreamSynchronize (libmusa.so)",
    "cnrtQueueSync (libcnrt.so)",
    "dgl::rpc::RPCContext::Recv (libdgl.so)",
    "PMIx_Fence (libpmix.so.2)",
    "shmem_barrier_all (liboshmem.so.40)",
)


@pytest.mark.parametrize("call", MAY_BE_HELD_BY_ANOTHER)
def test_a_lock_that_processes_share_and_the_runtime_of_an_accelerator_name_nobody(call: str) -> None:  # fmt: skip
    """Also where the kernel says that the rank sleeps there: `multiprocessing.Lock()` goes to all whom the launcher has spawned."""
    own = process(*AT, native=("__futex_abstimed_wait_common64 (libc.so.6)", call, *AT), move=still(span=20.0))  # fmt: skip

    assert classify(rank(2, own)).name != "native_lock"
    assert judged(own).culprits == ()
