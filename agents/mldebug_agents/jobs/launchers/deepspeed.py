"""The DeepSpeed launcher: one `deepspeed.launcher.launch` per node starts the ranks."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, claim, runs

PRIORITY = 80
MODULES = (
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launcher_helper",
)


class DeepspeedLauncher:
    """DeepSpeed's launcher: its ranks have LOCAL_SIZE and CROSS_RANK beside the usual variables, and no run id."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process with DeepSpeed's variables; None for any other."""
        if not {"LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"} <= environ.keys():
            return None
        return claim(
            "deepspeed",
            PRIORITY,
            environ,
            rank=("RANK",),
            world_size=("WORLD_SIZE",),
            local_rank=("LOCAL_RANK",),
            local_world_size=("LOCAL_SIZE",),
            supervised=True,
        )

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is `deepspeed`, or the launcher that `deepspeed` starts on each node."""
        return runs(argv, scripts=("deepspeed", "deepspeed.pt", "ds"), modules=MODULES)


def create(options: NoOptions) -> Launcher:
    """Build the launcher `deepspeed`: the DeepSpeed launcher: one `deepspeed.launcher.launch` per node starts the ranks."""
    return DeepspeedLauncher()
