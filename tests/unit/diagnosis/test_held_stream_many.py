"""A held stream among many ranks, on one node and on several: made of the two ranks that were recorded on two H200s.

Rank 0 of the recording spins in the collective, rank 1 is held; each made rank is one of these under another number.
"""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mldebug.capture.nccl_ras.communicators import communicator
from mldebug.core.model import NcclRank, NcclRas, NodeCapture, RankCapture, RankDevice
from mldebug.diagnosis.diagnose import diagnose
from unit.diagnosis.test_held_stream import recorded

SPINS, HELD = 0, 1
TEMPLATE = recorded("figures-frozen")
PER_NODE = 8


def made(world: int, held: Collection[int]) -> list[NodeCapture]:
    """One capture for each eight ranks; NCCL RAS answers on every node for all of them."""
    return [_node(world, first, held) for first in range(0, world, PER_NODE)]


def _node(world: int, first: int, held: Collection[int]) -> NodeCapture:
    numbers = range(first, min(first + PER_NODE, world))
    ranks = tuple(_rank(number, world, HELD if number in held else SPINS) for number in numbers)
    devices = tuple(_device(number, HELD if number in held else SPINS) for number in numbers)
    nodes = tuple(_name(number) for number in range(0, world, PER_NODE))
    job = replace(TEMPLATE.job, world_size=world, ranks=tuple(one.identity for one in ranks), nodes=nodes)  # fmt: skip
    return replace(
        TEMPLATE, node=_name(first), job=job, ranks=ranks, gpus=devices, ras=_ras(world, first),
        devices="", quiet_seconds=60.0, step=None,
    )  # fmt: skip


def _name(number: int) -> str:
    return f"node{number // PER_NODE}"


def _host(number: int) -> str:
    return f"192.0.2.{10 + number // PER_NODE}"


def _pid(number: int) -> int:
    """The same on every node, as in containers."""
    return 70_000 + number % PER_NODE


def _rank(number: int, world: int, of: int) -> RankCapture:
    old = TEMPLATE.ranks[of].identity.pid
    raw = _renumbered(msgspec.to_builtins(TEMPLATE.ranks[of]), old, _pid(number))
    one = msgspec.convert(raw, RankCapture)
    identity = replace(one.identity, rank=number, world_size=world, node=_name(number), local_rank=number % PER_NODE)  # fmt: skip
    return replace(one, identity=identity)


def _renumbered(value: Any, old: int, new: int) -> Any:
    """The process under another pid, wherever it stands."""
    if isinstance(value, dict):
        return {key: _renumbered(one, old, new) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_renumbered(one, old, new) for one in value]
    return new if type(value) is int and value == old else value


def _device(number: int, of: int) -> RankDevice:
    index = number % PER_NODE
    return replace(TEMPLATE.gpus[of], rank=number, uuid=f"GPU-{index}", index=index, pids=(_pid(number),))  # fmt: skip


def _ras(world: int, here: int) -> NcclRas:
    assert TEMPLATE.ras is not None
    (one,) = TEMPLATE.ras.communicators
    rows = tuple(
        NcclRank(rank=n, host=_host(n), pid=_pid(n), gpu=n % PER_NODE, status="running", counts=one.ranks[0].counts)
        for n in range(world)
    )  # fmt: skip
    whole = replace(one, size=world, answered=world, launched=one.furthest * world, ranks=rows)
    return replace(TEMPLATE.ras, communicators=(whole,), own=("127.0.0.1", _host(here)))


def judged(captures: list[NodeCapture]) -> tuple[str, list[int | None], str]:
    found = diagnose(captures).diagnosis
    return str(found.verdict), [one.rank for one in found.culprits], str(found.confidence)


def changed(capture: NodeCapture, rank: int, **fields: object) -> NodeCapture:
    gpus = (replace(one, **fields) if one.rank == rank else one for one in capture.gpus)
    return replace(capture, gpus=tuple(gpus))


WORLDS = [(8, 0), (8, 3), (8, 7), (16, 0), (16, 5), (16, 11), (16, 15)]


