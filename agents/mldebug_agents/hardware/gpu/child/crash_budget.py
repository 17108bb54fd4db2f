"""How often a child may die before it is left alone for a while."""

from mldebug_agents.hardware.gpu.child.errors import GpuCrashedError

CRASHES, WINDOW = 3, 600.0  # so many in so many seconds, and it is left alone as long


class CrashBudget:
    """Counts deaths; time is in seconds of any clock that only rises."""

    def __init__(self) -> None:
        self._deaths: list[float] = []

    def spend(self, now: float) -> bool:
        """Count one death. True where that was one too many; then counting begins anew."""
        self._deaths = [*(at for at in self._deaths if now - at < WINDOW), now]
        if len(self._deaths) < CRASHES:
            return False
        self._deaths.clear()
        return True


def died_too_often() -> GpuCrashedError:
    """Say that the budget is spent."""
    return GpuCrashedError(
        f"the GPU reader has died {CRASHES} times in {WINDOW / 60:.0f} minutes:"
        " it is not started again for as long",
        "the driver and its library may be of different versions: restart the node",
    )
