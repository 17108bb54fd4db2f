"""The rules of PCIe and NVLink of one GPU."""

from collections.abc import Iterator

from mldebug.gpus.readings import nvlink_errors
from mldebug.health.components import FINE, OFF, Action, Found, State, bad, unread
from mldebug.health.looking import Look


def pcie(look: Look) -> Iterator[Found]:
    """Width, generation under load, replays."""
    now = look.now
    if now.pcie_width is None or now.pcie_width_max is None:
        yield unread("PCIe width")
    elif now.pcie_width < now.pcie_width_max:
        told = f"the PCIe link has {now.pcie_width} of {now.pcie_width_max} lanes"
        yield bad(State.DEGRADED, "pcie_width", told, Action.CHECK_HARDWARE)
    else:
        yield FINE
    yield _generation(look)
    yield _replays(look)


def _generation(look: Look) -> Found:
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
    return bad(State.DEGRADED, "pcie_generation", words, Action.CHECK_HARDWARE)


def _replays(look: Look) -> Found:
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
    return bad(State.DEGRADED, "pcie_replays", words, Action.CHECK_HARDWARE)


def nvlink(look: Look) -> Iterator[Found]:
    """Links that are down, and errors since the read before."""
    links = look.now.nvlinks
    told = [link for link in links if link.up is not None]
    if not told:
        yield unread("NVLink")
        return
    down = [link.link for link in told if not link.up]
    if len(down) == len(told) and not (
        look.before and any(link.up for link in look.before.nvlinks)
    ):
        yield unread("NVLink: no link is up, as on a board that is not wired")
        return
    yield _down(down, len(told))
    limits = look.limits
    yield _grown(look, "recovery", limits.nvlink_recoveries, State.UNHEALTHY, Action.RESET)
    yield _grown(look, "replay", limits.nvlink_replays, State.DEGRADED, Action.WATCH)
    yield _flits(look)


def _down(down: list[int], links: int) -> Found:
    if not down:
        return FINE
    words = f"{len(down)} of {links} NVLinks are down ({', '.join(map(str, down[:18]))})"
    return bad(State.UNHEALTHY, "nvlink_down", words, Action.CHECK_HARDWARE)


def _errors_since(look: Look, kind: str) -> int | None:
    new = nvlink_errors(look.now, kind)
    old = nvlink_errors(look.before, kind) if look.before else None
    return new - old if new is not None and old is not None and new >= old else None


def _grown(look: Look, kind: str, limit: int | None, state: State, action: Action) -> Found:
    more = _errors_since(look, kind)
    if more is None:
        return unread(f"NVLink {kind} errors over time")
    if limit is None:
        return OFF
    if more <= limit:
        return FINE
    words = f"{more} NVLink {kind} errors in {look.seconds:.0f} s"
    return bad(state, f"nvlink_{kind}", words, action)


def _flits(look: Look) -> Found:
    more, limits = _errors_since(look, "crc_flit"), look.limits
    if more is None or look.seconds <= 0:
        return unread("NVLink crc_flit errors over time")
    rate = more / look.seconds
    words = f"{rate:.1f} NVLink CRC errors a second"
    worst, poor = (
        limits.nvlink_crc_flit_per_second_unhealthy,
        limits.nvlink_crc_flit_per_second_degraded,
    )
    if worst is not None and rate >= worst:
        return bad(State.UNHEALTHY, "nvlink_crc", words, Action.CHECK_HARDWARE)
    if poor is not None and rate >= poor:
        return bad(State.DEGRADED, "nvlink_crc", words, Action.WATCH)
    return FINE
