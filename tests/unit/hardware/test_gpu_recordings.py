"""Hangs of NCCL jobs as agents recorded them on two H200s (docs/gpu-validation.md): judged again, each gets the verdict that it got there.

`untouched`: nobody had touched the job; `hook`: under `mldebug run`; `denied`: that, and nobody may attach to a process; `figures`:
untouched, with the looks at the GPUs; `fifo`, `dump`, `server`: that, and the Flight Recorders had by this way.
Rank 1 is the one that was struck, so that nobody else may ever be named.
"""

import shutil
from pathlib import Path

import msgspec
import pytest

from mldebug.capture.nccl_ras.progress import behind, crossed
from mldebug.core.model import Diagnosis, NcclCommunicator, NcclRank, NodeCapture
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.incidents.incident import Incident
from mldebug.incidents.judge import judge as judge_incident
from mldebug.incidents.stored_evidence import load_evidence

RECORDED = Path(__file__).parents[2] / "fixtures" / "h200" / "hangs"
EXPECTED = {
    "untouched-sleep": ("rank_waiting", [1], "high"),
    "untouched-loop": ("rank_busy", [1], "medium"),
    "untouched-stop": ("rank_stopped", [1], "high"),
    "untouched-kill": ("rank_exited", [1], "high"),
    "untouched-oom": ("rank_busy", [1], "low"),
    "untouched-worker": ("dataloader_stalled", [1], "high"),
    "untouched-mismatch": ("collective_mismatch", [], "low"),
    "untouched-shape": ("unknown", [], "low"),
    "untouched-off_by_one": ("collective_mismatch", [], "low"),
    "untouched-kernel": ("unknown", [], "low"),
    "untouched-frozen": ("unknown", [], "low"),
    "hook-sleep": ("rank_waiting", [1], "high"),
    "hook-mismatch": ("collective_mismatch", [], "low"),
    "hook-shape": ("collective_mismatch", [], "low"),
    "hook-off_by_one": ("collective_mismatch", [], "medium"),
    "hook-kernel": ("unknown", [], "low"),
    "hook-frozen": ("unknown", [], "low"),
    "denied-sleep": ("rank_waiting", [1], "high"),
    "denied-mismatch": ("collective_mismatch", [], "low"),
    "denied-off_by_one": ("collective_mismatch", [], "medium"),
    "denied-kernel": ("unknown", [], "low"),
    "figures-sleep": ("rank_waiting", [1], "high"),
    "figures-loop": ("rank_busy", [1], "medium"),
    "figures-stop": ("rank_stopped", [1], "high"),
    "figures-oom": ("rank_busy", [1], "low"),
    "figures-worker": ("dataloader_stalled", [1], "high"),
    "figures-mismatch": ("collective_mismatch", [], "low"),
    "figures-shape": ("unknown", [], "low"),
    "figures-off_by_one": ("collective_mismatch", [], "low"),
    "figures-kernel": ("unknown", [], "low"),
    "figures-frozen": ("rank_waiting", [1], "low"),
    "figures-frozen_guessed": ("unknown", [], "low"),  # a convention alone told the GPU of rank 0
    "figures-hook_frozen": ("rank_waiting", [1], "low"),
    "fifo-sleep": ("rank_waiting", [1], "high"),
    "fifo-stop": ("rank_stopped", [1], "high"),
    "fifo-off_by_one": ("collective_mismatch", [], "medium"),
    "fifo-frozen": ("rank_waiting", [1], "low"),
    "dump-sleep": ("rank_waiting", [1], "high"),
    "dump-off_by_one": ("collective_mismatch", [], "low"),
    "dump-frozen": ("rank_waiting", [1], "low"),
    "server-sleep": ("rank_waiting", [1], "high"),
    "server-off_by_one": ("collective_mismatch", [], "medium"),
    "server-frozen": ("rank_waiting", [1], "low"),
    "full-sleep": ("rank_waiting", [1], "high"),  # recorders of 2,000 calls, asked by FIFO
    "full-off_by_one": ("collective_mismatch", [], "medium"),
    "full-frozen": (
        "rank_waiting",
        [1],
        "low",
    ),  # its SMs worked in a mean that began before the stall
    "gloo-denied-mismatch": ("collective_mismatch", [], "low"),  # named rank 0 once, which waits
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_hang_is_judged_as_it_was(name: str, tmp_path: Path) -> None:
    found = judged(RECORDED / f"{name}.json", tmp_path)
    named = [one.rank for one in found.culprits]
    assert (str(found.verdict), named, str(found.confidence)) == EXPECTED[name], found.summary


HEADS = {
    "untouched-kernel": "Both ranks wait for their GPU in Job.step (hangs.py:86), and have launched the same number of collectives (NCCL RAS): without Flight Recorders nobody can be told apart",
    "figures-kernel": "Both ranks wait for their GPU in Job.step (hangs.py:94), have launched the same number of collectives (NCCL RAS), and both GPUs spin: without Flight Recorders nobody can be told apart",
    "untouched-mismatch": "Both ranks wait: rank 0 waits for its GPU in Job.step (hangs.py:88); rank 1 waits for its GPU in share_settings (hangs.py:142), and what they have launched does not fit together: rank 0 has launched the most AllReduce (361), rank 1 has launched the most Broadcast (6)",
    "untouched-off_by_one": "Both ranks wait for their GPU in share (hangs.py:152), and what they have launched does not fit together: rank 0 has launched 60 AllReduce, the other up to 61; rank 1 has launched 415 AllReduce, the other up to 416",
    "hook-kernel": "Both ranks wait for their GPU in Job.step (hangs.py:88); both members of group 0 have called all_reduce 362 alike, and it does not end: nobody is behind, look at the GPUs and the network",
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_headline_says_all_that_is_known_and_nothing_twice(name: str, tmp_path: Path) -> None:
    assert judged(RECORDED / f"{name}.json", tmp_path).summary == HEADS[name]


def test_the_native_stack_of_one_rank_is_not_told_as_that_of_another(tmp_path: Path) -> None:
    """Rank 1 stood where rank 0 did, and its own was not read."""
    found = judged(RECORDED / "untouched-off_by_one.json", tmp_path)
    own = [one for one in found.evidence if one.startswith("rank 1: ")]
    assert own[0] == "rank 1: same stack and wait channel as rank 0, whose native stack was read"
    assert not any("native stack: " in one for one in own)


@pytest.mark.parametrize(("name", "known"), [("hook-kernel", True), ("untouched-kernel", False)])
def test_an_endless_kernel_names_the_setting_that_would_have_told_whose_it_is(
    name: str, known: bool, tmp_path: Path
) -> None:
    found = judged(RECORDED / f"{name}.json", tmp_path)
    assert any("TORCH_NCCL_ENABLE_TIMING=1" in one for one in found.next_steps) is known


def test_each_recording_is_judged() -> None:
    assert {file.stem for file in RECORDED.iterdir()} == set(EXPECTED)


def judged(file: Path, folder: Path) -> Diagnosis:
    """As `mldebug diagnose` does with the folder of a report."""
    prefix = "ending" if "kill" in file.stem else "capture-1"
    shutil.copy(file, folder / f"{prefix}-vm.json")
    result = load_evidence(folder)
    if result.exit is not None:
        return judge_incident(incident(result.exit)).diagnosis
    return diagnose(result.captures).diagnosis


def incident(ending: AttemptExit) -> Incident:
    """An end as the agent tells it."""
    return Incident(
        id="recorded", key=ending.job.id, job_id=ending.job.id, detected_at=0.0, why="recorded",
        state="ended", kind="abnormal_end", exit=ending,
    )  # fmt: skip


def test_communicators_of_other_processes_exclude_nothing() -> None:
    """Two groups that share one process may each lack somebody: a chain of waits, and no proof of two orders."""
    taken = msgspec.json.decode((RECORDED / "untouched-off_by_one.json").read_bytes(), type=NodeCapture)  # fmt: skip
    assert taken.ras is not None
    one, other = (each for each in taken.ras.communicators if behind(each))
    assert crossed([one, other]) == (one, other)
    (late,) = _late(other)
    moved = [msgspec.structs.replace(row, pid=None if row is late else 4711) for row in other.ranks]
    assert crossed([one, msgspec.structs.replace(other, ranks=tuple(moved))]) is None


def _late(one: NcclCommunicator) -> tuple[NcclRank, ...]:
    found = behind(one)
    assert found is not None
    return found.ranks
