"""Messages of torch about a lack of device memory, as every version since 1.0 writes them, to bytes, cause and next step."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.model import Confidence, Finding, Job, RankIdentity, Verdict
from mldebug.diagnosis.exits.cuda_memory import (
    DeviceMemory,
    MemoryCause,
    MemoryHolder,
    device_memory,
)
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.memory_text import memory_sentence, memory_steps
from mldebug.diagnosis.exits.model import AttemptExit, RankError, RankExit, status_of_code
from mldebug.diagnosis.exits.words.last_words import is_out_of_memory, last_error
from mldebug.diagnosis.exits.words.output import parse_error_file

KIB, MIB, GIB = 2**10, 2**20, 2**30

V1_0 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 10.76 GiB total capacity; "
    "4.01 GiB already allocated; 356.00 MiB free; 5.54 GiB cached)"
)
V1_4 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 264.00 MiB (GPU 3; 2.00 GiB total capacity; 788.51 MiB already "
    "allocated; 145.93 MiB free; 1.02 GiB reserved in total by PyTorch)"
)
V1_13 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.71 GiB (GPU 0; 6.00 GiB total capacity; 3.49 GiB "
    "already allocated; 1.04 GiB free; 3.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
V1_13_ROOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 304.00 MiB (GPU 0; 8.00 GiB total capacity; 142.76 MiB already "
    "allocated; 6.32 GiB free; 158.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation."
)
V2_0_LIMIT = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 16.00 GiB total capacity; 1.50 GiB "
    "already allocated; 13.00 GiB free; 2.00 GiB allowed; 1.60 GiB reserved in total by PyTorch) If reserved memory is >>"
)
V2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of "
    "which 9.02 GiB is free. Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch "
    "but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
)
V2_2_SELF = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34 GiB of "
    "which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. Of the allocated memory 43.36 GiB is allocated by "
    "PyTorch, and 396.27 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
V2_6_OTHERS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total capacity of 47.27 GiB of which "
    "9.38 MiB is free. Process 644963 has 5.59 MiB memory in use. Process 3053273 has 29.04 GiB memory in use. Process 3120922 "
    "has 14.74 GiB memory in use. Including non-PyTorch memory, this process has 3.14 GiB memory in use. Of the allocated "
    "memory 2.92 GiB is allocated by PyTorch, and 34.62 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
V2_6_DEMAND = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.51 GiB of which "
    "9.62 MiB is free. Process 1839 has 322.23 MiB memory in use. Including non-PyTorch memory, this process has 11.65 GiB "
    "memory in use. Of the allocated memory 11.47 GiB is allocated by PyTorch, and 10.27 MiB is reserved by PyTorch but "
    "unallocated."
)
V2_9_POOLS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 7 has a total capacity of 79.15 GiB of which "
    "1.06 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the allocated memory 60.00 "
    "GiB is allocated by PyTorch, with 2.50 GiB allocated in private pools (e.g., CUDA Graphs), and 16.48 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
HIP = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 191.98 GiB of which "
    "1.00 GiB is free. Of the allocated memory 150.00 GiB is allocated by PyTorch, and 40.00 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to"
)
NOT_AVAILABLE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 KiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 512.00 KiB is free. Process 5906 has 17179869184.00 GiB memory in use. Of the allocated memory 22.90 GiB is "
    "allocated by PyTorch, and 100.00 KiB is reserved by PyTorch but unallocated."
)


def gib(value: float) -> int:
    return round(value * GIB)


def mib(value: float) -> int:
    return round(value * MIB)


FIGURES = [
    (V1_0, {"device": 0, "requested": gib(1.72), "capacity": gib(10.76), "allocated": gib(4.01), "free": mib(356), "unallocated": gib(5.54), "limit": None}),
    (V1_4, {"device": 3, "requested": mib(264), "capacity": gib(2), "allocated": mib(788.51), "free": mib(145.93), "unallocated": gib(1.02) - mib(788.51)}),
    (V1_13, {"requested": gib(1.71), "allocated": gib(3.49), "free": gib(1.04), "unallocated": gib(3.5) - gib(3.49), "setting": "PYTORCH_CUDA_ALLOC_CONF"}),
    (V2_0_LIMIT, {"limit": gib(2), "free": gib(13), "allocated": gib(1.5)}),
    (V2_1, {"device": 0, "requested": gib(55.57), "capacity": gib(12), "free": gib(9.02), "allocated": mib(984.52), "unallocated": mib(463.48)}),
    (V2_2_SELF, {"device": None, "process": gib(44.17), "others": (), "free": mib(160.81)}),
    (V2_6_OTHERS, {"process": gib(3.14), "others": (MemoryHolder(pid=3053273, memory_bytes=gib(29.04)), MemoryHolder(pid=3120922, memory_bytes=gib(14.74)), MemoryHolder(pid=644963, memory_bytes=mib(5.59)))}),
    (V2_9_POOLS, {"device": 7, "allocated": gib(60), "unallocated": gib(16.48), "process": gib(78.08), "setting": "PYTORCH_ALLOC_CONF"}),
    (HIP, {"kind": "HIP", "device": 1, "unallocated": gib(40), "setting": "PYTORCH_HIP_ALLOC_CONF"}),
    (NOT_AVAILABLE, {"requested": MIB, "free": 512 * KIB, "others": (), "process": None}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "figures"), FIGURES)
def test_the_figures_of_a_message(text: str, figures: dict[str, object]) -> None:
    memory = device_memory(text)

    assert memory is not None
    assert {name: getattr(memory, name) for name in figures} == figures


CAUSES = [
    (V1_0, MemoryCause.FRAGMENTED, True, "5.54 GiB more lie unused in pieces: fragmentation"),
    (V1_4, MemoryCause.FRAGMENTED, True, "CUDA out of memory on GPU 3: 264.00 MiB asked, 145.93 MiB of 2.00 GiB free; "),
    (V1_13, MemoryCause.OTHERS, False, "are held outside torch"),
    (V1_13_ROOM, MemoryCause.TRANSIENT, False, "304.00 MiB asked, 6.32 GiB of 8.00 GiB free; enough is free"),
    (V2_0_LIMIT, MemoryCause.LIMIT, False, "the job limits itself to 2.00 GiB"),
    (V2_1, MemoryCause.DEMAND, False, "no fragmentation, the job needs more than there is"),
    (V2_2_SELF, MemoryCause.DEMAND, False, "torch holds 43.36 GiB in tensors: no fragmentation"),
    (V2_6_OTHERS, MemoryCause.OTHERS, False, "processes hold 43.79 GiB (pid 3053273, 3120922, 644963)"),
    (V2_6_DEMAND, MemoryCause.DEMAND, False, "no fragmentation"),
    (V2_9_POOLS, MemoryCause.FRAGMENTED, True, "torch holds 60.00 GiB in tensors, and 16.48 GiB more"),
    (HIP, MemoryCause.FRAGMENTED, True, "HIP out of memory on GPU 1: 2.00 GiB asked"),
    (NOT_AVAILABLE, MemoryCause.DEMAND, False, "the job needs more"),
    ("RuntimeError: CUDA error: out of memory", MemoryCause.UNKNOWN, None, "CUDA out of memory: outside torch's own allocator"),
    ("RuntimeError: HIP error: out of memory", MemoryCause.UNKNOWN, None, "HIP out of memory"),
    ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", MemoryCause.UNKNOWN, None, "CUDA out of memory"),
    ("RuntimeError: CUDA driver error: out of memory", MemoryCause.UNKNOWN, None, "CUDA out of memory: outside torch's own allocator"),
    ("ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'", MemoryCause.UNKNOWN, None, "CUDA out of memory: NCCL asked for it, outside torch's own allocator"),
    ("Cuda failure 2 'out of memory'", MemoryCause.UNKNOWN, None, "CUDA out of memory: NCCL asked for it"),
    ("HIP failure: 'out of memory'", MemoryCause.UNKNOWN, None, "HIP out of memory: NCCL asked for it"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", MemoryCause.UNKNOWN, None, "cuBLAS could not allocate its workspace: the GPU's memory is most likely full"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", MemoryCause.UNKNOWN, None, "cuDNN could not allocate its workspace: the GPU's memory is most likely full"),
    ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", MemoryCause.UNKNOWN, None, "hipBLAS could not allocate"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", MemoryCause.UNKNOWN, None, "CUDA out of memory"),
    ("torch.OutOfMemoryError: CUDA out of memory.", MemoryCause.UNKNOWN, None, "CUDA out of memory"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause", "fragmented", "words"), CAUSES)
def test_the_cause(text: str, cause: MemoryCause, fragmented: bool | None, words: str) -> None:
    memory = device_memory(text)

    assert memory is not None
    assert (memory.cause, memory.fragmented) == (cause, fragmented)
    assert words in memory_sentence(memory)
    assert is_out_of_memory(text)


@pytest.mark.parametrize(("free", "cause"), [(99, MemoryCause.DEMAND), (100, MemoryCause.FRAGMENTED), (199, MemoryCause.FRAGMENTED), (200, MemoryCause.FRAGMENTED), (202, MemoryCause.TRANSIENT)])  # fmt: skip
def test_the_borders_of_fragmentation(free: int, cause: MemoryCause) -> None:
    memory = DeviceMemory(
        requested=200, capacity=1000, free=free, allocated=700, unallocated=100, process=800
    )

    assert memory.cause is cause


STEPS = [
    (V2_9_POOLS, "export PYTORCH_ALLOC_CONF=expandable_segments:True"),
    (V1_4, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    (HIP, "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
    (V2_1, "lower the micro batch"),
    (V2_6_OTHERS, "ps -o pid,user,lstart,args -p 3053273,3120922,644963"),
    (V2_0_LIMIT, "set_per_process_memory_fraction"),
    ("RuntimeError: CUDA error: out of memory", "nvidia-smi --query-compute-apps"),
    ("RuntimeError: HIP error: out of memory", "rocm-smi"),
    ("HIPBLAS_STATUS_ALLOC_FAILED", "rocm-smi"),
    ("HIP failure 2 'out of memory'", "rocm-smi"),
]


@pytest.mark.parametrize(("text", "step"), STEPS)
def test_the_first_next_step(text: str, step: str) -> None:
    memory = device_memory(text)

    assert memory is not None
    assert step in memory_steps(memory)[0]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: out of memory lane",
        "MemoryError",
        "CUDA error: an illegal memory access was encountered",
        "Cuda failure 999 'unknown error'",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
        "",
    ],
)
def test_other_errors_are_none_of_it(text: str) -> None:
    assert device_memory(text) is None


def test_a_size_that_stands_for_not_available_is_left_out() -> None:
    memory = device_memory("CUDA out of memory. Process 5906 has 17179869184.00 GiB memory in use.")

    assert memory is not None
    assert memory.others == ()


@given(st.text(max_size=300) | st.from_regex(r"CUDA out of memory\. (Tried to allocate [0-9]{1,30} [KMG]?i?B|Process [0-9]+ has [0-9.]+ GiB memory in use|[0-9.]{1,9} [a-zA-Z]+ free|GPU [0-9]+; ){1,6}"))  # fmt: skip
def test_no_message_breaks_it(text: str) -> None:
    memory = device_memory(text)

    if memory is not None:
        assert memory_sentence(memory)
        assert memory_steps(memory)


def test_a_hostile_message_costs_no_time() -> None:
    text = "CUDA out of memory. Tried to allocate " + "9" * 5_000_000 + " Process 1 has " * 100_000
    memory = device_memory(text)

    assert memory is not None
    assert memory.requested is None


MESSAGE = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 80.00 GiB of which {} is free. {}Of the"
    " allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated."
)
ITSELF = "Including non-PyTorch memory, this process has 79.00 GiB memory in use. "


@pytest.mark.parametrize(
    ("text", "free", "allocated", "pieces", "cause"),
    [
        ("20.00 MiB", "10.00 MiB", "79.50 GiB", "15.00 MiB", MemoryCause.DEMAND),
        ("2.00 GiB", "1.00 GiB", "74.00 GiB", "3.90 GiB", MemoryCause.DEMAND),
        ("2.00 GiB", "1.00 GiB", "74.00 GiB", "4.00 GiB", MemoryCause.FRAGMENTED),
        ("6.00 GiB", "1.00 GiB", "74.00 GiB", "4.00 GiB", MemoryCause.DEMAND),
    ],
)
def test_a_full_device_is_not_fragmented_by_a_few_pieces(
    text: str, free: str, allocated: str, pieces: str, cause: MemoryCause
) -> None:
    memory = device_memory(MESSAGE.format(text, free, ITSELF, allocated, pieces))

    assert memory is not None
    assert memory.cause is cause


@pytest.mark.parametrize(
    ("own", "pieces", "words"),
    [
        (ITSELF, "0 bytes", "free; no fragmentation, the job needs more"),
        ("", "0 bytes", "free; 79.00 GiB are held outside torch"),
        (ITSELF, "8.00 GiB", "free; 8.00 GiB lie unused in pieces"),
    ],
)
def test_where_torch_holds_nothing_the_words_leave_it_out(
    own: str, pieces: str, words: str
) -> None:
    memory = device_memory(MESSAGE.format("2.00 GiB", "1.00 GiB", own, "0 bytes", pieces))

    assert memory is not None
    assert words in memory_sentence(memory)


# --- in the report of an end ---------------------------------------------------------------------------


def test_the_figures_come_from_the_whole_line_and_not_from_the_shortened_one() -> None:
    lines = ["Traceback (most recent call last):", '  File "/a.py", line 1, in f', V2_6_OTHERS]
    error = last_error(lines, "the job's log")

    assert error is not None
    assert len(error.error) <= 300
    assert error.memory is not None
    assert error.memory.allocated == gib(2.92)


def test_the_figures_come_from_the_error_file_too() -> None:
    data = b'{"message": {"message": "%s", "extraInfo": {}}}' % V2_9_POOLS.encode()
    error = parse_error_file(data)

    assert error is not None
    assert error.memory is not None
    assert error.memory.fragmented is True


def test_a_cpp_exception_without_a_traceback() -> None:
    lines = [
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: out of memory",
    ]
    error = last_error(lines, "the job's log")

    assert error is not None
    assert error.memory is not None
    assert not error.memory.inside


def exit_with(error: RankError) -> AttemptExit:
    ranks = tuple(RankIdentity(rank=n, world_size=2, pid=100 + n, node="n1") for n in (0, 1))
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=2, ranks=ranks)
    exits = (
        RankExit(rank=1, pid=101, at=5.0, moment=0, status=status_of_code(1), source="pidfd"),
        RankExit(rank=0, pid=100, at=6.0, moment=1, status=15, source="pidfd"),
    )
    return AttemptExit(job=job, identities=ranks, exits=exits, errors={1: error})


def test_the_verdict_says_what_was_asked_and_what_to_do() -> None:
    lines = ["Traceback (most recent call last):", '  File "/a.py", line 1, in f', V2_9_POOLS]
    error = last_error(lines, "the job's log")
    assert error is not None
    finding = judge_exit(exit_with(error)).finding

    assert finding is not None
    assert finding.verdict is Verdict.OUT_OF_MEMORY
    assert (
        "rank 1 exited with code 1: CUDA out of memory on GPU 7: 4.00 GiB asked" in finding.summary
    )
    assert "fragmentation" in finding.summary
    assert finding.next_steps[0].startswith("export PYTORCH_ALLOC_CONF=expandable_segments:True")
    assert any("Tried to allocate 4.00 GiB" in fact for fact in finding.evidence)


# --- where torch's allocator was not asked -------------------------------------------------------------

NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, unhandled"
    " cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3"
)
SAID_AFTER = ("ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:")
FULL, UNKNOWN = "Cuda failure 2 'out of memory'", "Cuda failure 999 'unknown error'"
WARNED = "n1:3063028:3066152 [3] include/alloc.h:178 NCCL WARN "
HEAD = ("Traceback (most recent call last):", '  File "/a.py", line 1, in f')


def judged(*lines: str) -> tuple[RankError, Finding]:
    error = last_error(lines, "the job's log")
    assert error is not None
    finding = judge_exit(exit_with(error)).finding
    assert finding is not None
    return error, finding


@pytest.mark.parametrize(
    "lines",
    [
        (*HEAD, NCCL, *SAID_AFTER, FULL),
        (f"{WARNED}{FULL}", "n1:1:2 [3] NCCL INFO init.cc:1303 -> 1", *HEAD, NCCL),
        ("terminate called after throwing an instance of 'c10::Error'", f"  what():  {NCCL}", *SAID_AFTER, FULL),
    ],
)  # fmt: skip
def test_what_nccl_says_beside_its_unhandled_error(lines: tuple[str, ...]) -> None:
    error, finding = judged(*lines)

    assert error.memory == DeviceMemory(kind="CUDA", inside=False, by="NCCL")
    assert (finding.verdict, finding.confidence) == (Verdict.OUT_OF_MEMORY, Confidence.HIGH)
    assert "rank 1 exited with code 1: CUDA out of memory: NCCL asked for it" in finding.summary
    assert any(FULL in fact for fact in finding.evidence)


@pytest.mark.parametrize(
    "lines",
    [
        (*HEAD, NCCL),
        (*HEAD, NCCL, *SAID_AFTER, UNKNOWN),
        (f"{WARNED}{UNKNOWN}", f"{WARNED}{FULL}", *HEAD, NCCL),
        (f"{WARNED}{FULL}", *HEAD, "ValueError: bad shard 7"),
    ],
)
def test_another_error_behind_it_is_no_lack_of_memory(lines: tuple[str, ...]) -> None:
    error, finding = judged(*lines)

    assert error.memory is None
    assert finding.verdict is Verdict.RANK_EXITED


def test_the_error_file_holds_what_nccl_says() -> None:
    message = "\n".join((NCCL, *SAID_AFTER, FULL))
    error = parse_error_file(
        msgspec.json.encode({"message": {"message": message, "extraInfo": {}}})
    )

    assert error is not None
    assert is_out_of_memory(error.error)
    assert judge_exit(exit_with(error)).finding.verdict is Verdict.OUT_OF_MEMORY  # type: ignore[union-attr]


def test_a_library_that_could_not_allocate_is_less_sure_and_worded_so() -> None:
    text = (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    )
    _, finding = judged(*HEAD, text)

    assert (finding.verdict, finding.confidence) == (Verdict.OUT_OF_MEMORY, Confidence.MEDIUM)
    assert "rank 1 exited with code 1: cuBLAS could not allocate its workspace: the GPU's memory is most likely full" in finding.summary  # fmt: skip
    assert any(text in fact for fact in finding.evidence)
