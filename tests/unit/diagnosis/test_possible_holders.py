"""A lock whose holder nothing shows: who wants it is no culprit where another rank may hold it."""

import pytest

from mldebug.core.model import NodeCapture, ProcessCapture
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import capture, process, rank, stack

MAIN = "<module> (train.py:20)"
BARRIER = ("barrier (torch/distributed/distributed_c10d.py:4818)", "wrapper (torch/distributed/c10d_logger.py:83)")  # fmt: skip
WANTS = {
    "filelock": ("acquire (filelock/_api.py:330)", "__enter__ (filelock/_api.py:376)", "prepare (prep.py:30)", MAIN),
    "portalocker": ("acquire (portalocker/utils.py:260)", "__enter__ (portalocker/utils.py:200)", "prepare (prep.py:30)", MAIN),
    "fasteners": ("acquire (fasteners/process_lock.py:150)", "prepare (prep.py:30)", MAIN),
    "a helper of its own": ("wait_for_lock (locks.py:9)", "locked (locks.py:20)", "__enter__ (contextlib.py:137)", "prepare (prep.py:30)", MAIN),
    "flock in a helper": ("flock (locks.py:5)", "prepare (prep.py:30)", MAIN),
    "a lock between processes": ("__enter__ (multiprocessing/synchronize.py:95)", "prepare (prep.py:30)", MAIN),
}  # fmt: skip
BELOW = {
    "one line below": (*BARRIER, "prepare (prep.py:31)", MAIN),
    "in what it calls": (*BARRIER, "build (data.py:80)", "prepare (prep.py:31)", MAIN),
    "on the line of the with": (*BARRIER, "build (data.py:80)", "prepare (prep.py:30)", MAIN),
}


def dumped(*frames: str, active: bool = False) -> ProcessCapture:
    return process(*frames, state="", active=active)


def job(*ranks: ProcessCapture) -> NodeCapture:
    return capture(*(rank(number, one) for number, one in enumerate(ranks)))


@pytest.mark.parametrize("wants", WANTS)
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("holder", [0, 3])
def test_who_wants_the_lock_is_not_named_where_another_stands_below_it(
    wants: str, below: str, holder: int
) -> None:
    found = diagnose([job(*(dumped(*(BELOW[below] if n == holder else WANTS[wants])) for n in range(4)))]).diagnosis  # fmt: skip

    assert found.culprits == ()
    assert f"which rank {holder} may hold" in found.summary
    assert "who holds the lock the evidence does not tell" in found.summary


def test_one_that_wants_it_and_many_below() -> None:
    below = dumped(*BELOW["one line below"])
    found = diagnose([job(below, dumped(*WANTS["filelock"]), below, below)]).diagnosis

    assert found.culprits == ()
    assert "which ranks 0,2-3 may hold" in found.summary


def test_who_works_below_the_lock_is_named_low() -> None:
    works = dumped("tokenize (prep.py:44)", "prepare (prep.py:31)", MAIN, active=True)
    wants = dumped(*WANTS["filelock"])
    found = diagnose([job(works, wants, wants, wants)]).diagnosis

    assert [one.rank for one in found.culprits] == [0]
    assert found.confidence == "low"


@pytest.mark.parametrize(
    "others",
    [
        (*BARRIER, "step (train.py:88)", "<module> (train.py:140)"),
        (*BARRIER, "prepare (prep.py:12)", MAIN),
        (*BARRIER, "prepare (other.py:31)", MAIN),
    ],
    ids=["past all of it", "above the lock", "in a function of that name"],
)
def test_a_lock_that_no_rank_can_hold_is_the_waiters_own(others: tuple[str, ...]) -> None:
    waits = dumped(*others)
    found = diagnose([job(waits, dumped(*WANTS["filelock"]), waits, waits)]).diagnosis

    assert (found.verdict, [one.rank for one in found.culprits]) == ("rank_waiting", [1])
    assert found.confidence == "medium"


