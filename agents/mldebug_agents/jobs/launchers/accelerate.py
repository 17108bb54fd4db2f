"""`accelerate launch`: torchrun with the settings of Hugging Face Accelerate."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, runs, torch_claim

PRIORITY = 95  # above torchrun, which it is underneath


class AccelerateLauncher:
    """Runs torchrun in its own process, so its ranks have torchrun's variables and ACCELERATE_*."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """Claim of a worker process."""
        mine = any(name.startswith("ACCELERATE_") for name in environ)
        if not mine or "TORCHELASTIC_RUN_ID" not in environ or "LOCAL_RANK" not in environ:
            return None
        return torch_claim("accelerate", PRIORITY, environ, elastic=True)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """`accelerate launch …` in its three spellings."""
        modules = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
        return runs(argv, scripts=("accelerate", "accelerate-launch"), modules=modules)


def create(options: NoOptions) -> Launcher:
    """Build the plugin."""
    return AccelerateLauncher()
