"""Of what kind two GPUs of this node and the way between them are: pairs are compared only within a kind."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .crew import Crew

SECONDS = 30.0


def paths(gpus: int) -> dict[str, str]:
    """By pair, such as `0,1`: peer access or not, one or two sockets, models where they differ. Empty where that cannot be read."""
    crew = Crew()
    crew.start("paths", lambda: {"paths": _read(gpus)})
    found: dict[str, str] = crew.wait(SECONDS)["paths"].get("paths", {})
    return found


def _read(gpus: int) -> dict[str, str]:
    torch = import_module("torch")
    properties = [torch.cuda.get_device_properties(one) for one in range(gpus)]
    sockets = [_socket(one) for one in properties]
    models = [one.name for one in properties]
    found = {}
    for a in range(gpus):
        for b in range(a + 1, gpus):
            peer = torch.cuda.can_device_access_peer(a, b)
            apart = sockets[a] != sockets[b] and not peer
            words = "peer access" if peer else "through the host"
            words += ", on two sockets" if apart else ""
            if len(set(models)) > 1:
                words += ", " + " with ".join(sorted((models[a], models[b])))
            found[f"{a},{b}"] = words
    return found


def _socket(properties: Any) -> str:
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return ""
    domain, device = properties.pci_domain_id, properties.pci_device_id
    try:
        with open(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node") as text:
            return text.read().strip()
    except OSError:
        return ""
