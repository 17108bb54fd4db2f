"""Settings that hang a job, slow it, or take away what a hang is explained by. Data; each with its source.

Only what stood in the environment when the process began can be seen: what a script sets later in Python cannot.
"""

from mldebug.jobs.known_issues.model import ANY, IssueRule, JobFacts, VersionSpan
from mldebug.jobs.known_issues.nccl_log import is_local
from mldebug.jobs.known_issues.version_rules import LAUNCH
from mldebug.jobs.known_issues.version_rules import RULES as OF_VERSIONS

TORCH_SETTINGS = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
NCCL_SETTINGS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
HANDLING = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
MONITORING, DUMP = "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT"
RAS, DEBUG = "NCCL_RAS_ENABLE", "TORCH_DISTRIBUTED_DEBUG"
TOKENIZERS = "TOKENIZERS_PARALLELISM"
PATHS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
NO_IB, NETWORK = "NCCL_IB_DISABLE", "NCCL_NET"
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
MANY_CORES = 4  # of a node: with fewer of them one for a rank may be meant
_TAMED = ("iommu=pt", "iommu=soft", "iommu=off", "amd_iommu=off", "intel_iommu=off", "iommu.passthrough=1")  # fmt: skip
_HANGS = next(rule for rule in OF_VERSIONS if rule.name == "nccl_launch_blocking_hang")


def _launch(facts: JobFacts) -> str:
    return "" if _HANGS.finding(facts) else facts.is_on(LAUNCH)


def _ras(facts: JobFacts) -> str:
    """PyTorch for CUDA loads NCCL into jobs of gloo, too: those have no GPU open."""
    return "" if facts.gpu is False else facts.is_off(RAS)


def _detail(facts: JobFacts) -> str:
    value = facts.settings.get(DEBUG, "").strip()
    return f"{DEBUG}={value}" if value.upper() == "DETAIL" else ""


def _paths(facts: JobFacts) -> str:
    return ", ".join(filter(None, (facts.is_on(name) for name in PATHS)))


def network_off(facts: JobFacts) -> str:
    """The setting of this job that keeps NCCL from using RDMA, as `NAME=value`; "" where there is none."""
    socket = facts.settings.get(NETWORK, "").strip()
    return facts.is_on(NO_IB) or (f"{NETWORK}={socket}" if socket.lower() == "socket" else "")


def _network(facts: JobFacts) -> str:
    off = network_off(facts) if facts.several_nodes and facts.node.rdma else ""
    return f"{off} beside {', '.join(facts.node.rdma[:4])}" if off else ""


def _interfaces(facts: JobFacts) -> str:
    settings = [f"{name}={facts.settings[name]}" for name in INTERFACES if name in facts.settings]
    return ", ".join(one for one in settings if facts.several_nodes and _only_local(one))


def _only_local(setting: str) -> bool:
    names = setting.partition("=")[2].strip().removeprefix("=").split(",")
    return all(is_local(name.strip().removeprefix("=")) for name in names)


def _one_core(facts: JobFacts) -> str:
    few = facts.cores == 1 and facts.node.cores >= MANY_CORES
    return f"1 of {facts.node.cores} cores" if few and facts.gpu else ""


def _iommu(facts: JobFacts) -> str:
    tamed = any(word in _TAMED for word in facts.node.kernel_arguments)
    applies = (
        facts.rocm and facts.several_ranks and facts.node.iommu and facts.node.kernel_arguments
    )
    return "ROCm behind an IOMMU" if applies and not tamed else ""


