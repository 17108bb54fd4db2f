"""Why a rank is slow: each rule with evidence for which it holds, and with evidence of the same kind for which it must not."""

import time
from collections.abc import Sequence

import msgspec
import pytest

from mldebug.core.model import Confidence, Job, RankIdentity, Verdict
from mldebug.goodput.causes import RULES, Compared, OtherRanks, find_cause
from mldebug.goodput.evidence import RankEvidence, RankShares, mean_evidence
from mldebug.goodput.sentences import slow_words
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.straggler import SampledStretch, Slowness, find_slow_ranks

LOSS = 0.3
NONE = RankEvidence()
GIB = 1 << 30
FULL = RankEvidence(gpu_clock=1.98e9, gpu_power_limit=700.0, gpu_memory=40 * GIB, cpus=8)
HOT = msgspec.structs.replace(FULL, gpu_clock=1.2e9, gpu_limits=("hw_thermal_slowdown",))
CAPPED = msgspec.structs.replace(
    FULL, gpu_clock=1.2e9, gpu_power_limit=400.0, gpu_limits=("sw_power_cap",)
)

CAUSES: dict[str, tuple[RankEvidence, RankEvidence, str, str, str]] = {
    "its quota": (RankEvidence(throttled=0.35, quota=0.5), NONE, "work", "quota", "has used up its control group's CPU quota of 0.5 CPUs 35 % of the time, the others 0 %"),
    "its mount": (RankEvidence(file_waiting=0.4, mount="/data (fuse.slow)"), RankEvidence(file_waiting=0.02), "sleep", "mount", "waits for files on /data (fuse.slow) 40 % of the time, the others 2 %"),
    "a mount without a name": (RankEvidence(file_waiting=0.4), NONE, "data", "mount", "waits for files 40 % of the time, the others 0 %"),
    "swap": (RankEvidence(major_faults=300.0, swapped=3 * GIB), RankEvidence(major_faults=2.0), "work", "swap", "reads 300 pages a second back from a disk, with 3 GiB of it on swap"),
    "pages of programs": (RankEvidence(major_faults=300.0, memory_pressure=0.1), NONE, "work", "swap", "reads 300 pages a second back from a disk"),
    "its node's memory": (RankEvidence(memory_pressure=0.5), NONE, "same", "memory", "stands on a node that is short of memory 50 % of the time, the others 0 %"),
    "fewer cores than it needs": (RankEvidence(cpus=32), RankEvidence(cpus=64), "cpu", "cores", "may run on 32 CPUs, the others on 64 or more"),
    "two cores for its work": (RankEvidence(cpus=2), RankEvidence(cpus=8), "work", "cores", "may run on 2 CPUs, the others on 8 or more"),
    "one core": (RankEvidence(cpus=1), RankEvidence(cpus=8), "cpu", "cores", "may run on 1 CPU, the others on 8 or more"),
    "a neighbour": (RankEvidence(neighbour="stress-ng (pid 12)", cpus=8), RankEvidence(cpus=8), "cpu", "neighbour", "shares its CPUs with stress-ng (pid 12)"),
    "another program on its GPU": (RankEvidence(gpu_neighbour="python3 (pid 12)"), RankEvidence(gpu_neighbour=""), "same", "gpu_neighbour", "shares its GPU with python3 (pid 12), which computes there"),
    "heat": (HOT, FULL, "same", "clock", "has a GPU at 1200 MHz, the others 1980 MHz, held back by heat"),
    "its power limit": (CAPPED, FULL, "same", "power", "has a GPU at 1200 MHz, the others 1980 MHz, held back by its power limit, with a power limit of 400 W, the others 700 W"),
    "errors of its node's link": (RankEvidence(link="port mlx5_3/1 has 12 symbol errors a second, for ten minutes"), NONE, "same", "link", "stands on a node whose port mlx5_3/1 has 12 symbol errors a second, for ten minutes"),
    "slower ports than other nodes": (RankEvidence(port_gigabits=1600.0), RankEvidence(port_gigabits=3200.0), "same", "link", "stands on a node whose ports carry 1600 Gb/s, those of most others 3200"),
    "more work": (msgspec.structs.replace(FULL, gpu_memory=60 * GIB), FULL, "same", "uneven", "has more work than the others: 60 GiB on its GPU, the others 40 GiB"),
}  # fmt: skip


def compared(own: RankEvidence, others: Sequence[RankEvidence], kind: str) -> Compared:
    return Compared(own, OtherRanks(others), LOSS, kind)


@pytest.mark.parametrize("name", CAUSES)
def test_a_measured_cause_is_given(name: str) -> None:
    own, other, kind, cause, words = CAUSES[name]
    assert find_cause(compared(own, [other] * 3, kind)) == (cause, words)


