"""What may be asked of the agent's GPUs over its socket: the paths, and what each does."""

from collections.abc import Callable, Mapping

from mldebug.core.errors import UsageError
from mldebug_agents.hardware.gpu.controller import GpuDesk

RELEASE, ACCEPT = "/api/v1/gpus/release", "/api/v1/gpus/accept"


def gpu_verbs(desk: GpuDesk) -> dict[str, Callable[[Mapping[str, str]], object]]:
    """Path -> what it does. `release?seconds=600`; 0 takes the GPUs up again."""
    return {
        RELEASE: lambda asked: desk.release(_seconds(asked)),
        ACCEPT: lambda _: desk.accept(),
    }


def _seconds(asked: Mapping[str, str]) -> float:
    try:
        return float(asked.get("seconds", ""))
    except ValueError:
        raise UsageError("seconds is no number", "ask for ?seconds=600") from None
