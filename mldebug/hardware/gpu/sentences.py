"""The fingerprint in words: `GPU 0 waits in a collective (100 % busy, 125 W of usual 690 W, no memory traffic); GPU 1 …`."""

from collections.abc import Sequence

from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.hardware.gpu.baseline import Load
from mldebug.hardware.gpu.fingerprint import Fingerprint, GpuFingerprint, GpuState

_VERBS = {
    GpuState.COLLECTIVE_WAIT: ("waits in a collective", "wait in a collective"),
    GpuState.NEVER_ARRIVED: ("runs nothing", "run nothing"),
    GpuState.CHECKPOINTING: (
        "does nothing while its rank writes a file",
        "do nothing while their ranks write files",
    ),
    GpuState.INPUT_STARVED: ("waits for its next batch", "wait for their next batch"),
    GpuState.COMPUTE_SPIN: (
        "runs a kernel on and on that moves no memory",
        "run kernels on and on that move no memory",
    ),
    GpuState.IDLE: ("is idle", "are idle"),
    GpuState.TRAINING: ("computes", "compute"),
}
_SPINS = (
    "spins in a collective or in a kernel that does not end",
    "spin in a collective or in a kernel that does not end",
)
_UNKNOWN_STATE = ("cannot be told", "cannot be told")
_ORDER = tuple(_VERBS)
_RATIO_WORDS = (Load.SPINNING, Load.POWERED)


def sentence(fingerprint: Fingerprint) -> str:
    """What the GPUs of a run do, in one sentence: GPUs of one state together, waiting ones first; "" without GPUs."""
    groups: dict[tuple[str, GpuState, bool], list[GpuFingerprint]] = {}
    for one in fingerprint.gpus:
        groups.setdefault((one.node, one.state, _is_either(one)), []).append(one)
    ordered = sorted(groups.items(), key=lambda item: (_place(item[0][1]), item[1][0].index))
    several = len({one.node for one in fingerprint.gpus}) > 1
    return "; ".join(_say(node if several else "", group) for (node, _, _), group in ordered)


def state_words(state: GpuState) -> str:
    """A GPU state in words, such as `waits in a collective`; "" for a state without words."""
    return _VERBS[state][0] if state in _VERBS else ""


def _place(state: GpuState) -> int:
    return _ORDER.index(state) if state in _ORDER else -1


def _is_either(one: GpuFingerprint) -> bool:
    return one.state is GpuState.UNKNOWN and GpuState.COLLECTIVE_WAIT in one.maybe


def _say(node: str, group: Sequence[GpuFingerprint]) -> str:
    many = len(group) > 1
    numbers = shorten_ranks(fold_ranks(one.index for one in group))
    where = f"{node}: " if node else ""
    first = group[0]
    verbs = _SPINS if _is_either(first) else _VERBS.get(first.state, _UNKNOWN_STATE)
    figures = _figures(group)
    words = f"{where}GPU{'s' if many else ''} {numbers} {verbs[many]}"
    return f"{words} ({figures})" if figures else words


def _figures(group: Sequence[GpuFingerprint]) -> str:
    """`100 % busy, 125 W of usual 690 W, no memory traffic`: of the first, which stands for its like."""
    first = group[0]
    parts = []
    if first.busy_ratio is not None:
        parts.append(f"{first.busy_ratio:.0%} busy".replace("%", " %"))
    if first.power_watts is not None:
        usual = f" of usual {first.usual_watts:.0f} W" if first.usual_watts is not None else ""
        parts.append(f"{first.power_watts:.0f} W{usual}")
    if first.load in _RATIO_WORDS and first.traffic is False:
        parts.append("no memory traffic")
    if any(one.shared for one in group):
        parts.append(
            "other programs use it, too"
            if len(group) == 1
            else "other programs use some of them, too"
        )
    return ", ".join(parts)
