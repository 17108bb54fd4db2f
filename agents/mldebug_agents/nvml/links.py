"""PCIe and NVLink: width, errors, bytes. Never nvmlDeviceGetPcieThroughput, which takes 20 ms.

The error counters that have no field take a call for each link, 0.5 to 1.8 ms each: 20 ms a GPU. After the first read the
links take turns, so that each is asked at every `TURN`th full read: about every 5 minutes.
"""

from typing import Any

from mldebug.gpus.readings import NvLink
from mldebug_agents.nvml import fields, sane
from mldebug_agents.nvml.asking import Ask
from mldebug_agents.nvml.fields import Key, Values

MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_BY_FIELD = {
    "replay": fields.NVLINK_REPLAY,
    "recovery": fields.NVLINK_RECOVERY,
    "crc_flit": fields.NVLINK_CRC,
}
_BY_CALL = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
_ONLY_BY_CALL = ("crc_data", "ecc_data")
TURN = 10  # full reads
_READS, _DEAR = "full reads", "dear counters"


def link_fields(ask: Ask) -> list[Key]:
    """The fields of every link that this GPU has."""
    wanted = (*_BY_FIELD.values(), fields.NVLINK_SPEED)
    moved = (fields.NVLINK_TRANSMIT, fields.NVLINK_RECEIVE)
    return [(field, link) for link in _links(ask) for field in (*wanted, *moved)]


def pcie(ask: Ask, values: Values) -> dict[str, Any]:
    """Return the fields of a `GpuReading` about PCIe; width and generation have no unit, bytes are counters of 32 bits."""

    def field(metric: str, number: int) -> int | None:
        return ask.convert(metric, values.get((number, 0)), sane.count)

    errors = {kind: field(f"pcie {kind}", number) for kind, number in fields.PCIE_ERRORS.items()}
    replays = field("pcie_replays", fields.PCIE_REPLAYS)
    if replays is None:
        replays = ask("pcie_replays", "nvmlDeviceGetPcieReplayCounter", to=sane.count)
    get, small = "nvmlDeviceGet", sane.small
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
    """Return the fields of a `GpuReading` about NVLink."""
    links = _links(ask)
    ask.device.kept[_READS] = ask.device.kept.get(_READS, -1) + 1
    return {
        "nvlinks": tuple(_link(ask, values, link) for link in links),
        "nvlink_receive_bytes": _moved(values, fields.NVLINK_RECEIVE, links),
        "nvlink_transmit_bytes": _moved(values, fields.NVLINK_TRANSMIT, links),
    }


def _links(ask: Ask) -> list[int]:
    """The links that the GPU has, up or down; found once."""
    if "links" not in ask.device.kept:
        told = fields.read(ask, [(fields.NVLINK_COUNT, 0)]).get((fields.NVLINK_COUNT, 0))
        count = ask.convert("nvlinks", told, sane.small)
        most = MAX_LINKS if count is None else min(MAX_LINKS, count)
        states = {n: ask(f"nvlink {n}", "nvmlDeviceGetNvLinkState", n) for n in range(most)}
        ask.device.kept["links"] = [n for n, state in states.items() if state is not None]
    found: list[int] = ask.device.kept["links"]
    return found


def _link(ask: Ask, values: Values, link: int) -> NvLink:
    up = ask(f"nvlink {link}", "nvmlDeviceGetNvLinkState", link, to=sane.switch)
    speed = values.get((fields.NVLINK_SPEED, link))
    return NvLink(
        link=link,
        up=up,
        speed_bytes_per_second=ask.convert("nvlink_speed", speed, sane.megabytes_per_second),
        errors=_errors(ask, values, link),
    )


def _errors(ask: Ask, values: Values, link: int) -> dict[str, int]:
    told = {
        kind: ask.convert(f"nvlink {kind}", values.get((field, link)), sane.count)
        for kind, field in _BY_FIELD.items()
    }
    told |= {kind: _dear(ask, link, kind) for kind in _ONLY_BY_CALL}
    for kind, field in _BY_FIELD.items():
        if told[kind] is None and (field, link) not in values:
            told[kind] = _by_call(ask, link, kind)
    return {kind: count for kind, count in told.items() if count is not None}


def _dear(ask: Ask, link: int, kind: str) -> int | None:
    """A counter that is asked for when it is the link's turn, and remembered between."""
    known = ask.device.kept.setdefault(_DEAR, {})
    if (link, kind) not in known or (ask.device.kept[_READS] + link) % TURN == 0:
        known[link, kind] = _by_call(ask, link, kind)
    count: int | None = known[link, kind]
    return count


def _by_call(ask: Ask, link: int, kind: str) -> int | None:
    return ask(
        f"nvlink {kind}",
        "nvmlDeviceGetNvLinkErrorCounter",
        *(link, _BY_CALL[kind]),
        to=sane.count,
    )


def _moved(values: Values, field: int, links: list[int]) -> int | None:
    """Bytes of all links; None where one does not tell, because a sum without it would fall."""
    told = [values.get((field, link)) for link in links]
    numbers = [int(one) for one in told if one is not None and 0 <= one < 2**62]
    return sum(numbers) * 1024 if numbers and len(numbers) == len(told) else None
