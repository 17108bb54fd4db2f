"""torchrun and `python -m torch.distributed.run`: elastic launches, restarts included."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import NodeLauncher, PendingLaunch, RankClaim, runs, torch_claim
from mldebug_agents.jobs.launcher_options import LauncherOptions, OptionNames, pending_launch

PRIORITY = 90
MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic.run",
    "torch.distributed.launcher.run",
    "torchelastic.distributed.launch",
)

OPTIONS = OptionNames(
    nodes="nnodes",
    rendezvous="rdzv-backend",
    endpoint="rdzv-endpoint",
    run_id="rdzv-id",
    address="master-addr",
    port="master-port",
    alone="standalone",
    prefix="PET_",
)


class TorchrunLauncher:
    """Recognises ranks by TORCHELASTIC_RUN_ID and LOCAL_RANK.

    RANK alone is no proof: in a pod the launcher has it, too, as the pod's number.
    """

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """Rank, world size, run id and attempt from a rank's environment; None where torchrun did not start the process."""
        if "TORCHELASTIC_RUN_ID" not in environ or "LOCAL_RANK" not in environ:
            return None
        return torch_claim("torchrun", PRIORITY, environ, elastic=True)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Whether the process is torchrun or one of its older forms: by its command line, or by its
        name (`torchrun`, or PyTorch's `pt_elastic`).
        """
        return name in ("torchrun", "pt_elastic") or runs(
            argv, scripts=("torchrun",), modules=MODULES
        )

    def pending(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> PendingLaunch | None:
        """The nodes that `--nnodes` asks for, and where they meet; None for a run of one node."""
        return pending_launch("torchrun", LauncherOptions(argv, environ, OPTIONS))


def create(options: NoOptions) -> NodeLauncher:
    """Build the launcher `torchrun`: torchrun and `python -m torch.distributed.run`: elastic launches, restarts included."""
    return TorchrunLauncher()
