"""What GPUs and kernel tell, on its way through the main loop: joins, faults, fingerprints, and what survives a restart."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap, RankProcess, join
from mldebug.hardware.gpu.readings import (
    LOST,
    EccCount,
    GpuActivity,
    GpuProcess,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
    NvLink,
)
from mldebug.hardware.health.model import HealthState
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.stall.signals import RankLook, RunLook
from mldebug_agents.hardware.gpu.errors import GpuBlockedError, NoGpuLibraryError
from mldebug_agents.hardware.gpu.holders import Holders
from mldebug_agents.hardware.gpu.levels import MEMO, Levels
from mldebug_agents.hardware.gpu.monitor import EXPECTED, GpuMonitor
from mldebug_agents.hardware.gpu.reads import FOLDER, GpuNews, GpuOrder, GpuReads, gpu_slots
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.watch.job_watch import JobLook

LIMITS = Thresholds()
RANKS = tuple(
    RankIdentity(rank=rank, world_size=2, pid=100 + rank, local_rank=rank) for rank in (0, 1)
)
JOB = Job(id="job", name="train.py", launcher="torchrun", world_size=2, ranks=RANKS)


class Memory:
    """As much of a ledger as is needed."""

    opened = True

    def __init__(self) -> None:
        self.reported: dict[str, bytes] = {}

    def memo(self, name: str) -> bytes:
        return self.reported.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.reported[name] = data
        if not data:
            del self.reported[name]

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(name for name in self.reported if name.startswith(beginning))


class Source:
    """Tells what it is given, or raises it."""

    def __init__(self, *answers: NodeGpus | NodeWatch | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[ExcludedGpu, ...]] = []

    def _next(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        self.requests.append(excluded)
        node_watch: NodeWatch = self._next()
        return node_watch

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        self.requests.append(excluded)
        gpus: NodeGpus = self._next()
        return gpus


class Holding:
    """Every rank has both GPUs open."""

    def look(self, ranks: Iterable[RankIdentity]) -> tuple[RankProcess, ...]:
        return tuple(
            RankProcess(rank=one.rank, pid=one.pid, local_rank=one.local_rank, open_minors=(0, 1))
            for one in ranks
        )


def node(at: float, *gpus: int, errors: int = 0, processes: bool = True) -> NodeGpus:
    """Both GPUs, or those of these indices."""
    ecc = (EccCount(type="uncorrected", location="total", scope="volatile", count=errors),)
    present = tuple(
        GpuReading(
            uuid=f"GPU-{n}",
            index=n,
            bus_id=f"00000000:0{n}:00.0",
            ecc=ecc,
            processes=(GpuProcess(pid=100 + n),) if processes else (),
        )
        for n in gpus
    )
    lost = tuple(
        LostGpu(index=n, reason="fell off the bus", uuid=f"GPU-{n}", code=LOST)
        for n in (0, 1)
        if n not in gpus
    )
    return NodeGpus(at=at, driver_version="580", gpus=present, lost=lost)


def read(source: Source, *, full: bool = True) -> GpuNews:
    reads = GpuReads(source, Holding())  # type: ignore[arg-type]
    return reads(GpuOrder({"job": RANKS} if full else None))


def new_monitor(memory: Memory | None = None) -> GpuMonitor:
    return GpuMonitor(memory or Memory(), "n1")  # type: ignore[arg-type]


# --- the reads ------------------------------------------------------------------------------------------


def test_a_node_without_gpus_is_no_failure() -> None:
    assert read(Source(NoGpuLibraryError("none"))) == GpuNews()
    assert read(Source(NoGpuLibraryError("none")), full=False) == GpuNews()


def test_a_lost_gpu_is_found_by_the_driver_s_folder(tmp_path: Path) -> None:
    for name in ("0000:00:00.0", "0000:01:00.0", "bind", "new_id"):
        (tmp_path / FOLDER / name).mkdir(parents=True)
    lost = LostGpu(index=1, reason="GPU is lost")
    full = msgspec.structs.replace(node(1.0, 0), lost=(lost,))
    watched = NodeWatch(at=1.0, gpus=(GpuWatch(uuid="GPU-0", index=0, bus_id="00000000:00:00.0"),), lost=(lost,))  # fmt: skip
    reads = GpuReads(Source(full, watched), Holding(), partial(gpu_slots, Host(str(tmp_path))))  # type: ignore[arg-type]
    found, moving = reads(GpuOrder({})).full, reads(GpuOrder()).watch

    assert found is not None
    assert moving is not None
    assert [one.bus_id for one in (*found.lost, *moving.lost)] == ["00000000:01:00.0"] * 2


def test_a_driver_that_hangs_is_one() -> None:
    with pytest.raises(GpuBlockedError):
        read(Source(GpuBlockedError("it sits")))


def test_a_full_read_says_who_works_on_what() -> None:
    news = read(Source(node(1.0, 0, 1)))
    assert {one.rank: one.uuid for one in news.joined["job"].ranks} == {0: "GPU-0", 1: "GPU-1"}


# --- the board ------------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_not_told_any_longer() -> None:
    one = new_monitor()
    one.update(read(Source(node(1.0, 0, 1))), LIMITS, None)
    one.update(GpuNews(watch=NodeWatch(at=1.0)), LIMITS, None)
    assert one.full is not None
    assert one.health
    one.failed(full=False)
    assert one.watch is None
    assert one.full is not None
    one.failed(full=True)
    assert (one.full, one.count, one.health) == (None, None, ())


def test_the_ranks_of_a_lost_gpu_are_those_that_it_had() -> None:
    one = new_monitor()
    one.update(read(Source(node(1.0, 0, 1))), LIMITS, None)
    assert one.knows(JOB)
    one.update(read(Source(node(31.0, 0))), LIMITS, None)
    (fault,) = one.faults("job")
    assert (fault.kind, fault.rank, fault.uuid) == ("gpu_missing", 1, "GPU-1")
    assert one.concerning("job", one.faults("job")) == (fault,)
    assert one.concerning("job", one.faults("another")) == (), "none of its ranks works there"
    assert [item.rank for item in one.concerning("another", one.faults("another"))] == [None]
    one.keep_only(set())
    assert one.joined("job") == RankGpuMap()


def test_a_rank_that_only_a_convention_puts_on_a_lost_gpu_is_probably_there() -> None:
    one, count = new_monitor(), Source(node(1.0, 0, 1), node(31.0, 0))
    known = RankGpu(rank=1, uuid="GPU-1", index=1, evidence=JoinEvidence.ENVIRONMENT)
    for full in (count.full(), count.full()):
        one.update(GpuNews(full=full, joined={"job": RankGpuMap(ranks=(known,))}), LIMITS, None)
    assert [(item.rank, item.by) for item in one.faults("job")] == [(1, "environment")]


def test_a_fault_of_another_gpu_that_a_rank_uses_is_its_runs() -> None:
    """A process with contexts on two GPUs: it works on the one with most of its memory."""
    one, held = new_monitor(), (GpuProcess(pid=100, memory_bytes=1 << 30),)
    both = node(1.0, 0, 1)
    second = msgspec.structs.replace(both.gpus[1], processes=held)
    first = msgspec.structs.replace(both.gpus[0], processes=(GpuProcess(pid=100, memory_bytes=8 << 30),))  # fmt: skip
    alone = {"job": RANKS[:1]}
    full = msgspec.structs.replace(both, gpus=(first, second))
    gone = msgspec.structs.replace(node(31.0, 0), gpus=(first,))
    reads = GpuReads(Source(full, gone), Holding())  # type: ignore[arg-type]
    for _ in range(2):
        one.update(reads(GpuOrder(alone)), LIMITS, None)
    (fault,) = one.faults("job")
    assert (fault.kind, fault.uuid, fault.rank) == ("gpu_missing", "GPU-1", None)
    assert one.concerning("job", (fault,)) == (fault,)
    stranger = msgspec.structs.replace(fault, uuid="GPU-9", bus_id="0000:99:00.0")
    assert one.concerning("job", (stranger,)) == ()


def test_a_missing_gpu_is_missed_after_a_restart_of_the_agent_until_somebody_accepts_it() -> None:
    memory = Memory()
    new_monitor(memory).update(read(Source(node(1.0, 0, 1))), LIMITS, None)
    assert memory.memo(EXPECTED)
    one = new_monitor(memory)
    one.update(read(Source(node(500.0, 0))), LIMITS, None)
    assert one.count is not None
    assert [missing.gpu.uuid for missing in one.count.missing] == ["GPU-1"]
    one.accept()
    one.update(read(Source(node(530.0, 0))), LIMITS, None)
    assert one.count.missing == ()


def test_what_another_version_remembered_is_no_reason_to_fail() -> None:
    memory = Memory()
    memory.remember(EXPECTED, b'{"known": 7}')
    one = new_monitor(memory)
    one.update(read(Source(node(1.0, 0, 1))), LIMITS, None)
    assert one.count is not None
    assert one.count.expected == 2


def read_on(one: GpuMonitor, *errors: int, only: int = 2) -> None:
    """Read both GPUs, or the first, every 30 s; each tells so many memory errors."""
    nodes = [node(1.0 + 30 * turn, *range(only), errors=count) for turn, count in enumerate(errors)]
    reads = GpuReads(Source(*nodes), Holding())  # type: ignore[arg-type]
    for _ in nodes:
        one.update(reads(GpuOrder({"job": RANKS})), LIMITS, None)


def ecc_state(one: GpuMonitor) -> set[HealthState]:
    return {item.state for item in one.health if item.component == "gpu_ecc"}


@pytest.mark.parametrize(("errors", "confirmed"), [((0, 0, 3), False), ((0, 0, 3, 3), True)])
def test_new_memory_errors_are_a_fault_of_the_rank(errors: tuple[int, ...], confirmed: bool) -> None:  # fmt: skip
    one = new_monitor()
    read_on(one, *errors)
    found = {(fault.kind, fault.rank, fault.at, fault.confirmed) for fault in one.faults("job")}
    assert found == {("ecc", 0, 61.0, confirmed), ("ecc", 1, 61.0, confirmed)}


def test_what_one_read_alone_told_is_taken_back() -> None:
    one = new_monitor()
    read_on(one, 0, 0, 3)
    assert len(one.faults("job")) == 2
    read_on(one, 0)
    assert one.faults("job") == ()


def test_memory_errors_that_were_read_wrong_are_nobody_s_fault() -> None:
    for errors in ((5, 5, 0, 0, 5, 5), (0, 0, 2**32 - 2, 0, 0), (5, 5, 3, 5, 5)):
        one = new_monitor()
        read_on(one, *errors)
        assert one.faults("job") == (), errors


def test_a_reset_that_cured_the_gpu_ends_the_complaint() -> None:
    one = new_monitor()
    read_on(one, 0, 5, 5)
    assert ecc_state(one) == {HealthState.UNHEALTHY}
    read_on(one, 0)
    assert ecc_state(one) == {HealthState.HEALTHY}


def test_one_read_that_is_garbage_condemns_no_gpu() -> None:
    one = new_monitor()
    for errors in (0, 0, 2**32 - 2, 0, 0):
        read_on(one, errors)
        assert ecc_state(one) == {HealthState.HEALTHY}


def test_gpus_with_the_same_uuid_are_nobody_s_fault() -> None:
    one, twins = new_monitor(), GpuReads(Source(*map(same_uuid, range(6))), Holding())  # type: ignore[arg-type]
    for _ in range(6):
        one.update(twins(GpuOrder({"job": RANKS})), LIMITS, None)
    assert one.faults("job") == ()
    assert one.health == ()
    assert one.count is not None
    assert len(one.count.silent) == 2


def same_uuid(turn: int) -> NodeGpus:
    result = node(1.0 + 30 * turn, 0, 1, errors=turn)
    gpus = tuple(msgspec.structs.replace(one, uuid="GPU-0") for one in result.gpus)
    return msgspec.structs.replace(result, gpus=gpus)


def test_a_link_that_was_up_before_the_restart_is_missed() -> None:
    memory, one = Memory(), NvLink(link=1, up=False)

    def linked(at: float, up: bool) -> GpuNews:
        links = (NvLink(link=0, up=True), msgspec.structs.replace(one, up=up))
        result = node(at, 0)
        gpu = msgspec.structs.replace(result.gpus[0], nvlinks=links)
        return GpuNews(full=msgspec.structs.replace(result, gpus=(gpu,), lost=()))

    new_monitor(memory).update(linked(1.0, True), LIMITS, None)
    again = new_monitor(memory)
    for at in (31.0, 61.0):
        again.update(linked(at, False), LIMITS, None)
    (link,) = [item for item in again.health if item.component == "gpu_nvlink"]
    assert (link.state, link.reason) == (HealthState.UNHEALTHY, "1 of 2 NVLinks are down (1)")


def test_a_rank_that_opens_its_gpu_later_is_not_known_before() -> None:
    one = new_monitor()
    one.update(
        GpuNews(full=node(1.0, 0, 1, processes=False), joined={"job": RankGpuMap()}), LIMITS, None
    )
    assert not one.knows(JOB)
    one.update(read(Source(node(6.0, 0, 1))), LIMITS, None)
    assert one.knows(JOB)


def test_a_gpu_that_a_convention_alone_gives_a_rank_is_read_again_soon() -> None:
    """Its process opens the GPU some seconds after it is found: a hang soon after it began was told without its processes."""
    one = new_monitor()
    guessed = tuple(RankGpu(rank=rank, uuid=f"GPU-{rank}", index=rank, evidence=JoinEvidence.ENVIRONMENT) for rank in (0, 1))  # fmt: skip
    early = GpuNews(
        full=node(1.0, 0, 1, processes=False), joined={"job": RankGpuMap(ranks=guessed)}
    )
    one.update(early, LIMITS, None)
    assert not one.knows(JOB)
    one.update(read(Source(node(6.0, 0, 1))), LIMITS, None)
    assert one.knows(JOB)


# --- fingerprints ---------------------------------------------------------------------------------------


def watch(at: float, *busy: float, power: float, moves: float) -> NodeWatch:
    gpus = tuple(
        GpuWatch(
            uuid=f"GPU-{n}",
            index=n,
            utilization_ratio=one,
            memory_utilization_ratio=moves if one else 0.0,
            power_watts=power,
        )
        for n, one in enumerate(busy)
    )
    return NodeWatch(at=at, gpus=gpus)


def look() -> JobLook:
    return JobLook(
        job=JOB, look=RunLook(at=0.0, run="job", ranks=(RankLook(rank=0), RankLook(rank=1)))
    )


def hang(levels: Levels, joined: RankGpuMap, start: float) -> JobLook:
    reading = look()
    for turn in range(6):
        result = watch(start + turn, 1.0, 0.0, power=125.0, moves=0.0)
        reading = levels.complete(look(), result, joined)
    return reading


def progress(job_look: JobLook) -> list[bool | None]:
    return [one.device_progress for one in job_look.look.ranks]


def test_devices_that_compute_move_and_those_that_spin_do_not() -> None:
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    reading = look()
    for turn in range(6):
        result = watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35)
        reading = levels.complete(look(), result, joined)
    assert progress(reading) == [True, True]
    assert "compute" in levels.sentence("job")
    assert progress(hang(levels, joined, 20.0)) == [False, False]
    assert "GPU 0 waits in a collective" in levels.sentence("job")
    assert "GPU 1 runs nothing" in levels.sentence("job")


def wrote(at: float, *written: int, step: int | None = None) -> JobLook:
    ranks = tuple(RankLook(rank=rank, written_bytes=one) for rank, one in enumerate(written))
    return JobLook(job=JOB, look=RunLook(at=at, run="job", ranks=ranks), step=step)


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (50_000_000, "GPU 1 does nothing while its rank writes a file"),
        (2_000, "GPU 1 runs nothing"),
        (0, "GPU 1 runs nothing"),
    ],
)
def test_a_rank_that_writes_while_the_others_wait_saves(speed: int, words: str) -> None:
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    for turn in range(12):
        saves = turn >= 6
        reading = watch(10.0 + turn, 1.0, 0.0 if saves else 1.0, power=125.0 if saves else 690.0, moves=0.0 if saves else 0.35)  # fmt: skip
        levels.complete(wrote(10.0 + turn, 4096, 4096 + speed * turn), reading, joined)
    assert words in levels.sentence("job")


def test_a_checkpoint_goes_on_between_two_of_its_writes_and_ends_soon_after_the_last() -> None:
    """One write of 268 MB every five seconds, and fsync between them, as seen on a real node."""
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    results = []
    for turn in range(45):
        saves = turn >= 6
        reading = watch(10.0 + turn, 1.0, 0.0 if saves else 1.0, power=125.0 if saves else 690.0, moves=0.0 if saves else 0.35)  # fmt: skip
        writes = max(0, min(turn, 26) - 6) // 5 * 268_000_000
        levels.complete(wrote(10.0 + turn, 4096, 4096 + writes), reading, joined)
        results.append("its rank writes a file" in levels.sentence("job"))
    assert all(results[12:36]), results
    assert not any(results[:10]), results
    assert not any(results[38:]), results


def test_a_counter_that_cannot_be_read_for_a_look_is_no_checkpoint() -> None:
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    for turn in range(6):
        reading = watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35)
        levels.complete(wrote(10.0 + turn, 1, 1 << 40), reading, joined)
    for turn in range(6):
        reading = watch(20.0 + turn, 1.0, 0.0, power=125.0, moves=0.0)
        levels.complete(wrote(20.0 + turn, 1, (1 << 40) if turn % 2 else 0), reading, joined)
        assert "checkpoint" not in levels.sentence("job").partition("GPU 1")[2].partition(",")[0]


def test_steps_without_work_that_the_gpu_tells_are_work() -> None:
    """A card that tells neither memory traffic nor more: only steps say that it trains."""
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    for turn in range(6):
        gpus = tuple(GpuWatch(uuid=f"GPU-{n}", index=n, utilization_ratio=1.0, power_watts=300.0) for n in (0, 1))  # fmt: skip
        result = levels.complete(wrote(10.0 + turn, 1, 1, step=turn), NodeWatch(at=10.0 + turn, gpus=gpus), joined)  # fmt: skip
    assert progress(result) == [True, True]


def test_what_was_learned_survives_the_agent_and_goes_with_the_run() -> None:
    memory, joined = Memory(), read(Source(node(1.0, 0, 1))).joined["job"]
    first = Levels(memory)  # type: ignore[arg-type]
    for turn in range(6):
        first.complete(look(), watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35), joined)
    first.store()
    second = Levels(memory)  # type: ignore[arg-type]
    hang(second, joined, 20.0)
    assert "of usual 690 W" in second.sentence("job")
    second.keep_only(())
    assert memory.memos(MEMO) == ()
    assert second.sentence("job") == ""


def test_a_broken_memory_is_begun_anew() -> None:
    memory, joined = Memory(), read(Source(node(1.0, 0, 1))).joined["job"]
    memory.remember(f"{MEMO}job", b"[]")
    result = hang(Levels(memory), joined, 20.0)  # type: ignore[arg-type]
    assert len(progress(result)) == 2


def test_a_read_that_is_not_new_is_not_learned_twice() -> None:
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    reading = watch(10.0, 1.0, 1.0, power=690.0, moves=0.35)
    levels.complete(look(), reading, joined)
    once = levels.sentence("job")
    levels.store()
    for _ in range(5):
        levels.complete(look(), reading, joined)
    assert levels.sentence("job") == once


# --- who holds what -------------------------------------------------------------------------------------


@pytest.fixture
def holders() -> Iterator[Holders]:
    with Spawner() as spawner, Reader(spawner) as reader:
        yield Holders(Host(), reader)


def test_a_real_process_tells_its_environment_and_open_devices(holders: Holders) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3,1", "SECRET": "x"}
    code = "print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rank = msgspec.structs.replace(RANKS[0], pid=process.pid, start_ticks=1)
        (reading,) = holders.look([rank])
        process.kill()
    assert reading.environment == {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert reading.open_minors == ()
    gone = msgspec.structs.replace(rank, start_ticks=2)
    (nothing,) = holders.look([gone])
    assert (nothing.environment, nothing.open_minors) == (None, None)


def test_only_processes_outside_of_the_job_s_family_are_strangers(holders: Holders) -> None:
    """Below one shell: a launcher with a rank and its helper, another job's rank, and beside it a program of another session."""
    here = os.getpid()
    with ExitStack() as stack:
        launcher = stack.enter_context(family("launcher", 2))
        alone, other = (stack.enter_context(family("alone", 0)) for _ in range(2))
        rank, sibling = children_of(launcher)
        listed = {rank, sibling, alone.pid, other.pid, launcher.pid}
        assert holders.strangers(listed, {rank}) == {alone.pid, other.pid}
        by_shell = holders.strangers(listed, {alone.pid})
        assert by_shell == set(), "what the same shell started may be the job's"
        assert holders.strangers(listed, {alone.pid}, {rank}) == {rank}, "another job's rank is not"
        assert holders.strangers({*listed, 2**22 + 1}, {rank}) == {alone.pid, other.pid}, (
            "nobody knows whose"
        )
        assert holders.strangers(listed, {2**22 + 1}) == set(), "a rank that is gone has no family"
        assert holders.strangers({here}, {rank}) == {here}
        assert holders.program(rank).endswith(f" (pid {rank})")
        assert holders.program(2**22 + 1) == f"pid {2**22 + 1}"


