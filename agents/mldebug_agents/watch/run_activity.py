"""What a run does at one moment in figures beside those of its log: how long it is silent, how busy its GPUs are, who waits. Pure."""

from mldebug.core.model import Role
from mldebug.goodput.scalars.model import GPU_BUSY, SILENCE, WAITING
from mldebug.status.snapshot import RunState

DATA_WAIT = "data_wait"  # the phase of the hook


def activity_of(run: RunState) -> dict[str, float]:
    """The figures of `ACTIVITY` that are known of a run now: seconds, and per cent of its GPUs and ranks."""
    found = {SILENCE: run.quiet_seconds} if run.timeout_seconds else {}
    busy = [_busy(one.samples[-1].busy_ratio) for one in run.gpu_states if one.samples and not one.sliced]  # fmt: skip
    known = [one for one in busy if one is not None]
    if known:
        found[GPU_BUSY] = 100 * sum(known) / len(known)
    waiting = _waiting(run)
    if waiting is not None:
        found[WAITING] = 100 * waiting
    return found


def _busy(ratio: float | None) -> float | None:
    """A share that can be true; a driver may say anything."""
    return ratio if ratio is not None and 0 <= ratio <= 1 else None


def _waiting(run: RunState) -> float | None:
    """The share of the ranks that wait for others or for data: by their stacks while the run is suspected, else by their hooks."""
    if run.roles:
        return sum(one is Role.WAITING for one in run.roles.values()) / len(run.roles)
    phases = [one.phase for one in run.hooks.values()]
    return phases.count(DATA_WAIT) / len(phases) if phases else None
