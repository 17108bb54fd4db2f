"""Native functions that say what a rank does; read off NCCL 2.18 to 2.30, torch 1.13 to 2.15, jaxlib 0.4 to 0.10."""

import re

from mldebug.diagnosis.classify.tables.signs import I, NameSign, W, sign

BY_NAME = "a collective"  # its name stands in a frame further out, see OPERATIONS

NATIVE: tuple[NameSign, ...] = (
    sign(
        "init",
        W,
        "waits for the other ranks while NCCL starts, at {site}",
        r"ncclCommInit\w*|ncclCommSplit|bootstrap\w+",
    ),
    sign(
        "store",
        W,
        "waits for a key of the store in {site}",
        r"c10d::TCPStore::.*|c10d::PrefixStore::.*|c10d::detail::TCPClient.*",
    ),
    sign(
        "destroy",
        W,
        "waits while its process group is torn down, at {site}",
        r"ncclComm(Abort|Destroy|Finalize)\w*|c10d::ProcessGroup\w+::(?:~ProcessGroup\w*|destroy|shutdown|abort\w*)",
    ),
    sign(
        "collective",
        W,
        "waits for a gradient all_reduce in {site}",
        r"c10d::Reducer::.*",
        "backward",
    ),
    sign(
        "collective",
        W,
        "waits in a collective in {site}",
        r"c10d::.*(Work|ProcessGroup\w*)::.*(wait|synchronize).*",
    ),
    sign("collective", W, "waits in {op} in {site}", r"gloo::.*", BY_NAME),
    sign(
        "collective",
        W,
        "waits in {op} in {site}",
        r"p?nccl(?:AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AllToAll|GroupEnd(?:Internal)?)|"
        r"c10d::ProcessGroup(?:NCCL|Gloo|Wrapper|MPI|UCC)::(?:_?all\w+|_?broadcast\w*|_?reduce\w*|barrier|gather|scatter)",
        BY_NAME,
    ),
    sign(
        "init",
        W,
        "waits for the other processes of JAX in {site}",
        r"xla::.*(GetDistributedRuntimeClient|DistributedRuntime\w*Client\w*::(Connect|Shutdown)|ExchangeTopologies|EnumerateDevices).*|"
        r"(tsl|xla)::CoordinationServiceAgent\w*::(Connect|Shutdown).*",
    ),
    sign(
        "store",
        W,
        "waits for a key or barrier of JAX's coordination service in {site}",
        r"(tsl|xla)::CoordinationService\w*::.*(Barrier|KeyValue).*|xla::DistributedRuntime\w*::.*(Barrier|KeyValue).*",
    ),
    sign(
        "collective",
        W,
        "waits in {op} in {site}",
        r"xla::.*(Communicator::|CollectiveThunk::|AllReduce|AllGather|AllToAll|ReduceScatter|CollectivePermute|CollectiveBroadcast|InvokeRendezvous|RendezvousSingle).*",
        BY_NAME,
    ),
    sign(
        "device_sync",
        W,
        "waits for its GPU in {site}",
        r"(cu|cuda|hip)(Stream|Event|Device|Ctx)Synchronize\w*|cuMemcpy\w*|cudaMemcpy\w*|hipMemcpy\w*|c10::cuda::device_synchronize|"
        r"(xla|tsl|stream_executor)::.*(BlockHostUntilDone|BlockUntilReady|Future.*::Await|GetReadyFuture|ToLiteralSync|CopyToHost).*",
    ),
    sign(
        "lock",
        I,
        "waits for a lock in {site}",
        r"(_?PyThread_acquire_lock\w*|acquire_timed|lock_PyThread_acquire_lock|_PyMutex_LockTimed)",
    ),
    sign(
        "flock",
        I,
        "waits for a file lock in {site}",
        r"(?:__)?flock(?:64)?|fcntl_(?:flock|lockf)(?:_impl)?|lockf(?:64)?",
    ),
    sign("gil", I, "waits for the GIL in {site}", r"take_gil"),
)


OPERATIONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (
        name,
        re.compile(
            rf"gloo::{gloo}|p?nccl{xla}|c10d::ProcessGroup\w+::_?{gloo}\w*|xla::.*(?:Communicator::|\b){xla}(?:Thunk::.*)?"
        ),
    )
    for name, gloo, xla in (
        ("all_reduce", r"allreduce\w*", "AllReduce"),
        ("all_gather", r"allgatherv?", "AllGather"),
        ("reduce_scatter", r"reduce_scatter\w*", "ReduceScatter"),
        ("all_to_all", r"alltoallv?", "AllToAll"),
        ("broadcast", "broadcast", "CollectiveBroadcast"),
        ("collective_permute", r"(?:send|recv)", "CollectivePermute"),
        ("barrier", "barrier", "Barrier"),
    )
)
"""What the functions of gloo, NCCL and XLA are called as collectives."""

MAY_WAIT_FOR_OTHERS = re.compile(
    r"(?:lib)?(?:nccl|rccl|gloo|mpi|open-(?:mpi|pal|rte)|uc[pstc]\b|fabric|ibverbs|mlx5|efa|psm2|grpc|horovod|"
    r"cuda|nvidia|nvshmem|amdhip|hsa|rocm|torch|c10|xla|jax|tensorflow|zmq)|mpi_lib|_raylet|_XLAC|"
    r"(?:gloo|c10d|c10|at|torch|xla|tsl|absl|grpc|horovod|vllm|ray)::|P?MPI_|uc[pstc]_|fi_|ibv_|cu[A-Z]|hip[A-Z]"
)
"""Libraries and functions in which a thread may wait for another rank, its GPU or the runtime that drives it."""

C_LIBRARY = re.compile(
    r"(?:.*/)?(?:lib(?:c|pthread|stdc\+\+|gcc_s|m|rt|dl)[.-][^/]*|ld-[^/]*|\?|\[vdso\]|python[\d.]*|libpython[^/]*|)"
)
"""What every native wait passes through, and what therefore tells nothing: the C library, the interpreter, the unknown."""
