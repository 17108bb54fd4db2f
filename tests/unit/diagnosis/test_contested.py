"""Locks, names and devices that another process holds, and what ranks share: whoever fails for them is named without proof at most."""

import pytest

from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.diagnosis.exits.words.raised_in import NOWHERE, raised_in

SITE = "/opt/venv/lib/python3.11/site-packages/"


@pytest.mark.parametrize(
    "words",
    [
        # a lock
        "sqlite3.OperationalError: database is locked",
        "filelock._error.Timeout: The file lock '/root/.cache/x.lock' could not be acquired.",
        "RuntimeError: could not obtain the lock on /data/cache/index after 60 tries",
        "BlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')",
        "lmdb.LockError: /data/train.lmdb: Resource temporarily unavailable",
        "portalocker.exceptions.LockException: [Errno 11] Resource temporarily unavailable",
        "portalocker.exceptions.AlreadyLocked",
        # a name
        "FileNotFoundError: [Errno 2] No such file or directory: '/out/tmp-checkpoint-500' -> '/out/checkpoint-500'",
        "OSError: [Errno 39] Directory not empty: '/out/tmp-checkpoint-500' -> '/out/checkpoint-500'",
        "FileExistsError: [Errno 17] File exists: '/out/run_7'",
        "FileExistsError: output directory /out/run_7 exists",
        "OSError: [Errno 16] Device or resource busy: '/out/run_7/.nfs00000001'",
        "OSError: [Errno 26] Text file busy: '/job/build/helper'",
        # a device
        "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: The TPU is already in use by another process probably owned by another user",
        # what one builds for all
        "ImportError: /root/.cache/torch_extensions/py310/fused_adam/fused_adam.so: file too short",
        "ImportError: /root/.triton/cache/3f/cuda_utils.so: cannot open shared object file: No such file or directory",
        "OSError: /tmp/torchinductor_root/3f/c3f.so: invalid ELF header",
    ],
)  # fmt: skip
def test_what_another_process_holds_or_made_is_nobodys_surely(words: str) -> None:
    assert blame_of(words) is Blame.UNCLEAR


@pytest.mark.parametrize(
    "words",
    [
        "sqlite3.OperationalError: no such table: locks",
        "FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-500'",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "OSError: [Errno 16] Device or resource busy: '/dev/nvme1n1'",
        "OSError: [Errno 122] Disk quota exceeded: '/out/checkpoint-500'",
        "torch.AcceleratorError: CUDA error: invalid argument",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "KeyError: 'lock'",
        "lmdb.InvalidError: /data/train.lmdb: MDB_INVALID: File is not an LMDB file",
        "ValueError: block 7 could not be decoded",
    ],
)
def test_what_looks_like_it_is_the_ranks_own(words: str) -> None:
    assert blame_of(words) is Blame.OWN


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("OSError: (External) NCCL error(2), unhandled system error. (at /paddle/paddle/phi/core/nccl.cc:12)", Blame.UNCLEAR),
        ("OSError: (External) NCCL error(6), remote process exited or there was a network error. (at /paddle/paddle/phi/core/nccl.cc:12)", Blame.PEER),
        ("ValueError: (InvalidArgument) TCP connect to 10.0.0.3:6170 timeout. (at /paddle/paddle/phi/core/distributed/store/tcp_utils.cc:98)", Blame.PEER),
        ("OSError: (External) CUDA error(700), an illegal memory access was encountered. (at /paddle/paddle/phi/backends/gpu/cuda/cuda_info.cc:259)", Blame.OWN),
        ("ValueError: (InvalidArgument) The 1st dimension of input X should be 3, but received 4.", Blame.OWN),
        ("OSError: [Errno 5] Input/output error: '/data/x.bin'", Blame.OWN),
    ],
)  # fmt: skip
def test_a_check_of_cpp_code_is_no_error_of_the_system_for_its_type(
    words: str, blame: Blame
) -> None:
    """Paddle raises what fails outside of it as OSError, and names its own file."""
    assert blame_of(words) is blame


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("TimeoutError: timed out waiting for all 4 members to join", Blame.PEER),
        ("TimeoutError: Timeout waiting for rollout servers to be ready. Expected 4 servers, found 3.", Blame.PEER),
        ("TimeoutError: Waiting for main node timeout!", Blame.PEER),
        ("ConnectionError: Timed out connecting to master", Blame.PEER),
        ("TimeoutError: file_barrier arena_barrier: 3/4 ranks after 300s", Blame.PEER),
        ("distributed.scheduler.KilledWorker: Attempted to run task 'a' on 4 different workers", Blame.PEER),
        # controls: a setting, a count, and a wait for nobody of the job
        ("ValueError: timeout of connecting to the master must be positive", Blame.OWN),
        ("ValueError: 3 of 4 heads", Blame.OWN),
        ("TimeoutError: no answer within 600 s", Blame.UNCLEAR),
    ],
)  # fmt: skip
def test_who_waited_for_others_in_vain_is_a_victim(words: str, blame: Blame) -> None:
    lines = ["Traceback (most recent call last):", '  File "/job/a.py", line 1, in f', "    raise x", words]  # fmt: skip
    place = raised_in(lines, 0, 3) if blame is not Blame.OWN else NOWHERE

    assert blame_of(words, place) is blame


