"""A port or an adapter that failed as a job on several nodes stopped: who is named, how surely, and what takes that away."""

import signal
from collections.abc import Callable

import msgspec
import pytest

from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Fault,
    Job,
    RankIdentity,
    Verdict,
)
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankError, RankExit
from mldebug.hardware.health.faults import faults_of_ports
from mldebug.hardware.ports.parse import PortReading
from mldebug.hardware.ports.state import NodePorts, PortState, PortWatch
from shared.cluster.nodes import merged, run, silent, sleeper
from shared.diagnosis.builders import process, still

TAKEN, QUIET = 1_700_000_000.0, 60.0
PORT = PortReading(name="mlx5_3/1", link="infiniband", up=True, physical=True, state="ACTIVE")
DOWN = msgspec.structs.replace(PORT, up=False, physical=False, state="DOWN")


def fault(**more: object) -> Fault:
    facts = {"words": "port mlx5_3/1 was up and is DOWN", "at": TAKEN - QUIET + 3} | more
    fixed = {"kind": "port_down", "code": "port_down", "tier": "fatal", "node": "a2"}
    return Fault(**(fixed | facts))  # type: ignore[arg-type]


def judged(*faults: Fault, quiet: float = QUIET, **odd: object) -> Diagnosis:
    """Two nodes with two ranks each; the second node has the faults."""
    captures = run(2, 2, **odd)  # type: ignore[arg-type]
    captures = {name: msgspec.structs.replace(one, quiet_seconds=quiet) for name, one in captures.items()}  # fmt: skip
    captures["a2"] = msgspec.structs.replace(captures["a2"], faults=faults)
    return diagnose(captures.values()).diagnosis


def test_the_port_and_its_node_are_named_and_no_rank() -> None:
    found = judged(fault())
    assert (found.verdict, found.confidence) == (Verdict.NETWORK_FAULT, Confidence.MEDIUM)
    assert [(one.kind, one.node, one.rank) for one in found.culprits] == [("link", "a2", None)]
    assert found.summary.startswith(
        "Port mlx5_3/1 was up and is DOWN on node a2; ranks 0-3 wait in all_reduce"
    )
    assert "3 s after the job stopped" in found.evidence[0]
    assert any("ssh a2" in step for step in found.next_steps)


@pytest.mark.parametrize(
    "weaker", [{"confirmed": False}, {"trusted": False}, {"at": TAKEN - QUIET - 50}, {"at": TAKEN - 1}]
)  # fmt: skip
def test_one_reading_or_another_moment_is_one_sign(weaker: dict[str, object]) -> None:
    found = judged(fault(**weaker))
    assert (found.verdict, found.confidence) == (Verdict.NETWORK_FAULT, Confidence.LOW)


def test_where_nobody_watched_it_is_one_sign() -> None:
    found = judged(fault(at=TAKEN - 300), quiet=0.0)
    assert (found.verdict, found.confidence) == (Verdict.NETWORK_FAULT, Confidence.LOW)


def test_a_node_without_a_capture_takes_certainty_away() -> None:
    alone = run(2, 2)["a1"]
    alone = msgspec.structs.replace(alone, quiet_seconds=QUIET, faults=(fault(node="a1"),))
    found = diagnose([alone]).diagnosis
    assert (found.verdict, found.confidence) == (Verdict.NETWORK_FAULT, Confidence.LOW)


@pytest.mark.parametrize("when", [{"at": TAKEN - QUIET - 120}, {"tier": "warning"}, {"kind": "link_up"}])  # fmt: skip
def test_what_is_no_cause_names_nobody(when: dict[str, object]) -> None:
    assert judged(fault(**when)).verdict is Verdict.UNKNOWN


def test_a_rank_that_sleeps_is_named_whatever_the_port_does() -> None:
    found = judged(fault(), odd={1: sleeper()})
    assert (found.verdict, [one.rank for one in found.culprits]) == (Verdict.RANK_WAITING, [1])


def test_a_rank_in_another_collective_is_named_whatever_the_port_does() -> None:
    """The ranks differ in what they have called, which no port brings about: it may be one that the job does not use."""
    elsewhere = process(
        "all_gather (torch/distributed/distributed_c10d.py:2700)",
        "evaluate (train.py:80)",
        move=still(),
    )
    found = judged(fault(), odd={1: elsewhere})
    assert (found.verdict, [one.rank for one in found.culprits]) == (
        Verdict.COLLECTIVE_MISMATCH,
        [1],
    )


def test_a_faint_sign_that_a_rank_is_out_of_step_yields_to_a_port_that_is_surely_down() -> None:
    """Who waits for its GPU beside ranks in a collective may only have run ahead."""
    faint = process(
        "synchronize (torch/cuda/__init__.py:1040)", "evaluate (train.py:80)", move=still()
    )
    alone = judged(odd={1: faint})
    found = judged(fault(), odd={1: faint})

    assert alone.confidence == "low"
    assert (found.verdict, found.confidence) == (Verdict.NETWORK_FAULT, Confidence.MEDIUM)


@pytest.mark.parametrize(
    ("state", "verdict"), [("down", Verdict.NODE_UNREACHABLE), ("silent", Verdict.NETWORK_FAULT)]
)
def test_a_node_that_is_surely_down_goes_before_a_port_of_another(
    state: str, verdict: Verdict
) -> None:
    """Where not all were captured a port is one sign; so is a node that is only silent."""
    captures = run(3, 2)
    captures = {name: msgspec.structs.replace(one, quiet_seconds=QUIET) for name, one in captures.items()}  # fmt: skip
    captures["a2"] = msgspec.structs.replace(captures["a2"], faults=(fault(),))
    del captures["a3"]
    gone = [msgspec.structs.replace(silent("a3")[0], state=state)]
    (one,) = merged(captures, gone).runs
    found = diagnose(*one).diagnosis

    assert found.verdict is verdict, found.summary


