"""The worst that a job can say, for everything that we read of a job: environment variables, log lines, files.

The lists of what we read are kept whole by tests/unit/repository/test_hostile_values.py, which fails for a variable, a log format
or a reader of files that has no row here. What is done with them: tests/processes/capture/test_hostile_jobs.py.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


WORST = {
    "product": "n[1-60000]x[1-60000]y[1-60000]z[1-60000]",
    "sum": ",".join(f"n{one}a[1-65000]" for one in range(500)),
    "number": "9" * 5000,
    "digits": "\u0663" * 40,
    "negative": "-1",
    "brackets": "[" * 8000,
    "long": "x" * 100_000,
    "control": "\x1b]0;x\x07\x1b[2J\r\n<script>{{7*7}}",
    "path": "/proc/self/root/" * 500,
    "pattern": "(a+)+$" * 500,
    "json": '{"a":' * 20_000,
    "bytes": "\udcff\udcfe" * 500,
}

NUMBERS = _names(
    """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE GROUP_RANK NODE_RANK NUM_PROCESSES PROCESS_ID
    JAX_NUM_PROCESSES JAX_PROCESS_COUNT JAX_PROCESS_ID JAX_PROCESS_INDEX MPI_LOCALNRANKS MPI_LOCALRANKID
    MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE
    OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
    PET_NNODES PET_NPROC_PER_NODE PMIX_RANK PMI_RANK PMI_SIZE SLURM_LOCALID SLURM_NTASKS SLURM_PROCID
    SLURM_RESTART_COUNT SLURM_STEP_NUM_TASKS TORCHELASTIC_RESTART_COUNT
    """
)
"""Variables that have to be right, or the rest is not looked at."""

TEXTS = _names(
    """
    COORDINATOR_ADDRESS COORDINATOR_PORT CUDA_LAUNCH_BLOCKING GLOO_SOCKET_IFNAME JAX_COORDINATOR_ADDRESS JAX_COORDINATOR_IP
    JAX_COORDINATOR_PORT JOB_ID KUBERNETES_SERVICE_HOST LSB_JOBID LSB_JOBINDEX MASTER_ADDR MASTER_PORT MLDEBUG_SWITCH_DIR
    MLDEBUG_TRACE MLDEBUG_TRACE_PID NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DEBUG_FILE NCCL_IB_DISABLE NCCL_IB_HCA
    NCCL_NET NCCL_P2P_DISABLE NCCL_RAS_ADDR NCCL_RAS_ENABLE NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME OMPI_MCA_ess_base_jobid
    PBS_ARRAY_ID PBS_ARRAY_INDEX PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_RDZV_ID PET_STANDALONE
    PMIX_NAMESPACE SGE_TASK_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_CLUSTER_NAME SLURM_CONF SLURM_JOB_ID
    SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NODEID SLURM_NODELIST SLURM_STEPID SLURM_STEP_ID
    SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_TASKS_PER_NODE TOKENIZERS_PARALLELISM TORCHELASTIC_ERROR_FILE
    TORCHELASTIC_RUN_ID TORCH_DISTRIBUTED_DEBUG TORCH_DIST_USE_NCCL2 TORCH_FR_BUFFER_SIZE TORCH_FR_DUMP_DYNAMIC_FILE_NAME
    TORCH_FR_DUMP_ON_TIMEOUT TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_WORKER_SERVER_SOCKET XDG_CACHE_HOME
    CONDA_PROMPT_MODIFIER CONDA_SHLVL LD_LIBRARY_PATH LD_PRELOAD NCCL_COMM_ID SLURM_CPUS_PER_TASK SLURM_JOB_ACCOUNT
    SLURM_JOB_PARTITION SLURM_JOB_QOS VIRTUAL_ENV WANDB_MODE
    CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
    """
)
"""All others that we read."""

VARIABLES = NUMBERS | TEXTS
NO_VARIABLES = _names(
    """
    BOOT_FAIL CATEGORY_DIGIT CATEGORY_SPACE COLLECTIVE_STATE_MISMATCH COLLECTIVE_TYPE_MISMATCH CROSS_RANK
    LAUNCH_FAILED LC_ALL LC_CTYPE LONG_BINGET LONG_BINPUT MAX_BYTES MAX_CALLS MAX_GROUPS NEWOBJ_EX NODE_FAIL NOT_LITERAL NOT_SET
    OPEN_NOATTR OUT_OF_MEMORY POP_MARK READ_PLUS RECONFIG_FAIL REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD RUST_BACKTRACE
    SHORT_BINBYTES SHORT_BINSTRING SHORT_BINUNICODE SIZE_OR_SYNTAX_MISMATCH SPECIAL_EXIT STACK_GLOBAL STAGE_OUT
    BAD_CERTIFICATE CAPTURE_SCHEMA CERTIFICATE_EXPIRED CERTIFICATE_REQUIRED HTTP_REQUEST LOG_FILE_NAME LOG_USE_SYSLOG MAIN_THREAD
    NEXT_STEPS PCI_BUS_ID PEER_DID_NOT_RETURN_A_CERTIFICATE PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF SQLITE_BUSY
    SQLITE_ERROR SQLITE_FULL SQLITE_LOCKED SQLITE_PERM SQLITE_READONLY UNKNOWN_CA WRONG_VERSION_NUMBER
    CLUSTERSHELL_GW_PYTHON_EXECUTABLE JOURNAL_STREAM MLDEBUG_EVENTS NOTIFY_SOCKET SLURMD_NODENAME XDG_STATE_HOME
    """
)
"""Words in capitals of the same modules that are none, or variables of our own process."""

NAMES = {
    "NCCL_\x1b]0;x\x07\u202e<script>": "1",
    "TORCH_\n# HELP a b\n": "2",
    **{f"NCCL_X{n}": "9" for n in range(2000)},
}
"""Variables whose names a job makes up: what begins like a library's settings is recorded of a run."""

