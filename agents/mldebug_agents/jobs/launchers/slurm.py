"""Slurm: `srun` starts every rank itself."""

import re
from collections.abc import Mapping

import msgspec

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, claim, overruled

PRIORITY = 50
LAUNCHERS = ("srun", "slurmstepd")
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")


class SlurmLauncher:
    """Slurm's srun. Only processes in a job step are taken for ranks: in the batch script SLURM_PROCID is always 0."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a task of a job step; None outside of a step."""
        step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        if not step or overruled(environ, "SLURM_PROCID", size):
            return None
        found = claim(
            "slurm",
            PRIORITY,
            environ,
            rank=("SLURM_PROCID",),
            world_size=(size,),
            local_rank=("SLURM_LOCALID",),
            run_id=f"{environ.get('SLURM_JOB_ID', '')}.{step}",
            attempt="SLURM_RESTART_COUNT",
            needs_torch=True,
        )
        if found is None or found.problem:
            return found
        here = tasks_here(
            environ.get("SLURM_STEP_TASKS_PER_NODE", ""), environ.get("SLURM_NODEID", "")
        )
        return msgspec.structs.replace(found, local_world_size=here)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is srun, or the daemon that starts the tasks on a node."""
        return name.startswith(LAUNCHERS)


def tasks_here(tasks: str, node: str) -> int | None:
    """How many tasks run on node number `node`, from Slurm's short form: ("2(x3),1", "3") -> 1.

    None where it does not say.
    """
    left = int(node) if re.fullmatch(r"[0-9]{1,6}", node) else None
    for word in tasks.split(",") if left is not None else ():
        match = _TASKS.fullmatch(word)
        if not match or left is None:
            return None
        left -= int(match[2] or 1)
        if left < 0:
            return int(match[1]) or None
    return None


def create(options: NoOptions) -> Launcher:
    """Build the launcher `slurm`: Slurm: `srun` starts every rank itself."""
    return SlurmLauncher()