@pytest.mark.parametrize("name", CAUSES)
def test_what_all_ranks_have_is_no_cause(name: str) -> None:
    own, _, kind, _, _ = CAUSES[name]
    alone = msgspec.structs.replace(own, neighbour="")
    assert find_cause(compared(alone, [alone] * 3, kind)) == ("", "")


def test_every_rule_has_a_case() -> None:
    assert {rule.kind for rule in RULES} == {case[3] for case in CAUSES.values()}


CONTROLS: dict[str, tuple[RankEvidence, Sequence[RankEvidence], str]] = {
    "a quota that costs little of the loss": (RankEvidence(throttled=0.1, quota=2.0), [NONE] * 3, "work"),
    "files that others wait for as long": (RankEvidence(file_waiting=0.5), [RankEvidence(file_waiting=0.4)] * 3, "sleep"),
    "some page faults": (RankEvidence(major_faults=15.0), [NONE] * 3, "work"),
    "page faults of one other rank": (RankEvidence(major_faults=300.0), [NONE, NONE, RankEvidence(major_faults=100.0)], "work"),
    "pages of a dataset that is mapped into memory": (RankEvidence(major_faults=3000.0), [RankEvidence(major_faults=2.0)] * 3, "work"),
    "memory that one node shares": (RankEvidence(memory_pressure=0.5), [RankEvidence(memory_pressure=0.5)] * 3, "same"),
    "fewer cores of a rank that sleeps": (RankEvidence(cpus=1), [RankEvidence(cpus=8)] * 3, "sleep"),
    "fewer cores than some": (RankEvidence(cpus=4), [RankEvidence(cpus=8), RankEvidence(cpus=4)], "cpu"),
    "a node with somewhat fewer cores": (RankEvidence(cpus=96), [RankEvidence(cpus=128)] * 3, "same"),
    "half of a large node": (RankEvidence(cpus=32), [RankEvidence(cpus=128)] * 3, "work"),
    "cores of which the others' are not known": (RankEvidence(cpus=1), [NONE] * 3, "cpu"),
    "a neighbour of a rank that sleeps": (RankEvidence(neighbour="x (pid 1)"), [NONE] * 3, "sleep"),
    "a program on the GPU of another rank, too": (RankEvidence(gpu_neighbour="x (pid 1)"), [RankEvidence(gpu_neighbour=""), RankEvidence(gpu_neighbour="y (pid 2)")], "same"),
    "GPUs of others of which it is not known": (RankEvidence(gpu_neighbour="x (pid 1)"), [RankEvidence(gpu_neighbour=""), NONE], "same"),
    "a program on the GPU of a rank that works on its host": (RankEvidence(gpu_neighbour="x (pid 1)"), [RankEvidence(gpu_neighbour="")] * 3, "work"),
    "a clock that is low because it waits": (msgspec.structs.replace(FULL, gpu_clock=1.2e9), [FULL] * 3, "sleep"),
    "a limit at the others' clock": (msgspec.structs.replace(FULL, gpu_limits=("sw_power_cap",)), [FULL] * 3, "same"),
    "clocks of which one is not known": (HOT, [FULL, FULL, NONE], "same"),
    "memory a little larger": (msgspec.structs.replace(FULL, gpu_memory=42 * GIB), [FULL] * 3, "same"),
    "more memory of a rank that sleeps": (msgspec.structs.replace(FULL, gpu_memory=60 * GIB), [FULL] * 3, "sleep"),
    "errors of a link, of a rank that works longer": (RankEvidence(link="port mlx5_3/1 went down 9 times"), [NONE] * 3, "work"),
    "errors of links of many nodes": (RankEvidence(link="port mlx5_3/1 went down 9 times"), [NONE, NONE, *[RankEvidence(link="port mlx5_0/1 went down 7 times")] * 2], "same"),
    "slower ports of a rank that works longer": (RankEvidence(port_gigabits=200.0), [RankEvidence(port_gigabits=400.0)] * 3, "work"),
    "slower ports, as those of most": (RankEvidence(port_gigabits=200.0), [RankEvidence(port_gigabits=400.0), *[RankEvidence(port_gigabits=200.0)] * 2], "same"),
    "slower ports than one that is known": (RankEvidence(port_gigabits=200.0), [RankEvidence(port_gigabits=400.0), NONE, NONE], "same"),
    "ports that are not known": (NONE, [RankEvidence(port_gigabits=400.0)] * 3, "same"),
    "nobody to compare with": (RankEvidence(throttled=0.5), [], "work"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_what_explains_too_little_is_no_cause(name: str) -> None:
    own, others, kind = CONTROLS[name]
    assert find_cause(compared(own, others, kind)) == ("", "")


def found_with(own: RankEvidence, other: RankEvidence = NONE) -> Slowness:
    def stretch(at: int) -> SampledStretch:
        slow = RankShares(rank=0, samples=100, waiting=0.02, evidence=own)
        rest = (RankShares(rank=n, samples=100, waiting=0.32 + 0.01 * (at % 2), evidence=other) for n in (1, 2, 3))  # fmt: skip
        return SampledStretch(at=float(at), seconds=5.0, ranks=(slow, *rest))

    return find_slow_ranks([stretch(at) for at in range(4)])


def test_a_finding_on_thousands_of_ranks_is_made_within_a_second() -> None:
    """A quarter of 4,096 ranks is slow: what the others do is found once, not once for each of them (0.3 s; it was 3 s)."""

    def stretch(at: int) -> SampledStretch:
        ranks = (
            RankShares(rank=n, node=f"a{n // 512}", samples=100, waiting=0.02 if n < 1000 else 0.32 + 0.01 * ((at + n) % 2), places={f"f{n % 7} (t.py)": 0.5}, evidence=FULL)
            for n in range(4096)
        )  # fmt: skip
        return SampledStretch(at=float(at), seconds=5.0, ranks=tuple(ranks), world_size=4096)

    row = [stretch(at) for at in range(4)]
    began = time.process_time()
    found = find_slow_ranks(row)
    assert len(found.ranks) == 1000
    assert time.process_time() - began < 1.5  # of a busy machine


def job() -> Job:
    ranks = tuple(RankIdentity(rank=n, world_size=4, pid=100 + n, node="a1") for n in range(4))
    return Job(id="j", name="train.py", launcher="torchrun", world_size=4, ranks=ranks)


def test_a_cause_stands_in_the_sentence_and_makes_it_medium() -> None:
    found = found_with(RankEvidence(throttled=0.35, quota=0.5))
    assert slow_words(found, 4).endswith("it has used up its control group's CPU quota of 0.5 CPUs 35 % of the time, the others 0 %")  # fmt: skip
    diagnosis = judge_slowdown(job(), found).diagnosis
    assert (diagnosis.verdict, diagnosis.confidence) == (Verdict.STRAGGLER, Confidence.MEDIUM)
    assert diagnosis.next_steps == ("raise the CPU quota of its control group (cpu.max, or the job's request of CPUs): cat /proc/100/cgroup",)  # fmt: skip
    assert judge_slowdown(job(), found_with(NONE)).diagnosis.confidence is Confidence.LOW


def test_errors_of_a_port_beside_a_rank_that_takes_longer_for_everything_leave_it_low() -> None:
    found = found_with(RankEvidence(link="port mlx5_3/1 went down 9 times"))
    assert found.ranks[0].cause == "link"
    assert judge_slowdown(job(), found).diagnosis.confidence is Confidence.LOW


@pytest.mark.parametrize(
    ("own", "cause", "confidence"),
    [(0.8, "", Confidence.LOW), (0.8, "clock", Confidence.MEDIUM), (0.0, "", Confidence.MEDIUM)],
)
def test_what_a_host_does_while_its_gpu_works_is_low(
    own: float, cause: str, confidence: Confidence
) -> None:
    """Rank 0 draws a progress bar before it waits for its GPU, so it waits less; whether anybody waits for that is not known."""

    def stretch(at: int) -> SampledStretch:
        slow = RankShares(
            rank=0, samples=100, waiting=own, on_gpu=own, places={"log (train.py)": 0.1}
        )
        rest = (RankShares(rank=n, samples=100, waiting=own + 0.1, on_gpu=own + 0.1) for n in (1, 2, 3))  # fmt: skip
        return SampledStretch(at=float(at), seconds=5.0, ranks=(slow, *rest))

    found = find_slow_ranks([stretch(at) for at in range(4)])
    (one,) = found.ranks
    one = msgspec.structs.replace(one, cause=cause, cause_words="has a slow GPU" if cause else "")
    diagnosis = judge_slowdown(job(), msgspec.structs.replace(found, ranks=(one,))).diagnosis
    assert diagnosis.confidence is confidence
    assert any("may be at work" in line for line in diagnosis.evidence) == (
        confidence is Confidence.LOW
    )


def test_uneven_work_names_nobody() -> None:
    more = msgspec.structs.replace(FULL, gpu_memory=60 * GIB)
    diagnosis = judge_slowdown(job(), found_with(more, FULL)).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())
    assert diagnosis.summary.startswith("The work of the ranks is uneven, and none is to blame: ")


def test_evidence_of_several_stretches_is_their_mean() -> None:
    first = RankEvidence(throttled=0.2, mount="/data (nfs4)", gpu_limits=("sw_power_cap",), cpus=8)
    second = RankEvidence(throttled=0.4, gpu_limits=("hw_slowdown", "sw_power_cap"), cpus=4)
    mean = mean_evidence([first, second])
    assert mean.throttled == pytest.approx(0.3)
    assert (mean.mount, mean.gpu_limits, mean.cpus) == ("/data (nfs4)", ("sw_power_cap",), 4)
