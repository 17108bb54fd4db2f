"""Phrases by which libraries say whose failure an error is, as data: a family of software, and what it writes.

Read from the libraries' sources, or from what people have posted; `tests/unit/diagnosis/test_whom_words_accuse.py` has for each family
the texts and where they stand. `…` in a comment is what varies.
"""

from collections.abc import Mapping

# A broken device, or a kernel of the rank's own that failed. The NCCL watchdog's thread passes these on.
DEVICE: Mapping[str, tuple[str, ...]] = {
    "CUDA": (
        # not: the other GPU of a link, and what a process gets that is ending already
        r"\b(?:CUDA|HIP) error:? (?!.{0,120}\b(?:peer|remote)\b|driver shutting down|context is destroyed|.{0,40}\bexternal\b|\(?run with|[\w/.-]+:\d)\S",
        r"uncorrectable (?:ECC|NVLink) error",
        r"device-side assert triggered",
        r"CUDNN_STATUS_(?:EXECUTION|MAPPING)_FAILED",
        r"\bXid\b",
        r"Memory access fault by GPU node-\d|HW Exception by GPU node-\d|HSA_STATUS_ERROR_\w{3,60}",
    ),
}

# A process, thread or file of the rank's own, or a library that judges the rank's own data
OWN: Mapping[str, tuple[str, ...]] = {
    "DataLoader and pools": (
        r"DataLoader (?:worker|timed out)|DataLoader worker process|[Pp]in memory thread|subprocess(?:es)? has abruptly died|received 0 items of ancdata",
        r"in replica \d{1,3} on device \d",
    ),
    "torch": (
        r"exhausted all inputs|Error\(s\) in loading state_dict|mat1 and mat2|must match the (?:size|existing size)|on the same device, but found",
        r"PytorchStreamWriter failed|PytorchStreamReader failed|unable to (?:open|mmap|write to) (?:file|shared memory)|doesn't match the broadcast shape",
        r"Expected to have finished reduction in the prior iteration|CUBLAS_STATUS_|CUDNN_STATUS_|CUSOLVER_STATUS_",
    ),
    "NPU": (r"\b(?:aicore|aivec|aicpu|vector core) (?:error )?exception|\bEI0001\b|\bEJ0001\b",),
    "memory": (
        r"DefaultCPUAllocator: (?:can't|not enough memory)|RESOURCE_EXHAUSTED: (?:Out of memory|.{0,80}allocat)|(?:CUDA|HIP|XPU) out of memory",
    ),
    "faults": (
        r"Fatal Python error: (?!Aborted)",
        r"\bCaught signal (?:4|7|8|11) \(|\bSignal: .{1,60} \((?:4|7|8|11)\)",
    ),
}

# What only passes on that others failed: the reason stands above, elsewhere, or in the quote that follows
RELAYED: tuple[str, ...] = (
    r"Worker failed with error|stack trace (?:\(?above\)? )?for the root cause|See root cause above|Engine core initialization failed",  # vLLM
    r"there are other ranks that (?:didn't|did not) finish|\bRank \d{1,7} scheduler died\b",  # SGLang
    r"\bOn WorkerInfo\(id=\d|A remote actor call has failed|ray::[\w.<>]{1,200}\(\) ?\(pid=|inspect the previous error messages for a cause",
    r"\S \[rank\d{1,7}\]: ?\S",  # a marked line of another rank inside the text
    r"\bprocess \d{1,7} terminated with (?:the following error|exit code|signal)|-- Process \d{1,7} terminated",
)

