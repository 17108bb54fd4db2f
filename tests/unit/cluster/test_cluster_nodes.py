"""GPUs that nodes announce, and all nodes of a cluster as `gpus list --cluster` and `top --cluster` show them."""

import msgspec
import pytest

from mldebug.cluster.announcement_size import ROOM, fitting
from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.known_peers import of_user
from mldebug.cluster.messages import (
    Announcement,
    ClusterView,
    PeerView,
    Relayed,
    RunNews,
    believed,
)
from mldebug.core.errors import EvidenceError
from mldebug.core.model import GpuBrief
from mldebug.status.cluster_nodes import viewed
from mldebug.status.node_lines import gpus_of_nodes

KEY = ("torchrun", "train.py", "uid 7")
GPU = GpuBrief(index=0, name="NVIDIA H200", busy=0.5, memory_used=1 << 30, memory_total=2 << 30, user="rank 0", state="healthy")  # fmt: skip


def news(ranks: str, **more: object) -> RunNews:
    return msgspec.structs.replace(RunNews(key=KEY, name="train.py", world_size=4, ranks=ranks), **more)  # fmt: skip


def announced(node: str, *gpus: GpuBrief, runs: tuple[RunNews, ...] = ()) -> Announcement:
    return Announcement(node=node, agent=node, port=9754, runs=runs, gpus=gpus)


def test_gpus_come_to_who_asks_from_each_node_and_from_those_that_others_relay() -> None:
    one = Coordinator()
    far = Relayed(node="n3", agent="c", port=7, address="10.0.0.3", gpus=(GPU,))
    one.update(announced("n1", GPU), "10.0.0.1", 0.0)
    relaying = msgspec.structs.replace(announced("n2"), relayed=(far,))
    one.update(relaying, "10.0.0.2", 0.0)
    one.update_relayed(relaying, 0.0, "10.0.0.2")
    view = one.view("n1", (), 1.0)
    assert {peer.node: peer.gpus for peer in view.peers} == {"n1": (GPU,), "n2": (), "n3": (GPU,)}


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"busy": 7.0}, {"busy": None}),
        ({"busy": float("nan")}, {"busy": None}),
        ({"memory_used": -1}, {"memory_used": None}),
        ({"celsius": 1e30}, {"celsius": None}),
        ({"name": "x\x1b[31m" + "y" * 500}, {}),
        ({"busy": 1.0, "watts": 700.0}, {"busy": 1.0, "watts": 700.0}),
    ],
)
def test_figures_that_cannot_be_are_left_out_and_texts_are_cleaned(
    changes: dict[str, object], kept: dict[str, object]
) -> None:
    (gpu,) = believed(announced("n1", msgspec.structs.replace(GPU, **changes))).gpus
    assert {name: getattr(gpu, name) for name in kept} == kept
    assert len(gpu.name) <= 60
    assert "\x1b" not in gpu.name


@pytest.mark.parametrize("index", [-1, 64, 1 << 40])
def test_a_gpu_that_is_none_is_not_believed(index: int) -> None:
    with pytest.raises(EvidenceError):
        believed(announced("n1", msgspec.structs.replace(GPU, index=index)))


def test_a_node_shows_each_gpu_once_and_not_more_than_there_can_be() -> None:
    many = tuple(msgspec.structs.replace(GPU, index=number % 64) for number in range(500))
    assert len(believed(announced("n1", *many)).gpus) == 64


def test_gpus_go_before_runs_where_a_message_is_too_large() -> None:
    runs = tuple(news(str(number), key=(*KEY, str(number)), node_list="n" * 8000) for number in range(200))  # fmt: skip
    fits = fitting(announced("n1", GPU, runs=runs))
    assert (fits.gpus, len(fits.runs)) == ((), 200)
    assert len(msgspec.json.encode(fits)) <= ROOM
    assert fitting(announced("n1", GPU, runs=runs[:3])).gpus == (GPU,)


def test_all_nodes_and_who_is_silent() -> None:
    idle = PeerView(node="n4", seconds_ago=1.0)
    view = ClusterView(
        coordinator="n1",
        peers=(
            PeerView(node="n1", seconds_ago=0.5, runs=(news("0-1", step=7),), gpus=(GPU,)),
            PeerView(node="n2", seconds_ago=1.5, runs=(news("2-3", step=8, incident="i1", sentence="rank 2 sleeps"),)),
            PeerView(node="n3", seconds_ago=61.0, runs=(news("0"),)),
            idle,
            PeerView(node="n5"),
        ),
        silent={"10.0.0.9:9754": "it does not answer"},
    )  # fmt: skip
    nodes = viewed(view)
    assert [(one.node, len(one.runs), len(one.gpus)) for one in nodes.answers] == [("n1", 1, 1), ("n2", 1, 0), ("n4", 0, 0)]  # fmt: skip
    assert nodes.silent == {"n3": "not heard of for 1 min 1 s", "n5": "never heard of", "10.0.0.9:9754": "it does not answer"}  # fmt: skip
    lines = [line.text for line in gpus_of_nodes(nodes)]
    assert lines[:4] == [
        "✘ 10.0.0.9:9754: it does not answer",
        "✘ n3: not heard of for 1 min 1 s",
        "✘ n5: never heard of",
        "3 of 6 nodes answered (n[1-2,4]): 1 GPU, nothing wrong with them",
    ]
    second = nodes.answers[1].runs[0]
    assert (second.incident, second.report, [one.rank for one in second.ranks]) == ("i1", "rank 2 sleeps", [2, 3])  # fmt: skip
    assert [one.node for one in viewed(of_user(view, 8)).answers] == []  # another user's runs
    ours = viewed(of_user(view, 7)).answers
    assert [one.node for one in ours] == ["n1", "n2"]
    assert [gpu.user for one in ours for gpu in one.gpus] == [""]  # it may be another user's rank
