"""Versions of PyTorch and NCCL that hang, or that take away what a hang is explained by. Data; each with its source."""

from mldebug.jobs.known_issues.model import IssueRule, JobFacts, VersionSpan

NONBLOCKING, NCCL2, LAUNCH = "TORCH_NCCL_USE_COMM_NONBLOCKING", "TORCH_DIST_USE_NCCL2", "CUDA_LAUNCH_BLOCKING"  # fmt: skip


def _device_id(facts: JobFacts) -> str:
    return f"NCCL {facts.nccl}" if facts.nccl and not facts.is_off(NONBLOCKING) else ""


def _nccl2(facts: JobFacts) -> str:
    return f"NCCL {facts.nccl}" if facts.nccl and not facts.is_off(NCCL2) else ""


def _arm(facts: JobFacts) -> str:
    return "aarch64" if facts.node.machine == "aarch64" and facts.several_nodes else ""


RULES = (
    IssueRule(
        name="torch_device_id_hang",
        spans=(VersionSpan("torch", (2, 7, 0), (2, 7, 1)),),
        when=f"a job that uses NCCL, {NONBLOCKING} not 0",
        wrong="a job that gives device_id to init_process_group may hang in any collective",
        todo=f"take PyTorch 2.7.1 or newer, or set {NONBLOCKING}=0, or leave device_id out",
        source="https://github.com/pytorch/pytorch/issues/153960",
        reads=(NONBLOCKING,),
        check=_device_id,
    ),
    IssueRule(
        name="torch_no_debug_pipe",
        spans=(VersionSpan("torch", (2, 15, 0), (2, 16, 0)),),
        when=f"a job that uses NCCL, {NCCL2} not 0",
        wrong="the backend of NCCL is the new nccl2, which makes no debug pipe and has no heartbeat monitor: "
        "nobody can ask its Flight Recorder from outside",
        todo=f"set {NCCL2}=0, or start the job with mldebug run",
        source="https://github.com/pytorch/pytorch/issues/192281",
        reads=(NCCL2,),
        check=_nccl2,
    ),
    IssueRule(
        name="nccl_abort_hang",
        spans=(VersionSpan("nccl", (2, 25, 1), (2, 26, 2)),),
        wrong="ncclCommAbort hangs: a rank whose collective failed may not end",
        todo="take NCCL 2.26.2 or newer",
        source="https://github.com/pytorch/pytorch/issues/149153",
    ),
    IssueRule(
        name="nccl_in_process_restart",
        spans=(VersionSpan("nccl", (2, 28, 3), (2, 28, 9)),),
        wrong="NVIDIA's resiliency extension asks to avoid it: restarts inside the process go wrong",
        todo="take NCCL 2.28.9 or newer, or one before 2.28.3",
        source="https://github.com/NVIDIA/nvidia-resiliency-ext#platform-support",
    ),
    IssueRule(
        name="nccl_2_29_2_hang",
        spans=(VersionSpan("nccl", (2, 29, 2), (2, 29, 3)),),
        wrong="it hangs where the versions before and after it do not",
        todo="take NCCL 2.29.3 or newer",
        source="https://github.com/pytorch/pytorch/pull/174338",
    ),
    IssueRule(
        name="nccl_arm_hang",
        spans=(VersionSpan("nccl", (2, 28, 0), (2, 29, 3)),),
        when="an ARM node, a job on several nodes",
        wrong="built with a gcc before 10 it loses slots of its network thread until a rank waits for ever, at full load",
        todo="take NCCL 2.29.3 or newer",
        source="https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2293/release-notes/rel_2-29-3.html",
        check=_arm,
    ),
    IssueRule(
        name="nccl_launch_blocking_hang",
        spans=(VersionSpan("nccl", (2, 13, 0), (2, 17, 0)),),
        when=f"{LAUNCH}=1",
        wrong="a collective over the network waits for the thread that starts it",
        todo=f"unset {LAUNCH}, or take NCCL 2.17 (PyTorch 2.0) or newer",
        source="https://github.com/NVIDIA/nccl/issues/750",
        reads=(LAUNCH,),
        check=lambda facts: facts.is_on(LAUNCH),
    ),
    IssueRule(
        name="nccl_nonblocking_hang",
        spans=(VersionSpan("nccl", (2, 26, 0), (2, 27, 0)),),
        when=f"{NONBLOCKING}=1",
        wrong="calls of NCCL that do not block hang now and then",
        todo=f"unset {NONBLOCKING}",
        source="https://github.com/pytorch/pytorch/pull/154055",
        reads=(NONBLOCKING,),
        check=lambda facts: facts.is_on(NONBLOCKING),
    ),
)  # fmt: skip
