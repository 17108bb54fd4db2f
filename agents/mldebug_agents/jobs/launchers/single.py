"""A training job of one process, started without any launcher."""

from collections.abc import Mapping

from mldebug.core.plugins import NoOptions
from mldebug_agents.jobs.launcher import Launcher, RankClaim

PRIORITY = 10


class SingleLauncher:
    """A training of one Python process that no launcher has started.

    It is taken for a rank only once it has loaded PyTorch, or where WORLD_SIZE is 1.
    """

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> RankClaim | None:
        """The claim to be the only rank of a job, which any process gets.

        It is believed only with PyTorch loaded, or with WORLD_SIZE=1.
        """
        declared = environ.get("WORLD_SIZE", "").strip() == "1"
        return RankClaim(launcher="single", priority=PRIORITY, needs_torch=not declared)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Always False: a job of one process has no launcher."""
        return False


def create(options: NoOptions) -> Launcher:
    """Build the launcher `single`: a training job of one process, started without any launcher."""
    return SingleLauncher()