def family(name: str, children: int) -> "subprocess.Popen[bytes]":
    """A process that waits for its input to end, with children that do the same."""
    code = (
        "import subprocess, sys\n"
        "some = [subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()']) for _ in range(int(sys.argv[1]))]\n"
        "print('up', flush=True); sys.stdin.read()\n"
        "[one.wait() for one in some]"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(children), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    return process


def children_of(process: "subprocess.Popen[bytes]") -> list[int]:
    return sorted(one.pid for one in psutil.Process(process.pid).children())


@pytest.mark.parametrize("strangers", [(), (900,)])
def test_what_a_gpu_does_for_another_program_is_no_progress_of_the_rank(
    strangers: tuple[int, ...],
) -> None:
    """Both ranks hang while the GPUs compute for somebody else; and where a shared GPU rests, its rank does not compute."""
    gpus = tuple(
        GpuReading(uuid=f"GPU-{n}", index=n, processes=(GpuProcess(pid=100 + n), GpuProcess(pid=900)))
        for n in (0, 1)
    )  # fmt: skip
    ranks = [RankProcess(rank=n, pid=100 + n, local_rank=n, open_minors=(0, 1)) for n in (0, 1)]
    joined, levels = join(ranks, gpus, strangers), Levels(Memory())  # type: ignore[arg-type]
    assert joined.shared == (("GPU-0", "GPU-1") if strangers else ())
    for turn in range(6):
        computing = levels.complete(look(), watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35), joined)  # fmt: skip
    assert progress(computing) == ([None, None] if strangers else [True, True])
    assert ("other programs use" in levels.sentence("job")) == bool(strangers)
    resting = [levels.complete(look(), watch(20.0 + turn, 0.0, 0.0, power=100.0, moves=0.0), joined) for turn in range(6)][-1]  # fmt: skip
    assert progress(resting) == [False, False]


