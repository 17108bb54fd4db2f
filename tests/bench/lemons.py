"""Lemons on faults of a real fleet: does a node that the hub calls a lemon fail again, and were those known that did?

python tests/bench/lemons.py fault_trace.json [DAYS]. The file is the trace of InfiniteHBD (github.com/stepfun-ai/InfiniteHBD-Trace: 400 servers,
348 days), which is not part of this project. Each fault of hardware is told to the hub's rule as an agent would, and after each repair it is
asked whether the node is a lemon. Right: the node fails again within DAYS (30). A fault of a node that has failed within DAYS before was
foreseen where the node was a lemon by then. Beside it the rule "has failed before", and how often any node fails again.
"""

import bisect
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from bench.table import Row, show
from mldebug.fleet.answers.lemons import LEAST, LEMON, lemons
from mldebug.fleet.events import AnyEvent
from shared.fleet.fleet_events import DAY, NOW, fault

HARDWARE = "Hardware Failure"
COMPONENTS = {"GPU": "gpu_other", "Parameter Plane Cable": "network", "NIC": "network"}
MODEST = (
    "Fan",
    "Power Supply",
    "Motherboard Battery",
    "RAID Card",
)  # the agent only warns of what is redundant
Moment = tuple[float, str]  # unix, node


def events_of(trace: list[dict[str, Any]], *, hardware: bool) -> list[AnyEvent]:
    """The faults of a trace as agents tell them. `hardware`: only those that an agent sees at hardware."""
    found = []
    for one in trace:
        kind = one["fault_type"]
        counts = not hardware or kind["Level"] == HARDWARE
        if one["event_type"] == "fault_start" and counts:
            at = NOW + one["event_time"] * DAY
            severity = "warning" if kind["Class"] in MODEST else "critical"
            component = COMPONENTS.get(kind["Class"], "node")
            found.append(fault(one["node_id"], at, component=component, severity=severity, sentence=kind["Desc"], subject=f"health/{kind['Class']}/{at}"))  # fmt: skip
    return found


def repaired(event: AnyEvent, at: float) -> AnyEvent:
    """The end of a fault."""
    return msgspec.structs.replace(event, state="ended", ended=at, at=at)


def replay(trace: list[dict[str, Any]], *, hardware: bool) -> dict[str, list[float]]:
    """By node, the moments after a repair at which it was a lemon."""
    events: list[AnyEvent] = []
    called: dict[str, list[float]] = defaultdict(list)
    starts = iter(events_of(trace, hardware=hardware))
    last: dict[str, AnyEvent] = {}
    for one in trace:
        at, node = NOW + one["event_time"] * DAY, one["node_id"]
        counts = not hardware or one["fault_type"]["Level"] == HARDWARE
        if one["event_type"] == "fault_start" and counts:
            last[node] = next(starts)
            events.append(last[node])
        elif one["event_type"] == "fault_end":
            if counts and node in last:
                events.append(repaired(last[node], at))
            if any(score.node == node and score.standing == "lemon" for score in lemons(events, at).nodes):  # fmt: skip
                called[node].append(at)
    return called


def judged(starts: dict[str, list[float]], called: dict[str, list[float]], days: float) -> tuple[int, int, int, int]:  # fmt: skip
    """Calls after which the node failed again, all calls; repeated faults that a call foresaw, all repeated faults."""
    calls = [(node, at) for node, moments in called.items() for at in moments]
    right = sum(_between(starts[node], at, at + days * DAY) > 0 for node, at in calls)
    again = [(node, at) for node, moments in starts.items() for at in moments if _between(moments, at - days * DAY, at - 1)]  # fmt: skip
    foreseen = sum(_between(called.get(node, []), at - days * DAY, at) > 0 for node, at in again)
    return right, len(calls), foreseen, len(again)


def _between(moments: list[float], first: float, last: float) -> int:
    """How many of these sorted moments lie after `first`, and at `last` or before."""
    return bisect.bisect_right(moments, last) - bisect.bisect_right(moments, first)


def rows(name: str, found: tuple[int, int, int, int]) -> list[Row]:
    """Precision and recall."""
    right, calls, foreseen, again = found
    return [
        Row(
            f"{name}: precision",
            f"{right} of {calls}, {100 * right / max(1, calls):.0f} %",
            "",
            None,
        ),
        Row(
            f"{name}: recall",
            f"{foreseen} of {again}, {100 * foreseen / max(1, again):.0f} %",
            "",
            None,
        ),
    ]


def main() -> None:
    """Replay, judge, and show."""
    trace = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    days = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    whole = NOW + trace[-1]["event_time"] * DAY
    starts, ends = defaultdict(list), defaultdict(list)
    for one in trace:
        moments = starts if one["event_type"] == "fault_start" else ends
        moments[one["node_id"]].append(NOW + one["event_time"] * DAY)
    whoever = {node: [at for at in moments if at <= whole - days * DAY] for node, moments in ends.items()}  # fmt: skip
    table = rows("every node that was repaired", judged(starts, whoever, days))
    for name, hardware in (("lemons by faults of hardware", True), ("lemons by all faults", False)):
        called = {node: [at for at in moments if at <= whole - days * DAY] for node, moments in replay(trace, hardware=hardware).items()}  # fmt: skip
        table.append(Row(f"{name}: nodes", f"{sum(map(bool, called.values()))} of {len(starts)}", "", None))  # fmt: skip
        table += rows(name, judged(starts, called, days))
    show(f"lemons (score {LEMON:g}, {LEAST} pieces) on {len(trace)} events, again within {days:g} days", table)  # fmt: skip


if __name__ == "__main__":
    main()
