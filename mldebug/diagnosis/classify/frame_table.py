"""The classification table: what a stack or a kernel state says about a rank, as data.

Rows are tried from top to bottom inside each kind of sign; `mldebug.diagnosis.classify.rank_class` says in which order the kinds are
asked. A call is (file suffix, function pattern) and is looked for among the library frames below the innermost user
frame. Patterns match the whole name. Sources: the wait channels were read off Linux 5.10 to 6.18, the frames off
torch 1.13 to 2.15, NCCL 2.18 to 2.30.
"""

import re
from dataclasses import dataclass

from mldebug.core.model import Role

W, I, B = Role.WAITING, Role.INERT, Role.BUSY


@dataclass(frozen=True)
class FrameSign:
    """One class as Python frames show it."""

    name: str
    role: Role
    phrase: str  # follows "rank 3 "; {op} = the called function, {site} = the user's line
    file: re.Pattern[str]
    function: re.Pattern[str]


@dataclass(frozen=True)
class NameSign:
    """One class as a single name shows it: a wait channel, a native function or the text of a source line."""

    name: str
    role: Role
    phrase: str
    pattern: re.Pattern[str]
    operation: str = ""


def _calls(name: str, role: Role, phrase: str, file: str, function: str) -> FrameSign:
    return FrameSign(name, role, phrase, re.compile(rf"(?:.*/)?(?:{file})"), re.compile(function))


def _sign(name: str, role: Role, phrase: str, pattern: str, operation: str = "") -> NameSign:
    return NameSign(name, role, phrase, re.compile(pattern), operation)


C10D = "torch/distributed/distributed_c10d.py"
COLLECTIVES = (
    r"all_reduce\w*|all_gather\w*|_all_gather\w*|reduce_scatter\w*|_reduce_scatter\w*|broadcast\w*|_broadcast\w*|reduce|"
    r"gather\w*|scatter\w*|all_to_all\w*|barrier|monitored_barrier|allreduce\w*|allgather\w*"
)
POINT_TO_POINT = r"send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list"
INIT = r"init_process_group|new_group|new_subgroups\w*|_new_process_group_helper|_new_group_with_tag|init_device_mesh|split_group"

PYTHON: tuple[FrameSign, ...] = (
    _calls(
        "debugger",
        I,
        "stands in a debugger in {site}",
        r"pdb\.py|bdb\.py|ipdb/.*|pudb/.*|debugpy/.*",
        r".*",
    ),
    _calls(
        "dataloader",
        I,
        "waits for its DataLoader in {site}",
        r"torch/utils/data/dataloader\.py",
        r"_next_data|_try_get_data|_get_data|_process_next_batch",
    ),
    _calls(
        "dataloader_exit",
        I,
        "waits for its DataLoader workers to exit in {site}",
        r"torch/utils/data/dataloader\.py",
        r"_shutdown_workers",
    ),
    _calls(
        "init",
        W,
        "waits in {op} for the other ranks at {site}",
        r"torch/distributed/(distributed_c10d|device_mesh)\.py",
        INIT,
    ),
    _calls(
        "init",
        W,
        "waits in rendezvous for the other ranks at {site}",
        r"torch/distributed/rendezvous\.py",
        r".*",
    ),
    _calls(
        "destroy",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        r"destroy_process_group|_abort_process_group|_shutdown_backend",
    ),
    _calls(
        "point_to_point",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        POINT_TO_POINT,
    ),
    _calls(
        "collective",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        COLLECTIVES,
    ),
    _calls(
        "collective",
        W,
        "waits for an asynchronous collective in {site}",
        r"torch/distributed/_functional_collectives\.py",
        r"wait_tensor|wait",
    ),
    _calls(
        "collective",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/nn/functional\.py|deepspeed/comm/(comm|torch)\.py",
        COLLECTIVES,
    ),
    _calls(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"torch/distributed/distributed_c10d\.py",
        r"_store_based_barrier",
    ),
    _calls(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"torch/distributed/elastic/utils/store\.py",
        r".*",
    ),
    _calls(
        "collective",
        W,
        "waits for the others to ask for the switches, in {site}",
        r"mldebug_training/(helpers/switches/)?agreement\.py",
        r"finish|_meet",
    ),
    _calls(
        "store",
        W,
        "waits for the rank that goes first, in {site}",
        r"mldebug_training/(helpers/)?first\.py",
        r"_wait",
    ),
    _calls(
        "device_sync",
        W,
        "waits for its GPU in {op} at {site}",
        r"torch/(cuda|xpu|hpu|accelerator)/(__init__|streams)\.py",
        r"synchronize|wait",
    ),
    _calls(
        "compile",
        B,
        "compiles in {site}",
        r"torch/_inductor/.*|torch/_dynamo/.*|triton/(compiler|runtime|backends)/.*|torch/utils/cpp_extension\.py",
        r".*",
    ),
    _calls(
        "checkpoint",
        B,
        "saves or loads a checkpoint in {site}",
        r"torch/serialization\.py|torch/distributed/checkpoint/.*|safetensors/.*",
        r".*",
    ),
    _calls(
        "file_lock",
        I,
        "waits for a file lock in {site}",
        r"filelock/.*|portalocker/.*|torch/utils/file_baton\.py",
        r".*acquire.*|wait",
    ),
    _calls(
        "child_wait",
        I,
        "waits for a child process in {site}",
        r"subprocess\.py|multiprocessing/(popen_\w+|process|pool)\.py",
        r".*",
    ),
    _calls(
        "thread_exit", I, "waits for a thread of its own to end", r"threading\.py", r"_shutdown"
    ),
    _calls(
        "thread_join",
        I,
        "waits for a thread of its own in {site}",
        r"threading\.py",
        r"join|_wait_for_tstate_lock",
    ),
    _calls(
        "future", I, "waits for a future in {site}", r"concurrent/futures/_base\.py", r"result|wait"
    ),
    _calls(
        "lock",
        I,
        "waits for a lock in {site}",
        r"threading\.py",
        r"acquire|wait|wait_for|__enter__|_acquire_restore",
    ),
    _calls(
        "lock",
        I,
        "waits on a queue in {site}",
        r"queue\.py|multiprocessing/(queues|connection|synchronize)\.py",
        r"get|put|wait|_poll|acquire|__enter__",
    ),
)

