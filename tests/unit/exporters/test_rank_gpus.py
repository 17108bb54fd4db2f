"""mldebug_rank_gpu_info: which rank works on which GPU, for two jobs on one node, and never by guess."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from mldebug.hardware.gpu.readings import GpuProcess, GpuReading, LostGpu, NodeGpus
from mldebug.status.snapshot import RunState, Snapshot
from mldebug_exporters.prometheus import Prometheus
from shared.web.snapshots import AT, moving, snapshot

GPUS = NodeGpus(
    at=AT,
    gpus=(
        GpuReading(uuid="GPU-a", index=0, processes=(GpuProcess(pid=100, memory_bytes=7), GpuProcess(pid=900, memory_bytes=9))),
        GpuReading(uuid="GPU-b", index=1, processes=(GpuProcess(pid=100),)),
        GpuReading(uuid="GPU-c", index=2),
    ),
)  # fmt: skip


def exposed(made: Snapshot) -> dict[str, list[tuple[dict[str, str], float]]]:
    text = Prometheus().render(made)[0].decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.startswith("mldebug_rank_gpu"):
                found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def on(run: RunState, gpus: dict[int, str], guessed: tuple[int, ...] = ()) -> RunState:
    return msgspec.structs.replace(run, gpus=gpus, gpus_guessed=guessed)


def test_two_jobs_on_two_cards() -> None:
    runs = (on(moving("5c01", 1), {0: "GPU-a"}), on(moving("77aa", 1), {0: "GPU-c"}))

    assert exposed(snapshot(*runs, gpus=GPUS)) == {
        "mldebug_rank_gpu_info": [
            ({"run": "5c01", "rank": "0", "gpu": "0", "uuid": "GPU-a"}, 1.0),
            ({"run": "77aa", "rank": "0", "gpu": "2", "uuid": "GPU-c"}, 1.0),
        ],
        "mldebug_rank_gpu_memory_bytes": [({"run": "5c01", "rank": "0", "uuid": "GPU-a"}, 7.0)],
    }


def test_a_guess_joins_nothing() -> None:
    run = on(moving("5c01", 2), {0: "GPU-a", 1: "GPU-b"}, guessed=(0,))
    found = exposed(snapshot(run, gpus=GPUS))

    assert [labels["rank"] for labels, _ in found["mldebug_rank_gpu_info"]] == ["1"]
    assert "mldebug_rank_gpu_memory_bytes" not in found


def test_a_gpu_that_is_lost_while_its_rank_runs_stays_the_rank_s() -> None:
    lost = NodeGpus(at=AT, gpus=GPUS.gpus[1:], lost=(LostGpu(index=0, uuid="GPU-a", reason="off the bus"),))  # fmt: skip
    runs = (on(moving("5c01", 2), {0: "GPU-a", 1: "GPU-b"}), on(moving("77aa", 1), {0: "GPU-a"}))
    found = exposed(snapshot(*runs, gpus=lost))

    assert [(one["run"], one["rank"], one["gpu"]) for one, _ in found["mldebug_rank_gpu_info"]] == [
        ("5c01", "0", "0"),
        ("5c01", "1", "1"),
        ("77aa", "0", "0"),
    ]
    assert "mldebug_rank_gpu_memory_bytes" not in found  # nobody counts it any more
    assert "mldebug_rank_gpu_info" not in exposed(snapshot(on(runs[1], {0: "GPU-a"}, (0,)), gpus=lost))  # fmt: skip


def test_without_a_reading_nothing_is_said() -> None:
    assert exposed(snapshot(on(moving("5c01", 1), {0: "GPU-a"}))) == {}
    assert exposed(snapshot(on(moving("5c01", 1), {0: "GPU-gone"}), gpus=GPUS)) == {}
