"""PCIe and NVLink: width, errors, bytes. nvmlDeviceGetPcieThroughput is never used, since it takes 20 ms.

A field of a link takes 0.16 ms, an error counter without one 0.5 to 1.8 ms: with 18 links nearly 40 ms a GPU. So after the first
two reads, which give a first rate, errors and speed are read of some links in turn, and the bytes of all links by one field where
the driver has it. Whether a link is up is read each time.
"""

from typing import Any

from mldebug.hardware.gpu.readings import NvLink
from mldebug_agents.hardware.gpu.nvml import bounds, fields
from mldebug_agents.hardware.gpu.nvml.calls import Ask
from mldebug_agents.hardware.gpu.nvml.fields import Key, Values

MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_BY_FIELD = {
    "replay": fields.NVLINK_REPLAY,
    "recovery": fields.NVLINK_RECOVERY,
    "crc_flit": fields.NVLINK_CRC,
}
_BY_CALL = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
_OF_A_LINK = (*_BY_FIELD.values(), fields.NVLINK_SPEED)
_MOVED = (fields.NVLINK_TRANSMIT, fields.NVLINK_RECEIVE)
_NEARLY_ALL = 0.9  # of the bytes: links move on while they are asked
_KEPT, _DEAR, _AT_ONCE = "link fields", "dear counters", "bytes of all links"


def link_fields(ask: Ask) -> list[Key]:
    """The NVML fields to query in this read, as (field, link): bytes of all links; errors and speed only of some links, which take turns because each query is slow."""
    links = _links(ask)
    own = [(field, link) for link in links if _turn(ask, link) for field in _OF_A_LINK]
    return own + [key for field in _MOVED if links for key in _bytes_fields(ask, field, links)]


def pcie(ask: Ask, values: Values) -> dict[str, Any]:
    """The fields of a `GpuReading` about PCIe, by name: width (lanes), generation, error counts, bytes (counters of 32 bits). `values`: the NVML fields that were read."""

    def field(metric: str, number: int) -> int | None:
        return ask.convert(metric, values.get((number, 0)), bounds.count)

    errors = {kind: field(f"pcie {kind}", number) for kind, number in fields.PCIE_ERRORS.items()}
    replays = field("pcie_replays", fields.PCIE_REPLAYS)
    if replays is None:
        replays = ask("pcie_replays", "nvmlDeviceGetPcieReplayCounter", to=bounds.count)
    get, small = "nvmlDeviceGet", bounds.small
    return {
        "pcie_generation": ask("pcie_generation", f"{get}CurrPcieLinkGeneration", to=small),
        "pcie_generation_max": ask.keep(
            "pcie_generation_max", f"{get}MaxPcieLinkGeneration", to=small
        ),
        "pcie_width": ask("pcie_width", f"{get}CurrPcieLinkWidth", to=small),
        "pcie_width_max": ask.keep("pcie_width_max", f"{get}MaxPcieLinkWidth", to=small),
        "pcie_replays": replays,
        "pcie_errors": {kind: count for kind, count in errors.items() if count is not None},
        "pcie_receive_bytes": field("pcie_receive", fields.PCIE_RECEIVE),
        "pcie_transmit_bytes": field("pcie_transmit", fields.PCIE_TRANSMIT),
    }


def nvlink(ask: Ask, values: Values) -> dict[str, Any]:
    """The fields of a `GpuReading` about NVLink, by name: state and errors of each link, bytes of all. `values`: the NVML fields that were read."""
    links = _links(ask)
    kept = ask.device.kept.setdefault(_KEPT, {})
    kept.update({key: value for key, value in values.items() if key[0] in _OF_A_LINK})
    return {
        "nvlinks": tuple(_link(ask, kept, link, _read(ask, values, link)) for link in links),
        "nvlink_receive_bytes": _moved(ask, values, fields.NVLINK_RECEIVE, links),
        "nvlink_transmit_bytes": _moved(ask, values, fields.NVLINK_TRANSMIT, links),
    }


