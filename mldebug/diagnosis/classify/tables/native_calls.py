"""Native functions that say what a rank does; read off NCCL 2.18 to 2.30, torch 1.13 to 2.15, jaxlib 0.4 to 0.10, Open MPI 4 and 5, MPICH 4."""

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
        "collective",
        W,
        "waits in a collective of XGBoost in {site}",
        r"rabit::engine::\w+::Try(?:Allreduce|Broadcast|Reduce)\w*|xgboost::collective::\w*(?:Allreduce|Allgather|Broadcast)\w*",
        "all_reduce",
    ),
    # MPI, in C and in Fortran: what progresses below (libopen-pal, UCX, libfabric) has no row
    sign(
        "init",
        W,
        "waits for the other ranks while MPI starts, in {site}",
        r"P?MPI_(?:Init\w*|Comm_(?:split|dup|create|spawn|accept|connect)\w*)|ompi_mpi_init|p?mpi_init(?:_thread)?_{1,2}",
    ),
    sign(
        "destroy",
        W,
        "waits while MPI is finalized, in {site}",
        r"P?MPI_Finalize|p?mpi_finalize_{1,2}",
    ),
    sign(
        "collective",
        W,
        "waits in {op} in {site}",
        r"P?MPI_(?:All(?!oc)\w+|Barrier|(?:Bcast|Gatherv?|Scatterv?|Scan|Exscan)(?:_c)?|Reduce(?!_local)\w*|Win_fence|File_\w+_all(?:_c)?)|p?mpi_(?:all(?!oc)\w+|barrier|bcast|reduce\w*|gatherv?|scatterv?)_{1,2}",
        BY_NAME,
    ),
    sign(
        "point_to_point",
        W,
        "waits in a transfer of MPI in {site}",
        r"P?MPI_(?:(?:[SBR]?[Ss]end|M?[Rr]ecv)(?:_c)?|Sendrecv\w*|M?[Pp]robe|Wait\w*)|p?mpi_(?:[sbr]?send|recv|sendrecv|probe|wait\w*)_{1,2}",
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
        r"(xla|tsl|stream_executor)::.*(BlockHostUntilDone|BlockUntilReady|Future.*::Await|GetReadyFuture|ToLiteralSync|CopyToHost).*|"
        r"(?:c10|at)::(?:cuda|hip)::(?:stream_synchronize|memcpy_and_sync|(?:CUDA|HIP)(?:Event|Stream)(?:::synchronize)).*|THCP(?:Event|Stream)_synchronize|"
        r"at::(?:native|_ops)::(?:_local_scalar_dense\w*|item|nonzero\w*(?:cuda|hip)\w*|copy_kernel_(?:cuda|hip))(?:\b.*)?|"
        r"aclrtSynchronize\w+|syn(?:Stream|Event)Synchronize|zeEventHostSynchronize|mu(?:Stream|Event|Ctx)Synchronize",
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


_OF_MPI = (
    ("all_reduce", r"allreduce"),
    ("all_gather", r"allgatherv?"),
    ("reduce_scatter", r"reduce_scatter\w*"),
    ("all_to_all", r"alltoall[vw]?"),
    ("broadcast", r"bcast"),
    ("reduce", r"reduce"),
    ("gather", r"gatherv?"),
    ("scatter", r"scatterv?"),
    ("barrier", r"barrier"),
)
OPERATIONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    *(
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
    ),
    *(
        (name, re.compile(rf"P?MPI_{mpi}(?:_c)?|p?mpi_{mpi}_{{1,2}}", re.IGNORECASE))
        for name, mpi in _OF_MPI
    ),
)
"""What the functions of gloo, NCCL, XLA and MPI are called as collectives."""

MAY_WAIT_FOR_OTHERS = re.compile(
    r"(?:lib)?(?:nccl|rccl|gloo|mpi|open-(?:mpi|pal|rte)|uc[pstc]\b|fabric|ibverbs|mlx5|efa|psm2|grpc|horovod|"
    r"cuda|nvidia|nvshmem|amdhip|hsa|rocm|torch|c10|xla|jax|tensorflow|zmq|ucc\b|hcoll|sharp|nixl|mooncake|deep_?ep|mscclpp|oneccl|hccl|ascend|tpu|neuron|nrt|"
    r"tensorpipe|paddle|mindspore|thrift|hiredis|etcd|ssl|curl|monarch|ccl\b|hcl\b|Synapse|habana|ze_(?:intel|loader)|sycl|musa|mccl|cnrt|cncl|bkcl|xpurt|eccl|topsrt|"
    r"byteps|bagua|dgl\b|brpc|pmix?2?\b|oshmem|lmdb)|mpi_lib|_raylet|_XLAC|_multiprocessing|posix_ipc|sysv_ipc|mdb_|boost::interprocess|PMIx?2?_|p?shmem_|"
    r"syn(?:Stream|Event)[A-Z]|ze(?:Event|Fence|Command)[A-Z]|mu(?:Stream|Event)[A-Z]|"
    r"(?:gloo|c10d|c10|at|torch|xla|tsl|absl|grpc|horovod|vllm|ray)::|P?MPI_|uc[pstc]_|fi_|ibv_|cu[A-Z]|hip[A-Z]"
)
"""Libraries and functions in which a thread may wait for another rank, its GPU or the runtime that drives it; and locks that processes share."""

