"""What a support bundle holds: the layout that its writer and the replay share.

A folder, or a tar.gz with one folder in it. All times in it are unix seconds of the recorded node.
"""

from typing import Literal

from mldebug.core.model import Gap, MeasuredData, ReportData

SCHEMA = "mldebug.bundle/1"

MANIFEST = "manifest.json"
CONFIG = "config.yaml"  # effective
VERSIONS = "versions.json"
DOCTOR = "doctor.json"
STATUS = "status.json"  # Snapshot: the last one, whole
STATUSES = "status.jsonl"  # Snapshots over time, without what stands in the files below
JOBS = "jobs.json"  # Job[]
WATCH = "gpus/watch.jsonl"  # NodeWatch, one a line
FULL = "gpus/full.jsonl"  # NodeGpus, one a line
FAILED = "gpus/failed.jsonl"  # GpuReadFailure, one a line
KERNEL = "kernel.log"  # records as /dev/kmsg gives them; lines that begin with a space belong to the one before
MEMORY = "memory.json"  # name -> what the agent remembered under it when the recording began
AGENT_LOG = "agent.log"
REPORTS = "reports"  # <id>/report.json
AGENT_PROC = "agent"  # files of the agent's /proc folder


class GpuReadFailure(MeasuredData, frozen=True, kw_only=True):
    """A reading of the GPUs that failed, and why."""

    at: float
    read: Literal["watch", "full"]
    error: str = ""


class ClockPair(MeasuredData, frozen=True, kw_only=True):
    """The unix clock and the clock of the kernel's log (seconds since boot) at one moment."""

    unix: float
    monotonic: float


class Manifest(ReportData, frozen=True, kw_only=True):
    """What a bundle contains, what is missing, and how it was recorded."""

    schema: str = SCHEMA
    version: str = ""  # of mldebug
    began_at: float
    ended_at: float
    clocks: ClockPair
    kernel_pids: bool = True  # are pids here those that the kernel logs?
    read_by: Literal["agent", "mldebug support-bundle", "nobody"] = "nobody"  # the GPUs
    counted: bool = False  # counters were made monotone already
    files: dict[str, int] = {}  # name -> bytes
    gaps: tuple[Gap, ...] = ()
    replaced: dict[str, int] = {}  # kind -> how often something was replaced
