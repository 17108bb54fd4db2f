"""A training job of one process, started without any launcher."""

from collections.abc import Mapping

import msgspec

from mldebug_agents.jobs.ranks.claims import Claim

PRIORITY = 10


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to set."""


class Single:
    """Any Python process that loads PyTorch and that no other plugin knows; WORLD_SIZE=1 needs no further proof."""

    def identify(self, environ: Mapping[str, str], argv: tuple[str, ...]) -> Claim | None:
        """Claim to be the only rank."""
        declared = environ.get("WORLD_SIZE", "").strip() == "1"
        return Claim(launcher="single", priority=PRIORITY, needs_torch=not declared)

    def is_launcher(self, name: str, argv: tuple[str, ...]) -> bool:
        """Nothing launches it."""
        return False


def create(options: Options) -> Single:
    """Build the plugin."""
    return Single()
