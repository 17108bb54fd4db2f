"""The collectives of one session: the order for its ranks, and what they say made into results as it comes."""

import socket
from collections.abc import Callable
from typing import Any

import msgspec

from mldebug.probing.collectives import Collective, collective
from mldebug.redact import clean
from mldebug_agents.probing.child import Ended, Event
from mldebug_agents.probing.session import Session

CELL_SECONDS = 5.0  # about, for all repetitions of one op with one payload


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. `memory`: bytes that each rank may take; None: a share of what is free."""

    nproc: int
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str = "float32"
    warmup: int = 5
    repeats: int = 20
    timeout: float = 60.0
    memory: int | None = None
    interface: str = ""


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told what comes."""

    result: Callable[[Collective], None]
    skipped: Callable[[str], None]
    joined: Callable[[Event], None]


class Measurement:
    """Keep one for each run: `results` grows while it runs."""

    def __init__(self, wish: Wish, telling: Telling) -> None:
        self.wish, self._telling = wish, telling
        self.results: list[Collective] = []
        self.skipped: list[str] = []
        self.about: Event = {}

    def run(self, session: Session) -> Ended:
        """Measure on this node alone."""
        ranks = list(range(self.wish.nproc))
        order = self.order(session.device, ranks, len(ranks), "127.0.0.1", free_port())
        return session.run("collectives", order, self.hear, env=self.variables())

    def order(
        self, device: str, ranks: list[int], world: int, address: str, port: int
    ) -> dict[str, Any]:
        """What the ranks of one node get."""
        wish = self.wish
        return {
            "ranks": ranks,
            "world": world,
            "address": address,
            "port": port,
            "device": device,
            "ops": wish.ops,
            "sizes": wish.sizes,
            "dtype": wish.dtype,
            "warmup": wish.warmup,
            "repeats": wish.repeats,
            "timeout": wish.timeout,
            "cell_seconds": CELL_SECONDS,
            "memory": wish.memory,
        }

    def variables(self) -> dict[str, str]:
        """What the network interface that was named comes to."""
        chosen = self.wish.interface
        return {"GLOO_SOCKET_IFNAME": chosen, "NCCL_SOCKET_IFNAME": chosen} if chosen else {}

    def hear(self, event: Event) -> None:
        """One line of a rank."""
        if event["event"] == "joined":
            self.about = event
            self._telling.joined(event)
        elif event["event"] == "skipped":
            what = f"{event['op']} of {event['bytes']} bytes is skipped: {event['reason']}"
            self.skipped.append(clean(what, 400))
            self._telling.skipped(self.skipped[-1])
        elif event["event"] == "cell":
            found = collective(event["op"], event["bytes"], event["times"], event["wrong"])
            self.results.append(found)
            self._telling.result(found)


def free_port() -> int:
    """A TCP port of this host that nobody has now."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
    return port
