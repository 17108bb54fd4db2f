"""`accelerate launch`: torchrun with the settings of Hugging Face Accelerate."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim, runs, torch_claim

PRIORITY = 95  # above torchrun, which it is underneath


class AccelerateLauncher:
    """accelerate: it runs torchrun in its own process, so its ranks have torchrun's variables and ACCELERATE_*."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim of a process with torchrun's variables and one of accelerate's; None for any other."""
        mine = any(name.startswith("ACCELERATE_") for name in environ)
        if not mine or "TORCHELASTIC_RUN_ID" not in environ or "LOCAL_RANK" not in environ:
            return None
        return torch_claim("accelerate", PRIORITY, environ, elastic=True)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether this process is `accelerate launch`, in one of its three spellings."""
        modules = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
        return runs(argv, scripts=("accelerate", "accelerate-launch"), modules=modules)


def create(options: NoOptions) -> Launcher:
    """Build the plugin."""
    return AccelerateLauncher()