# Words about another rank, about "some rank", or about who serves them all: the speaker is a victim
PEER: Mapping[str, tuple[str, ...]] = {
    "NCCL": (
        # src/misc/socket.cc, src/os, transport/net_ib.cc of 2.4 to 2.31: `Net :`, `socketProgress:`, `ncclOsSocket…:`
        r"ncclRemoteError|remote process exit|by a remote worker",
        r"Connection closed by (?:remote )?peer|Call to (?:connect|accept|recv|send)\w{0,8} (?:from|to|returned)",
        r"(?:ncclOs|nccl)?[sS]ocket(?:StartConnect|PollConnect|Progress|ProgressOpt|FinalizeConnect|Connect|Accept)\w{0,12}(?::| to )",
        r"[Cc]onnect to \S{1,80} (?:failed|returned)|Net ?work is unreachable|No route to host",
        r"Got completion from peer|net_ib.{0,80}\b(?:timeout|error)\b|\[Service thread\] (?:Error encountered progressing|Accept failed|Connection closed by)",
        r"Socket recv failed while polling for opId|NCCL communicator was aborted|Comm 0x\w+ is in abort state|ncclTimeout\b|Mismatched collective detected",
        r"[Mm]essage truncated ?: receiv(?:ed|ing) \d{1,18} bytes instead of",
    ),
    "watchdog": (
        # ProcessGroupNCCL.cpp, from torch 1.8 on; TraceUtils.h
        r"Watchdog caught collective operation timeout|watchdog thread terminated with exception",
        r"caught collective operation timeout|ran for \d{1,9} milliseconds before timing out",
        r"Some NCCL operations have failed or timed out|caused the desync are",
        r"Received a (?:dump signal|global timeout) (?:due to a collective timeout )?from|ProcessGroupNCCL preparing to dump debug info",
        r"Timeout at NCCL work|failure detected by watchdog at work|WorkNCCL\(.{0,400}timed out in call to wait",
    ),
    "heartbeat monitor": (
        r"ProcessGroupNCCL watchdog hang|ProcessGroupNCCL's watchdog got stuck|watchdog got stuck for \d+ ?s",
        r"Heartbeat monitor timed out! Process|heartbeat monitor thread is terminating|no heartbeat of its watchdog",
        r"watchdog detected a collective timeout and notified current rank",
    ),
    "gloo": (
        # gloo/transport/tcp/{pair,buffer,unbound_buffer}.cc, transport/uv
        r"Timed out waiting \d+ ?ms for (?:recv|send|connect)\w{0,8} operation|[Aa]pplication timeout caused pair closure",
        r"(?:Connect|Read|Write) timeout \[|Socket (?:unexpectedly )?closed \[|timed out connecting: ",
        r"enforce fail at .{0,200}gloo/|op\.preamble\.length|Gloo connectFullMesh failed",
    ),
    "store": (
        # TCPStore.cpp, socket.cpp, FileStore.cpp, utils/data
        r"DistNetworkError|DistStoreError|Socket Timeout|recvValue\w{0,12} failed|sendBytes failed",
        r"[Ff]ailed to (?:recv|send), (?:got|sent) 0 bytes|Connection was likely closed",
        r"[Ww]ait timeout (?:after \d+ ?ms|for key)|TCPStore.{0,60}timed? ?out|store->get\('.{1,40}'\) got error|Wait timeout\s*$",
        r"client socket has (?:failed|timed out)|Timed out initializing process group|store based barrier",
        r"shared seed from the distri|Timeout waiting for key: |waitForInput: (?:poll for )?socket SocketImpl\(.{0,300}tim(?:ed |e)out",
        r"KazooTimeoutError\b",
    ),
    "rendezvous": (
        r"Rendezvous(?:Timeout|Closed|Connection|GracefulExit|State)Error|rendezvous.{0,60}(?:timed? ?out|is closed)",
        r"connection to (?:the C10d store|etcd) has failed|Error waiting on exit barrier",
        r"\bconnect\(\) timed out|EtcdConnectionFailed",
    ),
    "debug checks": (
        # ProcessGroupWrapper.cpp, ProcessGroupGloo.cpp, reducer, algorithms/join.py, accelerate
        r"Detected mismatch between collectives on ranks|CollectiveFingerPrint|monitored ?[Bb]arrier",
        r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param in process",
        r"Detected at least one rank that exhausted inputs|DistributedOperationException",
    ),
    "Horovod": (
        r"HorovodInternalError|Horovod has been shut down|tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
        r"Mismatched (?:\w+ ){1,4}(?:types|shapes|operations?|ranks|factors|placement)\w{0,12}: ?One rank|One or more rank .{0,40}is stalled",
        r"HostsUpdatedInterrupt|Stalled ranks|WorkersAvailableException|Timed out waiting for at least \d{1,7} available slots",
    ),
    "MPI": (
        r"has lost communication with|MPI_ABORT was invoked|MPI_ERR_(?:PROC_FAILED|REVOKED|TRUNCATE)\w{0,12}",
        r"Communication error with rank|Fatal error in (?:internal_|P?MPI_)\w{2,40}: (?:Message truncated|Other MPI error|Unknown error|See the MPI)",
        r"Connection reset by peer \(104\)|btl_tcp_(?:endpoint|frag)|peer process .{0,40}(?:died|failed)|was unable to complete a TCP connection",
        r"application called MPI_Abort\(|peer process has unexpectedly disconnected",
        r"mpi4py\.MPI\.Exception: (?:Other MPI error|MPI_ERR_(?:OTHER|UNKNOWN|INTERN))|MPIX_ERR_PROC_FAILED",
    ),
    "Ray": (
        r"ActorDiedError|RayActorError|The actor (?:died|is dead)|WorkerCrashedError|ActorUnavailableError|NodeDiedError|OwnerDiedError",
        r"RayTaskError|A worker died or was killed while executing a task|Worker unexpectedly exits with a connection error",
        r"have not joined the collective operation|make sure all worker ranks call `|has not been called by all \d{1,7} workers",
        r"ray\.exceptions\.OutOfMemoryError|Task was killed due to the node running low on memory",
        r"ActorUnschedulableError|The actor is not schedulable|TrainingFailedError|Training(?:Worker)?Error: A worker in the worker group",
        r"ray\.exceptions\.(?:GetTimeout|ObjectLost|ObjectFetchTimedOut|OwnerDied|NodeDied|LocalRayletDied|RpcError)\w{0,12}|EngineDeadError",
    ),
    # phi/core/distributed/store/tcp_utils.cc
    "Paddle": (
        r"\bTCP (?:connect|accept) (?:to |from )?\S{1,80} timeout|gen_comm_id_helper\.cc:\d{1,5}\] connect addr=\S{1,80} failed",
    ),
    "MindSpore": (
        r"Failed to build the cluster topology|\bTime out nodes are \[|There's worker exits with exception",
    ),
    "oneCCL": (
        r"\boneCCL: .{0,160}(?:atl_status: FAILURE|atl_\w{1,20}\.cpp:\d{1,5} (?:send|recv|poll|check)\b)",
    ),
    "Neuron": (r"\bCCOM WARN Timeout waiting for (?:incoming connection|RX)",),
    "NVSHMEM": (
        r"nvshmemi?_(?:connect_eps|setup_connections|bootstrap\w{0,20}):\d{1,6}: non-zero status",
    ),
    # src/manager.rs passes on what gRPC's deadlines say of the quorum
    "torchft": (
        r"status: (?:Cancelled|DeadlineExceeded|Unavailable|Aborted), message: |\bdeadline has elapsed",
    ),
    # dmlc/xgboost src/collective, microsoft/LightGBM src/network
    "boosting": (
        r"Failed to bootstrap the communication group|\bSocket (?:send|recv|accept|connect) error,",
    ),
    "Dask, Spark": (
        r"\bCommClosedError\b|\bKilledWorker\b|[Cc]oordinator cannot get all barrier sync requests",
    ),
    # csrc: the host and the kernels wait for tokens of other ranks
    "DeepEP": (r"DeepEP (?:error: )?(?:(?:CPU )?recv )?timeout\b",),
    # inprocess/exception.py: what its wrapper raises in the ranks that are well
    "resiliency": (
        r"nvidia_resiliency_ext\.[\w.]{1,80}\.(?:RankShouldRestart|RankDiscarded)\b|^RankDiscarded\b",
    ),
    "NIXL": (
        r"NIXL_ERR_(?:REMOTE_DISCONNECT|BACKEND)\b|\bnixl(?:RemoteDisconnect|Backend)Error\b",
    ),
    "torchcomms": (r"NCCLX? work timed out after \d",),
    # tensorflow/core/common_runtime, tools of Paddle, TCPStore's client
    "others' ends": (
        r"StartAbort (?:DEADLINE_EXCEEDED|UNAVAILABLE|ABORTED)|ABORT!!! Out of all \d{1,7} trainers|Stop_waiting response is expected",
        r"got fatal signal from worker processes|Worker VllmWorkerProcess pid \d{1,10} died|^ChildProcessError: worker died",
        r"\bRank \d{1,7} crashed with exit code|\[rank: \d{1,7}\] Child process with PID \d{1,10} terminated with code",
        r"AllreduceException: Averaging step failed|Timeout while waiting for keys in EtcdStore|Topology build timed out",
        r"^(?:\w{1,40}\.){0,4}\w{1,40}(?:Error|Exception): (?:[Cc]ancell?ed|[Aa]borted)\.?\s*$|RemoteDisconnected\('Remote end closed connection without response'\)",
        r"Check failed: .{0,120}\b(?:peer|neighbou?r|rank)\b.{0,80}\b(?:Connection (?:reset by peer|refused|timed out)|Broken pipe)|GradientAveragingTimeoutError",
        r"\bFollowers \[.{1,200}\] timed out in |Stopping training due to lack of heartbeats|\bMeshFailure\(rank=",
        r"Could not get barrier coordinator response|HangWatchdog: execution of module|first_call_to_collective_operation timed out",
    ),
    "vLLM": (r"RPC call to \w{1,80} timed out|Engine core proc \S{1,80} died unexpectedly",),
    "JAX": (
        # tsl/distributed_runtime/coordination, jax/_src/distributed.py
        r"JAX distributed service detected fatal errors|CoordinationService\w{0,20}|[Cc]oordination service (?:has stopped|is shutting down|.{0,80}detected)",
        r"coordination (?:agent|service).{0,120}(?:error|unavailable|heartbeat)|tasks? (?:are|is) unhealthy|heartbeat timeout",
        r"DEADLINE_EXCEEDED: .{0,40}Barrier|Barrier (?:timed out|failed because)|[Ss]hutdown barrier has failed|Failed to connect to (?:distributed|coordination) (?:JAX )?(?:controller|service)",
        r"Failed to send RPC to coordination service|UNAVAILABLE: (?:Socket closed|failed to connect to all addresses)|failed to connect to all addresses; last error",
        r"threads to join the rendezvous, but|DEADLINE_EXCEEDED: (?:GetKeyValue|Gloo|Failed to)|Gloo (?:all|context)\w{0,20}.{0,40}failed: .{0,80}(?:peer|[Tt]imed out)",
    ),
    "HCCL": (
        # Ascend's collectives: the error codes of a wait and of a socket that time out
        r"HCCL.{0,60}time ?(?:d )?out|\bEI00(?:0[26]|15)\b|notify (?:wait|register).{0,40}time ?s? ?out|stuck notify num|socket times out",
    ),
    "TensorFlow": (
        r"Clean shutdown is not currently implemented|Collective ops is aborted by|worker/replica:\d{1,7}/task:\d{1,7}.{0,80}(?:is down|unavailable|restarted)",
    ),
    "UCX": (
        r"Endpoint timeout|Endpoint is not connected|Destination is unreachable|Transport retry count exceeded|transport retry counter exceeded",
        r"Remote (?:access|operation) error.{0,40}mlx|Connection reset by remote peer|peer is not responding|failed: keepalive",
    ),
    "libfabric": (
        r"NET/OFI .{0,60}completed with error|FI_E(?:CONN\w{1,8}|HOSTUNREACH|TIMEDOUT)|Unresponsive (?:receiver|remote)|UNDELIVERABLE",
        r"\bPeer EFA addr: |\befa_rdm_\w{1,40}_handle_error\(\)",
        r"Unable to insert remote address into address vector|Unexpected number of remote (?:control )?rails",
    ),
}