@pytest.mark.parametrize("wants", ["filelock", "flock in a helper"])
def test_many_that_want_a_lock_beside_a_few_that_wait_elsewhere_are_not_named(wants: str) -> None:
    """One of the few may hold it, wherever it stands now."""
    waits = dumped(*BARRIER, "main_process_first (accelerate/state.py:520)", MAIN)
    found = diagnose([job(waits, *(dumped(*WANTS[wants]) for _ in range(3)))]).diagnosis

    assert found.culprits == ()
    assert found.confidence == "low"
    assert "rank 0 waits in barrier" in found.summary


def test_a_slow_line_above_the_barrier_is_no_lock() -> None:
    """Control: most hangs look like this."""
    waits = dumped(*BELOW["one line below"])
    slow = dumped("prepare (prep.py:30)", MAIN)
    found = diagnose([job(waits, slow, waits, waits)]).diagnosis

    assert [one.rank for one in found.culprits] == [1]


BATON = ("wait (torch/utils/file_baton.py:49)", "_jit_compile (torch/utils/cpp_extension.py:2015)", "load (torch/utils/cpp_extension.py:1600)", MAIN)  # fmt: skip
BUILDS = ("wait (subprocess.py:1264)", "_run_ninja_build (torch/utils/cpp_extension.py:2500)", "_jit_compile (torch/utils/cpp_extension.py:1990)", MAIN)  # fmt: skip


@pytest.mark.parametrize("builder", [0, 2])
def test_who_builds_an_extension_and_who_waits_for_it(builder: int) -> None:
    found = diagnose([job(*(dumped(*(BUILDS if n == builder else BATON), active=n == builder) for n in range(4)))]).diagnosis  # fmt: skip

    assert [one.rank for one in found.culprits] == [builder]
    assert f"Rank {builder} compiles" in found.summary
    assert f"wait until rank {builder} has built an extension" in found.summary


def test_all_wait_for_a_lock_file_that_nobody_of_them_made() -> None:
    found = diagnose([job(*(dumped(*BATON) for _ in range(4)))]).diagnosis

    assert found.culprits == ()
    assert "compile" not in found.summary
    assert "wait for the lock file of a process that builds an extension" in found.summary


GPU = {
    "cuda": "synchronize (torch/cuda/__init__.py:1040)",
    "event": "synchronize (torch/cuda/streams.py:230)",
    "jax": "block_until_ready (jax/_src/array.py:520)",
    "fsdp2": "wait_for_unshard (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:310)",
}


@pytest.mark.parametrize("wait", GPU)
@pytest.mark.parametrize("odd", [0, 2])
def test_ranks_that_wait_for_their_gpu_at_other_lines_are_not_named_surely(
    wait: str, odd: int
) -> None:
    """A program runs ahead of its GPU: where it first looks at it says little of what the GPU does."""
    stacks = (dumped(GPU[wait], f"step (train.py:{92 if n == odd else 95})", MAIN) for n in range(4))  # fmt: skip
    found = diagnose([job(*stacks)]).diagnosis

    assert not found.culprits or found.confidence == "low"


def test_other_collectives_are_named_as_before() -> None:
    """Control: an all_reduce at another line is a branch."""
    stacks = (dumped(*BARRIER, f"step (train.py:{92 if n == 1 else 95})", MAIN) for n in range(4))
    found = diagnose([job(*stacks)]).diagnosis

    assert ([one.rank for one in found.culprits], found.confidence) == ([1], "medium")


IDLE = {
    "the lock of a log handler": ("acquire (logging/__init__.py:917)", "handle (logging/__init__.py:966)", "info (logging/__init__.py:1489)"),
    "the answer of a server": ("readinto (socket.py:717)", "begin (http/client.py:331)", "urlopen (urllib3/connectionpool.py:787)", "post (requests/api.py:115)"),
    "events": ("select (selectors.py:468)", "_run_once (asyncio/base_events.py:1898)", "run_forever (asyncio/base_events.py:603)"),
}  # fmt: skip


@pytest.mark.parametrize("what", IDLE)
def test_what_an_idle_rank_waits_for_is_said(what: str) -> None:
    waits = dumped(*BARRIER, "step (train.py:95)", MAIN)
    found = diagnose([job(waits, dumped(*IDLE[what], "step (train.py:88)", MAIN), waits, waits)]).diagnosis  # fmt: skip

    assert [one.rank for one in found.culprits] == [1]
    assert f"waits for {what} in step (train.py:88)" in found.summary


