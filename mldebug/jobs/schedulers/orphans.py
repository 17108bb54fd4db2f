"""Which processes belong to a job that is gone, by their environment and their ancestors. Pure.

Where anything suggests that a job still exists, its processes are not orphans: a wrong name is worse than none.
"""

import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

RANKS = ("RANK", "SLURM_PROCID", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
VARIABLES = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "TORCHELASTIC_RUN_ID", *RANKS)
# below one of these it belongs to a job, a prolog or an allocation that is there
SLURM_PARENTS = ("slurmstepd", "slurmd", "srun", "salloc", "sbatch", "slurmctld")
_INITS = ("systemd", "init", "tini", "dumb-init", "pause", "s6-svscan", "catatonit", "docker-init", "runit", "launchd")  # fmt: skip
_STEP = re.compile(r"slurmstepd: \[(\d{1,10})\.")


class OrphanSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """A process that may be an orphan (its job is gone), with the facts that decide it."""

    pid: int
    start_ticks: int
    name: str
    ancestors: tuple[str, ...]  # names, the parent's first, process 1's last
    variables: dict[str, str]  # those of `VARIABLES` that it has
    holds_gpu: bool = False


class LivingJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of jobs that still exist on this node or in Slurm."""

    steps: frozenset[str] = frozenset()  # Slurm jobs that have a slurmstepd here
    slurmd: bool = False  # this node's slurmd is seen: so would be its steps
    alive: frozenset[str] | None = (
        None  # Slurm jobs that are not over, by squeue; None: not known now
    )


class OrphanReason(msgspec.Struct, frozen=True, kw_only=True):
    """Which job an orphan belonged to, and how it is known that the job is gone."""

    job: str
    why: str
    rank: str = ""


def step_job(title: str) -> str:
    """The job id in a slurmstepd's command line: 17 for `slurmstepd: [17.batch]`; "" where it has none."""
    match = _STEP.match(title)
    return match[1] if match else ""


def find_orphans(
    suspects: Collection[OrphanSuspect], living: LivingJobs
) -> Iterator[tuple[OrphanSuspect, OrphanReason]]:
    """The suspects that are orphans, each with the reason: the process carries a rank or holds a GPU, and its Slurm job or
    torchrun launcher is gone.
    """
    launched = {_launch(suspect) for suspect in suspects if not _left(suspect)}
    for one in suspects:
        gone = _of_slurm(one, living) if one.variables.get("SLURM_JOB_ID") else _of_launch(one, launched)  # fmt: skip
        if gone is not None:
            yield one, gone


def _of_slurm(suspect: OrphanSuspect, living: LivingJobs) -> OrphanReason | None:
    job = suspect.variables["SLURM_JOB_ID"]
    if not job.isdecimal() or not (rank_of(suspect.variables) or suspect.holds_gpu):
        return None
    if job in living.steps or any(name.startswith(SLURM_PARENTS) for name in suspect.ancestors):
        return None
    if living.alive is not None and job in living.alive:
        return None
    if living.alive is None and not living.slurmd:
        return None
    why = (
        "squeue knows no such job that runs"
        if living.alive is not None
        else "no slurmstepd of it is here"
    )
    return OrphanReason(job=f"Slurm job {job}", why=why, rank=rank_of(suspect.variables))


def _of_launch(suspect: OrphanSuspect, launched: Collection[str]) -> OrphanReason | None:
    """A rank of torchrun that process 1 has taken over, and none of its launch has a launcher any more."""
    run = _launch(suspect)
    if not run or not suspect.variables.get("RANK") or not _left(suspect) or run in launched:
        return None
    why = "its launcher is gone, and so is that of all ranks of the launch here"
    return OrphanReason(job=f"torchrun launch {run}", why=why, rank=suspect.variables["RANK"])


def rank_of(variables: Mapping[str, str]) -> str:
    """The rank that these environment variables give, as text; "" where they give none."""
    return next((variables[name] for name in RANKS if variables.get(name, "").isdecimal()), "")


def _launch(suspect: OrphanSuspect) -> str:
    return suspect.variables.get("TORCHELASTIC_RUN_ID", "")


def _left(suspect: OrphanSuspect) -> bool:
    """Is its launcher gone, so that process 1 or the user's systemd is its parent?"""
    return bool(suspect.ancestors) and all(name in _INITS for name in suspect.ancestors)
