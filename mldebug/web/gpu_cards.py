"""Each GPU as a card: the row of `mldebug gpus list`, its clocks, errors and links, and what is wrong with it. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from mldebug.core.redact import clean
from mldebug.core.units import duration_words
from mldebug.hardware.gpu.readings import ErrorType, GpuReading, GpuWatch, ecc_count
from mldebug.hardware.health.heat_rules import HOT_EVENTS
from mldebug.hardware.health.model import (
    ACTION_WORDS,
    BAD,
    ComponentHealth,
    HealthState,
    SuggestedAction,
)
from mldebug.hardware.health.sentences import dated_reason
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.status.gpu_lines import StatusLine
from mldebug.status.gpu_table import Row, busy_of, missing, power_of, rows
from mldebug.status.gpu_view import GpuOverview
from mldebug.web.storage_lists import share

NOBODY = "no rank is seen here"  # other users' may be hidden, and what is no training job
ORDER = ("missing", "unhealthy", "degraded", "unknown", "healthy")
MOODS = {"missing": "bad", "unhealthy": "bad", "healthy": "good"}


class Meter(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in the list of GPUs: its text ("-" where it was not read), and its ratio where it has a limit."""

    name: str
    words: str
    ratio: float | None = None


class GpuCard(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU in the list of GPUs."""

    index: str
    bus: str
    state: str
    css_class: str
    user: str
    meters: tuple[Meter, ...]
    facts: tuple[StatusLine, ...] = ()  # clocks, errors, links
    complaints: tuple[str, ...] = ()  # reason → what to do
    unread: str = ""  # components of which nothing is known
    doing: str = ""  # by the fingerprint of its run


def gpu_cards(overview: GpuOverview, doing: Mapping[str, str]) -> tuple[GpuCard, ...]:
    """A card for each GPU, the worst first. `doing`: what each GPU does, in words, by uuid.

    A lost GPU is recognised by its PCI address, as another GPU may have its index now.
    """
    read = {
        _key(one.index, one.bus_id): one for one in (overview.gpus.gpus if overview.gpus else ())
    }
    lost = {_key(index, bus): uuid for index, bus, uuid in missing(overview)}
    away = _away(overview)
    watched = {one.uuid: one for one in overview.watch.gpus} if overview.watch else {}
    found = []
    for row in rows(overview):
        gpu = read.get((row[0], row[1])) if (row[0], row[1]) not in lost else None
        uuid = gpu.uuid if gpu else lost.get((row[0], row[1]), "")
        health = [one for one in overview.health if uuid and one.uuid == uuid]
        words = doing.get(uuid, "") if gpu else ""
        card = _gpu_card(row, gpu, watched.get(uuid), health, words, overview.at)
        gone = "" if gpu else away.get((row[0], row[1]), "")
        found.append(
            msgspec.structs.replace(card, complaints=(*filter(None, (gone,)), *card.complaints))
        )
    return tuple(sorted(found, key=lambda one: (ORDER.index(one.state), int(one.index))))


def _away(overview: GpuOverview) -> dict[tuple[str, str], str]:
    """Why each GPU is not there, and for how long where that is remembered."""
    newest = overview.watch or overview.gpus
    found = {_key(one.index, one.bus_id): clean(one.reason, 200) for one in (newest.lost if newest else ())}  # fmt: skip
    for one in (*overview.count.missing, *overview.count.silent) if overview.count else ():
        ago = duration_words(int(overview.at - one.since))
        found[_key(one.gpu.index, one.gpu.bus_id)] = clean(f"{one.reason}, for {ago}", 200)
    return found


def _key(index: int, bus: str) -> tuple[str, str]:
    return str(index), bus_id(bus) or "-"


def _gpu_card(row: Row, gpu: GpuReading | None, watch: GpuWatch | None, health: Sequence[ComponentHealth], doing: str, now: float) -> GpuCard:  # fmt: skip
    index, bus, *_, user, state = row
    return GpuCard(
        index=index,
        bus=clean(bus, 40),
        state=state,
        css_class=MOODS.get(state, "quiet"),
        user=clean(user, 40) if user != "-" else NOBODY,
        meters=tuple(_meters(row, gpu, watch)),
        facts=tuple(_facts(gpu)) if gpu else (),
        complaints=tuple(_complaint(one, now) for one in health if one.state in BAD),
        unread=_unread(health),
        doing=clean(doing, 80),
    )


def _meters(row: Row, gpu: GpuReading | None, watch: GpuWatch | None) -> Iterator[Meter]:
    _, _, busy, memory, power, heat, *_ = row
    shares = _shares(gpu, watch) if gpu else (None,) * 4
    names = ("busy", "memory", "power", "heat")
    for name, words, ratio in zip(names, (busy, memory, power, heat), shares, strict=True):
        yield Meter(name=name, words=words, ratio=ratio)


def _shares(gpu: GpuReading, watch: GpuWatch | None) -> tuple[float | None, ...]:
    """Of busy, memory, power and heat; the last against the point where the clocks are cut."""
    heat = gpu.temperature_limits_celsius.get("slowdown")
    return (
        share(busy_of(gpu, watch)),
        _ratio(gpu.memory_used_bytes, gpu.memory_total_bytes),
        _ratio(power_of(gpu, watch), gpu.power_limit_watts),
        _ratio(gpu.temperature_celsius, heat),
    )


def _ratio(value: float | None, limit: float | None) -> float | None:
    return share(value / limit) if value is not None and limit else None


def _facts(gpu: GpuReading) -> Iterator[StatusLine]:
    yield from _clocks(gpu)
    yield from _errors(gpu)
    if links := [nvlink.up for nvlink in gpu.nvlinks if nvlink.up is not None]:
        yield StatusLine(f"{sum(links)} of {len(links)} NVLinks up")
    if gpu.pcie_width is not None and gpu.pcie_width_max is not None:
        yield StatusLine(f"PCIe {gpu.pcie_width} of {gpu.pcie_width_max} lanes")


def _clocks(gpu: GpuReading) -> Iterator[StatusLine]:
    """An idle GPU is slow by itself."""
    now, most = gpu.clock_hertz.get("sm"), gpu.clock_max_hertz.get("sm")
    if now is not None:
        of = f" of {most / 1e6:,.0f}" if most is not None else ""
        yield StatusLine(f"clock {now / 1e6:,.0f}{of} MHz")
    if gpu.clock_events is None:
        yield StatusLine("what keeps its clocks low cannot be read")
        return
    for one in gpu.clock_events:
        if one != "gpu_idle":
            yield StatusLine(
                f"clocks kept low: {clean(one, 60).replace('_', ' ')}", one in HOT_EVENTS
            )


def _errors(gpu: GpuReading) -> Iterator[StatusLine]:
    kinds: tuple[ErrorType, ...] = ("uncorrected", "corrected")
    counts = {kind: ecc_count(gpu, kind, "total", "volatile") for kind in kinds}
    counted = [f"{count:,} {kind}" for kind, count in counts.items() if count is not None]
    if counted:
        yield StatusLine(f"ECC errors: {', '.join(counted)}")
    elif gpu.ecc_mode is False:
        yield StatusLine("ECC is switched off")
    rows_ = gpu.remapped_rows
    if rows_ is not None and (rows_.corrected or rows_.uncorrected):
        yield StatusLine(f"rows replaced: {(rows_.corrected or 0) + (rows_.uncorrected or 0):,}")


def _complaint(one: ComponentHealth, now: float) -> str:
    todo = f" → {ACTION_WORDS[one.action]}" if one.action is not SuggestedAction.NONE else ""
    return clean(f"{dated_reason(one, now)}{todo}", 400)


def _unread(health: Sequence[ComponentHealth]) -> str:
    found = [one.component.removeprefix("gpu_").replace("_", " ") for one in health if one.state is HealthState.UNKNOWN]  # fmt: skip
    return f"not readable: {', '.join(found)}" if found else ""
