"""InfiniBand and RoCE ports as the kernel shows them, and whether enough are usable. Pure."""

import re
from collections.abc import Sequence

import msgspec

from mldebug.probes.checks import NodeCheck

WANTED = re.compile(r"(\d{1,3})(?:x(\d{1,4}))?")


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """An InfiniBand or RoCE port.

    `state`: ACTIVE, INIT, DOWN, …; `physical`: LinkUp, …; `gigabits` per second, None: not known.
    """

    name: str  # mlx5_0/1
    state: str = ""
    physical: str = ""
    gigabits: float | None = None


def read_port(name: str, state: str, physical: str, speed: str) -> Port:
    """A port from the kernel's files, with contents such as `4: ACTIVE`, `5: LinkUp`, `400 Gb/sec (4X NDR)`."""
    match = re.match(r"\s*([\d.]{1,8}) Gb/sec", speed)
    return Port(
        name=name,
        state=state.partition(":")[2].strip(),
        physical=physical.partition(":")[2].strip(),
        gigabits=float(match[1]) if match else None,
    )


def ports_check(ports: Sequence[Port], wanted: str | None = None) -> NodeCheck:
    """Check the ports against `wanted`: `8` active ports, or `8x400` (of at least 400 Gb/s).

    None: only that no port with a link is inactive.
    """
    active = [port for port in ports if port.state == "ACTIVE"]
    half = [one for one in ports if one.physical == "LinkUp" and one.state != "ACTIVE"]
    if not ports and wanted is None:
        return NodeCheck(stage="ib", state="skipped", sentence="ib: this node has no RDMA ports")
    wrong = [f"{one.name} has a link and is {one.state or 'in no state'}" for one in half]
    if wanted is not None:
        count, speed = _wanted(wanted)
        good = [one for one in active if not speed or (one.gigabits or 0) >= speed]
        if len(good) < count:
            words = f" of {speed:g} Gb/s" if speed else ""
            wrong.append(f"{len(good)} of {count} ports{words} are active")
    if wrong:
        return NodeCheck(stage="ib", state="failed", sentence=f"ib: {'; '.join(wrong)}")
    speeds = {one.name: (one.gigabits or 0.0) * 1e9 / 8 for one in active}
    return NodeCheck(stage="ib", state="fine", sentence=f"ib: {len(active)} of {len(ports)} ports are active", figures=speeds)  # fmt: skip


def _wanted(text: str) -> tuple[int, float]:
    """The count, and the speed in Gb/s or 0; raises ValueError for other text."""
    match = WANTED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:20]!r} is not a count such as 8, or 8x400")
    return int(match[1]), float(match[2] or 0)


def check_wanted(text: str) -> None:
    """Raise ValueError unless the text is a number of network ports (`8`), or such a number and the Gb/s that each must carry at least (`8x400`)."""
    _wanted(text)