LINES = {
    "boosting": "[{}]\ttrain-rmse:0.51",
    "espnet": "5epoch:train:1-{}batch: iter_time=0.001, loss=6.5, train_time=0.014",
    "huggingface": " 12%|#| {}/1000 [00:10<01:20, 10.1it/s]",
    "images": "tick {} kimg 48.0     time 52m 10s     sec/tick 310.2",
    "jax": "completed step: {}, seconds: 1.234",
    "keras": " {}/1000 \u2501\u2501\u2501\u2501 0s 5ms/step - accuracy: 0.5 - loss: 0.3",
    "marian": "Ep. 7 : Up. {} : Sen. 5,630,845 : Cost 34.46 : Time 6.91s",
    "megatron_deepspeed": " iteration {}/ 95367 | elapsed time per iteration (s): 1.5 | lm loss: 2.3E+00 |",
    "paddle": "Pass 13, Batch {}, Cost 35.5",
    "plain": "step {} loss 0.5",
    "rich": "Epoch 4/9 \u2501\u2501\u2501\u2501\u2578\u2501\u2501\u2501 {}/291 0:00:33 \u2022 0:00:09 7.00it/s",
    "tables": "|    total_timesteps | {} |",
    "vits": "INFO:voice:[{}, 9.99e-05]",
    "wenet": "DEBUG TRAIN Batch 4/{} loss 12.6",
}
"""A line of each log format, with its number left out."""

OTHER_LINES = ("{}", "[rank0]: {}", "[rank1]:[E] {} NCCL {}", '{{"step": {}, "loss": {}}}', "RuntimeError: {}")  # fmt: skip