# Launchers, once one of their ranks has failed
LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torchelastic": (
        r"ChildFailedError|SignalException|closing signal SIG|[Rr]eceived \S{1,20} death signal",
        r"ProcessExitedException: process \d{1,7} terminated",
    ),
    "Lightning": (r"\bSIGTERMException\b",),
    "DeepSpeed": (r"sigkill_handler\] Killing subprocess|exits with return code = -?\d",),
}

# Each side of it says the same, or every rank of a node would: who is first to say so is chance
UNCLEAR: tuple[str, ...] = (
    r"disagreement between rank0 and rank\d|NVLink SHARP|Fabric Manager|(?:CUDA error:?|[Ee]rror) (?:802:? )?.{0,2}system not yet initialized",
    r"Duplicate GPU detected|Mismatched NCCL version|NCCL version mismatch|Bootstrap Root : ",
    r"(?:^|\n)(?:ConnectionResetError|BrokenPipeError|ConnectionRefusedError|ConnectionAbortedError|EOFError)(?:: \[Errno \d{1,3}\] [A-Za-z ]{1,60})?:?\s*(?:$|\n)",
    r"peer access is not supported|CUDA failure:? (?:\d{1,4} )?'[^']{0,80}peer|(?:Cuda|HIP) failure:? (?:\d{1,4} )?'[^']{0,80}peer",
    r"Fatal Python error: Aborted|without an active exception",
    r"\binvalid device ordinal\b",  # more ranks than devices
    r"DataLoader worker .{0,200}killed by signal: (?:Terminated|Interrupt|Hangup|User defined)",  # somebody told it to end
    r"Could not acquire GIL within \d+ ms on exit",
    r"Invalid access of peer GPU memory|external entity outside of CUDA|error external to the process|driver shutting down|context is destroyed",
)

