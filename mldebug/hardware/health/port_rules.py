"""The health rules of network ports, from /sys: down, slower than before or than similar ports, errors that keep coming.

Pure.

No fault are a port that was never up since the agent started, one that somebody switched off, and
one that no job on this node uses.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mldebug.hardware.health.model import (
    FINE,
    ComponentHealth,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    combine,
)
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.ports.state import SETTLED, NodePorts, PortState

COMPONENT = "ports"
ALIKE = 4  # ports of one model, of which a single one that is slower is odd
HALF_UP = ("INIT", "ARMED")
PATIENCE = 10  # reads in a row in which a port has a link and no state


class _Limit(NamedTuple):
    """`name`: the threshold, in errors a second."""

    name: str
    words: str
    action: SuggestedAction


LIMITS: dict[str, _Limit] = {
    "symbol": _Limit("port_symbol_errors_per_second", "symbol errors", SuggestedAction.CHECK_HARDWARE),
    "receive": _Limit("port_receive_errors_per_second", "packets with errors", SuggestedAction.CHECK_HARDWARE),
    "link_recovery": _Limit("port_recoveries_per_second", "recoveries of the link", SuggestedAction.CHECK_HARDWARE),
    "integrity": _Limit("port_recoveries_per_second", "errors of the link's integrity", SuggestedAction.CHECK_HARDWARE),
    "overrun": _Limit("port_receive_errors_per_second", "overruns of the buffer", SuggestedAction.CHECK_SETTINGS),
    "discard": _Limit("port_drops_per_second", "packets thrown away before they were sent", SuggestedAction.CHECK_SETTINGS),
    "out_of_buffer": _Limit("port_drops_per_second", "packets without a buffer (out_of_buffer)", SuggestedAction.CHECK_SETTINGS),
    "retransmit": _Limit("port_retransmits_per_second", "packets sent again", SuggestedAction.CHECK_HARDWARE),
    "timeout": _Limit("port_timeouts_per_second", "packets that nobody acknowledged", SuggestedAction.CHECK_HARDWARE),
    "unresponsive": _Limit("port_timeouts_per_second", "peers that did not answer", SuggestedAction.WATCH),
    "slow_restart": _Limit("port_slow_restarts_per_second", "slow restarts for congestion", SuggestedAction.CHECK_SETTINGS),
}  # fmt: skip
"""Kinds of errors that are judged. Not judged, as healthy ports have them: out of sequence (adaptive routing), drops that the kernel counts, congestion marks,
requests and commands that failed (of a program that was killed); and packets that EFA sends again, which is how it works."""


def port_health(node: NodePorts, limits: Thresholds) -> ComponentHealth | None:
    """Return the health of the component `ports`. None where no network port of the node is judged: only ports that the
    jobs use are, and of these the ones that were up before and are not switched off, or that hang halfway up.
    """
    counted = [one for one in node.ports if one.used and one.once_up and not one.now.off]
    half = [one for one in node.ports if one.used and _is_half_up(one)]
    if not counted and not half:
        return None
    found = [*(finding for one in counted for finding in _of_port(one, counted, limits)), FINE]
    return combine(COMPONENT, [*map(_half_up, half), *found])


def slow_link(node: NodePorts, limits: Thresholds) -> str:
    """A port in use that loses time though it is up: `port mlx5_3/1 has 12 symbol errors a second, for ten minutes`; "" for none."""
    counted = [one for one in node.ports if one.used and one.once_up and not one.now.off]
    up = (one for one in counted if not one.down_reads)
    found = (finding.reason for one in up for finding in _of_port(one, counted, limits))
    return next(filter(None, found), "")


def _is_half_up(one: PortState) -> bool:
    return not one.once_up and one.now.physical is True and one.now.state in HALF_UP and one.down_reads >= PATIENCE  # fmt: skip


def _half_up(one: PortState) -> RuleFinding:
    words = f"port {one.now.name} has a link and stays in state {one.now.state}: no subnet manager has taken it up"
    return bad(HealthState.DEGRADED, "port_half_up", words, SuggestedAction.CHECK_SETTINGS)


def _of_port(one: PortState, others: Sequence[PortState], limits: Thresholds) -> Iterator[RuleFinding]:  # fmt: skip
    if one.down_reads >= SETTLED:
        yield _down(one, others)
        return
    if one.now.up and (not one.now.rdma or one.now.bond):
        yield from _slow(one, others)
    if limits.link_flaps is not None and one.flaps > limits.link_flaps:
        words = f"port {one.now.name} went down {one.flaps} times"
        yield bad(HealthState.DEGRADED, "port_flaps", words, SuggestedAction.CHECK_HARDWARE)
    for kind, rate in one.rates.items():
        yield from _errors(one, kind, rate, limits)


def _down(one: PortState, others: Sequence[PortState]) -> RuleFinding:
    """Of a port that has two names (RDMA and network interface) the RDMA port speaks, but not of the parts of a bond, which stays up
    with one of them. Of a plain interface nobody knows whether a job needs it.
    """
    if one.now.rdma:
        carries = any(each.now.name == one.now.rdma and each.now.up for each in others)
        if not one.now.bond or not carries:
            return FINE
        words = f"port {one.now.name} was up and is {one.now.state}: {one.now.rdma} goes on with the rest of {one.now.bond}"
        return bad(HealthState.DEGRADED, "port_bond", words, SuggestedAction.CHECK_HARDWARE)
    words = f"port {one.now.name} was up and is {one.now.state}"
    state = HealthState.DEGRADED if one.now.link == "ethernet" else HealthState.UNHEALTHY
    return bad(state, "port_down", words, SuggestedAction.CHECK_HARDWARE)


def _slow(one: PortState, others: Sequence[PortState]) -> Iterator[RuleFinding]:
    now = one.now
    if now.gigabits is None:
        return
    if one.best_gigabits and now.gigabits < one.best_gigabits:
        words = f"port {now.name} runs at {now.gigabits:g} Gb/s and had {one.best_gigabits:g}"
        yield bad(HealthState.DEGRADED, "port_rate", words, SuggestedAction.CHECK_HARDWARE)
    elif usual := _usual(one, others):
        words = f"port {now.name} runs at {now.gigabits:g} Gb/s, all others of its kind at {usual:g}"  # fmt: skip
        yield bad(HealthState.DEGRADED, "port_rate", words, SuggestedAction.CHECK_HARDWARE)
    narrow = now.pcie_width and now.pcie_width_max and now.pcie_width < now.pcie_width_max
    if narrow and now.pcie_gigabits and now.pcie_gigabits < now.gigabits:
        words = (
            f"port {now.name} has {now.pcie_width} of {now.pcie_width_max} PCIe lanes, which carry"
            f" {now.pcie_gigabits:.0f} of its {now.gigabits:g} Gb/s"
        )
        yield bad(HealthState.DEGRADED, "port_pcie", words, SuggestedAction.CHECK_HARDWARE)


def _usual(one: PortState, others: Sequence[PortState]) -> float | None:
    """The rate of all other ports of this model, where this one alone is slower."""
    if not one.now.board:
        return None
    alike = [each.now.gigabits for each in others if (each.now.board, each.now.link) == (one.now.board, one.now.link) and each.now.up and each.now.gigabits]  # fmt: skip
    counts = Counter(alike)
    usual, many = counts.most_common(1)[0]
    alone = len(alike) >= ALIKE and many == len(alike) - 1
    return usual if alone and one.now.gigabits is not None and one.now.gigabits < usual else None


def _errors(one: PortState, kind: str, rate: float, limits: Thresholds) -> Iterator[RuleFinding]:
    judged = LIMITS.get(kind)
    if judged is None or (kind == "retransmit" and one.now.link == "efa"):
        return
    most: float | None = getattr(limits, judged.name)
    if most is not None and rate >= most:
        words = f"port {one.now.name} has {rate:.3g} {judged.words} a second, for ten minutes"
        yield bad(HealthState.DEGRADED, f"port_{kind}", words, judged.action)
