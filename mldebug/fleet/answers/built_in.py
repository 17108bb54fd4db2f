"""Which GPU is built in where, by the newest inventory of each node, so that a GPU's history goes with it. Pure."""

from collections.abc import Iterable, Iterator

from mldebug.fleet.events import AnyEvent, FleetGpu, HardwareFaultEvent, NodeHealthEvent


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
        if found := self._nodes.get(self.part(event.gpu)):
            return found
        there = self.newest.get(event.node)
        # a GPU that has fallen off the bus is missing in the inventory, too: only other GPUs in its place show that it was taken out
        taken_out = there is not None and there.at > event.at and self._replaced(event.gpu, there)
        return "" if taken_out else event.node

    def _replaced(self, gpu: FleetGpu, there: NodeHealthEvent) -> bool:
        return gpu.index is not None and any(
            one.index == gpu.index and self.part(one) != self.part(gpu) for one in there.gpus
        )


def _gpus(event: AnyEvent) -> Iterator[FleetGpu]:
    if isinstance(event, NodeHealthEvent):
        yield from event.gpus
    elif isinstance(event, HardwareFaultEvent) and event.gpu is not None:
        yield event.gpu