RULES = (
    IssueRule(
        name="launch_blocking",
        wrong="every kernel is waited for: a setting for debugging, which costs speed",
        when="set to 1, and no NCCL that hangs with it",
        todo=f"unset {LAUNCH} when the fault is found",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        reads=(LAUNCH,),
        check=_launch,
    ),
    IssueRule(
        name="error_handling_off",
        when="set to 0",
        wrong="a collective that fails or times out does not end the job: it hangs until somebody kills it",
        todo=f"unset {HANDLING[0]}",
        source=TORCH_SETTINGS,
        reads=HANDLING,
        check=lambda facts: facts.is_off(*HANDLING),
    ),
    IssueRule(
        name="monitoring_off",
        when="set to 0",
        wrong="where the watchdog itself hangs nobody ends the process, and no debug pipe answers",
        todo=f"unset {MONITORING}",
        source=TORCH_SETTINGS,
        reads=(MONITORING,),
        check=lambda facts: facts.is_off(MONITORING),
    ),
    IssueRule(
        name="no_dump_at_timeout",
        when="set to 0",
        wrong="the Flight Recorder is not written when a collective times out",
        todo=f"unset {DUMP}",
        source=TORCH_SETTINGS,
        reads=(DUMP,),
        check=lambda facts: facts.is_off(DUMP),
    ),
    IssueRule(
        name="flight_recorder_off",
        when="set to 0, and not a PyTorch without NCCL",
        wrong="collectives are not recorded: after a hang nobody can tell which rank left one out",
        todo=f"unset {BUFFER[0]}, or set it to 2000",
        source=TORCH_SETTINGS,
        reads=BUFFER,
        check=lambda facts: "" if facts.on_cpus else facts.is_off(*BUFFER),
    ),
    IssueRule(
        name="blocking_wait",
        when="set to 1",
        wrong="PyTorch starts no watchdog then: no Flight Recorder is written at a timeout, and no debug pipe answers",
        todo=f"unset {BLOCKING[0]}",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        reads=BLOCKING,
        check=lambda facts: facts.is_on(*BLOCKING),
    ),
    IssueRule(
        name="ras_off",
        when=f"{RAS} set to 0, a job that uses NCCL",
        spans=(VersionSpan("nccl", (2, 24, 0), ANY),),
        wrong="NCCL answers nobody who asks which ranks lag behind",
        todo=f"unset {RAS}",
        source=NCCL_SETTINGS,
        reads=(RAS,),
        check=_ras,
    ),
    IssueRule(
        name="debug_detail",
        when="set to DETAIL",
        wrong="each collective is compared over another backend first, which is slow, and device_id of init_process_group "
        "does not reach NCCL, which can hang a job",
        todo=f"unset {DEBUG}, or set it to INFO",
        source="https://github.com/pytorch/pytorch/issues/178977",
        reads=(DEBUG,),
        check=_detail,
    ),
    IssueRule(
        name="fast_paths_off",
        when="set to 1",
        wrong="GPUs of one node do not reach each other the fastest way: settings for debugging, which cost speed",
        todo="unset them when the fault is found",
        source=NCCL_SETTINGS,
        reads=PATHS,
        check=_paths,
    ),
    IssueRule(
        name="rdma_switched_off",
        when="set to 1 or Socket, a job on several nodes, RDMA devices with an active port",
        wrong="NCCL goes over TCP though the node has RDMA",
        todo="unset it, unless the RDMA network is not for this job",
        source=NCCL_SETTINGS,
        reads=(NO_IB, NETWORK),
        check=_network,
    ),
    IssueRule(
        name="interface_set_to_local",
        when="loopback and container bridges alone, a job on several nodes",
        wrong="nobody on another node can be reached over that interface: the job hangs when it starts",
        todo="name the interface of the network between the nodes",
        source=NCCL_SETTINGS,
        reads=INTERFACES,
        check=_interfaces,
    ),
    IssueRule(
        name="tokenizers_fork",
        when="set to true",
        wrong="a tokenizer that was used before a DataLoader starts its workers may hang in a worker for ever: the library "
        "would step aside there by itself, were this not set",
        todo=f"set {TOKENIZERS}=false, or unset it",
        source="https://github.com/huggingface/transformers/issues/5486",
        reads=(TOKENIZERS,),
        check=lambda facts: facts.is_on(TOKENIZERS),
    ),
    IssueRule(
        name="one_core",
        when=f"a rank that may use one core, a node of {MANY_CORES} or more, a job that has a GPU open",
        wrong="Python, NCCL's threads and the DataLoader's workers of a rank share one core: steps are slow, and the GPU waits",
        todo="srun --cpus-per-task=N, or SRUN_CPUS_PER_TASK: srun does not take it from sbatch since Slurm 22.05",
        source="https://slurm.schedmd.com/sbatch.html",
        check=_one_core,
    ),
    IssueRule(
        name="amd_iommu",
        when="PyTorch for ROCm, several ranks, an IOMMU, none of " + ", ".join(_TAMED) + " given to the kernel",
        wrong="jobs on several AMD GPUs may hang",
        todo="start the kernel with iommu=pt",
        source="https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/install-faq.html",
        check=_iommu,
    ),
)  # fmt: skip
