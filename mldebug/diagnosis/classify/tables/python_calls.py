"""Calls of Python, PyTorch and a few libraries that say what a rank does; taken from torch 1.13 to 2.15.

Rows are tried from top to bottom, on the frames that the job's innermost own frame has called.
"""

from mldebug.diagnosis.classify.tables.package_waits import PACKAGE_CALLS
from mldebug.diagnosis.classify.tables.signs import B, FrameSign, I, W, calls

COLLECTIVES = (
    r"all_reduce\w*|all_gather\w*|_all_gather\w*|reduce_scatter\w*|_reduce_scatter\w*|broadcast\w*|_broadcast\w*|reduce|"
    r"gather\w*|scatter\w*|all_to_all\w*|barrier|monitored_barrier|allreduce\w*|allgather\w*"
)
POINT_TO_POINT = r"send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list"
INIT = r"init_process_group|new_group|new_subgroups\w*|_new_process_group_helper|_new_group_with_tag|init_device_mesh|split_group"

TORCH_CALLS: tuple[FrameSign, ...] = (
    calls(
        "debugger",
        I,
        "stands in a debugger in {site}",
        r"pdb\.py|bdb\.py|ipdb/.*|pudb/.*|debugpy/.*",
        r".*",
    ),
    calls(
        "dataloader",
        I,
        "waits for its DataLoader in {site}",
        r"torch/utils/data/dataloader\.py|torchdata/stateful_dataloader/stateful_dataloader\.py",
        r"_next_data|_try_get_data|_get_data|_process_next_batch",
    ),
    calls(
        "dataloader_exit",
        I,
        "waits for its DataLoader workers to exit in {site}",
        r"torch/utils/data/dataloader\.py|torchdata/stateful_dataloader/stateful_dataloader\.py",
        r"_shutdown_workers",
    ),
    calls(
        "init",
        W,
        "waits in {op} for the other ranks at {site}",
        r"torch/distributed/(distributed_c10d|device_mesh)\.py",
        INIT,
    ),
    calls(
        "init",
        W,
        "waits in rendezvous for the other ranks at {site}",
        r"torch/distributed/rendezvous\.py",
        r".*",
    ),
    calls(
        "destroy",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        r"destroy_process_group|_abort_process_group|_shutdown_backend",
    ),
    calls(
        "point_to_point",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        POINT_TO_POINT,
    ),
    calls(
        "collective",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/distributed_c10d\.py",
        COLLECTIVES,
    ),
    calls(
        "collective",
        W,
        "waits for an asynchronous collective in {site}",
        r"torch/distributed/_functional_collectives\.py",
        r"wait_tensor|wait",
    ),
    calls(
        "collective",
        W,
        "waits in {op} at {site}",
        r"torch/distributed/nn/functional\.py|deepspeed/comm/(comm|torch)\.py",
        COLLECTIVES,
    ),
    calls(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"torch/distributed/distributed_c10d\.py",
        r"_store_based_barrier",
    ),
    calls(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"torch/distributed/elastic/utils/store\.py",
        r".*",
    ),
    calls(
        "collective",
        W,
        "waits for the others to ask for the switches, in {site}",
        r"mldebug_training/(helpers/switches/)?agreement\.py",
        r"finish|_meet",
    ),
    calls(
        "store",
        W,
        "waits for the rank that goes first, in {site}",
        r"mldebug_training/(helpers/)?first\.py",
        r"_wait",
    ),
    calls(
        "device_sync",
        W,
        "waits for its GPU in {op} at {site}",
        r"torch/(cuda|xpu|hpu|accelerator)/(__init__|streams)\.py",
        r"synchronize|wait",
    ),
)

