"""Tries members alone, all together, and each pair: first in rounds of disjoint pairs, then each doubtful pair by itself.

One process for each node (a stand) stays; what is tried runs in forks of it, which a deadline ends. The stand of node 0
says what is to be tried through a store and hears there how it went. The order has `node`, `nodes`, `seats` (ranks of this
node), `each` (a member is a `node` or a `seat`), `address`, `port`, `device`, `bytes`, `repeats`, `step` and `join` (seconds),
`at_once` (pairs of one round at the same time), `slow` and `fine` (shares of the best), `rounds` (of numbers of members:
see `plan`). Events: `members`, then a `step` with `trials` for each, `untried`
where there is no time left for one, `done`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from functools import partial
from importlib import import_module
from typing import Any, Dict, List, Set

from .forks import KILLED, ForkedTasks, Result, failure
from .process_group import check_interfaces
from .ranks import BEAT, beating, emit, keep_stdout
from .schedule import GroupTrial, again, alone_again, paths, plan
from .seat_trial import run_seat

GRACE = 5.0  # seconds in which other stands may tell after the deadline of a step
LOOK = 0.02
CONSEQUENCES = (
    "onnection",
    "closed by peer",
    "Broken pipe",
    "remote process exited",
    "not end in time",
)
# Of node 0 for all: a pair of which each end does something else would look broken
COMMON = ("bytes", "repeats", "step")
Group = List[int]  # numbers of members


def main(order: dict[str, Any]) -> None:
    """Take part in the isolation for this node; the entry point of this script."""
    keep_stdout()
    try:
        check_interfaces(order["device"])
        check_address(order["address"])
        with beating():
            torch = import_module("torch")
        tasks = ForkedTasks()
        if order["node"] == 0:
            check_port(order["port"])
            tasks.start("store", lambda: _keep_store(order))
        stand = NodeParticipant(order, _store(torch, order, order["join"]))
        stand.arrive()
        if order["node"] == 0:
            TrialLeader(order, stand).lead()
        else:
            stand.follow()
    except BaseException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        emit("failed", rank=-1, kind=type(error).__name__, error=first[:2000])
        os._exit(1)
    emit("done")
    os._exit(0)


def check_address(address: str) -> None:
    """Raise OSError for a name that cannot be resolved; the store would retry it until its timeout."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise OSError(f"{address}: {error.strerror}") from None


