"""Which GPU is built in where, by the newest inventory of each node, so that a GPU's history goes with it. Pure.

A node may lie about GPUs of others. So one that lists the GPU of another node takes no fault away from that one, as long as that one lists
it, too; and what it tells of a GPU that another one has is what one node says of another (see `lemons`).
"""

from collections.abc import Iterable, Iterator

from mldebug.fleet.events import AnyEvent, FleetGpu, HardwareFaultEvent, NodeHealthEvent

CURRENT = 3 * 3600.0
"""Seconds by which an inventory may be older than another: each node sends one in an hour."""


class BuiltIn:
    """Where GPUs are, by events in the order of their times. A GPU is known by its serial number, else by its uuid."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self.newest: dict[str, NodeHealthEvent] = {}
        self._serials: dict[
            str, str
        ] = {}  # uuid -> serial number: one that has died does not tell its own
        self._nodes: dict[str, str] = {}  # part -> node
        for event in events:
            for gpu in _gpus(event):
                if gpu.serial:
                    self._serials[gpu.uuid] = gpu.serial
            if isinstance(event, NodeHealthEvent):
                self.newest[event.node] = event
        for event in sorted(self.newest.values(), key=lambda one: one.at):
            for gpu in event.gpus:
                self._nodes[self.part(gpu)] = event.node

    def part(self, gpu: FleetGpu) -> str:
        """What this GPU is known by in all nodes: `serial 1320…`, or its uuid where no serial number is known."""
        serial = gpu.serial or self._serials.get(gpu.uuid, "")
        return f"serial {serial}" if serial else gpu.uuid

    def node_of(self, event: HardwareFaultEvent) -> str:
        """The node in which the faulty part is now; "" where it was taken out of its node and was built in nowhere since."""
        if event.gpu is None:
            return event.node
        there, part = self.newest.get(event.node), self.part(event.gpu)
        if (found := self._nodes.get(part)) and not self._still_has(there, part, found):
            return found
        return "" if self._taken_out(event) else event.node

    def is_ill_by(self, event: HardwareFaultEvent) -> bool:
        """Whether the faulty part counts as being in the node that reported the fault still: no inventory that is clearly newer than that
        node's own lists the part elsewhere, and no other GPU has taken its place in the node.
        """
        place = self.node_of(event)
        if event.gpu is None or place in (event.node, ""):
            return place == event.node
        there, now = self.newest.get(event.node), self.newest[place]
        return there is not None and now.at - there.at < CURRENT and not self._taken_out(event)

    def _still_has(self, there: NodeHealthEvent | None, part: str, other: str) -> bool:
        """Whether a node lists a part as late as the other one that does."""
        if there is None or self.newest[other].at - there.at >= CURRENT:
            return False
        return any(self.part(gpu) == part for gpu in there.gpus)

    def _taken_out(self, event: HardwareFaultEvent) -> bool:
        """Whether another GPU is in its place. One that has fallen off the bus is missing in the inventory, too."""
        there = self.newest.get(event.node)
        newer = event.gpu is not None and there is not None and there.at > event.at
        return newer and event.gpu is not None and there is not None and self._replaced(event.gpu, there)  # fmt: skip

    def _replaced(self, gpu: FleetGpu, there: NodeHealthEvent) -> bool:
        return gpu.index is not None and any(
            one.index == gpu.index and self.part(one) != self.part(gpu) for one in there.gpus
        )


def _gpus(event: AnyEvent) -> Iterator[FleetGpu]:
    if isinstance(event, NodeHealthEvent):
        yield from event.gpus
    elif isinstance(event, HardwareFaultEvent) and event.gpu is not None:
        yield event.gpu
