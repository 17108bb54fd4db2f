"""`accelerate launch`: torchrun with the settings of Hugging Face Accelerate."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import NodeLauncher, PendingLaunch, RankClaim, runs, torch_claim
from mldebug_agents.jobs.launcher_options import LauncherOptions, OptionNames, pending_launch

PRIORITY = 95  # above torchrun, which it is underneath

OPTIONS = OptionNames(
    nodes="num-machines",
    rendezvous="rdzv-backend",
    endpoint="",
    run_id="",
    address="main-process-ip",
    port="main-process-port",
    alone="",
    prefix="",
)


class AccelerateLauncher:
    """`accelerate launch`: it runs torchrun in its own process, so its ranks have torchrun's
    variables and those named ACCELERATE_*.
    """

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

    def pending(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> PendingLaunch | None:
        """The nodes that `--num_machines` asks for, and where they meet.

        None for one node, or where only its config file says so.
        """
        return pending_launch("accelerate", LauncherOptions(argv, environ, OPTIONS))


def create(options: NoOptions) -> NodeLauncher:
    """Build the launcher `accelerate`: `accelerate launch`: torchrun with the settings of Hugging Face Accelerate."""
    return AccelerateLauncher()