# A lock, a name or a device that another process holds or was quicker to take, and what the processes of a node build once for all: of
# those that come at one time another run might name another
CONTESTED: tuple[str, ...] = (
    r"^FileExistsError\b|^(?:\w{1,40}\.){0,4}(?:Already)?Lock\w{0,20}(?::|\s*$)|\[Errno (?:17|26|39)\]|\[Errno 2\] .{0,300}' -> '|\[Errno 16\].{0,300}\.nfs\d",
    r"^FileNotFoundError\b.{0,300}\.(?:done|ready|flag|ok|complete[d]?|finished|started|marker|sync|success)'",  # what another process writes when it is so far
    r"\bunable to lock file|\bdatabase (?:table )?is locked|\block\b.{0,200}\bcould not be acquired|\b(?:could not|failed to|unable to|cannot) (?:acquire|obtain|get|take) .{0,60}\block\b",
    r"\b(?:is|already) (?:in use|locked|held|opened) by (?:another|some other|a different|other|PID|process)\b",
    r"\bdevices?(?:\(s\))? (?:are|is|is/are) busy or unavailable|\balready in use by another (?:client|process)",
    r"(?:torch_extensions|torchinductor_\w{1,40}|\.triton|triton_cache|\.cache)/.{0,300}\.so[.\d]{0,12}: (?:cannot open shared object|file too short|invalid ELF|failed to map)",
)

