"""Ends that people have met, played by real jobs under torchrun beside a real agent: who is named, and never who only spoke first."""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from processes.harness import JOBS, SCRIPTS, Plan, RunningJob, folder_for, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch
from shared.diagnosis.fieldcases import FIELD, Answer, Case, all_cases, faults_of
from shared.diagnosis.fieldexits import attempt_of
from shared.storage.disks import disk

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the jobs run under torchrun")

STALL = "{timeout: 30s, init_timeout: 60s, interval: 1s}"
SOON = 60.0  # seconds from the end to its report
EXITS = FIELD / "exits"
CASES: tuple[Case, ...] = next(some.cases for some in all_cases() if some.folder == EXITS)
# one of each kind of words; the others run with the long ones
SHOWN = (
    "nccl-system-error",
    "watchdog-stamped",
    "watchdog-own-cuda-error",
    "victim-behind-bar",
    "horovod",
    "own-error-with-peer-in-it",
)
LIVE = (
    Case(name="detail_mismatch", how="live", input="", what="", right="rank 2, or nobody where too few could speak", named=((2,), ()), say=("Detected mismatch",)),
    Case(name="monitored_barrier", how="live", input="", what="", right="rank 2, or nobody", named=((2,), ()), say=("monitored ?[Bb]arrier",)),
    Case(name="other_size", how="live", input="", what="", right="rank 2, or nobody", named=((2,), ())),
    Case(name="error_behind_bar", how="live", input="", what="", right="rank 2", named=((2,),), say=("bad magic",)),
    Case(name="leaves_with_0", how="live", input="", what="", right="rank 3", named=((3,),), say=("left early with exit code 0",)),
    Case(name="late_store", how="live", input="", what="", right="rank 0, or nobody", named=((0,), ())),
    Case(name="late_start", how="live", input="", what="", right="rank 2, or nobody", named=((2,), ()), say=("[Tt]imed out|timeout",)),
)  # fmt: skip


class FieldExit(RunningJob):
    """A job that ends when it may. `torchrun`: more options of it."""

    def __init__(
        self,
        folder: Path,
        script: tuple[str, ...],
        torchrun: tuple[str, ...] = (),
        more: Mapping[str, str] = {},
    ) -> None:
        self.more = more
        super().__init__(Plan(), folder)
        self.script = [str(JOBS / script[0]), str(self.events), *script[1:]]
        self.torchrun = torchrun

    def start(self) -> None:
        """Four ranks under torchrun."""
        launcher = [str(SCRIPTS / "torchrun"), "--standalone", "--nproc-per-node", "4"]
        self._spawn([*launcher, *self.torchrun, *self.script], self.environment())

    def environment(self) -> dict[str, str]:
        """What `detail_mismatch` needs, and `more`."""
        detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if "detail_mismatch" in self.script else {}
        return {**detail, **self.more}


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """An agent for all of them."""
    with folder_for(Plan().user) as folder, watching(folder, settings(folder, stall=STALL)) as one:
        yield one


def _ended(agent: RunningAgent, job: FieldExit) -> Report:
    """Let it end once the agent knows its ranks and has looked again, and take its last report."""
    job.wait_for_event("started", (0, 1, 2, 3))

    def known() -> bool:
        run = agent.run_of(job)
        return run is not None and set(run.ranks.values()) == set(job.ranks.values())

    wait_for("the agent to know the job", known, 60)
    looked = agent.snapshot()
    assert looked is not None
    wait_for("one more look", lambda: (s := agent.snapshot()) and s.at > looked.at + 2.0, 30)
    (job.events / "go").touch()

    def over() -> Report | None:
        return next((one for one in agent.reports(job) if one["state"] == "ended"), None)

    report: Report = wait_for("the report of its end", over, SOON)
    return report


def _check(report: dict[str, Any], case: Case, tail: str) -> None:
    found = report["diagnosis"]
    words = " ".join((found["verdict"], found["summary"], *found["evidence"]))
    named = tuple(sorted(one["rank"] for one in found["culprits"] if one["rank"] is not None))
    answer = Answer(verdict=found["verdict"], named=named, confidence=found["confidence"], words=words)  # fmt: skip
    print(f"{case.name}: {answer.confidence} {words}")
    assert faults_of(case, answer) == [], f"{words}\n{tail}"


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_a_real_job_names_who_began_its_end(case: Case, agent: RunningAgent) -> None:
    with folder_for(Plan().user) as folder:
        job = FieldExit(folder, ("field_exits.py", case.name))
        try:
            job.start()
            _check(_ended(agent, job), case, job.tail())
        finally:
            job.end()


def test_an_end_for_want_of_space_names_the_full_disk(tmp_path: Path) -> None:
    with folder_for(Plan().user) as folder, disk(tmp_path, "ext4", size=16 << 20) as full:
        config = f"{settings(folder, stall=STALL)}storage: {{interval: 2s}}\n"
        with watching(folder, config) as agent:
            job = FieldExit(folder, ("field_exits.py", "no_space"), more={"NO_SPACE": str(full)})
            try:
                job.start()
                job.wait_for_event("started", (0, 1, 2, 3))
                wait_for("the full disk", lambda: _is_seen_full(agent, full), 60)
                found = _ended(agent, job)["diagnosis"]
            finally:
                job.end()
    assert found["verdict"] == "storage_fault", found
    assert [(one["kind"], one["rank"]) for one in found["culprits"]] == [("mount", 2)]
    assert f"{full} is full" in found["summary"]


def _is_seen_full(agent: RunningAgent, disk: Path) -> bool:
    snap = agent.snapshot()
    rows = snap.storage.rows.get("filesystems", ()) if snap and snap.storage else ()
    return any(row["mount"] == str(disk) and float(row["used_ratio"] or 0) > 0.98 for row in rows)


def _is_short(case: Case) -> bool:
    """Whether all who end by themselves do so within seconds: the others are judged without waiting for them."""
    exits = attempt_of(EXITS / case.input, case.world).exits
    return max(one.at for one in exits if one.status != signal.SIGTERM) < 1000.0 + SOON / 2


def _plans() -> list[Any]:
    return [
        pytest.param(case, id=case.name, marks=() if case.name in SHOWN else pytest.mark.long)
        for case in CASES
        if case.world == 4 and _is_short(case)
    ]


@pytest.mark.parametrize("case", _plans())
def test_recorded_words_at_an_end_name_who_began_it(case: Case, agent: RunningAgent) -> None:
    tee = ("--tee", "3") if case.name == "watchdog-own-cuda-error" else ()
    with folder_for(Plan().user) as folder:
        job = FieldExit(folder, ("field_plan.py", str(EXITS / case.input)), tee)
        try:
            job.start()
            _check(_ended(agent, job), case, job.tail())
        finally:
            job.end()
