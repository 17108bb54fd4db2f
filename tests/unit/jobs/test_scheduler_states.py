"""What schedulers print, and what is concluded from it: every version's JSON, text, odd names, nothing at all."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.jobs.schedulers import slurm_json, slurm_text
from mldebug.jobs.schedulers.expected_jobs import JobPattern, watched_state
from mldebug.jobs.schedulers.model import JobStanding, Queue, QueueError, QueueJob
from mldebug.jobs.schedulers.orphans import LivingJobs, OrphanSuspect, find_orphans, step_job
from mldebug.jobs.schedulers.slurm_states import node_trouble, standing_of

FIXTURES = Path(__file__).parents[2] / "fixtures/slurm"
NOW = 1_795_483_100.0
MARK = "@f00d@"


def recorded() -> dict[str, QueueJob]:
    """A real Slurm 22.05 with a running job, an array, and three that wait."""
    return {
        one.id: one for one in slurm_json.read_jobs((FIXTURES / "squeue-22.05.json").read_bytes())
    }


def set_to(value: int | None) -> dict[str, Any]:
    """As data_parser 0.0.39 and later write a number."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def test_a_recorded_queue_is_read() -> None:
    jobs = recorded()
    assert set(jobs) == {"1", "2_1", "2_[2-10%1]", "3", "4", "5"}
    assert jobs["1"].name == "my träin\n ing"
    assert jobs["1"].ends == 1_795_484_224  # 20 minutes after its start
    assert jobs["2_1"].ends is None  # no limit, though Slurm tells an end in a year
    assert jobs["2_[2-10%1]"].reason == "JobArrayTaskLimit"
    assert jobs["3"].reason.startswith("Resources: Nodes required for job are DOWN")
    assert jobs["4"].starts == 1_795_486_622
    assert jobs["5"].reason == "Dependency"
    assert {jobs[one].standing for one in ("2_[2-10%1]", "3", "4", "5")} == {JobStanding.QUEUED}
    (node,) = slurm_json.read_nodes((FIXTURES / "sinfo-22.05.json").read_bytes())
    assert (node.name, node.state, node.reason) == ("a2", "draining", "bad disk | ünder test")


@pytest.mark.parametrize("word", ["RUNNING", ["RUNNING"]])
@pytest.mark.parametrize("wrap", [lambda n: n, set_to])
def test_all_shapes_of_a_field_mean_the_same(word: object, wrap: Any) -> None:
    job = {
        "job_id": 7, "name": "x", "job_state": word, "user_name": "ada", "array_job_id": wrap(5),
        "array_task_id": wrap(3), "array_task_string": "", "submit_time": wrap(100), "start_time": wrap(200),
        "end_time": wrap(900), "time_limit": wrap(10), "nodes": "n1", "state_reason": "None",
    }  # fmt: skip
    (read,) = slurm_json.read_jobs(json.dumps({"jobs": [job], "errors": []}).encode())
    assert read == QueueJob(
        id="5_3", number="7", name="x", state="RUNNING", standing=JobStanding.RUNNING, user="ada",
        nodes="n1", submitted=100.0, started=200.0, ends=900.0,
    )  # fmt: skip


@pytest.mark.parametrize("limit", [None, {"set": False, "infinite": True, "number": 0}, {"set": True, "infinite": True, "number": 0}])  # fmt: skip
def test_no_time_limit_is_no_end(limit: object) -> None:
    job = {"job_id": 7, "job_state": "RUNNING", "time_limit": limit, "end_time": set_to(900)}
    assert slurm_json.read_jobs(json.dumps({"jobs": [job]}).encode())[0].ends is None


