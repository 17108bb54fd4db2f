"""Three real processes of JAX on CPUs, one of which goes astray: `mldebug dump` and an agent name it.

Where JAX is not installed beside the tests, `MLDEBUG_TEST_JAX` may say the Python of another environment that has it.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from processes.harness import (
    JOBS,
    MARK,
    Plan,
    RunningJob,
    clean_environment,
    folder_for,
    free_port,
    mldebug,
    wait_for,
)
from processes.incidents.watching import settings, watching
from processes.training.test_frameworks import NEEDED

PYTHON = os.environ.get("MLDEBUG_TEST_JAX", sys.executable)
WORLD, STRUCK = 3, 1
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
if sys.executable == PYTHON and find_spec("jax") is None and not os.environ.get(NEEDED):
    pytest.skip("JAX is not installed: make test-frameworks", allow_module_level=True)

FAULTS = {
    "sleep": ("rank_waiting", "sleeps in prepare_batch"),
    "loop": ("rank_busy", "runs prepare_batch"),
    "fifo": ("rank_blocked_io", "waits to open a FIFO"),
    "branch": ("collective_mismatch", "waits in process_allgather at evaluate"),
    "raise": ("collective_mismatch", "waits in jax.distributed.shutdown"),
    "callback": ("rank_waiting", "sleeps in read_feature"),
    "trace": ("rank_waiting", "sleeps in trace_slowly.<locals>.layer"),
    "dead_thread": ("rank_waiting", "thread prefetcher of rank 1 died with OSError: shard-7.arrayrecord"),
    "key": ("init_incomplete", "wait for a key or barrier of JAX's coordination service in wait_for_key"),
    "global_barrier": ("collective_mismatch", "waits in sync_global_devices"),
    "grain": ("rank_waiting", "sleeps in Shards.__getitem__"),
    "grain_worker": ("rank_waiting", "Shards.__getitem__"),
}  # fmt: skip
NOBODY = {
    "broadcast": "different collectives",
    "service_barrier": "all 3 ranks wait",
    "service_key": "all 3 ranks wait",
}
"""One process waits for others where stacks do not tell who of them has left the common path."""


ENDS = {"killed": "SIGKILL", "trace_dies": "SIGSEGV", "coordinator": "SIGKILL"}


class JaxJob(RunningJob):
    """Three processes that find each other by JAX's own coordinator."""

    def start(self) -> None:
        """Start them one by one, each told its number by JAX's variables."""
        os.mkfifo(self.events / "fifo")
        address = f"127.0.0.1:{free_port()}"
        for rank in range(WORLD):
            environment = clean_environment(self.folder) | {MARK: self.mark, "JAX_PLATFORMS": "cpu"}
            environment |= {"JAX_PROCESS_ID": str(rank), "JAX_NUM_PROCESSES": str(WORLD)}
            script = str(JOBS / "jax_faults.py")
            with self.log.open("ab") as log:
                self.started.append(
                    subprocess.Popen(
                        [PYTHON, "-u", script, self.plan.fault, str(self.events), address],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                        cwd=self.folder, start_new_session=True,
                    )
                )  # fmt: skip


@contextmanager
def jax_job(fault: str) -> Iterator[JaxJob]:
    """Such a job; at the end nothing of it is left."""
    struck = {"coordinator": (0,), "key": tuple(range(WORLD))}.get(fault, (STRUCK,))
    plan = Plan(fault, struck=struck, world_size=WORLD, launch=tuple(range(WORLD)))
    with folder_for(plan.user) as folder:
        job = JaxJob(plan, folder)
        job.mark, job.began = uuid.uuid4().hex, time.time()
        try:
            job.start()
            yield job
        finally:
            job.end()


def stuck(fault: str) -> dict[str, Any]:
    """What `mldebug dump` says of a job that this fault has struck."""
    with jax_job(fault) as job:
        job.wait_until_stuck(busy=(STRUCK,) if fault == "loop" else ())
        report = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report
    assert len(report["ranks"]) == WORLD
    found: dict[str, Any] = report["diagnosis"]
    print(f"{fault}: {found['confidence']} {found['verdict']} {found['summary']}")
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_the_process_that_goes_astray_is_named(fault: str) -> None:
    if fault.startswith("grain"):
        pytest.importorskip("grain")
    verdict, words = FAULTS[fault]
    found = stuck(fault)

    assert (found["verdict"], named(found)) == (verdict, [STRUCK]), found["summary"]
    assert words in found["summary"]


@pytest.mark.parametrize("fault", NOBODY)
def test_nobody_is_named_where_each_may_have_left_the_common_path(fault: str) -> None:
    found = stuck(fault)

    assert (named(found), found["confidence"]) == ([], "low"), found["summary"]
    assert NOBODY[fault] in found["summary"].lower()


@pytest.mark.parametrize("fault", ENDS)
def test_an_agent_tells_who_died(fault: str) -> None:
    """`coordinator`: the service of JAX that all others end with."""
    with folder_for(Plan().user) as folder, watching(folder, settings(folder)) as agent, jax_job(fault) as job:  # fmt: skip
        job.wait_for_event("strike", job.plan.struck)
        report = wait_for("the report", lambda: next(iter(agent.reports()), None), 120)
    found = report["diagnosis"]

    assert (found["verdict"], named(found)) == ("rank_exited", list(job.plan.struck)), found["summary"]  # fmt: skip
    assert ENDS[fault] in found["summary"]


def named(diagnosis: dict[str, Any]) -> list[int]:
    """The ranks that it names."""
    return [culprit["rank"] for culprit in diagnosis["culprits"]]