@pytest.mark.parametrize(("world", "held"), WORLDS)
def test_the_one_that_is_held_is_named_on_its_node(world: int, held: int) -> None:
    captures = made(world, {held})
    assert judged(captures) == ("rank_waiting", [held], "medium")
    (culprit,) = diagnose(captures).diagnosis.culprits
    assert culprit.node == _name(held)
    summary = diagnose(captures).diagnosis.summary
    assert f"and all {world} have launched the same number of collectives (NCCL RAS)" in summary


@pytest.mark.parametrize("held", [(3, 4), (3, 12), tuple(range(8)), tuple(range(16))])
def test_of_several_quiet_ones_nobody_is_named(held: tuple[int, ...]) -> None:
    """Some may wait for others by what is no kernel; where all of one node are quiet, it is not the fault of one rank."""
    assert judged(made(16, held))[:2] == ("unknown", [])


def test_a_node_without_data_of_its_gpus_keeps_everybody_from_being_named() -> None:
    """Somebody there may be quiet, too."""
    here, there = made(16, {5})
    assert judged([here, replace(there, gpus=())])[:2] == ("unknown", [])
    assert judged([here, replace(there, gpus=there.gpus[:-1])])[:2] == ("unknown", [])


def test_a_node_that_sent_nothing_keeps_everybody_from_being_named() -> None:
    assert judged(made(16, {5})[:1])[1] == []


@pytest.mark.parametrize("world", [8, 16])
def test_looks_at_different_times_are_no_comparison(world: int) -> None:
    """One GPU was looked at while the others were not: that they differ at one moment nobody has seen."""
    captures = made(world, {3})
    looks = captures[0].gpus[3].samples
    early = tuple(replace(one, at=one.at - 15.0) for one in looks[-5:])
    others = [changed(captures[0], 3, samples=early), *captures[1:]]
    assert early[-1].at < min(one.samples[0].at for one in captures[0].gpus if one.rank != 3)
    assert judged(others)[:2] == ("unknown", [])


def test_clocks_of_nodes_are_never_compared() -> None:
    here, there = made(16, {3})
    looks = {one.rank: tuple(replace(it, at=it.at + 5e5) for it in one.samples) for one in there.gpus}  # fmt: skip
    ahead = replace(there, taken_at=there.taken_at + 5e5)
    for rank, samples in looks.items():
        ahead = changed(ahead, rank, samples=samples, sm_read_at=0.0)
    assert judged([here, ahead]) == ("rank_waiting", [3], "medium")


def test_captures_of_different_moments_are_no_comparison() -> None:
    """The second node was looked at five minutes later; how long all are without progress tells that."""
    here, there = made(16, {3})
    assert judged([here, there]) == ("rank_waiting", [3], "medium")
    late = replace(there, taken_at=there.taken_at + 300.0, quiet_seconds=360.0)
    for one in there.gpus:
        looks = tuple(replace(it, at=it.at + 300.0) for it in one.samples)
        late = changed(late, one.rank, samples=looks, sm_read_at=0.0)
    assert judged([here, late])[:2] == ("unknown", [])
    unwatched = [replace(one, quiet_seconds=0.0) for one in (here, there)]
    assert judged(unwatched)[:2] == ("unknown", [])


def behind_by(node: NodeCapture, number: int) -> NodeCapture:
    """With an answer of NCCL RAS by which one rank has launched a collective less."""
    assert node.ras is not None
    (one,) = node.ras.communicators
    rows = tuple(
        replace(row, counts={name: many - 1 for name, many in row.counts.items()})
        if row.rank == number
        else row
        for row in one.ranks
    )
    result = communicator(one.key, one.size, rows, ())
    return replace(node, ras=replace(node.ras, communicators=(result,)))


def test_answers_of_nccl_ras_that_contradict_each_other_name_nobody() -> None:
    """In whatever order the nodes come; both are told."""
    here, there = made(16, {3})
    there = behind_by(there, 9)
    assert judged([here, there]) == judged([there, here]) == ("unknown", [], "low")
    first, second = (diagnose(both).diagnosis for both in ([here, there], [there, here]))
    assert (first.summary, first.evidence) == (second.summary, second.evidence)
    matching = [one for one in first.evidence if one.startswith("NCCL RAS on ")]
    assert [one.partition(":")[0] for one in matching] == ["NCCL RAS on node0", "NCCL RAS on node1"]
    assert "16 ranks answer and have launched the same" in matching[0]
    assert "rank 9 has launched" in matching[1]