def test_many_ports_of_one_moment_are_all_named_in_a_short_sentence() -> None:
    found = judged(*(fault(words=f"port mlx5_{n}/1 was up and is DOWN") for n in range(12)))
    assert len(found.culprits) == 8
    assert "; and 9 more; ranks 0-3 wait" in found.summary


# --- from the readings of a port to its fault ------------------------------------------------------


def after(*readings: PortReading) -> tuple[PortState, ...]:
    """Read every 30 seconds."""
    watch = PortWatch()
    for number, one in enumerate(readings):
        states = watch.take([one], 30.0 * number, 7200.0)
    return states


def faults(states: tuple[PortState, ...]) -> tuple[Fault, ...]:
    return faults_of_ports(NodePorts(at=TAKEN, ports=states), "a2")


def test_the_fault_is_dated_by_the_first_reading_in_which_it_was_down() -> None:
    (first,) = faults(after(PORT, DOWN))
    assert (first.at, first.confirmed) == (TAKEN, False)
    (third,) = faults(after(PORT, DOWN, DOWN, DOWN))
    assert (third.at, third.confirmed) == (TAKEN - 60.0, True)


@pytest.mark.parametrize(("flaps", "confirmed"), [(0, True), (1, True), (2, False)])
def test_a_port_that_flaps_anyway_is_one_sign(flaps: int, confirmed: bool) -> None:
    states = (msgspec.structs.replace(one, flaps=flaps) for one in after(PORT, DOWN, DOWN))
    assert [one.confirmed for one in faults(tuple(states))] == [confirmed]


def test_a_port_that_came_back_and_went_again_is_dated_anew() -> None:
    assert faults(after(PORT, DOWN, PORT)) == ()
    (again,) = faults(after(PORT, DOWN, DOWN, PORT, DOWN))
    assert again.at == TAKEN


@pytest.mark.parametrize(
    "change",
    [
        lambda one: msgspec.structs.replace(one, once_up=False),
        lambda one: msgspec.structs.replace(one, used=False),
        lambda one: msgspec.structs.replace(one, now=msgspec.structs.replace(one.now, off=True)),
        lambda one: msgspec.structs.replace(one, now=msgspec.structs.replace(one.now, link="ethernet")),
    ],
    ids=["never up", "no job uses it", "switched off", "plain Ethernet"],
)  # fmt: skip
def test_no_fault_is_what_no_job_needs(change: Callable[[PortState], PortState]) -> None:
    assert faults(tuple(map(change, after(PORT, DOWN, DOWN)))) == ()


# --- jobs that ended ---------------------------------------------------------------------------------

PEER = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error. Last error: NET/IB: Got completion from peer with status=IBV_WC_RETRY_EXC_ERR(12)"


def ended(*faults: Fault, nodes: int = 2, own: str = "", **more: object) -> AttemptExit:
    """Two ranks of this node's fail: both blame a peer, or rank 1 says something of its own."""
    world = 2 * nodes
    ranks = tuple(RankIdentity(rank=r, world_size=world, pid=100 + r, node="a2") for r in range(2))
    exits = tuple(
        RankExit(rank=r, pid=100 + r, at=TAKEN + r, moment=r, status=1 << 8) for r in range(2)
    )
    errors = {r: RankError(error=PEER, source="its own output", blames_peer=True) for r in range(2)}
    if own:
        errors[1] = RankError(error=own, source="its own output")
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=world, ranks=ranks, nodes=("a2",))  # fmt: skip
    found = AttemptExit(job=job, identities=ranks, exits=exits, errors=errors, faults=faults)
    return msgspec.structs.replace(found, **more)


def test_ranks_that_blame_their_peers_after_a_port_went_down() -> None:
    finding = judge_exit(ended(fault(at=TAKEN - 30))).finding
    assert finding is not None
    assert (finding.verdict, finding.confidence) == (Verdict.NETWORK_FAULT, Confidence.LOW)
    assert [(one.kind, one.node, one.rank) for one in finding.culprits] == [("link", "a2", None)]
    assert finding.summary.startswith("port mlx5_3/1 was up and is DOWN on node a2; ")


@pytest.mark.parametrize(
    "attempt",
    [
        ended(fault(at=TAKEN - 300)),
        ended(fault(at=TAKEN + 20)),
        ended(fault(at=TAKEN - 30), nodes=1),
        ended(fault(at=TAKEN - 30), own="ValueError: bad sample 17"),
        ended(fault(at=TAKEN - 30, tier="warning")),
        ended(),
    ],
    ids=["long before", "after it", "one node", "an error of its own", "a warning", "no fault"],
)
def test_an_exit_for_another_reason_blames_no_port(attempt: AttemptExit) -> None:
    finding = judge_exit(attempt).finding
    assert finding is not None
    assert finding.verdict is not Verdict.NETWORK_FAULT


def test_a_job_that_was_ended_from_outside_blames_nothing() -> None:
    items = tuple(msgspec.structs.replace(one, status=int(signal.SIGTERM)) for one in ended().exits)
    outcome = judge_exit(ended(fault(at=TAKEN - 30), exits=items, errors={}))
    assert outcome.finding is None
