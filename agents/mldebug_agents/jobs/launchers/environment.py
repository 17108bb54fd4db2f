"""Ranks with plain RANK and WORLD_SIZE, set by a script, a scheduler, or a launcher without a plugin of its own."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, runs, torch_claim

PRIORITY = 40


class EnvironmentLauncher:
    """Recognises ranks by plain RANK and WORLD_SIZE, which `init_method="env://"` reads."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process with RANK and WORLD_SIZE; None in a pod made for torchrun, where RANK is the pod's number."""
        if "PET_NPROC_PER_NODE" in environ and "LOCAL_RANK" not in environ:
            return None
        return torch_claim("environment", PRIORITY, environ)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is a launcher (Composer, ColossalAI, TorchX, horovodrun) that sets only RANK, WORLD_SIZE and the like."""
        modules = ("composer.cli.launcher", "colossalai.cli", "torchx.apps.main")
        return runs(
            argv, scripts=("composer", "colossalai", "torchx", "horovodrun"), modules=modules
        )


def create(options: NoOptions) -> Launcher:
    """Build the launcher `environment`: ranks with plain RANK and WORLD_SIZE, set by a script, a scheduler, or a launcher without a plugin of its own."""
    return EnvironmentLauncher()
