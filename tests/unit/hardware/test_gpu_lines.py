"""GPUs in words: plain figures, the table, health, what status tells; as data in and lines out."""

import io
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from mldebug.core.model import Gap, Job
from mldebug.hardware.gpu.expected import GpuCount, KnownGpu, MissingGpu
from mldebug.hardware.gpu.figures import plain_sentence
from mldebug.hardware.gpu.readings import (
    UNLISTED,
    GpuProcess,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug.hardware.health.sentences import GpuName, complaints, headline, state_of_gpu
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.status.gpu_lines import hardware_lines, rank_lines, rank_sentences
from mldebug.status.gpu_table import missing, rows, table, users
from mldebug.status.gpu_view import GpuOverview, GpuUser, of_agent
from mldebug.status.snapshot import RunState, Snapshot, SourceState
from mldebug_agents.cli.commands.gpus import show_list
from mldebug_agents.cli.commands.support.doctor import show_gpus
from mldebug_agents.support.doctor.gpus import examined
from shared.hardware.kernellines import fold, parse_line

NOW = 1_795_240_000.0
Golden = Callable[[str, str], None]


def watch(index: int, busy: float | None, power: float | None, traffic: float | None = 0.0) -> GpuWatch:  # fmt: skip
    return GpuWatch(
        uuid=f"GPU-{index}",
        index=index,
        utilization_ratio=busy,
        memory_utilization_ratio=traffic,
        power_watts=power,
    )


def looked(*gpus: GpuWatch, lost: tuple[LostGpu, ...] = ()) -> NodeWatch:
    return NodeWatch(at=NOW, gpus=gpus, lost=lost)


def gpu(index: int, **changes: object) -> GpuReading:
    made = GpuReading(
        uuid=f"GPU-{index}",
        index=index,
        bus_id=f"00000000:{index + 1}B:00.0",
        name="NVIDIA H200",
        utilization_ratio=0.98,
        memory_used_bytes=120 << 30,
        memory_total_bytes=140 << 30,
        temperature_celsius=61.0,
        power_instant_watts=640.0,
        power_limit_watts=700.0,
        processes=(),
    )
    return msgspec.structs.replace(made, **changes)


def health(
    index: int | None, component: str, state: HealthState = HealthState.HEALTHY, **more: str
) -> ComponentHealth:
    uuid = "" if index is None else f"GPU-{index}"
    action = SuggestedAction(more.pop("action", "none"))
    return ComponentHealth(
        component=component, state=state, uuid=uuid, gpu=index, action=action, **more
    )


XID = "3,1,0,-;NVRM: Xid (PCI:0000:4b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


def event(text: str = XID, rank: int | None = 3, run: str = "1a2b3c") -> RankEvent:
    found = parse_line(text, NOW - 754.0)
    assert found is not None
    (burst,) = fold([found])
    return RankEvent(burst=burst, run=run, rank=rank, by="gpu" if rank is not None else "node")


GONE = MissingGpu(
    gpu=KnownGpu(uuid="GPU-3", bus_id="00000000:4B:00.0", index=3, name="NVIDIA H200"),
    since=NOW - 754.0,
    reason="GPU is lost",
)
SICK = GpuOverview(
    node="node7",
    at=NOW,
    gpus=NodeGpus(
        at=NOW,
        driver_version="580.159.04",
        library_version="13.580.159.04",
        gpus=(
            gpu(0),
            gpu(1, processes=(GpuProcess(pid=4711),)),
            gpu(2, utilization_ratio=None, power_instant_watts=None, temperature_celsius=None),
        ),
        lost=(LostGpu(index=3, uuid="GPU-3", bus_id="00000000:4B:00.0", reason="GPU is lost", code="gpu_is_lost"),),
    ),
    users=(
        GpuUser(uuid="GPU-0", job_id="1a2b3c", job="train.py", rank=0, words="compute process 99, 118.2 GiB"),
        GpuUser(uuid="GPU-3", job_id="1a2b3c", job="train.py", rank=3),
    ),
    unjoined=("ranks 1-2 of train.py: its environment is not readable",),
    count=GpuCount(present=3, expected=4, missing=(GONE,)),
    events=(event(),),
    health=(
        *(health(one, "gpu_power") for one in range(3)),
        *(health(one, "gpu_retired_pages", HealthState.UNKNOWN, reason="not readable: retired pages") for one in range(3)),
        health(1, "gpu_ecc", HealthState.DEGRADED, reason="ECC is switched off", action="check_settings"),
        health(1, "gpu_recovery", HealthState.UNHEALTHY, reason="the driver asks for: reset", action="reset"),
        health(None, "gpu_count", HealthState.UNHEALTHY, reason="GPU 3 (00000000:4B:00.0, GPU-3) is missing: GPU is lost", action="reboot"),
        health(None, "kernel"),
    ),
    kernel_gap=Gap(what="kernel log", reason="/dev/kmsg: operation not permitted", way_out="give the agent CAP_SYSLOG"),
)  # fmt: skip


# --- plain figures ---------------------------------------------------------------------------------------


def test_who_does_nothing_comes_first_and_who_spins_moves_no_memory() -> None:
    result = looked(
        *(watch(one, 1.0, 120.0 + one) for one in (0, 2, 3)), watch(1, 0.0, 111.6), watch(4, 0.97, 640.0, 0.4)
    )  # fmt: skip
    assert plain_sentence(result) == (
        "GPU 1: 0 % busy, 112 W; GPUs 0,2-3: 100 % busy, 120 to 123 W, no memory traffic; GPU 4: 97 % busy, 640 W"
    )


def test_only_the_gpus_that_are_asked_for() -> None:
    result = looked(watch(0, 1.0, 120.0), watch(1, 0.0, 111.0))
    assert plain_sentence(result, {"GPU-1"}) == "GPU 1: 0 % busy, 111 W"
    assert plain_sentence(looked()) == ""


@pytest.mark.parametrize("absurd", [None, float("nan"), -1.0, 17.0])
def test_what_cannot_be_is_not_told(absurd: float | None) -> None:
    assert plain_sentence(looked(watch(0, absurd, 120.0, absurd))) == "GPU 0: 120 W"
    assert plain_sentence(looked(watch(0, absurd, None))) == "GPU 0: tells nothing"


def test_a_lost_gpu_comes_before_all() -> None:
    gone = LostGpu(index=5, uuid="GPU-5", reason="GPU is lost")
    result = looked(watch(0, 1.0, 120.0), lost=(gone,))
    assert plain_sentence(result).startswith("GPU 5 does not answer: GPU is lost; GPU 0: 100 %")


# --- health ----------------------------------------------------------------------------------------------


def test_all_healthy_is_one_short_line() -> None:
    results = [health(one, "gpu_power") for one in range(8)]
    assert headline([f"GPU-{one}" for one in range(8)], results) == "8 GPUs, all healthy"
    assert headline(["GPU-0"], results) == "1 GPU, healthy"


def test_a_gpu_of_which_nothing_could_be_read_is_not_healthy() -> None:
    cases = [health(0, "gpu_power"), health(1, "gpu_power", HealthState.UNKNOWN)]
    assert state_of_gpu(cases, "GPU-1") is HealthState.UNKNOWN
    assert headline(["GPU-0", "GPU-1", "GPU-2"], cases) == "3 GPUs: 2 unknown, 1 healthy"


def test_one_instruction_for_each_gpu_the_greatest_first() -> None:
    results = complaints(SICK.health, SICK.names(), NOW)
    assert tuple(one.text for one in results) == (
        "this node is unhealthy: GPU 3 (00000000:4B:00.0, GPU-3) is missing: GPU is lost → drain the node and reboot it",
        "GPU 1 (0000:2b:00.0) is unhealthy: the driver asks for: reset → drain the node and reset the GPU",
    )
    assert complaints([health(0, "gpu_power")], {"GPU-0": GpuName(0)}, NOW) == ()


# --- what status tells -----------------------------------------------------------------------------------


def snapshot(**changes: object) -> Snapshot:
    full = NodeGpus(at=NOW, gpus=(gpu(0), gpu(1)))
    fine = tuple(health(one, "gpu_power") for one in range(2))
    made = Snapshot(node="node7", at=NOW, started_at=NOW - 60, gpus=full, health=fine)
    return msgspec.structs.replace(made, **changes)


def test_status_has_one_line_where_all_is_well() -> None:
    assert [one.text for one in hardware_lines(snapshot(), NOW)] == ["2 GPUs, all healthy"]
    assert list(hardware_lines(snapshot(gpus=None, health=()), NOW)) == []


def test_status_names_at_most_eight() -> None:
    items = tuple(
        health(one, "gpu_ecc", HealthState.UNHEALTHY, reason=f"fault {one}", action="reset")
        for one in range(12)
    )
    full = NodeGpus(at=NOW, gpus=tuple(gpu(one) for one in range(12)))
    lines = [one.text for one in hardware_lines(snapshot(gpus=full, health=items), NOW)]
    assert lines[0] == "12 GPUs: 12 unhealthy"
    assert len(lines) == 1 + 8 + 1
    assert lines[-1] == "… and 4 more: mldebug doctor --gpus"


def test_status_counts_what_is_missing() -> None:
    count = GpuCount(present=2, expected=3, missing=(GONE,))
    (first, *_) = hardware_lines(snapshot(gpu_count=count), NOW)
    assert first.text == "2 GPUs, all healthy, 1 missing"
    assert first.bad
    silent = GpuCount(present=2, expected=3, silent=(GONE,))
    (first, *_) = hardware_lines(snapshot(gpu_count=silent), NOW)
    assert first.text == "2 GPUs, all healthy, 1 without an answer"


def test_status_says_that_the_gpus_are_released_and_why() -> None:
    snap = snapshot(gpus=None, health=(), gpus_released_until=NOW + 61, gpus_released_why="somebody asked for it")  # fmt: skip
    assert [one.text for one in hardware_lines(snap, NOW)] == [
        "it has let go of the GPUs for another 1 min 1 s: somebody asked for it",
        "  take them up again: mldebug gpus release --end",
    ]


RUN = RunState(id="1a2b3c", name="train.py", launcher="torchrun")


def test_only_events_of_ranks_of_this_run_are_told() -> None:
    other, node = event(run="0ther"), event(rank=None, run="")
    (line,) = rank_lines([event(), other, node], RUN, NOW)
    assert line.startswith("12 min 34 s ago: Xid 79 (")
    assert "rank 3" in line
    many = [event() for _ in range(11)]
    assert next(rank_lines(many, RUN, NOW)) == "… 3 kernel events before"


def test_while_a_run_is_suspected_its_events_stand_beside_frame_and_stall() -> None:
    at = event().burst.first_at
    suspect = msgspec.structs.replace(RUN, frames={3: "step (train.py:30)"}, progress_at=at + 14)
    (result,) = rank_sentences([event()], suspect)
    assert result.endswith("rank 3, last Python frame step (train.py:30), 14 s before the stall")
    assert next(rank_lines([event()], suspect, NOW)).endswith(result)
    stalled = msgspec.structs.replace(suspect, incident_since=at - 20)
    assert rank_sentences([event()], stalled)[0].endswith("20 s after the stall began")
    (calm,) = rank_sentences([event()], msgspec.structs.replace(RUN, progress_at=at + 14))
    assert "stall" not in calm
    assert "frame" not in calm


# --- the agent's word ------------------------------------------------------------------------------------


def overview(age: float = 3.0, **changes: object) -> GpuOverview:
    run = RunState(
        id="1a2b3c", name="train.py", launcher="torchrun", gpus={0: "GPU-0", 3: "GPU-3"}, devices="GPU 0 computes"
    )  # fmt: skip
    lost = LostGpu(index=3, uuid="GPU-3", reason="GPU is lost", code="gpu_is_lost")
    node_watch = NodeWatch(
        at=NOW - age, gpus=(watch(0, 1.0, 120.0), watch(1, 0.0, 99.0)), lost=(lost,)
    )
    return of_agent(snapshot(**{"runs": (run,), "gpu_watch": node_watch} | changes))


JOB = Job(id="1a2b3c", name="train.py", launcher="torchrun")


def test_the_agent_s_sentence_counts_while_it_is_fresh() -> None:
    assert overview().devices("1a2b3c") == "GPU 0 computes"
    assert "GPU 0: 100 % busy" in overview(age=60.0).devices("1a2b3c")
    assert "GPU 1" not in overview(age=60.0).devices("1a2b3c"), "that is not its GPU"


def test_a_lost_gpu_is_a_fault_of_its_rank() -> None:
    (fault,) = overview().faults(JOB)
    assert (fault.kind, fault.rank, fault.tier, fault.by) == ("gpu_missing", 3, "fatal", "gpu")
    other = msgspec.structs.replace(JOB, id="0ther")
    assert overview().faults(other) == ()


def test_a_gpu_that_only_does_not_answer_is_no_fault() -> None:
    for code in ("timeout", "xid_119", UNLISTED):
        slow = LostGpu(index=3, uuid="GPU-3", reason="timeout", code=code)
        assert overview(gpu_watch=NodeWatch(at=NOW, lost=(slow,))).faults(JOB) == ()


def test_a_gpu_that_the_agent_misses_is_a_fault_of_its_rank() -> None:
    unlisted = LostGpu(index=3, uuid="GPU-3", reason="not listed", code=UNLISTED)
    watched = NodeWatch(at=NOW, lost=(unlisted,))
    count = GpuCount(present=2, expected=3, missing=(GONE,))
    (fault,) = overview(gpu_watch=watched, gpu_count=count).faults(JOB)
    assert (fault.kind, fault.rank) == ("gpu_missing", 3)


def test_why_the_agent_cannot_read_is_told_without_the_name_of_our_error() -> None:
    failing = SourceState(name="gpus", success=False, error="GpuDriverError: the driver is gone")
    result = of_agent(snapshot(sources=(failing,)))
    assert result.gpu_gap is not None
    assert result.gpu_gap.reason == "the driver is gone"


# --- tables ----------------------------------------------------------------------------------------------


def printed(show: Callable[[Console], None], *, terminal: bool = True) -> str:
    buffer = io.StringIO()
    show(Console(file=buffer, width=80, force_terminal=terminal, color_system=None))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_list_is_as_recorded(golden: Golden, terminal: bool) -> None:
    text = printed(lambda console: show_list(SICK, console, NOW), terminal=terminal)
    golden("gpus-list.txt", text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_examination_is_as_recorded(golden: Golden, terminal: bool) -> None:
    found = examined(SICK, None, 1000)
    text = printed(lambda console: show_gpus(found, console, NOW), terminal=terminal)
    golden("doctor-gpus.txt", text)
    assert max(map(len, text.splitlines())) <= 80
    assert found.code == 1


def test_names_of_jobs_cannot_write_on_the_terminal() -> None:
    evil = GpuUser(uuid="GPU-0", job_id="x", job="\x1b[2Jevil\nname", rank=0)
    changed = msgspec.structs.replace(SICK, users=(evil,))
    found = examined(changed, None, 0)
    text = printed(lambda console: show_gpus(found, console, NOW))
    assert "\x1b" not in text
    assert "\x1b" not in " ".join(users(changed.users, {"GPU-0": 0}))


def test_a_gpu_that_is_lost_and_remembered_is_listed_once() -> None:
    assert missing(SICK) == [(3, "00000000:4B:00.0", "GPU-3")]
    unnamed = (LostGpu(index=3, reason="GPU is lost"),)
    again = msgspec.structs.replace(SICK, gpus=NodeGpus(at=NOW, lost=unnamed))
    assert missing(again) == [(3, "00000000:4B:00.0", "GPU-3")]


def states(gpu_overview: GpuOverview) -> list[tuple[str, str]]:
    return [(row[0], row[-1]) for row in rows(gpu_overview)]


def test_gpus_are_listed_by_number_whether_they_answer_or_not() -> None:
    lost = LostGpu(index=2, uuid="GPU-2", reason="GPU is lost", code="gpu_is_lost")
    slow = LostGpu(index=10, uuid="GPU-10", reason="left alone", code="xid_119")
    full = NodeGpus(at=NOW, gpus=(gpu(1), gpu(9), gpu(11)), lost=(lost, slow))
    gpu_overview = GpuOverview(node="n", at=NOW, gpus=full)
    assert states(gpu_overview) == [("1", "unknown"), ("2", "missing"), ("9", "unknown"), ("10", "unknown"), ("11", "unknown")]  # fmt: skip


def test_a_gpu_that_does_not_answer_is_listed_once() -> None:
    slow = LostGpu(index=3, uuid="GPU-3", reason="left alone", code="xid_119")
    count = GpuCount(present=1, expected=2, silent=(GONE,))
    gpu_overview = GpuOverview(node="n", at=NOW, gpus=NodeGpus(at=NOW, gpus=(gpu(0),), lost=(slow,)), count=count)  # fmt: skip
    assert states(gpu_overview) == [("0", "unknown"), ("3", "unknown")]
    silent = msgspec.structs.replace(gpu_overview, gpus=NodeGpus(at=NOW, gpus=(gpu(0),)))
    assert states(silent) == [("0", "unknown"), ("3", "unknown")]
    back = msgspec.structs.replace(gpu_overview, gpus=NodeGpus(at=NOW, gpus=(gpu(0), gpu(3))))
    assert states(back) == [("0", "unknown"), ("3", "unknown")]


def test_doctor_sends_nobody_to_reboot_for_a_gpu_that_does_not_answer() -> None:
    def way_out(code: str) -> str:
        lost = LostGpu(index=3, uuid="GPU-3", reason="x", code=code)
        full = NodeGpus(at=NOW, gpus=(gpu(0),), lost=(lost,))
        silent = msgspec.structs.replace(SICK, gpus=full, count=GpuCount(present=1, expected=2, silent=(GONE,)))  # fmt: skip
        return " ".join(one.way_out for one in examined(silent, None, 0).checks)

    assert "reboot" not in way_out("xid_119")
    assert "reboot" in way_out("gpu_is_lost")


def test_columns_stand_below_their_headings() -> None:
    heading, *lines = table(rows(SICK))
    at = heading.index("HEALTH")
    assert [line[at:] for line in lines] == ["healthy", "unhealthy", "healthy", "missing"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"health": (), "count": None, "gpus": NodeGpus(at=NOW, gpus=(gpu(0),))}, 0),
        ({"health": (health(0, "gpu_ecc", HealthState.DEGRADED),), "count": None, "gpus": NodeGpus(at=NOW)}, 0),
        ({"health": (health(0, "gpu_ecc", HealthState.UNHEALTHY),), "count": None, "gpus": NodeGpus(at=NOW)}, 1),
        ({"health": (), "count": None, "gpus": None, "gpu_gap": Gap(what="GPUs", reason="hangs")}, 1),
        ({"health": (), "count": None, "gpus": None, "no_library": True}, 3),
    ],
)  # fmt: skip
def test_the_exit_code_tells_a_script_how_it_is(changes: dict[str, object], code: int) -> None:
    assert examined(msgspec.structs.replace(SICK, **changes), None, 0).code == code