NATIVE: tuple[NameSign, ...] = (
    _sign(
        "init",
        W,
        "waits for the other ranks while NCCL starts, at {site}",
        r"ncclCommInit\w*|ncclCommSplit|bootstrap\w+",
    ),
    _sign(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"c10d::TCPStore::.*|c10d::PrefixStore::.*|c10d::detail::TCPClient.*",
    ),
    _sign(
        "destroy",
        W,
        "waits while its process group is torn down, at {site}",
        r"ncclComm(Abort|Destroy|Finalize)\w*",
    ),
    _sign(
        "collective",
        W,
        "waits for a gradient all_reduce in {site}",
        r"c10d::Reducer::.*",
        "backward",
    ),
    _sign(
        "collective",
        W,
        "waits in a collective in {site}",
        r"c10d::.*(Work|ProcessGroup\w*)::.*(wait|synchronize).*|gloo::.*",
    ),
    _sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r"(cu|cuda|hip)(Stream|Event|Device|Ctx)Synchronize\w*|cuMemcpy\w*|cudaMemcpy\w*|hipMemcpy\w*|c10::cuda::device_synchronize",
    ),
    _sign(
        "lock",
        I,
        "waits for a lock in {site}",
        r"(_?PyThread_acquire_lock\w*|acquire_timed|lock_PyThread_acquire_lock|_PyMutex_LockTimed)",
    ),
    _sign("gil", I, "waits for the GIL in {site}", r"take_gil"),
)

# Wait channels (kernel functions) that name the cause by themselves, whatever the Python stack says.
STORAGE_WAITS = re.compile(
    r"request_wait_answer|fuse_\w+|__fuse_\w+|nfs\d?_\w+|rpc_\w+|__rpc_\w+|cl_sync_io_wait|ptlrpc_\w+|osc_\w+|ll_\w+|ldlm_\w+|"
    r"cifs_\w+|smb2?_\w+|ceph\w*|gpfs\w*|mmfs\w*|cxiWait\w*|beegfs\w*|folio_wait_\w+|wait_on_page\w*|"
    r"io_schedule\w*|wait_on_buffer|__wait_on_buffer|jbd2_\w+|xfs_\w+|xlog_\w+|ext4_\w+|btrfs_\w+|percpu_rwsem_wait|"
    r"rwsem_down_\w+|blk_\w+|bit_wait_io|__lock_page\w*|filemap_\w+|p9_\w+"
)
STOPPED_WAITS = re.compile(r"do_signal_stop|do_jobctl_trap|ptrace_stop")

WAIT_CHANNELS: tuple[NameSign, ...] = (
    _sign(
        "fifo",
        I,
        "waits to open a FIFO{on} in {site}, whose other end nobody holds",
        r"wait_for_partner|fifo_open",
    ),
    _sign(
        "pipe_write",
        I,
        "is blocked writing to a full pipe{on} in {site}",
        r"(anon_)?pipe_write",
    ),
    _sign("pipe_read", I, "is blocked reading from a pipe{on} in {site}", r"(anon_)?pipe_read"),
    _sign("terminal", I, "waits for input from a terminal in {site}", r"n_tty_read|tty_\w+"),
    _sign(
        "socket",
        I,
        "waits for a network peer in {site}",
        r"sk_wait_data|tcp_\w+|inet_\w+|unix_stream_\w+|unix_\w+|sk_stream_wait_\w+|__skb_wait_\w+|skb_\w+",
    ),
    _sign(
        "flock",
        I,
        "waits for a file lock in {site}",
        r"(posix|flock|locks)_\w*lock\w*|fcntl_setlk|nlmclnt_\w+",
    ),
    _sign(
        "child_wait",
        I,
        "waits for a child process in {site}",
        r"do_wait|kernel_clone|wait_for_vfork_done",
    ),
    _sign("sleep", I, "sleeps in {site}", r"hrtimer_nanosleep|do_nanosleep|common_nsleep\w*"),
)

POLL_WAITS = re.compile(r"poll_schedule_timeout|ep_poll|do_select|do_sys_poll|do_epoll_wait")
"""Waits for one of several descriptors: says that it waits, not for whom."""

# The text of the innermost user line, for waits that leave no Python frame of their own.
SOURCE: tuple[NameSign, ...] = (
    _sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r".*(\bcu(da)?\w*Synchronize|\.synchronize)\s*\(.*",
    ),
    _sign(
        "lock",
        I,
        "waits for a lock in {site}",
        r".*\.acquire\s*\((?!.*(False|timeout|blocking)).*|\s*with\b.*[lL]ock\b.*:\s*(#.*)?",
    ),
)
GPU_SOURCE: tuple[NameSign, ...] = (
    _sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r".*(\.item|\.cpu|\.tolist|\.numpy|clip_grad_norm_|\.to)\s*\(.*",
    ),
)

# The main thread of `loss.backward()`: it computes, or waits inside for gradients of other ranks.
BACKWARD = _calls(
    "backward",
    B,
    "runs backward in {site}",
    r"torch/autograd/(graph|__init__)\.py",
    r"_engine_run_backward|backward|grad",
)
FUTEX_WAITS = re.compile(r"futex_\w+|do_futex|__futex_\w+")