LOCKS = re.compile(
    r"(?:_{1,2}|__GI_+)?(?:lll_lock_wait\w*|futex_\w*wait\w*|do_futex_wait\w*|(?:new_)?sem_(?:timed)?wait\w*"
    r"|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:timed|clock)?lock|rwlock_\w*lock|join|clockjoin)\w*)(?:@.{1,40})?"
)
FILE_CALLS = re.compile(
    r"(?:_{1,2}|__GI_+)?(?:libc_)?(?:fsync|fdatasync|pread\w*|pwrite\w*|open(?:at)?(?:64)?|newfstatat|[fl]?x?stat(?:64)?|f?access\w*|getdents\w*|readdir\w*"
    r"|ftruncate\w*|fallocate\w*|msync|mkdir|unlink\w*|rename\w*)(?:_nocancel)?(?:@.{1,40})?"
)
"""Functions of the C library in which a thread sleeps for a lock or a thread, or for a file, at the other end of which nobody is: told by a stack alone,
where the kernel's word is not known.
"""

SLEEPS = re.compile(r"(?:_{1,2}|__GI_+)?(?:libc_|clock_)?nanosleep\w*|(?:__)?u?sleep")

STREAM_CALLS = re.compile(r"(?:_{1,2})?(?:libc_|GI_+)*(?:read|write)(?:_nocancel)?")
STREAMS = re.compile(
    r"(?:_{1,2})?(?:IO_\w+|f(?:read|write|gets|getc|flush|puts)\w*|getdelim|getline)|std::(?:__)?basic_(?:file|i?o?f?stream)\w*.*"
    r"|_io_FileIO_\w+|_Py_(?:read|write)(?:_\w+)?|H5FD_\w+|gz(?:_load|read|write)\w*|(?:unix|seekAnd)(?:Read|Write)|arrow::internal::File(?:Read|Write)\w*.*"
)
"""What reads and writes files: below it a read is none of a socket."""

SYSTEM_CALLS = re.compile(r"(?:_{1,2}|__GI_+)?(?:libc_)?(?:syscall|read\w*|write\w*|e?p?poll\w*|select|recv\w*|send\w*|accept\d?|ioctl|sched_yield|wait\w*|futex\w*)")  # fmt: skip
"""What calls the kernel, and says nothing of what for."""

INTERPRETER = re.compile(
    r"(?:_?Py[A-Z_]\w*|cfunction_\w+|method_vectorcall\w*|vectorcall_\w+|os_\w+|time_\w+|builtin_\w+|_io_\w+|fileio_\w+|_bufferedreader_\w+|object_vacall|slot_\w+|type_call|partial_call\w*"
    r"|r?lock_\w+|ThreadHandle_\w+|acquire_timed|_?simplequeue_\w+|_queue_\w+|select_\w+|_asyncio_\w+|gen_\w+|run_(?:mod|eval_code_obj)|pyrun_\w+|pymain_\w+)(?:\.(?:constprop|isra|part|cold|lto_priv)[\w.]{0,20})?"
)
"""Functions of the Python interpreter and of its modules for files and clocks, none of which talks to anybody."""

BEGINS = re.compile(r"_*(?:libc_start_\w+|start|main|libc_start_main\S*)")
"""Where the main thread of a program begins: a native stack that reaches it is whole."""

OF_GPUS = re.compile(
    r"(?:lib)?(?:cuda|nvidia|nccl|rccl|amdhip|hsa|torch|c10|xla|jax|pjrt|ascend|hccl|ze_|sycl|musa|mccl|tpu|neuron|nrt)|"
    r"(?:at|c10|c10d|torch|xla|tsl|stream_executor)::|cu(?:da)?[A-Z]|hip[A-Z]|acl[a-z]*[A-Z]"
)
"""Functions and libraries that run GPUs: below a line of Python one of them may wait for kernels, and for the collectives among them."""

TRANSFERS = re.compile(
    r"(?:lib)?(?:nccl|rccl|gloo|mpi|open-(?:mpi|pal|rte)|uc[pst]\b|ucc\b|hcoll|sharp|fabric|ibverbs|mlx5|efa|psm2|nvshmem|nixl|mooncake|deep_?ep|mscclpp|oneccl|hccl|tensorpipe)"
)
"""Libraries by which ranks send each other data."""

C_LIBRARY = re.compile(
    r"(?:.*/)?(?:lib(?:c|pthread|stdc\+\+|gcc_s|m|rt|dl)[.-][^/]*|ld-[^/]*|\?|\[vdso\]|python[\d.]*|libpython[^/]*|)"
)
"""What every native wait passes through, and what therefore tells nothing: the C library, the interpreter, the unknown."""
