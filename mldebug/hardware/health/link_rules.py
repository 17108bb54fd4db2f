"""The rules of PCIe and NVLink of one GPU."""

from collections.abc import Iterator

from mldebug.hardware.health.model import (
    FINE,
    OFF,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    unread,
)
from mldebug.hardware.health.rule_input import RuleInput
from mldebug.hardware.health.thresholds import Thresholds


def pcie(look: RuleInput) -> Iterator[RuleFinding]:
    """Judges the PCIe link: its width, its generation under load, and packets that were sent again."""
    now = look.now
    if now.pcie_width is None or now.pcie_width_max is None:
        yield unread("PCIe width")
    elif now.pcie_width < now.pcie_width_max:
        reason = f"the PCIe link has {now.pcie_width} of {now.pcie_width_max} lanes"
        yield bad(HealthState.DEGRADED, "pcie_width", reason, SuggestedAction.CHECK_HARDWARE)
    else:
        yield FINE
    yield _generation(look)
    yield _replays(look)


def _generation(look: RuleInput) -> RuleFinding:
    """An idle link saves power at a lower generation: it only counts under load."""
    now, busy = look.now, look.limits.pcie_busy_ratio
    if now.pcie_generation is None or now.pcie_generation_max is None:
        return unread("PCIe generation")
    if busy is None or now.pcie_generation >= now.pcie_generation_max:
        return FINE
    if now.utilization_ratio is None:
        return unread("load of the GPU")
    if now.utilization_ratio < busy:
        return FINE
    words = f"the PCIe link runs at generation {now.pcie_generation} of {now.pcie_generation_max} under load"
    return bad(HealthState.DEGRADED, "pcie_generation", words, SuggestedAction.CHECK_HARDWARE)


def _replays(look: RuleInput) -> RuleFinding:
    more, now = look.since("pcie_replays"), look.now
    per_lane = look.limits.pcie_replays_per_lane_minute
    generation = now.pcie_generation_max or now.pcie_generation
    width = now.pcie_width
    if more is None or look.seconds <= 0 or not generation or not width:
        return unread("PCIe replays over time")
    if not per_lane:
        return OFF
    limit = per_lane[min(generation, len(per_lane)) - 1] * width
    rate = more * 60 / look.seconds
    if rate <= -(-limit // 1) or more < 2:
        return FINE
    words = f"{rate:.0f} PCIe replays a minute (limit {-(-limit // 1):.0f})"
    return bad(HealthState.DEGRADED, "pcie_replays", words, SuggestedAction.CHECK_HARDWARE)


def nvlink(look: RuleInput) -> Iterator[RuleFinding]:
    """Judge NVLink: the fabric, links that are down and were up before, and the growth of error counters."""
    yield from _fabric(look)
    links = look.now.nvlinks
    readable = [link for link in links if link.up is not None]
    if not readable:
        yield unread("NVLink")
        return
    wired = _wired(look)
    if not wired:
        yield unread("NVLink: no link is up, as on a board that is not wired")
        return
    limits = look.limits
    yield _down([one.link for one in readable if not one.up and one.link in wired], wired, limits)
    yield _grown(
        look, "recovery", limits.nvlink_recoveries, HealthState.UNHEALTHY, SuggestedAction.RESET
    )
    yield _grown(look, "replay", limits.nvlink_replays, HealthState.DEGRADED, SuggestedAction.WATCH)
    yield _flits(look)


def _fabric(look: RuleInput) -> Iterator[RuleFinding]:
    """Whether the GPU has joined its fabric: without it no program can use its NVLinks, or start at all.

    One that has not yet joined is no fault while a program works there, and counts at two reads in a row.
    """
    now, before = look.now.fabric, look.before.fabric if look.before else None
    if now is None:
        return
    unready = now.state != "completed" and before is not None and before.state != "completed"
    if now.state == "completed" and now.status:
        words = f"the GPU could not join its NVLink fabric (NVML error {now.status}): see the log of nvidia-fabricmanager"
        yield bad(HealthState.UNHEALTHY, "fabric_failed", words, SuggestedAction.RESET)
    elif unready and look.now.processes == ():
        words = f"the GPU has not joined its NVLink fabric ({now.state.replace('_', ' ')}): is nvidia-fabricmanager running?"
        yield bad(HealthState.DEGRADED, "fabric_not_ready", words, SuggestedAction.CHECK_SETTINGS)
    for trouble in now.troubles:
        worst = trouble == "route_unhealthy"
        state = HealthState.UNHEALTHY if worst else HealthState.DEGRADED
        action = SuggestedAction.RESET if worst else SuggestedAction.WATCH
        yield bad(state, f"fabric_{trouble}", f"its NVLink fabric: {trouble.replace('_', ' ')}", action)  # fmt: skip


def _wired(look: RuleInput) -> set[int]:
    """Links that are or were up; the others are not used on this board."""
    reads = (look.now, look.before) if look.before else (look.now,)
    return {link.link for read in reads for link in read.nvlinks if link.up} | look.links_once_up


def _down(down: list[int], wired: set[int], limits: Thresholds) -> RuleFinding:
    if limits.nvlink_down is None:
        return OFF
    if len(down) <= limits.nvlink_down:
        return FINE
    words = f"{len(down)} of {len(wired)} NVLinks are down ({', '.join(map(str, down[:18]))})"
    return bad(HealthState.UNHEALTHY, "nvlink_down", words, SuggestedAction.CHECK_HARDWARE)


def _grown_by(look: RuleInput, kind: str) -> list[tuple[int, float]]:
    """For each link whose errors were asked for twice: how many more, in how many seconds."""
    return [
        (link.grown.get(kind, 0), link.grown_seconds)
        for link in look.now.nvlinks
        if kind in link.errors and link.grown_seconds
    ]


def _grown(
    look: RuleInput, kind: str, limit: int | None, state: HealthState, action: SuggestedAction
) -> RuleFinding:
    growth = _grown_by(look, kind)
    if not growth:
        return unread(f"NVLink {kind} errors over time")
    if limit is None:
        return OFF
    more = sum(count for count, _ in growth)
    if more <= limit:
        return FINE
    longest = max(seconds for count, seconds in growth if count)
    words = f"{more} NVLink {kind} errors in {longest:.0f} s"
    return bad(state, f"nvlink_{kind}", words, action)


def _flits(look: RuleInput) -> RuleFinding:
    growth, limits = _grown_by(look, "crc_flit"), look.limits
    if not growth:
        return unread("NVLink crc_flit errors over time")
    rate = sum(count / seconds for count, seconds in growth)
    words = f"{rate:.1f} NVLink CRC errors a second"
    worst, poor = (
        limits.nvlink_crc_flit_per_second_unhealthy,
        limits.nvlink_crc_flit_per_second_degraded,
    )
    if worst is not None and rate >= worst:
        return bad(HealthState.UNHEALTHY, "nvlink_crc", words, SuggestedAction.CHECK_HARDWARE)
    if poor is not None and rate >= poor:
        return bad(HealthState.DEGRADED, "nvlink_crc", words, SuggestedAction.WATCH)
    return FINE
