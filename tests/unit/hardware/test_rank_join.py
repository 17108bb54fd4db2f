"""Which rank uses which GPU, from the driver's processes, open devices and all sorts of environments."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.hardware.gpu.rank_join import JoinEvidence, RankProcess, join
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading
from mldebug.hardware.gpu.visible_devices import visible

A, B, C, D = (f"GPU-{letter * 8}-0000-4000-8000-00000000000{n}" for n, letter in enumerate("abcd"))
GIB = 2**30


def gpus(*processes: tuple[GpuProcess, ...], **more: Any) -> list[GpuReading]:
    """Four GPUs; /dev/nvidia numbers run backwards, as they may."""
    listed = [*processes, *[()] * (4 - len(processes))]
    return [
        GpuReading(uuid=uuid, index=n, minor=3 - n, bus_id=f"00000000:{n}0:00.0", name="H200", processes=one, **more)
        for n, (uuid, one) in enumerate(zip((A, B, C, D), listed, strict=True))
    ]  # fmt: skip


def held(pid: int, gib: float = 60.0) -> tuple[GpuProcess, ...]:
    return (GpuProcess(pid=pid, memory_bytes=round(gib * GIB)),)


def rank(number: int, local: int | None = -1, **more: Any) -> RankProcess:
    """A rank with pid 100 + number, whose local rank is its number unless told."""
    env = more.pop("environment", {})
    return RankProcess(
        rank=number, pid=100 + number, local_rank=number if local == -1 else local, environment=env, **more
    )  # fmt: skip


# --- the evidence, one kind at a time ------------------------------------------------------------------


def test_the_drivers_word_goes_first_and_what_contradicts_it_is_said() -> None:
    text = join(
        [rank(0, open_minors=(3,), environment={"CUDA_VISIBLE_DEVICES": "2"})], gpus((), held(100))
    )
    (one,) = text.ranks

    assert (one.uuid, one.index, one.bus_id) == (B, 1, "00000000:10:00.0")
    assert one.evidence is JoinEvidence.COMPUTE_PROCESS
    assert one.words == "compute process 100, 60.0 GiB"
    assert one.conflicts == ("only open device says GPU 0: /dev/nvidia3 is the only one open",)


def test_a_rank_with_contexts_on_two_gpus_is_on_the_one_with_its_memory() -> None:
    text = join([rank(1)], gpus(held(101, 0.5), held(101, 60)))
    (one,) = text.ranks

    assert one.uuid == B
    assert one.conflicts == ("compute process says GPU 0: compute process 101, 0.5 GiB",)
    assert one.also == (A,)


def test_a_process_without_an_open_device_works_on_no_gpu_whatever_its_environment_says() -> None:
    text = join([rank(0, open_minors=()), rank(1, open_minors=None)], gpus())
    assert text.unknown == {0: "it has no GPU open"}
    assert [one.rank for one in text.ranks] == [1]


def test_the_only_open_device_goes_before_the_environment() -> None:
    (one,) = join([rank(0, open_minors=(1, 1))], gpus()).ranks

    assert (one.uuid, one.evidence) == (C, JoinEvidence.OPEN_DEVICE)
    assert one.conflicts == ()


def test_several_open_devices_prove_nothing() -> None:
    (one,) = join([rank(2, open_minors=(0, 1, 2, 3))], gpus()).ranks

    assert (one.uuid, one.evidence) == (C, JoinEvidence.ENVIRONMENT)


ENVIRONMENTS = [
    ({}, 3, D, "local rank 3 of all GPUs"),
    ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1, B, "local rank 1 of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "3,2"}, 0, D, "local rank 0 of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": " 2 , 1 "}, 1, B, "local rank 1 of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "2"}, 5, C, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "2"}, None, C, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": f"{D},{A}"}, 1, A, "local rank 1 of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, 0, B, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, 0, B, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 0, B, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "2,3"}, 1, D, "local rank 1 of NVIDIA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": f"{D},{C}"}, 0, C, "local rank 0 of NVIDIA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, 7, D, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, 0, B, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "8,9,10,11", "CUDA_VISIBLE_DEVICES": B}, 0, B, "the only GPU of CUDA_VISIBLE_DEVICES"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "local", "uuid", "words"), ENVIRONMENTS, ids=str)
def test_environments(
    environment: dict[str, str], local: int | None, uuid: str, words: str
) -> None:
    (one,) = join([rank(0, local, environment=environment)], gpus()).ranks

    assert (one.uuid, one.words, one.evidence) == (uuid, words, JoinEvidence.ENVIRONMENT)


NOBODY = [
    ({"CUDA_VISIBLE_DEVICES": ""}, 0, "CUDA_VISIBLE_DEVICES lets it see no GPU"),
    ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, "CUDA_VISIBLE_DEVICES lets it see no GPU"),
    ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, "CUDA_VISIBLE_DEVICES lets it see no GPU"),
    ({"CUDA_VISIBLE_DEVICES": "all"}, 0, "CUDA_VISIBLE_DEVICES=all names no GPU by 'all'"),
    ({"CUDA_VISIBLE_DEVICES": "9"}, 0, "CUDA_VISIBLE_DEVICES=9 names no GPU by '9'"),
    ({"CUDA_VISIBLE_DEVICES": "\x1b[31m,1"}, 0, "names no GPU by"),
    ({"CUDA_VISIBLE_DEVICES": "1,1"}, 0, "names a GPU twice: CUDA uses none"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-"}, 0, "names no GPU by 'GPU-'"),
    ({"CUDA_VISIBLE_DEVICES": "٣"}, 0, "names no GPU by"),
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, "local rank 2 is beyond the 2 of CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, None, "it may use 2 GPUs and has no local rank"),
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, -5, "local rank -5 is beyond"),
    ({"NVIDIA_VISIBLE_DEVICES": "8,9,10,11"}, 1, "NVIDIA_VISIBLE_DEVICES=8,9,10,11 names GPUs that we cannot follow"),
    ({"NVIDIA_VISIBLE_DEVICES": "void"}, 2, "NVIDIA_VISIBLE_DEVICES=void names GPUs that we cannot follow"),
    ({"NVIDIA_VISIBLE_DEVICES": "0:0,0:1"}, 1, "NVIDIA_VISIBLE_DEVICES=0:0,0:1 names GPUs that we cannot follow"),
    ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "1"}, 0, "CUDA_VISIBLE_DEVICES=1 names no GPU by '1'"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "local", "why"), NOBODY, ids=str)
def test_what_names_no_gpu_is_unknown(
    environment: dict[str, str], local: int | None, why: str
) -> None:
    text = join([rank(0, local, environment=environment)], gpus())

    assert text.ranks == ()
    assert why in text.unknown[0]
    assert "\x1b" not in text.unknown[0]


def test_unlike_gpus_have_an_order_only_where_it_is_said() -> None:
    mixed = [*gpus()[:2], *(GpuReading(uuid=u, index=n, name="L4") for n, u in ((2, C), (3, D)))]
    lone = {"CUDA_VISIBLE_DEVICES": "1"}

    assert "CUDA_DEVICE_ORDER" in join([rank(0, environment=lone)], mixed).unknown[0]
    assert "order" in join([rank(1)], mixed).unknown[1]
    facts = {**lone, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert join([rank(0, environment=facts)], mixed).on_gpu(B) == (0,)
    inside = {"NVIDIA_VISIBLE_DEVICES": "2,3"}
    assert join([rank(1, environment=inside)], mixed).on_gpu(D) == (1,), "those two are alike"
    across = {"NVIDIA_VISIBLE_DEVICES": "1,2"}
    assert "order" in join([rank(1, environment=across)], mixed).unknown[1]
    by_uuid = {"CUDA_VISIBLE_DEVICES": B}
    assert join([rank(0, environment=by_uuid)], mixed).on_gpu(B) == (0,)


# --- counted inside what the process has open ----------------------------------------------------------

LAST_TWO = (0, 1)  # /dev/nvidia numbers of GPUs 2 and 3
INSIDE = [
    ({}, 1, D, "local rank 1 of its open GPUs"),  # a device cgroup
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, 1, D, "local rank 1 of CUDA_VISIBLE_DEVICES"),  # Slurm counts in its cgroup
    ({"CUDA_VISIBLE_DEVICES": "2,3"}, 1, D, "local rank 1 of CUDA_VISIBLE_DEVICES"),  # nothing is narrowed
    ({"CUDA_VISIBLE_DEVICES": "1"}, 0, D, "the only GPU of CUDA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "void"}, 0, C, "local rank 0 of its open GPUs"),  # CDI
    ({"NVIDIA_VISIBLE_DEVICES": "2,3"}, 0, C, "local rank 0 of NVIDIA_VISIBLE_DEVICES"),
    ({"NVIDIA_VISIBLE_DEVICES": "8,9"}, 1, D, "local rank 1 of its open GPUs"),  # the agent is in the same container
]  # fmt: skip


@pytest.mark.parametrize(("environment", "local", "uuid", "words"), INSIDE, ids=str)
def test_the_open_devices_say_among_what_it_counts(
    environment: dict[str, str], local: int, uuid: str, words: str
) -> None:
    (one,) = join([rank(0, local, environment=environment, open_minors=LAST_TWO)], gpus()).ranks

    assert (one.uuid, one.words, one.evidence) == (uuid, words, JoinEvidence.ENVIRONMENT)


OUTSIDE = [
    ({"CUDA_VISIBLE_DEVICES": A}, LAST_TWO, "CUDA_VISIBLE_DEVICES names GPUs that it has not open"),
    ({"CUDA_VISIBLE_DEVICES": "1,2"}, (0, 1, 2), "fits more than one of the GPUs that it has open"),
    ({"NVIDIA_VISIBLE_DEVICES": "0:0,1:0"}, (2, 3), "names GPUs that we cannot follow"),
    ({}, (0, 1, 9), "it has GPUs open that are not seen here"),
]


@pytest.mark.parametrize(("environment", "minors", "why"), OUTSIDE, ids=str)
def test_a_claim_outside_the_open_devices_is_none(
    environment: dict[str, str], minors: tuple[int, ...], why: str
) -> None:
    text = join([rank(0, 0, environment=environment, open_minors=minors)], gpus())

    assert text.ranks == ()
    assert why in text.unknown[0]


# --- MIG -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["MIG-11111111-0000-4000-8000-000000000000", f"MIG-{B}/1/0"])
def test_a_slice_is_known_with_its_gpu(word: str) -> None:
    sliced = gpus()
    sliced[1] = GpuReading(uuid=B, index=1, name="H200", mig_mode=True, mig_instances=("MIG-11111111-0000-4000-8000-000000000000",))  # fmt: skip
    text = join([rank(0, environment={"CUDA_VISIBLE_DEVICES": word})], sliced)
    (one,) = text.ranks

    assert (one.uuid, one.index, one.instance) == (B, 1, word)
    assert text.on_gpu(word) == text.on_gpu(B) == (0,)


def test_two_ranks_on_two_slices_do_not_share() -> None:
    names = ("MIG-1", "MIG-2")
    sliced = [GpuReading(uuid=A, index=0, name="H200", mig_instances=names)]
    ranks = [rank(n, environment={"CUDA_VISIBLE_DEVICES": name}) for n, name in enumerate(names)]

    assert join(ranks, sliced).remarks == ()


def test_the_driver_s_slices_tell_two_ranks_apart_whose_environment_is_not_readable() -> None:
    def on(*slices: int | None) -> tuple[str, ...]:
        held = tuple(GpuProcess(pid=100 + n, memory_bytes=GIB, gpu_instance=one) for n, one in enumerate(slices))  # fmt: skip
        return join([rank(n, environment=None) for n in range(len(slices))], gpus(held)).remarks

    assert on(1, 2) == ()
    assert on(5, 5) == on(None, None) == ("ranks 0-1 share GPU 0 (compute process)",)


def test_an_unknown_slice_is_unknown() -> None:
    text = join([rank(0, environment={"CUDA_VISIBLE_DEVICES": "MIG-none"})], gpus())

    assert "names no GPU by 'MIG-none'" in text.unknown[0]


# --- what is odd ---------------------------------------------------------------------------------------


def test_two_ranks_on_one_gpu_are_told() -> None:
    text = join([rank(0), rank(1, 0)], gpus())

    assert text.remarks == ("ranks 0-1 share GPU 0 (environment)",)
    assert text.on_gpu(A) == (0, 1)


def test_processes_of_another_pid_namespace_are_told() -> None:
    text = join([rank(0)], gpus(held(999_999)))

    assert "none is a rank's" in text.remarks[0]
    assert text.ranks[0].evidence is JoinEvidence.ENVIRONMENT


def test_nothing_readable_is_unknown() -> None:
    text = join([RankProcess(rank=4, pid=1)], gpus())

    assert text.unknown == {4: "its environment is not readable"}


def test_no_gpus_at_all() -> None:
    assert "no GPU" in join([rank(0)], []).unknown[0]


@given(st.text(max_size=60), st.text(max_size=60), st.none() | st.integers())
def test_no_environment_breaks_it(cuda: str, container: str, local: int | None) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": cuda, "NVIDIA_VISIBLE_DEVICES": container}
    text = join([rank(0, local, environment=environment)], gpus())

    assert len(text.ranks) + len(text.unknown) == 1


def test_an_endless_list_is_cut() -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": "0," * 1_000_000}, gpus()).devices == ()
    assert visible({"CUDA_VISIBLE_DEVICES": "9" * 100_000}, gpus()).devices == ()