@pytest.mark.parametrize(
    ("active", "expected"), [(False, [True, True]), (True, [None, None]), (None, [None, None])]
)
def test_a_program_that_only_holds_memory_hides_no_progress_of_the_rank(
    active: bool | None, expected: list[bool | None]
) -> None:
    """A desktop or a forgotten notebook on the GPU, of which the driver counts that it runs nothing."""
    gpus = tuple(
        GpuReading(uuid=f"GPU-{n}", index=n, processes=(GpuProcess(pid=100 + n, active=True), GpuProcess(pid=900, active=active)))
        for n in (0, 1)
    )  # fmt: skip
    ranks = [RankProcess(rank=n, pid=100 + n, local_rank=n, open_minors=(0, 1)) for n in (0, 1)]
    joined, levels = join(ranks, gpus, (900,)), Levels(Memory())  # type: ignore[arg-type]
    for turn in range(6):
        computing = levels.complete(look(), watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35), joined)  # fmt: skip
    assert progress(computing) == expected


@pytest.mark.parametrize("idle", [(), (900,)])
def test_a_gpu_that_spins_is_known_beside_a_program_that_only_holds_memory(
    idle: tuple[int, ...],
) -> None:
    """A notebook that is forgotten on one GPU hid a hang in which all ranks spin for 300 s: what work looks like was not learned."""
    gpus = tuple(
        GpuReading(uuid=f"GPU-{n}", index=n, processes=(GpuProcess(pid=100 + n), GpuProcess(pid=900)))
        for n in (0, 1)
    )  # fmt: skip
    ranks = [RankProcess(rank=n, pid=100 + n, local_rank=n, open_minors=(0, 1)) for n in (0, 1)]
    joined, levels = join(ranks, gpus, idle), Levels(Memory())  # type: ignore[arg-type]
    for turn in range(12):
        works = watch(10.0 + turn, 1.0, 1.0, power=690.0, moves=0.35)
        levels.complete(msgspec.structs.replace(look(), step=turn), works, joined)
    for turn in range(6):
        spins = watch(30.0 + turn, 1.0, 1.0, power=125.0, moves=0.0)
        result = levels.complete(msgspec.structs.replace(look(), step=11), spins, joined)
    assert progress(result) == [False, False]


