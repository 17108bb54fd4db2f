"""Which fields a struct takes over from another by their names: a new one of equal name and type is a decision, so it is listed here."""

import msgspec
import pytest

from mldebug.core.model import Job, ProcessState, RankIdentity, shared_fields
from mldebug.goodput.account.job_account import JobAccount
from mldebug.goodput.account.job_goodput import JobGoodput
from mldebug.goodput.scalars.history import RunHistory
from mldebug.goodput.scalars.stored_training import StoredTraining
from mldebug.status.snapshot import RunState
from mldebug_agents.jobs.launcher import RankClaim
from mldebug_agents.jobs.ranks.registry import ProcessInfo
from mldebug_agents.system.procfs import ProcessStatus, Stat

RUN = "id name launcher attempt user uid world_size"


@pytest.mark.parametrize(
    ("source", "kind", "fields"),
    [
        (Job(id="j", name="a", launcher="torchrun"), RunState, RUN),
        (RunState(id="j", name="a", launcher="torchrun"), Job, RUN),
        (Stat(pid=1), ProcessState, "pid name state ppid start_ticks"),
        (
            ProcessStatus(),
            ProcessState,
            "uid tracer_pid pending_signals caught_signals rss_bytes",
        ),
        (
            ProcessInfo(stat=Stat(pid=1)),
            RankIdentity,
            "argv script uid owner namespace_pid nccl_ras array container",
        ),
        (
            RankClaim(launcher="torchrun", priority=1, rank=0, world_size=1),
            RankIdentity,
            "launcher rank world_size local_rank local_world_size run_id attempt master",
        ),
        (
            JobAccount(name="a", user="u", uid=1, script="s", began=1.0, at=2.0, restarts=3),
            JobGoodput,
            "name user uid script began at restarts",
        ),
        (
            StoredTraining(
                run="r", name="a", user="u", uid=1, script="s", started_at=1.0, looked_at=2.0
            ),
            RunHistory,
            "run name user uid script started_at",
        ),
    ],
)
def test_these_are_taken_over(
    source: msgspec.Struct, kind: type[msgspec.Struct], fields: str
) -> None:
    shared = shared_fields(source, kind)
    assert set(shared) == set(fields.split())
    assert all(getattr(source, name) == value for name, value in shared.items())


def test_what_only_shares_its_name_is_not_taken_over() -> None:
    assert "threads" not in shared_fields(Stat(pid=1, threads=7), ProcessState)
    assert "exit_status" not in shared_fields(Stat(pid=1, exit_status=9), ProcessState)