def check_port(port: int) -> None:
    """Raise OSError where something listens at this port; the ranks would talk to a stranger until their timeout."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError as error:
            raise OSError(f"port {port} of this node: {error.strerror}") from None


def _keep_store(order: dict[str, Any]) -> Result:
    """Serve the store from a process of its own, because a process that forks must have no threads."""
    store = _store(import_module("torch"), order, order["join"], serve=True)
    while store is not None:
        time.sleep(3600)
    return {}


def _store(torch: Any, order: dict[str, Any], seconds: float, serve: bool = False) -> Any:
    delta = import_module("datetime").timedelta(seconds=seconds)
    return torch.distributed.TCPStore(
        order["address"],
        order["port"],
        is_master=serve,
        timeout=delta,
        wait_for_workers=False,
    )


class NodeParticipant:
    """The part of one node in `mldebug probe isolate`: it carries out the steps that node 0 announces, and reports through
    the store.
    """

    def __init__(self, order: dict[str, Any], store: Any) -> None:
        self._order, self.store = order, store
        self.node: int = order["node"]

    def arrive(self) -> None:
        """Report in the store that this node is ready; node 0 also publishes the settings that all nodes share."""
        facts = {"name": socket.gethostname(), "seats": self._order["seats"]}
        facts["device"] = self._order["device"]
        if not self.node:
            self.publish("common", {key: self._order[key] for key in COMMON})
        self.publish(f"node/{self.node}", facts)

    def publish(self, key: str, value: Any) -> None:
        """Write a value under a key of the store."""
        self.store.set(key, json.dumps(value))

    def wait_for(self, key: str, until: float) -> Any:
        """The value of a key in the store, as soon as it is there; None if it is not by `until` (monotonic). Prints `beat`
        events meanwhile.
        """
        beaten = time.monotonic()
        while not self.store.check([key]):
            now = time.monotonic()
            if now > until:
                return None
            if now - beaten >= BEAT:
                emit("beat")
                beaten = now
            time.sleep(LOOK)
        return json.loads(self.store.get(key))

    def follow(self) -> None:
        """Carry out the steps that node 0 announces, one after another, until it announces the end. Raises TimeoutError where node 0 is silent."""
        until = time.monotonic() + self._order["seconds"]
        self._order.update(self.wait_for("common", until) or {})
        number = 0
        while True:
            step = self.wait_for(f"step/{number}", until)
            if step is None:
                raise TimeoutError("node 0 has stopped answering")
            if step["end"]:
                self.publish(f"bye/{self.node}", True)
                return
            self.work(number, step["groups"])
            number += 1

    def work(self, number: int, groups: list[list[list[int]]]) -> None:
        """Fork the ranks of this node that take part in a step, and report their results. A group is a list of (node, local
        rank).
        """
        crew = ForkedTasks()
        for place, seats in enumerate(groups):
            for position, (node, local) in enumerate(seats):
                if node == self.node:
                    wanted = {**self._order, "local": local, "world": len(seats)}
                    wanted.update(position=position, prefix=f"{number}/{place}")
                    crew.start(f"{place}.{position}", partial(run_seat, wanted))
        self.publish(f"done/{number}/{self.node}", crew.wait(self._order["step"]))


class TrialLeader:
    """The part of node 0 in `mldebug probe isolate`: it takes part as every node does, and also decides which groups are
    tried.
    """

    def __init__(self, order: dict[str, Any], stand: NodeParticipant) -> None:
        self._order, self._stand = order, stand
        self._until = time.monotonic() + order["seconds"]
        self._seats: List[List[List[int]]] = []  # of each member: node, local
        self._names: List[str] = []
        self._paths: Dict[str, str] = {}
        self._silent: Set[int] = set()  # nodes
        self._step = 0

    def lead(self) -> None:
        """Have all planned groups of members tried, repeat doubtful ones, then tell all nodes to end."""
        here = self._gather()
        if self._order["device"] == "cuda" and len(here) == 1 and self._order["each"] == "seat":
            self._paths = paths(self._order["seats"])
        tried: List[GroupTrial] = []
        for groups in plan(len(self._names), self._order["at_once"]):
            tried += self._try(groups)
        for groups in (*alone_again(tried), *again(tried, self._order["fine"])):
            self._try(groups)
        self._stand.publish(f"step/{self._step}", {"end": True})
        until = time.monotonic() + GRACE
        for node in here:
            if node:
                self._stand.wait_for(f"bye/{node}", until)

    def _gather(self) -> List[int]:
        """Wait for all nodes; those that come make the members. Returns their numbers."""
        until = time.monotonic() + self._order["join"]
        arrived = {
            node: self._stand.wait_for(f"node/{node}", until)
            for node in range(self._order["nodes"])
        }
        here = [node for node, one in arrived.items() if one is not None]
        for node in here:
            if arrived[node]["device"] != self._order["device"]:
                ours, its = self._order["device"], arrived[node]["device"]
                raise ValueError(
                    f"node {node} would measure {its}, and node 0 {ours}: name one --device on all"
                )
        hosts = [arrived[node]["name"] for node in here]
        for node in here:
            host = arrived[node]["name"] + (
                f"#{node}" if hosts.count(arrived[node]["name"]) > 1 else ""
            )
            self._add(node, host, arrived[node]["seats"], len(here) == 1)
        absent = [node for node, one in arrived.items() if one is None]
        emit("members", names=self._names, absent=absent, hosts=hosts)
        return here

    def _add(self, node: int, host: str, seats: int, only: bool) -> None:
        every = [[node, local] for local in range(seats)]
        if self._order["each"] == "node":
            self._names.append(host)
            self._seats.append(every)
            return
        word = "GPU" if self._order["device"] == "cuda" else "rank"
        for seat in every:
            self._names.append(f"{word} {seat[1]}" if only else f"{host} {word} {seat[1]}")
            self._seats.append([seat])

    def _try(self, groups: List[Group]) -> List[GroupTrial]:
        """One step: all these groups at once, each to its end or the deadline."""
        if time.monotonic() + self._order["step"] > self._until:
            emit("untried", groups=len(groups))
            return []
        number, self._step = self._step, self._step + 1
        seats = [[seat for number in group for seat in self._seats[number]] for group in groups]
        # the deadline of the others, also where no seat of this node takes part: whoever is still in this step is late in the next one, too
        until = time.monotonic() + self._order["step"] + KILLED + GRACE
        self._stand.publish(f"step/{number}", {"end": False, "groups": seats})
        self._stand.work(number, seats)
        nodes = sorted({seat[0] for group in seats for seat in group})
        results = {node: self._answered(number, node, until) for node in nodes}
        trials = [
            self._trial(group, [_of(results[node], place, position) for position, (node, _) in enumerate(seats[place])], len(groups) == 1)
            for place, group in enumerate(groups)
        ]  # fmt: skip
        emit("step", number=number, trials=[trial.as_event(self._names) for trial in trials])
        return trials

    def _answered(self, number: int, node: int, until: float) -> Any:
        """How a step went on that node; None where it says nothing. One that has said nothing before is not waited for as long."""
        if node in self._silent:
            until = min(until, time.monotonic() + GRACE)
        result = self._stand.wait_for(f"done/{number}/{node}", until)
        if result is None:
            self._silent.add(node)
        return result

    def _trial(self, group: Group, results: List[Result], alone: bool) -> GroupTrial:
        path = self._paths.get(",".join(map(str, sorted(group))), "")
        reasons = [failure(result) for result in results]
        failed = [reason for reason in reasons if reason]
        made = GroupTrial(group=group, path=path, alone=alone)
        if any(one.get("wrong") for one in results):
            made.outcome = "wrong"
        elif failed:
            late = all(one.get("late") for one in results if failure(one))
            made.outcome, made.reason = (
                ("timed_out", "") if late else ("failed", _first_cause(failed))
            )
            made.seconds = self._order["step"] if late else 0.0
        else:
            made.seconds = max(one["seconds"] for one in results)
            made.bandwidth = min(one["bandwidth"] for one in results) if len(group) > 1 else None
        return made


def _of(results: Any, place: int, position: int) -> Result:
    if results is None:
        return {"late": True}
    result: Result = results.get(f"{place}.{position}", {"late": True})
    return result


def _first_cause(reasons: List[str]) -> str:
    """The reason that is no consequence of another's end."""
    for reason in reasons:
        if not any(word in reason for word in CONSEQUENCES):
            return reason
    return reasons[0]