def test_the_server_of_nvidia_mps_is_no_stranger(holders: Holders) -> None:
    """It does what its clients ask of it, of which the ranks may be all."""
    code = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    with ExitStack() as stack:
        launcher = stack.enter_context(family("launcher", 1))
        listed = []
        for name in ("nvidia-cuda-mps-server", "python-server"):
            one = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )  # fmt: skip
            assert one.stdout is not None
            one.stdout.readline()
            listed.append(one.pid)
        assert holders.strangers(listed, set(children_of(launcher))) == {listed[1]}


def counted(at: float, dram: float | None, sms: float | None = 0.18, ago: float = 0.0) -> NodeGpus:
    """A full reading `ago` seconds before `at`, whose hardware counters are those of both GPUs."""
    activity = GpuActivity(window_seconds=5.0, dram_ratio=dram, sm_active_ratio=sms, tensor_ratio={"any": 0.0})  # fmt: skip
    gpus = tuple(GpuReading(uuid=f"GPU-{n}", index=n, activity=activity) for n in (0, 1))
    return NodeGpus(at=at - ago, gpus=gpus)


@pytest.mark.parametrize(
    ("full", "expected"),
    [
        (counted(16.0, 0.0002), [False, False]),
        (counted(16.0, 0.0002, ago=-0.1), [False, False]),  # read right after the quick one
        (None, [None, None]),
        (counted(16.0, 0.2), [None, None]),  # of a time when it may still have worked
        (counted(16.0, None), [None, None]),
        (counted(16.0, 0.0002, sms=0.99), [None, None]),  # it may compute in registers and caches
        (counted(16.0, 0.0002, sms=None), [None, None]),
        (counted(16.0, 0.0002, ago=60.0), [None, None]),
    ],
)
def test_counters_of_the_hardware_show_that_gpus_spin_where_the_job_moved_too_little_to_learn_from(
    full: NodeGpus | None, expected: list[bool | None]
) -> None:
    """A small model shows 0 % memory utilization and hardly more power at work, so that nothing is learned of its work."""
    levels, joined = Levels(Memory()), read(Source(node(1.0, 0, 1))).joined["job"]  # type: ignore[arg-type]
    for turn in range(6):
        result = levels.complete(look(), watch(11.0 + turn, 1.0, 1.0, power=125.0, moves=0.0), joined, full)  # fmt: skip
    assert progress(result) == expected