def _links(ask: Ask) -> list[int]:
    """The links that the GPU has, up or down; found once."""
    if "links" not in ask.device.kept:
        number = fields.read(ask, [(fields.NVLINK_COUNT, 0)]).get((fields.NVLINK_COUNT, 0))
        count = ask.convert("nvlinks", number, bounds.small)
        most = MAX_LINKS if count is None else min(MAX_LINKS, count)
        states = {n: ask(f"nvlink {n}", "nvmlDeviceGetNvLinkState", n) for n in range(most)}
        ask.device.kept["links"] = [n for n, state in states.items() if state is not None]
    found: list[int] = ask.device.kept["links"]
    return found


def _read(ask: Ask, values: Values, link: int) -> bool:
    """Are its errors those of this read? What failed at its turn is as old as before."""
    kept = ask.device.kept[_KEPT]
    return _turn(ask, link) and all(
        (field, link) in values or (field, link) not in kept for field in _BY_FIELD.values()
    )


def _turn(ask: Ask, link: int) -> bool:
    return ask.device.reads == 1 or ask.device.turn(link)


def _link(ask: Ask, values: Values, link: int, read: bool) -> NvLink:
    up = ask(f"nvlink {link}", "nvmlDeviceGetNvLinkState", link, to=bounds.switch)
    speed = values.get((fields.NVLINK_SPEED, link))
    return NvLink(
        link=link,
        up=up,
        speed_bytes_per_second=ask.convert("nvlink_speed", speed, bounds.megabytes_per_second),
        errors=_errors(ask, values, link),
        errors_read=read,
    )


def _errors(ask: Ask, values: Values, link: int) -> dict[str, int]:
    found: dict[str, int | None] = {}
    for kind in _BY_CALL:
        key = (_BY_FIELD.get(kind, -1), link)
        if key in values:
            found[kind] = ask.convert(f"nvlink {kind}", values[key], bounds.count)
        else:
            found[kind] = _slow_counter(ask, link, kind)
    return {kind: count for kind, count in found.items() if count is not None}


def _slow_counter(ask: Ask, link: int, kind: str) -> int | None:
    """A counter that is asked for when it is the link's turn, and remembered between."""
    kept = ask.device.kept.setdefault(_DEAR, {})
    if (link, kind) not in kept or _turn(ask, link):
        kept[link, kind] = ask(
            f"nvlink {kind}",
            "nvmlDeviceGetNvLinkErrorCounter",
            *(link, _BY_CALL[kind]),
            to=bounds.count,
        )
    count: int | None = kept[link, kind]
    return count


# --- bytes ---------------------------------------------------------------------------------------


def _bytes_fields(ask: Ask, field: int, links: list[int]) -> list[Key]:
    """Of all links at once, or link by link; both until it is known which of them the driver tells."""
    at_once = ask.device.kept.get(f"{_AT_ONCE} {field}")
    each = [] if at_once is True else [(field, link) for link in links]
    return each if at_once is False else [*each, (field, fields.ALL_LINKS)]


def _moved(ask: Ask, values: Values, field: int, links: list[int]) -> int | None:
    """Bytes of all links. The way to ask is settled once: a total that changed its way would jump."""
    way = f"{_AT_ONCE} {field}"
    whole, parts = _whole(values, [(field, fields.ALL_LINKS)]), None
    if not ask.device.kept.get(way):
        parts = _whole(values, [(field, link) for link in links])
    if way not in ask.device.kept and (whole is not None or parts is not None):
        # a driver that does not know the number of all links may tell 0, or one link's
        ask.device.kept[way] = whole is not None and whole >= _NEARLY_ALL * (parts or 0)
    moved = whole if ask.device.kept.get(way) else parts
    return None if moved is None else moved * 1024


def _whole(values: Values, keys: list[Key]) -> int | None:
    """The sum; None where one is not told, because a sum without it would fall."""
    counts = [values.get(key) for key in keys]
    numbers = [int(count) for count in counts if count is not None and 0 <= count < 2**62]
    return sum(numbers) if numbers and len(numbers) == len(counts) else None
