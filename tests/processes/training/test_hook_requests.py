"""What a rank does when it is asked for a profile or its memory, in one process with the real torch.profiler: it gives way to the job."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.memory.hook_file import parse_failure
from processes.harness import JOBS, clean_environment
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the real profiler is PyTorch's")
SNAPSHOT = {
    "segments": [
        {
            "device": 0, "total_size": 400, "active_size": 300, "requested_size": 290,
            "blocks": [
                {
                    "size": 300, "requested_size": 290, "state": "active_allocated",
                    "frames": [{"filename": "/job/model.py", "line": 18, "name": "build"}],
                },
                {"size": 100, "state": "inactive", "frames": []},
            ],
        }
    ]
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("asked")
    snapshot = folder / "snapshot.json"
    snapshot.write_text(json.dumps(SNAPSHOT))
    env = clean_environment(folder) | {"RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, str(JOBS / "hook_requests.py"), str(snapshot)],
        check=False, capture_output=True, text=True, timeout=200, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(Path("/dev/shm").glob("mldebug-*trace*"))
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_the_next_steps_are_traced(found: dict[str, dict[str, Any]]) -> None:
    one = found["traced"]
    assert (one["state"], one["steps"], one["last"] - one["first"]) == ("done", 2, 1)
    assert 0 < one["starting"] < 60
    assert 0 < one["writing"] < 60


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("profiles_itself", "the job profiles itself"),
        ("begins_to_profile_itself", "the job began to profile itself"),
        ("forks", "the job forked a process meanwhile"),
        ("evaluates", "evaluate began meanwhile"),
        ("too_late", "no step has ended in time"),
        ("no_room", "shared memory (/dev/shm) has too little room for the trace"),
        ("memory_unarmed", "the job was not started with `mldebug run --memory-history`"),
    ],
)
def test_it_gives_way_and_says_why(found: dict[str, dict[str, Any]], case: str, why: str) -> None:
    assert (found[case]["state"], found[case]["why"]) == ("declined", why)


def test_the_jobs_own_profile_is_whole_and_a_child_is_not_profiled(
    found: dict[str, dict[str, Any]],
) -> None:
    assert found["profiles_itself"]["mine"] > 10
    assert found["begins_to_profile_itself"]["mine"] > 10
    assert found["forks"]["child"] == 0


def test_too_many_events_are_not_written(found: dict[str, dict[str, Any]]) -> None:
    assert found["too_many"]["state"] == "declined"
    assert found["too_many"]["why"].endswith("events are too many: ask for fewer steps")


def test_waiting_for_data_belongs_to_a_step(found: dict[str, dict[str, Any]]) -> None:
    assert found["loads_data"]["state"] == "done"


def test_a_cuda_graph_that_is_recorded_is_left_alone(found: dict[str, dict[str, Any]]) -> None:
    one = found["records_a_graph"]
    assert (one["begun"], one["still"], one["state"], one["clean"]) == (False, True, "done", True)


def test_one_request_at_a_time(found: dict[str, dict[str, Any]]) -> None:
    assert found["asked_twice"]["second"] == "it works on another request"


@pytest.mark.parametrize("case", ["others_may_write", "a_link"])
def test_a_request_that_another_may_have_written_is_not_obeyed(
    found: dict[str, dict[str, Any]], case: str
) -> None:
    assert found[case]["number"] == found["asked_twice"]["number"]  # the one before


def test_a_request_that_was_left_behind_is_taken_away_and_not_obeyed(
    found: dict[str, dict[str, Any]],
) -> None:
    assert (found["left_behind"]["lies_there"], found["left_behind"]["number"] == 998) == (False, False)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "state", "why"),
    [
        ("two_threads_step", "done", ""),
        ("another_thread_is_too_late", "declined", "no step has ended in time"),
        ("another_thread_profiles", "declined", "the job began to profile itself"),
        ("another_thread_does_not_wait_for_ever", "declined", "the job began to profile itself"),
        ("another_thread_profiled_before", "declined", "the job profiles itself"),
    ],
)
def test_only_the_thread_that_began_the_profiler_ends_it(
    found: dict[str, dict[str, Any]], case: str, state: str, why: str
) -> None:
    one = found[case]
    assert (one["state"], one.get("why", ""), one["clean"]) == (state, why, True)
    assert found["two_threads_step"]["amid"]
    assert found["another_thread_profiles"]["mine"] > 5
    assert found["another_thread_profiled_before"]["mine"] > 5


def test_a_request_for_which_nobody_waits_ends_at_the_next_step(
    found: dict[str, dict[str, Any]],
) -> None:
    for case in ("nobody_waits", "nobody_waits_for_the_first_step"):
        one = found[case]
        assert (one["state"], one["why"], one["clean"]) == ("declined", "nobody waits for it any more", True)  # fmt: skip
    assert (found["nobody_waits"]["amid"], found["nobody_waits"]["next"]) == (True, "done")
    assert found["nobody_waits_for_another"]["state"] == "done"


def test_an_unknown_request_is_not_obeyed(found: dict[str, dict[str, Any]]) -> None:
    assert found["unknown"].keys() == {"clean"}


def test_nothing_stays(found: dict[str, dict[str, Any]]) -> None:
    assert found["let_go"] == {"clean": True, "still_open": False, "task": False}
    assert found["descriptors"]["more"] == 0
    assert all(one.get("clean", True) for one in found.values()), found


def test_memory_is_told_where_the_job_was_armed(found: dict[str, dict[str, Any]]) -> None:
    one = found["memory_armed"]
    assert (one["early"], one["state"]) == ("CUDA is not used yet", "done")
    failure = parse_failure(json.dumps(one["file"]).encode())
    assert [(line.place, line.memory_bytes) for line in failure.holders.lines] == [
        ("build (model.py:18)", 300)
    ]
    assert (failure.requested, failure.capacity, failure.free) == (0, 80 << 30, 1 << 30)