# What a process gets that is ending already, or whose helpers are: its own failure, or what follows from another's
OF_AN_END: tuple[str, ...] = (
    r"/pymp-\w{1,40}/|I/O operation on closed|\bhandle is closed|\bEvent loop is closed|cannot schedule new futures after|\[Errno 9\]|Bad file descriptor",
)

# Numbers of which all ranks hold the same, for they have been reduced or were updated together: who says first that one is not finite is chance
NOT_FINITE = r"\b(?:nans?|infs?|infinit(?:e|y)|non-?finite|not finite|overflow\w{0,6}|underflow\w{0,6}|explod\w{1,3})\b"
SHARED_NUMBERS = (
    r"\bgrad(?:ient)?s?\b|\bnorms?\b|\bscale[rs]?\b|\bweights?\b|\bparam(?:eter)?s?\b|\boptimi[sz]er\b"
    r"|\b(?:global|total|mean|avg|averaged?|reduced|synced|gathered)\b(?: \w{1,20}){0,2} loss(?:es)?\b|\bloss(?:es)? (?:became|across|over|of) (?:infinite|all|the job)"
)
SHARED_SCALES = r"loss[ _-]scale .{0,30}\bminimum\b|\bminimum loss[ _-]scale|invalid value \((?:nan|inf)\) encountered in"
# But this one has looked at its own part, before that
BEFORE_REDUCED = r"\b(?:local|this rank(?:'s)?|per[- ]rank|before (?:\S{1,20} ){0,2}(?:reduc\w{1,4}|communication|all-?reduce|sync\w{0,12}))\b"
# Nor is it shared where one item of the data is called by its number or name: no two ranks read the same
OF_A_DATUM = r"(?<!\bat )(?<!\bafter )\b(?:sample|image|row|column|record|document|item)\b (?:#|no\.? ?|index |id )?[\d'\"/]"

