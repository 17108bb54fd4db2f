"""What is tried, in which order. A step is a list of groups that are tried at the same time; a group is a list of member numbers.

A member is a GPU (rank) or a node, whichever is compared.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Dict, Iterator, List

from .forks import ForkedTasks

Group = List[int]
Step = List[Group]

REFERENCES = 2  # of the best pairs, tried again beside the doubtful ones
TRIES = 4  # other work on the machine disturbs one of them, seldom all
MOST = 32  # doubtful pairs that are tried again: more of them are no single fault


class GroupTrial:
    """The result of one group of ranks in one step: its bandwidth, or why it has none."""

    def __init__(self, group: Group, path: str = "", alone: bool = False) -> None:
        self.group, self.path, self.alone = group, path, alone
        self.outcome, self.reason = "measured", ""
        self.bandwidth: float | None = None
        self.seconds = 0.0

    def as_event(self, names: List[str]) -> Dict[str, Any]:
        """The measurement of one group of ranks as plain data, for the line of JSON that reports it; `names`: of the members, by number."""
        return {
            "members": [names[one] for one in self.group],
            "outcome": self.outcome,
            "bandwidth": self.bandwidth,
            "path": self.path,
            "reason": self.reason,
            "alone": self.alone,
            "seconds": round(self.seconds, 3),
        }


def plan(members: int, at_once: int) -> Iterator[Step]:
    """Steps: each member alone, all together, then each pair once, in rounds of disjoint pairs, `at_once` of them at a time."""
    yield [[one] for one in range(members)]
    if members > 2:
        yield [list(range(members))]
    for pairs in tournament(members):
        for first in range(0, len(pairs), at_once):
            yield pairs[first : first + at_once]


def tournament(members: int) -> Iterator[Step]:
    """Rounds of pairs in which each member meets every other once and is in one pair of a round (the circle method)."""
    ring = list(range(members + members % 2))
    for _ in range(len(ring) - 1):
        facing = [(ring[at], ring[-1 - at]) for at in range(len(ring) // 2)]
        yield [[a, b] for a, b in facing if a < members and b < members]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def alone_again(trials: List[GroupTrial]) -> Iterator[Step]:
    """One more step for the members that failed alone: on a machine with other work a deadline may be missed by chance."""
    bad = [trial.group for trial in trials if len(trial.group) == 1 and trial.outcome != "measured"]
    if bad:
        yield bad


def again(trials: List[GroupTrial], fine: float) -> Iterator[Step]:
    """Repeat doubtful pairs, each in a step of its own, and some of the best of the same connection for comparison. Doubtful:
    slower than `fine` times the best. Nothing is repeated where more than `MOST` are doubtful.
    """
    pairs = [one for one in trials if len(one.group) == 2]
    best: Dict[str, float] = {}
    for pair in pairs:
        best[pair.path] = max(best.get(pair.path, 0.0), pair.bandwidth or 0.0)
    doubtful = [one for one in pairs if not (one.bandwidth or 0.0) > fine * best[one.path]]
    if not doubtful or len(doubtful) > MOST:
        return
    good = sorted((one for one in pairs if one.bandwidth), key=_bandwidth, reverse=True)
    paths = {one.path for one in doubtful}
    references = [one for path in sorted(paths) for one in [two for two in good if two.path == path][:REFERENCES]]  # fmt: skip
    tried = {id(trial): trial for trial in (*references, *doubtful)}.values()
    for number in range(TRIES):
        for one in tried:
            if number == 0 or one.bandwidth:  # what fails twice has used up two deadlines
                yield [one.group]


def _bandwidth(trial: GroupTrial) -> float:
    return trial.bandwidth or 0.0


TOPOLOGY_SECONDS = 30.0


def paths(gpus: int) -> dict[str, str]:
    """How the GPUs of each pair (`0,1`) are connected: peer access, same socket, different models. Empty where that cannot be read."""
    crew = ForkedTasks()
    crew.start("paths", lambda: {"paths": _read_paths(gpus)})
    found: dict[str, str] = crew.wait(TOPOLOGY_SECONDS)["paths"].get("paths", {})
    return found


def _read_paths(gpus: int) -> dict[str, str]:
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
        return ""  # a virtual machine or container hides it