OTHER_CALLS: tuple[FrameSign, ...] = (
    calls(
        "file_lock",
        I,
        "waits for the lock file of a process that builds an extension, in {site}",
        r"torch/utils/file_baton\.py",
        r"wait",
    ),
    calls(
        "file_lock",
        I,
        "waits for a file lock in {site}",
        r"filelock/.*|(?:datasets/utils/|torch/utils/_)?filelock\.py|portalocker/.*|fasteners/process_lock\.py|lockfile/.*",
        r".*acquire.*|lock|wait|__enter__",
    ),
    calls(
        "autotune",
        B,
        "times kernels on its GPU in {site}",
        r"torch/_inductor/(?:runtime/(?:benchmarking|triton_heuristics|coordinate_descent_tuner)|select_algorithm|autotune_process)\.py|"
        r"triton/(?:runtime/autotuner|testing)\.py",
        r"_?(?:do_)?bench(?:mark)?(?:_\w+)?|autotune\w*|\w*coordinate_descent_tuning",
        top=True,
    ),
    calls(
        "compile",
        B,
        "compiles in {site}",
        r"torch/_inductor/(?!output_code\.py|utils\.py|cudagraph_\w+\.py|runtime/(?:triton_heuristics|\w*launcher\w*)\.py).*|"
        r"torch/_dynamo/(?!eval_frame\.py|external_utils\.py).*|torch/utils/cpp_extension\.py",
        r".*",
    ),
    calls(
        "compile",
        B,
        "compiles in {site}",
        r"triton/(?:compiler|runtime|backends)/.*|torch/_inductor/runtime/triton_heuristics\.py",
        r"(?!__call__|__getitem__|__getattribute__|_init_handles|run|runner|<lambda>|launcher|launch\w*|wrapper|inner).*",
    ),
    calls(
        "checkpoint",
        B,
        "saves or loads a checkpoint in {site}",
        r"torch/serialization\.py|torch/distributed/checkpoint/.*|safetensors/.*",
        r".*",
    ),
    calls(
        "child_wait",
        I,
        "waits for a child process in {site}",
        r"subprocess\.py|multiprocessing/(popen_\w+|process|pool)\.py",
        r"(?!_bootstrap|_launch|run$|__init__$).*",
    ),
    calls("thread_exit", I, "waits for a thread of its own to end", r"threading\.py", r"_shutdown"),
    calls(
        "thread_join",
        I,
        "waits for a thread of its own in {site}",
        r"threading\.py",
        r"join|_wait_for_tstate_lock",
    ),
    calls(
        "future", I, "waits for a future in {site}", r"concurrent/futures/_base\.py", r"result|wait"
    ),
    calls(
        "lock",
        I,
        "waits for a lock between processes in {site}",
        r"multiprocess(?:ing)?/synchronize\.py",
        r"acquire|wait|wait_for|__enter__",
    ),
    calls(
        "lock",
        I,
        "waits on a queue in {site}",
        r"queue\.py|multiprocess(?:ing)?/(queues|connection)\.py",
        r"get|put|wait|_poll|acquire|__enter__",
    ),
    calls(
        "lock",
        I,
        "waits for a lock in {site}",
        r"threading\.py",
        r"acquire|wait|wait_for|__enter__|_acquire_restore",
    ),
)

PYTHON: tuple[FrameSign, ...] = (*TORCH_CALLS, *PACKAGE_CALLS, *OTHER_CALLS)

_REQUESTS = (
    r"socket\.py|ssl\.py|http/client\.py|urllib3/(?:connection|connectionpool|response)\.py|httpcore/.*|aiohttp/client\w*\.py|"
    r"botocore/(?:httpsession|awsrequest)\.py"
)
_REQUEST = (
    r"readinto|recv\w*|read|connect\w*|create_connection|getaddrinfo|do_handshake|begin|getresponse|_read_status|urlopen|_make_request|"
    r"sendall|send"
)
IDLE_CALLS: tuple[FrameSign, ...] = (
    calls("lock", I, "waits for the lock of a log handler in", r"logging/__init__\.py", r"acquire|_acquireLock"),
    calls("idle", I, "writes its log in", r"logging/__init__\.py", r"emit|flush"),
    calls("idle", I, "writes its output in", r"tqdm/(?:utils|std)\.py", r"write|fp_write|flush|display|print_status|refresh"),
    calls("idle", I, "waits for the answer of a server in", _REQUESTS, _REQUEST),
    calls("idle", I, "waits for events in", r"asyncio/\w+\.py|uvloop/.*", r"run_forever|_run_once|select|run_until_complete"),
)  # fmt: skip
"""Calls that say what a thread waits for where neither the kernel nor a native frame does. Their phrases end before the place."""

# The main thread of `loss.backward()`: it computes, or waits inside for gradients of other ranks.
BACKWARD = calls(
    "backward",
    B,
    "runs backward in {site}",
    r"torch/autograd/(graph|__init__)\.py",
    r"_engine_run_backward|backward|grad",
)