def test_code_outside_of_functions_is_told_by_file_and_line() -> None:
    waits = dumped(*BARRIER, "<module> (train.py:140)")
    found = diagnose([job(waits, dumped("<module> (train.py:130)"), waits, waits)]).diagnosis

    assert "<module>" not in found.summary
    assert "in train.py:130" in found.summary
    assert stack("<module> (train.py:130)").frames[0].label == "<module> (train.py:130)"


MODEL_PARALLEL = {
    "megatron": ("all_reduce (torch/distributed/distributed_c10d.py:2806)", "_reduce (megatron/core/tensor_parallel/mappings.py:31)", "forward_step (pretrain.py:222)", MAIN),
    "experts": ("all_to_all_single (torch/distributed/distributed_c10d.py:4300)", "token_dispatch (megatron/core/transformer/moe/token_dispatcher.py:620)", "forward_step (pretrain.py:222)", MAIN),
    "ulysses": ("all_to_all_single (torch/distributed/distributed_c10d.py:4300)", "single_all_to_all (deepspeed/sequence/layer.py:90)", "forward (model.py:30)", MAIN),
    "dtensor": ("wait_tensor (torch/distributed/_functional_collectives.py:140)", "redistribute_local_tensor (torch/distributed/tensor/_redistribute.py:300)", "forward (model.py:30)", MAIN),
}  # fmt: skip


@pytest.mark.parametrize("what", MODEL_PARALLEL)
@pytest.mark.parametrize("victim", [2, 6])
def test_who_waits_in_a_group_of_a_part_of_the_model_is_not_outvoted(
    what: str, victim: int
) -> None:
    """Rank 7 left the call out that rank 6 waits in: all others stand where rank 7 does, and nobody is odd but its victim."""
    waits = dumped(*BARRIER, "step (train.py:88)", "<module> (train.py:140)")
    stacks = (dumped(*MODEL_PARALLEL[what]) if n == victim else waits for n in range(8))
    found = diagnose([job(*stacks)]).diagnosis

    assert found.culprits == ()
    assert "process groups for parts of its model" in found.summary


@pytest.mark.parametrize(
    ("inner", "named"), [("gather", []), ("all_gather", [0]), ("gather_object", [0])]
)
def test_a_root_that_waits_for_a_sender_may_be_its_victim(inner: str, named: list[int]) -> None:
    """`gather_object` gathers sizes from all first; in its second half a sender may have gone on."""
    c10d = "(torch/distributed/distributed_c10d.py:3300)"
    root = dumped(f"{inner} {c10d}", f"gather_object {c10d}", "log (train.py:70)", MAIN)
    waits = dumped(*BARRIER, "step (train.py:88)", MAIN)
    found = diagnose([job(root, waits, waits, waits)]).diagnosis

    assert [one.rank for one in found.culprits] == named


def test_gpus_alone_name_nobody_though_the_lines_differ() -> None:
    stacks = (dumped(GPU["jax"], f"step (train.py:{92 if n == 0 else 95})", MAIN) for n in range(4))
    found = diagnose([job(*stacks)]).diagnosis

    assert found.culprits == ()


@pytest.mark.parametrize(
    ("native", "words"),
    [
        (("flock (libc.so.6)", "fcntl_flock (python3.12)"), "for a file lock"),
        (("sched_yield (libc.so.6)", "ncclAllReduce (libnccl.so.2)"), "in all_reduce"),
        (("poll (libc.so.6)", "c10d::ProcessGroupNCCL::allgather (libtorch_cuda.so)"), "in all_gather"),
    ],
)  # fmt: skip
def test_native_frames_of_locks_and_of_nccl_are_known(native: tuple[str, ...], words: str) -> None:
    odd = process("step (train.py:88)", MAIN, state="", native=(*native, "step (train.py:88)", MAIN))  # fmt: skip
    found = diagnose([job(odd, odd, odd, odd)]).diagnosis

    assert f"wait {words}" in found.summary
