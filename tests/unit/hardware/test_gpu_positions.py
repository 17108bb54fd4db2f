"""A GPU that is lost keeps its place: no rank is said to work on its neighbour's."""

import msgspec
import pytest

from mldebug.hardware.gpu.positions import LOST, located, named, remembering, with_lost
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpuMap, RankProcess, join
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading, LostGpu, NodeGpus


def reading(index: int) -> GpuReading:
    bus = f"00000000:{index + 1}B:00.0"
    held = (GpuProcess(pid=100 + index),)
    return GpuReading(
        uuid=f"GPU-{index}", index=index, bus_id=bus, minor=index, name="H200", processes=held
    )


def without(index: int, **text: str) -> NodeGpus:
    """Four GPUs, of which one is lost."""
    left = tuple(reading(one) for one in range(4) if one != index)
    return NodeGpus(at=1.0, gpus=left, lost=(LostGpu(index=index, reason="lost", **text),))


RANKS = [
    RankProcess(rank=one, pid=100 + one, local_rank=one, open_minors=(0, 1, 2, 3), environment={})
    for one in range(4)
]


def joined(node: NodeGpus) -> RankGpuMap:
    return named(join(RANKS, with_lost(node)))


@pytest.mark.parametrize("index", range(4))
def test_the_rank_of_a_lost_gpu_stays_on_it(index: int) -> None:
    result = joined(without(index, uuid=f"GPU-{index}", bus_id=f"00000000:{index + 1}B:00.0"))
    assert {one.rank: one.uuid for one in result.ranks} == {one: f"GPU-{one}" for one in range(4)}
    mine = result.of_rank(index)
    assert mine is not None
    assert mine.evidence is JoinEvidence.ENVIRONMENT
    assert result.remarks == ()


@pytest.mark.parametrize("index", range(4))
def test_the_rank_of_a_gpu_without_a_name_is_on_no_other(index: int) -> None:
    result = joined(without(index))
    assert result.unknown == {index: LOST}
    assert {one.rank: one.uuid for one in result.ranks} == {one: f"GPU-{one}" for one in range(4) if one != index}  # fmt: skip


def test_a_gpu_that_the_driver_does_not_list_any_more_keeps_its_place_though_numbers_moved() -> (
    None
):
    whole = without(1, uuid="GPU-1", bus_id="00000000:2B:00.0", code="missing")
    moved = tuple(msgspec.structs.replace(one, index=at) for at, one in enumerate(whole.gpus))
    result = joined(msgspec.structs.replace(whole, gpus=moved))
    assert {one.rank: one.uuid for one in result.ranks} == {one: f"GPU-{one}" for one in range(4)}


SLOTS = tuple(f"0000:{one + 1}b:00.0" for one in range(4))


def addresses(node: NodeGpus, *slots: str) -> list[str]:
    return [one.bus_id for one in located(node, slots).lost]


@pytest.mark.parametrize("index", range(4))
def test_the_driver_s_folder_tells_where_a_gpu_without_a_name_sits(index: int) -> None:
    assert addresses(without(index), *reversed(SLOTS)) == [f"00000000:{index + 1}B:00.0"]


def test_two_of_them_are_told_apart_by_their_numbers() -> None:
    two = (LostGpu(index=1, reason="lost"), LostGpu(index=3, reason="lost"))
    node = NodeGpus(at=1.0, gpus=(reading(0), reading(2)), lost=two)

    assert addresses(node, *SLOTS) == ["00000000:2B:00.0", "00000000:4B:00.0"]


def test_a_gpu_without_a_name_gets_no_address_that_is_not_sure() -> None:
    assert addresses(without(1)) == [""], "no folder"
    assert addresses(without(1), *SLOTS, "0000:5b:00.0") == [""], "a container that has not all"
    assert addresses(without(1), "0000:0b:00.0", *SLOTS[1:]) == [""], "another order"
    known = without(1, bus_id="00000000:7B:00.0")
    assert located(known, SLOTS) == known


def test_where_none_is_lost_nothing_changes() -> None:
    node = NodeGpus(at=1.0, gpus=tuple(reading(one) for one in range(4)))
    assert with_lost(node) == node.gpus


# --- what was known better --------------------------------------------------------------------------------

ALL = {f"GPU-{one}" for one in range(8)}
UPPER = (4, 5, 6, 7)


def half(start: int = 1, **claims: object) -> list[RankProcess]:
    """A job on the upper half of eight GPUs, numbered from 0 by its scheduler; the agent reads no devices."""
    facts = {"environment": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, **claims}
    return [RankProcess(rank=one, pid=104 + one, start_ticks=start, local_rank=one, **facts) for one in range(4)]  # type: ignore[arg-type]  # fmt: skip


def eight(*lost: int, lists: bool = True) -> tuple[GpuReading, ...]:
    gpus = tuple(reading(one) for one in range(8) if one not in lost)
    return gpus if lists else tuple(msgspec.structs.replace(one, processes=None) for one in gpus)


def places(rank_gpu_map: RankGpuMap) -> dict[int, int]:
    return {one.rank: one.index for one in rank_gpu_map.ranks}


def test_a_convention_does_not_move_a_rank_whose_gpu_is_lost() -> None:
    before = join(half(), eight())
    node = NodeGpus(at=1.0, gpus=eight(5), lost=(LostGpu(index=5, uuid="GPU-5", bus_id="00000000:6B:00.0", reason="lost"),))  # fmt: skip
    now = named(join(half(), with_lost(node)))
    assert places(now)[1] == 1
    kept = remembering(now, before, ALL - {"GPU-5"})
    assert places(kept) == {0: 4, 1: 5, 2: 6, 3: 7}
    assert all(one.sure for one in kept.ranks)


def test_the_drivers_word_outlives_a_read_that_lists_no_process() -> None:
    before = join(half(), eight())
    assert places(remembering(join(half(), eight(lists=False)), before, ALL)) == {0: 4, 1: 5, 2: 6, 3: 7}  # fmt: skip


def test_a_process_that_was_given_the_pid_or_the_rank_since_begins_anew() -> None:
    before, now = join(half(), eight()), join(half(start=2), eight(lists=False))
    assert remembering(now, before, ALL) == now
    gone = join(half(start=2, environment=None), eight(lists=False))
    assert remembering(gone, before, ALL).ranks == ()


def test_the_first_of_many_devices_that_a_rank_opens_is_not_kept() -> None:
    one, more = half(open_minors=(4,)), half(open_minors=UPPER)
    before, now = join(one, eight(lists=False)), join(more, eight(lists=False))
    assert {rank.evidence for rank in before.ranks} == {JoinEvidence.OPEN_DEVICE}
    assert places(remembering(now, before, ALL)) == {0: 4, 1: 5, 2: 6, 3: 7}


def test_a_rank_that_moves_by_the_drivers_word_moves() -> None:
    before = join(half(), eight(lists=False))
    assert places(before) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert places(remembering(join(half(), eight()), before, ALL)) == {0: 4, 1: 5, 2: 6, 3: 7}


def test_a_guess_about_a_lost_gpu_gives_way_to_the_drivers_word() -> None:
    """The convention had put rank 1 on GPU 1; it worked on GPU 5 all the time."""
    before = join(half(), eight(lists=False))
    now = join(half(), eight(1))
    assert places(before)[1] == 1
    assert places(remembering(now, before, ALL - {"GPU-1"})) == {0: 4, 1: 5, 2: 6, 3: 7}