# Printed by a kernel that waits for another GPU, before it traps
DEVICE_WAIT = r"^(?=.{0,300}\b(?:rank|peer|flag|barrier|signal|recv|send|dispatch|combine|nvshmem|deepep)).{0,300}\btim(?:ed|e)[ -]?out\b"

# In an error of general type: words that may be about somebody else
OTHERS: tuple[str, ...] = (
    r"\b(?:peers?|remote|ranks?|workers?|actors?|hosts|nodes?|replicas?|followers?|coordinator|leader|cluster|slice|quorum|master|raylet)\b",
    r"\b(?:members?|participants?|siblings?|trainers?|learners?|sentinel|upstream|downstream|stage \d|shut ?down|hung up|left early)\b|\bssl\b|\btls\b",
    r"\b(?:another|other|some|every) process|\bprocess(?:es)? (?:group|\d)|\bsubprocess(?:es)?\b|\bPE \d",
    r"\b(?:dis)?connect(?:ed|ion|ing|s)?\b|\bsockets?\b|\bendpoint\b|\bnetwork\b|\btransport\b|\brendezvous|\bbarrier|\bheartbeat|\brpc|grpc|\bunreachable|\bunavailable",
    r"\btime[ds]?[ -]?out|\btimeout|deadline|\bTIMEOUT|\bwait(?:ed|ing)\b|\babort(?:ed|ing)?\b|\bpreempt|\bcancell?ed|\binterrupted\b|\bno response|not respond",
    r"\bcollectives?\b|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|\bbootstrap|communicator",
    r"nccl|rccl|gloo|hccl|oneccl|\bccl|\bmpi|\bucx|\bucc\b|nvshmem|libfabric|\bofi|infiniband|\bibv|\brdma|nvlink|mnnvl|\befa\b|nixl|deepep|horovod|c10d|tensorpipe|\bzmq",
    r"\b(?:send|recv|receive)(?:ing)? ?(?:\(|to|from)|\bserver \d|\binstance \d|\bstream (?:ended|closed)",
    r"\b(?:dead|died|killed|crashed|lost|gone|hung|hang)\b|\bfailed to (?:send|recv|receive|connect|join|register)|\bexited\b|previous error|(?:see|check) (?:the )?(?:other )?(?:logs?|error)",
)