HEADERS = {
    "heartbeat": b"mldebug\x01",
    "ring": b"mltrace\x01",
    "pickle": b"\x80\x04\x95" + b"\xff" * 8,
    "lists in lists": b"\x80\x02]q\x00"
    + b"".join(b"0](h%ch%ceq%c" % (n, n, n + 1) for n in range(60))
    + b"X\x01\x00\x00\x00a\x93.",
    "tuples in tuples": b"\x80\x02}(K\x00K\x01\x86q\x00"
    + b"".join(b"0h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    + b"Nu.",
    "bomb": b"\x80\x04" + b"]" * 5000 + b"(" * 5000,
    "zip": b"PK\x03\x04" + b"\xff" * 26,
    "zip end": b"PK\x05\x06" + b"\xff" * 18,
    "safetensors": b"\xff" * 7 + b"\x7f" + b'{"a":' * 1000,
    "wandb": b":W&B\xbe\xe1\x00" + b"\xff" * 7,
    "tensorboard": b"\xff\xff\xff\xff\x00\x00\x00\x00" + b"\xff" * 8,
    "version": b"__version__ = '" + b"9" * 8000,
    "json": b'{"message": {"message": {"extraInfo": ' + b'{"py_callstack": ' * 20_000,
    "elf": b"\x7fELF\x02\x01\x01",
    "nothing": b"",
}
WITHOUT_FILL = frozenset({"lists in lists", "tuples in tuples"})
"""What is read only where nothing follows it."""
FILLS = (b"\xff" * 8192, b"\x00" * 8192, bytes(range(256)) * 32)

BESIDE = ("torch/version.py", "nccl/include/nccl.h", "events.out.tfevents.1.x", "metrics.jsonl", "metrics.csv", "sft.yaml", "run-x.wandb", "error.json", "fr_0", "fr_1", "step_9/__0_0.distcp", "step_9/__1_0.distcp", "step_9/.metadata", "step_9/model.safetensors", "step_9/model.pt")  # fmt: skip
"""Files in the job's own folder, with any of these headers."""
SHARED = (
    "mldebug-{}",
    "mldebug-{}.stacks",
    "mldebug-{}.flight",
    "mldebug-{}.oom",
    "mldebug-{}.answer",
    "mldebug_trace-{}",
)
"""Files in /dev/shm, by pid and start of a rank."""

FILES = {
    "capture/flight_recorder/fifo.py": "fr_0",
    "capture/flight_recorder/files.py": "fr_0",
    "capture/process_captures.py": "memory of a rank: tests/unit/system/test_reader.py",
    "capture/stacks/blocked_call.py": "the script",
    "capture/trace/collector.py": "mldebug_trace-{}",
    "capture/trace/ring_file.py": "mldebug_trace-{}",
    "hardware/fabric_manager.py": "no job's: settings and log of the Fabric Manager, which root alone may write",
    "incidents/exits/exit_evidence.py": "error.json",
    "jobs/hook/flight_recorder.py": "mldebug-{}.flight",
    "jobs/hook/memory.py": "mldebug-{}.oom",
    "jobs/hook/records.py": "mldebug-{}",
    "jobs/hook/requests.py": "mldebug-{}.answer",
    "jobs/hook/stacks.py": "mldebug-{}.stacks",
    "jobs/hook/switches.py": "mldebug-{}",
    "jobs/hook/trace_attach.py": "mldebug-{}.answer",
    "jobs/run_records/reader.py": "the script",
    "jobs/logs/event_files.py": "events.out.tfevents.1.x",
    "jobs/logs/follower.py": "the log",
    "jobs/logs/output_folders.py": "sft.yaml",
    "jobs/logs/tail.py": "the log",
    "jobs/ranks/known_issues.py": "no job's: /etc/hosts",
    "jobs/ranks/libraries.py": "torch/version.py",
    "probes/history/monitor.py": "no job's: the store of the probes",
    "storage/checkpoints/one_shot.py": "no job's: a folder that a person names",
    "storage/checkpoints/reader.py": "step_9/model.pt",
    "storage/checkpoints/series_reader.py": "step_9/model.safetensors",
    "storage/usage/answer.py": "no job's: checkpoints below a folder that a person names",
    "system/child/reader_child.py": "carries out what the others ask",
    "watch/wait_sampler.py": "the script",
}
"""Which of these files, or what else, each module below agents/mldebug_agents reads that asks for files of jobs."""
ELSEWHERE = frozenset({"the script", "the log"})
