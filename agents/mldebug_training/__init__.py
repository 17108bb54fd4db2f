"""What a training process says of itself (standard library only, Python >= 3.9).

Nothing here ever raises or waits for anybody: a training that cannot speak trains on in silence.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mldebug_training.phases import Phase

__all__ = ["heartbeat", "phase"]


def phase(name: str) -> Phase:
    """`with phase("evaluate"):` What is inside is told as such; phases may be nested. Also a decorator."""
    from mldebug_training.phases import Phase

    return Phase(name)


def heartbeat(step: int, **scalars: float) -> None:
    """Say that this step was reached, and what it came to: `heartbeat(step, loss=loss.item())`. Takes microseconds.

    From the first call on the steps of optimizers are no longer counted. What is no number is left out.
    """
    try:
        from mldebug_training.process import own

        own.explicit = True
        record = own.record
        if record is not None and scalars:
            record.write_scalars(_numbers(scalars))
        own.beat(int(step))
    except Exception:
        pass


def _numbers(scalars: dict[str, float]) -> dict[str, float]:
    return {name: float(one) for name, one in scalars.items() if isinstance(one, (int, float))}