def test_nodes_of_later_versions() -> None:
    facts = {
        "sinfo": [
            {"node": {"state": ["IDLE", "DRAIN"]}, "nodes": {"nodes": ["n1", "n2"]}, "reason": {"description": "fan"}},
            {"node": {"state": ["MIXED", "DRAIN"]}, "nodes": {"nodes": ["n3"]}, "reason": {"description": "disk"}},
            {"node": {"state": ["IDLE"]}, "nodes": {"nodes": ["n4"]}},
            {"node": {"state": ["DOWN", "NOT_RESPONDING"]}, "nodes": {"nodes": ["n5"]}, "reason": "gone"},
        ]
    }  # fmt: skip
    read = slurm_json.read_nodes(json.dumps(facts).encode())
    assert [(one.name, one.state, one.reason) for one in read] == [
        ("n1", "drained", "fan"), ("n2", "drained", "fan"), ("n3", "draining", "disk"), ("n5", "down", "gone"),
    ]  # fmt: skip
    assert node_trouble(["idle*"]) == ""
    assert node_trouble(["DOWN*+DRAIN"]) == "drained"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{}", b'{"jobs": 3}', b"slurm_load_jobs error: Unable to contact", b'{"jobs": [', b"[" * 100_000, "Größe".encode("latin-1")],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_queue_is_refused_and_never_taken_for_an_empty_one(data: bytes) -> None:
    with pytest.raises(QueueError):
        slurm_json.read_jobs(data)
    with pytest.raises(QueueError):
        slurm_json.read_nodes(data)


def test_an_error_in_the_answer_is_no_empty_queue() -> None:
    with pytest.raises(QueueError, match="not authorized"):
        slurm_json.read_jobs(b'{"jobs": [], "errors": [{"description": "not authorized"}]}')
    assert slurm_json.read_jobs(b'{"jobs": [], "errors": []}') == ()


def record(*fields: str) -> str:
    """One line of squeue."""
    return MARK + "|".join(fields) + "\n"


def test_names_with_bars_and_newlines_are_no_other_jobs() -> None:
    times = ("2026-11-24T01:17:04", "2026-11-24T01:37:04", "20:00", "2026-11-24T01:17:02")
    lie = "a|b\n 99|99|root|RUNNING|my-training\t\x1b[31m"
    text = record("1", "1", "ada", "RUNNING", *times, "all", "a1", "None", lie)
    text += record("2", "2_[2-10%1]", "bob", "PENDING", "N/A", "N/A", "UNLIMITED", times[3], "all", "", "Dependency", "müller")  # fmt: skip
    first, second = slurm_text.read_jobs(text, MARK)
    assert (first.name, first.user, first.ends) == (lie, "ada", 1_795_484_224.0)
    assert (second.id, second.reason, second.name) == ("2_[2-10%1]", "Dependency", "müller")
    assert (second.starts, second.ends, second.nodes) == (None, None, "")


@pytest.mark.parametrize("text", ["JOBID PARTITION NAME\n", MARK + "1|2\n", "Fehler: unbekannt\n"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(QueueError):
        slurm_text.read_jobs(text, MARK)
    assert slurm_text.read_jobs("", MARK) == ()


def test_states() -> None:
    assert standing_of(["RUNNING", "COMPLETING"]) == ("COMPLETING", JobStanding.ENDING)
    assert standing_of(["COMPLETED"]) == ("COMPLETED", JobStanding.OVER)
    assert standing_of(["PENDING", "REQUEUED"]) == ("PENDING", JobStanding.QUEUED)
    assert standing_of(["A_NEW_WORD"]) == ("A_NEW_WORD", JobStanding.QUEUED)


def test_a_watch_tells_missing_blocked_and_near() -> None:
    queue = Queue(jobs=tuple(recorded().values()))
    (first,) = [one for one in queue.jobs if one.id == "1"]
    near = watched_state("w", JobPattern(name="my *"), queue, (first.ends or 0) - 600, 900)
    assert (near.missing, [one.id for one in near.near]) == (False, ["1"])
    assert "its time limit ends it in 10 min" in near.sentence
    assert watched_state("w", JobPattern(name="my *"), queue, NOW, 900).near == ()
    array = watched_state("w", JobPattern(id="2"), queue, NOW, 900)
    assert array.counts == {"running": 1, "queued": 1}
    waits = watched_state("w", JobPattern(name="dep", user="root"), queue, NOW, 900)
    assert "pending for" in waits.sentence
    assert "(Dependency)" in waits.sentence
    missing = watched_state("w", JobPattern(name="my-training"), queue, NOW, 900)
    assert missing.missing
    assert missing.sentence == "no job named my-training is running or queued"
    held = msgspec.structs.replace(first, standing=JobStanding.QUEUED, reason="JobHeldUser")
    assert watched_state("w", JobPattern(), Queue(jobs=(held,)), NOW, 900).blocked == (held,)
    over = msgspec.structs.replace(first, standing=JobStanding.OVER, state="CANCELLED")
    gone = watched_state("w", JobPattern(name="my *"), Queue(jobs=(over,)), NOW, 900)
    assert gone.missing
    assert "cancelled" in gone.sentence
    assert "\n" not in gone.sentence


# --- orphans -------------------------------------------------------------------------------------


def suspect(pid: int = 9, *ancestors: str, gpu: bool = False, **variables: str) -> OrphanSuspect:
    """One process."""
    return OrphanSuspect(
        pid=pid, start_ticks=1, name="python", ancestors=ancestors, variables=variables, holds_gpu=gpu
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "known", "orphan"),
    [
        (suspect(9, "systemd", SLURM_JOB_ID="7", SLURM_PROCID="3"), LivingJobs(slurmd=True), True),
        (suspect(9, "systemd", SLURM_JOB_ID="7", RANK="3"), LivingJobs(alive=frozenset()), True),
        (suspect(9, "systemd", SLURM_JOB_ID="7", gpu=True), LivingJobs(slurmd=True), True),
        # a shell or a pager, neither a rank nor on a GPU
        (suspect(9, "systemd", SLURM_JOB_ID="7"), LivingJobs(slurmd=True), False),
        # a helper of a job that is there
        (suspect(9, "systemd", SLURM_JOB_ID="7", RANK="3"), LivingJobs(slurmd=True, steps=frozenset({"7"})), False),
        (suspect(9, "systemd", SLURM_JOB_ID="7", RANK="3"), LivingJobs(slurmd=True, alive=frozenset({"7"})), False),
        # on a login node, and nothing is known
        (suspect(9, "bash", "salloc", SLURM_JOB_ID="7", RANK="3"), LivingJobs(slurmd=True), False),
        (suspect(9, "systemd", SLURM_JOB_ID="7", RANK="3"), LivingJobs(), False),
        # an epilog
        (suspect(9, "slurmd", "systemd", SLURM_JOB_ID="7", RANK="3"), LivingJobs(slurmd=True), False),
        (suspect(9, "systemd", SLURM_JOB_ID="x7", RANK="3"), LivingJobs(slurmd=True), False),
        (suspect(9, "systemd", TORCHELASTIC_RUN_ID="a", RANK="3"), LivingJobs(), True),
        (suspect(9, "systemd", "systemd", TORCHELASTIC_RUN_ID="a", RANK="3"), LivingJobs(), True),
        (suspect(9, "python", "systemd", TORCHELASTIC_RUN_ID="a", RANK="3"), LivingJobs(), False),
        (suspect(9, "torchrun", TORCHELASTIC_RUN_ID="a", RANK="3"), LivingJobs(), False),
        (suspect(9, "systemd", RANK="3"), LivingJobs(), False),
    ],
)  # fmt: skip
def test_who_is_an_orphan(one: OrphanSuspect, known: LivingJobs, orphan: bool) -> None:
    assert bool(list(find_orphans([one], known))) is orphan


def test_a_helper_of_a_launch_that_lives_is_none() -> None:
    rank = suspect(8, "python", "systemd", TORCHELASTIC_RUN_ID="a", RANK="0")
    helper = suspect(9, "systemd", TORCHELASTIC_RUN_ID="a", RANK="0")
    assert list(find_orphans([rank, helper], LivingJobs())) == []
    assert [one.pid for one, _ in find_orphans([helper], LivingJobs())] == [9]


def test_the_title_of_a_step_names_its_job() -> None:
    assert step_job("slurmstepd: [17.batch]\0") == "17"
    assert step_job("slurmstepd: [17.0]") == "17"
    assert step_job("slurmstepd\0infinity\0") == ""
