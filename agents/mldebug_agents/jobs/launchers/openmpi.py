"""The launcher `mpirun` of Open MPI, recognised by variables such as OMPI_COMM_WORLD_RANK."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, claim, overruled

PRIORITY = 70
LAUNCHERS = (
    *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"),
    *("mpirun.openmpi", "mpiexec.openmpi"),  # as Debian calls them
)


class OpenmpiLauncher:
    """Open MPI, by OMPI_COMM_WORLD_*.

    A script that sets RANK itself does so inside Python, where /proc does not show it.
    """

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process with Open MPI's variables; None for any other."""
        if overruled(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
            return None
        return claim(
            "openmpi",
            PRIORITY,
            environ,
            rank=("OMPI_COMM_WORLD_RANK",),
            world_size=("OMPI_COMM_WORLD_SIZE",),
            local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
            local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
            run_id=environ.get("PMIX_NAMESPACE", environ.get("OMPI_MCA_ess_base_jobid", "")),
            needs_torch=True,
        )

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is `mpirun`, or one of its daemons on the nodes."""
        return name in LAUNCHERS


def create(options: NoOptions) -> Launcher:
    """Build the launcher `openmpi`: Open MPI's `mpirun`."""
    return OpenmpiLauncher()