HANDLES = [
    f'  File "{SITE}torch/multiprocessing/reductions.py", line 181, in rebuild_cuda_tensor\n    storage = storage_cls._new_shared_cuda(',
    f'  File "{SITE}vllm/distributed/device_communicators/custom_all_reduce.py", line 90, in __init__\n    self._ptr = ops.init_custom_ar(',
    '  File "/job/share.py", line 12, in attach\n    x = from_ipc_handle(handle)',
]  # fmt: skip


@pytest.mark.parametrize("frame", HANDLES)
def test_memory_that_another_process_shared_may_be_gone_with_it(frame: str) -> None:
    lines = ["Traceback (most recent call last):", *frame.split("\n"), "RuntimeError: x"]
    place = raised_in(lines, 0, len(lines) - 1)

    assert blame_of("RuntimeError: CUDA error: invalid resource handle", place) is Blame.UNCLEAR
    assert blame_of("RuntimeError: CUDA error: uncorrectable ECC error", place) is not Blame.PEER
    elsewhere = raised_in([*lines[:1], '  File "/job/a.py", line 1, in f', "    y = x + 1", lines[-1]], 0, 3)  # fmt: skip
    assert blame_of("RuntimeError: CUDA error: invalid resource handle", elsewhere) is Blame.OWN


@pytest.mark.parametrize("name", ["/psm_3fa812", "/000010_locals", "/torch_812_3"])
def test_a_segment_that_another_process_made_may_be_gone_with_it(name: str) -> None:
    words = f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"
    frame = '  File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 104, in __init__'
    lines = ["Traceback (most recent call last):", frame, "    self._fd = _posixshmem.shm_open(", words]  # fmt: skip

    assert blame_of(words, raised_in(lines, 0, 3)) is Blame.UNCLEAR
    full = "OSError: [Errno 28] No space left on device"
    assert blame_of(full, raised_in(lines, 0, 3)) is Blame.OWN
    assert blame_of("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'") is Blame.OWN  # fmt: skip


GLOG = "F20260203 11:02:57.140058   812 "
XLA = "2026-02-03 11:02:57.140058: F external/xla/"
ABSEIL = "F0000 00:00:1743713172.513857  698835 "


@pytest.mark.parametrize(
    ("line", "blame"),
    [
        (f"{GLOG}table.cc:77] Check failed: index < rows_ (50264 vs. 50257)", Blame.OWN),
        (f"{XLA}stream_executor/cuda/cuda_executor.cc:1123] Check failed: CUDA_SUCCESS == cuCtxSynchronize() (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered)", Blame.OWN),
        (f"{ABSEIL}cuda_executor.cc:123] Check failed: status.ok() CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", Blame.OWN),
        (f"{GLOG}ring.cc:77] Check failed: send(fd) == OK Connection reset by peer", Blame.UNCLEAR),
        (f"{XLA}xla/service/rendezvous.cc:127] Termination timeout for `initialize clique for rank 1` of 40 seconds exceeded. Expected 2 threads to join the rendezvous, but only 1 of them arrived on time.", Blame.PEER),
        (f"{XLA}pjrt/distributed/client.h:80] Terminating process because the JAX distributed service detected fatal errors.", Blame.PEER),
    ],
)  # fmt: skip
def test_a_line_of_severity_f_is_the_last_word_of_a_process(line: str, blame: Blame) -> None:
    error = last_error(["step 8 loss 2.0", line], "its own output")

    assert error is not None
    assert (error.blames_peer, error.unclear) == (blame is Blame.PEER, blame is Blame.UNCLEAR)


def test_a_line_of_lesser_severity_is_not() -> None:
    for line in (GLOG.replace("F", "W", 1), GLOG.replace("F", "E", 1), XLA.replace(": F", ": E")):
        assert last_error([f"{line}table.cc:77] index 50264 is large"], "its own output") is None
