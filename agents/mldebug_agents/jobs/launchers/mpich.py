"""MPICH, Intel MPI and MVAPICH: PMI_* and MV2_COMM_WORLD_*."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, claim, overruled

PRIORITY = 60
LAUNCHERS = (
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "mpirun_rsh",
    "mpispawn",
    "mpiexec.mpich",
    "mpirun.mpich",
)


class MpichLauncher:
    """MPICH and other launchers that set PMI_* variables.

    Its process manager, hydra, numbers the ranks of a node in MPI_LOCALRANKID.
    """

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process with PMI's variables; None for any other."""
        own = ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
        rank, size = own if own[0] in environ else ("PMI_RANK", "PMI_SIZE")
        if overruled(environ, rank, size):
            return None
        return claim(
            "mpich",
            PRIORITY,
            environ,
            rank=(rank,),
            world_size=(size,),
            local_rank=("MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
            local_world_size=("MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
            needs_torch=True,
        )

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is MPICH's process manager on a node (the kernel cuts process names at 15 characters)."""
        return name in LAUNCHERS


def create(options: NoOptions) -> Launcher:
    """Build the launcher `mpich`: MPICH, Intel MPI and MVAPICH: PMI_* and MV2_COMM_WORLD_*."""
    return MpichLauncher()
